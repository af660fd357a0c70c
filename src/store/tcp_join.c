/* SPDX-License-Identifier: MIT */
/*
 * How ranks join a tcp store. As PyTorch's store does it, each rank counts itself under
 * TCP_JOIN_KEY, and the rank that serves waits until all have come, so that the server does not end
 * earlier. What Tutti adds:
 *   init/open  exists from the server's start until all have joined. If they do not come in time
 *              the rank that serves writes its error there, and serves until the others have left
 *   init/R     rank R has joined
 * A client waits while init/open exists. PyTorch's servers have no such key.
 */
#include "store/tcp.h"

#include "base/error.h"
#include "base/log.h"
#include "base/rank_set.h"
#include "base/reminder.h"
#include "base/text.h"

#include <stdio.h>

enum {
    JOIN_KEY_BYTES = 32,
    JOIN_TEXT_BYTES = 1024,
    LEAD_NAP_NS = 5000000,
    FOLLOW_NAP_NS = 25000000,
};

struct join {
    tcp_serve_fn *serve;
    void *store;      /* as serve() takes it */
    const char *name; /* of the store, HOST:PORT */
    int rank, world_size;
    int64_t deadline, timeout_ms;
};

static enum tutti_status join_call(const struct join *self, struct store_call *call,
                                   const char *key)
{
    const int64_t grace = deadline_after(STORE_GRACE_MS);
    call->keys = &key;
    call->count = 1;
    call->deadline = self->deadline > grace ? self->deadline : grace;
    return self->serve(self->store, call);
}

/* Reads init/open; *is_missing: it does not exist. */
static enum tutti_status join_look(const struct join *self, char text[JOIN_TEXT_BYTES],
                                   bool *is_missing)
{
    static const struct store_bytes absent = {"-", 1};
    size_t size = 0;
    struct store_call call = {.op = STORE_COMPARE_SET,
                              .expected = absent,
                              .value = absent,
                              .values = text,
                              .each = JOIN_TEXT_BYTES - 1,
                              .sizes = &size};
    const enum tutti_status status = join_call(self, &call, TCP_OPEN_KEY);
    text[size < JOIN_TEXT_BYTES ? size : JOIN_TEXT_BYTES - 1] = 0;
    *is_missing = status == TUTTI_OK && size == 1;
    return status;
}

static void join_rank_key(char key[JOIN_KEY_BYTES], int rank)
{
    snprintf(key, JOIN_KEY_BYTES, TCP_JOIN_KEY "%d", rank);
}

/* Sets or deletes init/R. */
static enum tutti_status join_rank_tell(const struct join *self, int rank, enum store_op op)
{
    struct store_call call = {.op = op};
    char key[JOIN_KEY_BYTES];
    join_rank_key(key, rank);
    return rank < 0 ? TUTTI_OK : join_call(self, &call, key);
}

/* The ranks that have not told that they joined. */
static struct rank_set join_missing(const struct join *self)
{
    struct rank_set missing = rank_set_none;
    char key[JOIN_KEY_BYTES];
    for (int r = 0; r < self->world_size && r < WORLD_RANKS; r++) {
        struct store_call call = {.op = STORE_CHECK};
        join_rank_key(key, r);
        if (join_call(self, &call, key) == TUTTI_OK && !call.number)
            rank_set_add(&missing, r);
    }
    return missing;
}

/* PyTorch's clients, and those of a URL without rank=, do not tell their rank. */
static enum tutti_status join_late(const struct join *self)
{
    char ranks[300];
    struct store_call call = {.op = STORE_ADD};
    enum tutti_status status = join_call(self, &call, TCP_JOIN_KEY);
    if (status != TUTTI_OK)
        return status;
    const struct rank_set missing = join_missing(self);
    const int silent = rank_set_count(missing), joined = (int)call.number;
    if (joined + silent == self->world_size)
        return error_set(TUTTI_ERR_TIMEOUT,
                         "%s did not join the store at %s within %lld ms (%d of %d ranks did): "
                         "check that %s, with the same address and world size",
                         text_ranks(missing, ranks, sizeof ranks), self->name,
                         (long long)self->timeout_ms, joined, self->world_size,
                         silent > 1 ? "they run" : "it runs");
    return error_set(TUTTI_ERR_TIMEOUT,
                     "%d of %d ranks joined the store at %s within %lld ms, not all with their "
                     "number (rank=R in the URL): see whether all run and have its address",
                     joined, self->world_size, self->name, (long long)self->timeout_ms);
}

