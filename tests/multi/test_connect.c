/* SPDX-License-Identifier: MIT */
/*
 * Two processes with two ranks each, whose threads connect at the same time and share connections.
 * Rank 2 has its connection first, and stands still before it uses it; meanwhile rank 3 uses it.
 */
#include "ipc/link.h"
#include "ranks.h"

#include <unistd.h>

enum { MS = 1000 };

static _Thread_local int own;

__typeof__(link_make) __real_link_make, __wrap_link_make;

struct link *__wrap_link_make(const uint8_t key[CHANNEL_ID_BYTES], int socket,
                              const struct ucred *peer, const struct packet *first)
{
    usleep(first ? 0 : own == 2 ? 10 * MS : 30 * MS); /* both have found no connection */
    struct link *link = __real_link_make(key, socket, peer, first);
    usleep(!first && own == 2 ? 60 * MS : 0);
    return link;
}

static int join(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options};
    tutti_comm_t *comm;
    int32_t value = 1;
    own = rank;
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_all_reduce(&value, &value, 1, TUTTI_INT32, TUTTI_SUM, comm,
                                 TUTTI_STREAM_DEFAULT) == TUTTI_OK &&
                value == ranks->size);
    tutti_comm_destroy(comm);
    return 0;
}

int main(void)
{
    int failures = 0;
    for (int i = 0; i < 4; i++) {
        struct ranks *ranks = ranks_create(4, 2, 0);
        failures += ranks_run(ranks, join);
        ranks_destroy(ranks);
    }
    return failures ? 1 : 0;
}
