/* SPDX-License-Identifier: MIT */
#include "comm/comm_setup.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/order.h"
#include "bootstrap/meet_internal.h"
#include "ipc/channel.h"
#include "store/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    KEY_BYTES = COMM_NAME_BYTES + 48,
    /* A process that ends closes its connections first; a rank that gives up writes its error
     * first. Both may be slow on a busy machine. */
    NEWS_MS = 1000,
    NEWS_LOOK_MS = 5,
    STORE_NEWS_MS = 250,
};

/* The error of the first rank that gave up. */
struct words {
    int32_t status;
    int32_t rank;
    char text[MEET_TEXT_BYTES];
};

static enum tutti_status ask_aborted(void *context)
{
    const struct comm_setup *self = context;
    return order_load_relaxed_u32(&self->comm->cpu.aborted)
               ? error_set(TUTTI_ERR_ABORTED, "aborted while the ranks met")
               : TUTTI_OK;
}

/* A view for a moment: the store may be silent. */
static struct tutti_store view_of(const struct comm_setup *self, char key[KEY_BYTES])
{
    snprintf(key, KEY_BYTES, "tutti/%s/%" PRId64 "/why", self->comm->name, self->comm->generation);
    return store_bounded(self->comm->store, deadline_after(STORE_GRACE_MS), NULL);
}

/* OK if nobody has left an error. */
static enum tutti_status ask_words(const struct comm_setup *self)
{
    struct words words;
    char key[KEY_BYTES];
    bool there = false;
    if (!self->comm->generation)
        return TUTTI_OK;
    struct tutti_store view = view_of(self, key);
    if (store_look_up(&view, key, &words, sizeof words, &there) != TUTTI_OK || !there ||
        words.status == TUTTI_OK)
        return TUTTI_OK;
    const int bytes = (int)sizeof words.text - 1;
    if (words.status == TUTTI_ERR_ABORTED)
        return error_set(TUTTI_ERR_PEER_DEAD,
                         "rank %d ended, or gave up, while the ranks met (%.*s): look at its log, "
                         "then restart the group",
                         words.rank, bytes, words.text);
    const enum tutti_status status = error_told(words.status);
    if (status == TUTTI_ERR_TIMEOUT || status == TUTTI_ERR_PEER_DEAD ||
        status == TUTTI_ERR_MISMATCH || status == TUTTI_ERR_VERSION) /* of the ranks together */
        return error_set(status, "%.*s (noticed by rank %d)", bytes, words.text, words.rank);
    return error_set(status, "rank %d could not take part: %.*s: look at its log", words.rank,
                     bytes, words.text);
}

/* A rank that has given up has left its words before its process ended. */
static enum tutti_status ask_ended(const struct comm_setup *self)
{
    uint64_t dead = 0;
    for (int r = 0; r < self->comm->world_size; r++)
        if (process_has_ended(&self->processes[r], &self->self))
            dead |= UINT64_C(1) << r;
    enum tutti_status status = dead ? ask_words(self) : TUTTI_OK;
    return status == TUTTI_OK && dead ? meet_dead_error(dead) : status;
}

static enum tutti_status ask_why(void *context)
{
    const struct comm_setup *self = context;
    int64_t deadline = deadline_after(NEWS_MS);
    for (;;) {
        enum tutti_status status = ask_ended(self);
        if (status == TUTTI_OK)
            status = ask_words(self);
        if (status == TUTTI_OK)
            status = ask_aborted(context);
        if (status != TUTTI_OK || deadline_passed(deadline))
            return status;
        nanosleep(&(struct timespec){.tv_nsec = NEWS_LOOK_MS * 1000000}, NULL);
    }
}

/* Once the ranks have connected, the channel shows a rank that has given up. */
static enum tutti_status ask_pointless(void *context)
{
    const struct comm_setup *self = context;
    const struct tutti_comm *comm = self->comm;
    enum tutti_status status = ask_ended(self);
    int r = 0;
    while (r < comm->world_size && (!comm->cpu.channel || !(comm->cpu.remote >> r & 1) ||
                                    channel_peer_alive(comm->cpu.channel, r)))
        r++;
    if (status != TUTTI_OK || r == comm->world_size)
        return status;
    status = ask_why(context);
    if (status != TUTTI_OK)
        return status;
    return error_set(TUTTI_ERR_PEER_DEAD,
                     "rank %d ended, or gave up, while the ranks met: look at rank %d's log, then "
                     "restart the group",
                     r, r);
}

/* The first rank's error stands. */
static void tell(void *context, enum tutti_status why)
{
    struct comm_setup *self = context;
    struct words words = {.status = (int32_t)why, .rank = self->comm->rank}, unused;
    char key[KEY_BYTES];
    if (self->told || !self->comm->generation)
        return;
    self->told = true;
    snprintf(words.text, sizeof words.text, "%s", tutti_last_error());
    struct tutti_store view = view_of(self, key);
    (void)tutti_store_compare_set(&view, key, NULL, 0, &words, sizeof words, &unused, sizeof unused,
                                  NULL);
    error_set(why, "%s", words.text);
}

void comm_setup_begin(struct comm_setup *self, struct tutti_comm *comm)
{
    memset(self, 0, sizeof *self);
    self->comm = comm;
    self->interrupt = (struct interrupt){
        .ask = ask_aborted,
        .ask_pointless = ask_pointless,
        .ask_why = ask_why,
        .tell = tell,
        .context = self,
    };
    process_identify(&self->self);
    comm->setup = self;
}

enum tutti_status comm_setup_end(struct comm_setup *self, enum tutti_status status)
{
    int64_t deadline = deadline_after(STORE_NEWS_MS);
    char text[MEET_TEXT_BYTES];
    self->comm->setup = NULL;
    if (status != TUTTI_OK && status != TUTTI_ERR_SYSTEM)
        tell(self, status);
    if (status != TUTTI_ERR_SYSTEM)
        return status;
    snprintf(text, sizeof text, "%s", tutti_last_error());
    do {
        enum tutti_status ended = ask_ended(self);
        if (ended != TUTTI_OK)
            return ended;
        nanosleep(&(struct timespec){.tv_nsec = NEWS_LOOK_MS * 1000000}, NULL);
    } while (!deadline_passed(deadline));
    return error_set(status, "%s", text);
}