static void join_log(const struct join *self, struct reminder *reminder)
{
    char ranks[300];
    const int waited_s = reminder_due(reminder, deadline_now());
    if (waited_s)
        log_write(TUTTI_LOG_WARN, self->rank,
                  "after %d s these have not joined the store at %s, or not with their number: %s",
                  waited_s, self->name, text_ranks(join_missing(self), ranks, sizeof ranks));
}

/* A rank that serves. Tells the others how it came out. */
static enum tutti_status join_lead(const struct join *self)
{
    int64_t nap_ns = 100000;
    struct reminder reminder = reminder_start(deadline_now());
    for (;;) {
        struct store_call count = {.op = STORE_ADD}, set = {.op = STORE_SET};
        enum tutti_status status = join_call(self, &count, TCP_JOIN_KEY);
        if (status != TUTTI_OK)
            return status;
        if (count.number >= self->world_size) {
            set.op = STORE_DELETE;
            for (int r = 0; r < self->world_size && r < WORLD_RANKS; r++)
                (void)join_rank_tell(self, r, STORE_DELETE);
            return join_call(self, &set, TCP_OPEN_KEY);
        }
        if (deadline_passed(self->deadline)) {
            status = join_late(self);
            set.value = (struct store_bytes){tutti_last_error(), strlen(tutti_last_error())};
            (void)join_call(self, &set, TCP_OPEN_KEY);
            return status;
        }
        join_log(self, &reminder);
        deadline_nap(self->deadline, &nap_ns, LEAD_NAP_NS);
    }
}

/* Any other rank. */
static enum tutti_status join_follow(const struct join *self)
{
    int64_t nap_ns = 100000;
    struct reminder reminder = reminder_start(deadline_now());
    for (;;) {
        char text[JOIN_TEXT_BYTES];
        bool is_missing;
        enum tutti_status status = join_look(self, text, &is_missing);
        if (status != TUTTI_OK || is_missing)
            return status;
        if (strcmp(text, TCP_OPEN_WAITING) != 0)
            return error_set(TUTTI_ERR_TIMEOUT, "%s", text);
        if (deadline_passed(self->deadline))
            return join_late(self);
        join_log(self, &reminder);
        deadline_nap(self->deadline, &nap_ns, FOLLOW_NAP_NS);
    }
}

enum tutti_status tcp_join(tcp_serve_fn *serve, void *store, const char *name,
                           const struct store_url *url, const struct tcp_options *options)
{
    const struct join self = {.serve = serve,
                              .store = store,
                              .name = name,
                              .rank = url->rank,
                              .world_size = url->world_size,
                              .deadline = deadline_after(options->timeout_ms),
                              .timeout_ms = options->timeout_ms};
    struct store_call call = {.op = STORE_ADD, .amount = 1};
    char text[JOIN_TEXT_BYTES];
    bool is_missing = false;
    enum tutti_status status = join_look(&self, text, &is_missing);
    const bool tells = status == TUTTI_OK && !is_missing;
    if (tells) /* before it counts itself: the server deletes the key once all have */
        status = join_rank_tell(&self, self.rank, STORE_SET);
    if (status == TUTTI_OK)
        status = join_call(&self, &call, TCP_JOIN_KEY);
    if (status == TUTTI_OK && options->exclusive && !url->server && call.number > url->world_size)
        return error_set(TUTTI_ERR_SYSTEM, "all %d ranks have joined the store at %s already",
                         url->world_size, name);
    if (status != TUTTI_OK)
        return status;
    if (options->has_joined)
        *options->has_joined = true;
    return url->server ? join_lead(&self) : join_follow(&self);
}
