/* SPDX-License-Identifier: MIT */
/* The exchange of segments: after a failure no rank waits, and no descriptor is left or mistaken
 * for another one. */
#include "../ipc/channel_ranks.h"

#include "base/error.h"
#include "peers/peers_internal.h"
#include "peers/segments.h"

#include <sys/socket.h>

enum { SIZE = 4, VICTIM = 1 };

/* The library's sendmsg() comes here: the linker's --wrap. */
static _Thread_local bool cannot_send;
ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
    errno = ETOOMANYREFS;
    return cannot_send && message->msg_controllen ? -1 : __real_sendmsg(fd, message, flags);
}

struct rank {
    struct peers peers;
    int note;
    int refuses;   /* the rank whose segment this one cannot map; -1: none */
    int owners[2]; /* bits: of whom it has got the segment, in each exchange */
    int exchanges;
};

static enum tutti_status map(void *context, int rank, int fd)
{
    struct rank *self = context;
    int owner = -1;
    if (rank == self->refuses)
        return error_set(TUTTI_ERR_NO_MEMORY, "no room for rank %d", rank);
    if (pread(fd, &owner, sizeof owner, 0) == sizeof owner && owner == rank)
        self->owners[self->exchanges] |= 1 << rank;
    return TUTTI_OK;
}

/* `owners`: bits of the ranks that have a segment. */
static enum tutti_status swap(struct rank *self, int owners)
{
    int fds[SIZE];
    for (int r = 0; r < SIZE; r++)
        fds[r] = owners >> r & 1 ? self->note : -1;
    const enum tutti_status status =
        segments_exchange(&self->peers, fds, map, self, deadline_after(GROUP_TIMEOUT_MS));
    self->exchanges++;
    return status;
}

static int begin(struct group *group, int rank, struct rank *self)
{
    memset(self, 0, sizeof *self);
    self->refuses = -1;
    self->note = make_note(rank);
    self->peers.rank = rank;
    self->peers.size = SIZE;
    self->peers.ranks.remote = rank_set_minus(rank_set_all(SIZE), rank_set_of(rank));
    GROUP_CHECK(open_channel(group, rank, &self->peers.ranks.channel) == TUTTI_OK);
    return 0;
}

static int end(struct group *group, struct rank *self)
{
    close(self->note);
    group_raise(group, 0);
    GROUP_CHECK(group_await(group, 0, SIZE));
    channel_close(self->peers.ranks.channel);
    return 0;
}

static int all_of(int owners, int rank)
{
    return owners & ~(1 << rank);
}

static int exchange_well(struct group *group, int rank)
{
    struct rank self;
    GROUP_CHECK(begin(group, rank, &self) == 0);
    GROUP_CHECK(swap(&self, 0xf) == TUTTI_OK && self.owners[0] == all_of(0xf, rank));
    GROUP_CHECK(swap(&self, 0x5) == TUTTI_OK && self.owners[1] == all_of(0x5, rank));
    return end(group, &self);
}

static void all_get_what_there_is(void **state)
{
    (void)state;
    run_both(SIZE, exchange_well);
}

/* The victim cannot map the segment of rank 0. */
static int refuse_one(struct group *group, int rank)
{
    struct rank self;
    GROUP_CHECK(begin(group, rank, &self) == 0);
    self.refuses = rank == VICTIM ? 0 : -1;
    GROUP_CHECK(swap(&self, 0xf) == (rank == VICTIM ? TUTTI_ERR_NO_MEMORY : TUTTI_OK));
    GROUP_CHECK(rank != VICTIM || strcmp(tutti_last_error(), "no room for rank 0") == 0);
    self.refuses = -1;
    GROUP_CHECK(swap(&self, 0xf) == TUTTI_OK && self.owners[1] == all_of(0xf, rank));
    return end(group, &self);
}

static void no_descriptor_stays_on_the_way(void **state)
{
    (void)state;
    run_both(SIZE, refuse_one);
}

static int send_none(struct group *group, int rank)
{
    struct rank self;
    char text[64];
    GROUP_CHECK(begin(group, rank, &self) == 0);
    cannot_send = rank == VICTIM;
    GROUP_CHECK(swap(&self, 0xf) == TUTTI_ERR_SYSTEM);
    cannot_send = false;
    snprintf(text, sizeof text,
             rank == VICTIM ? "cannot send descriptor" : "rank %d sent no descriptor", VICTIM);
    GROUP_CHECK(strstr(tutti_last_error(), text));
    GROUP_CHECK(swap(&self, 0xf) == TUTTI_OK && self.owners[1] == all_of(0xf, rank));
    return end(group, &self);
}

static void nobody_waits_for_a_rank_that_cannot_send(void **state)
{
    (void)state;
    run_both(SIZE, send_none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_get_what_there_is),
        cmocka_unit_test(no_descriptor_stays_on_the_way),
        cmocka_unit_test(nobody_waits_for_a_rank_that_cannot_send),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
