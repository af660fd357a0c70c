/* SPDX-License-Identifier: MIT */
#include "soak.h"

#include <stdio.h>
#include <string.h>

enum {
    SIDE_BYTES = 1 << 20, /* operands' */
    WORDS = 64,           /* that a rank writes to another one */
    CHANNEL_BARRIER = 0,
    CHANNEL_SIGNAL = 1,
};

int symmetric_open(struct soak_rank *self)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    const size_t bytes = 2 * SIDE_BYTES + SOAK_RANKS * WORDS * sizeof(uint64_t);
    char name[48];
    void *buffer;
    snprintf(name, sizeof name, "soak-%llu", (unsigned long long)self->episode->number);
    self->symm.struct_size = sizeof self->symm;
    RANKS_CHECK(tutti_symm_group(name, rank, self->episode->size,
                                 self->store ? self->store : self->base, &self->group) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_alloc(self->group, TUTTI_DEVICE_CPU, bytes, &buffer) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_rendezvous(buffer, SOAK_GENEROUS_MS, &self->symm) == TUTTI_OK);
    self->send = buffer;
    self->recv = (unsigned char *)buffer + SIDE_BYTES;
    return 0;
}

/* Where rank `from` writes in rank `to`'s buffer. */
static uint64_t *words_of(const struct soak_rank *self, int to, int from)
{
    unsigned char *buffer = self->symm.buffers[to];
    return (uint64_t *)(void *)(buffer + 2 * SIDE_BYTES) + from * WORDS;
}

void symmetric_leave(struct soak_rank *self)
{
    tutti_symm_group_destroy(self->group);
    self->group = NULL;
    self->send = self->memory[0];
    self->recv = self->memory[1];
}

/* A death ends the memory as it ends the communicator. Whose communicator has told him of it has
 * left the memory, too: he may be who is named. */
static int exchange_suffer(struct soak_rank *self, enum tutti_status status)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    struct tutti_fault fault = {.struct_size = sizeof fault, .status = status};
    RANKS_CHECK(strstr(tutti_last_error(), "rank "));
    while (self->episode->victims && !(self->episode->victims >> fault.peer & 1))
        fault.peer++;
    return life_suffer(self, 0, status, &fault, "an exchange through symmetric memory");
}

/* The next rank takes this one's signal, this one that of the rank before. */
static enum tutti_status signals_run(struct soak_rank *self)
{
    const int size = self->episode->size, next = (self->rank + 1) % size,
              before = (self->rank + size - 1) % size;
    void *buffer = self->symm.buffers[self->rank];
    enum tutti_status status =
        tutti_symm_put_signal(buffer, next, CHANNEL_SIGNAL, SOAK_GENEROUS_MS, TUTTI_STREAM_DEFAULT);
    if (status == TUTTI_OK)
        status = tutti_symm_wait_signal(buffer, before, CHANNEL_SIGNAL, SOAK_GENEROUS_MS,
                                        TUTTI_STREAM_DEFAULT);
    return status;
}

int symmetric_exchange(struct soak_rank *self, const struct soak_operation *operation)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank, size = self->episode->size, peer = (rank + size - 1) % size;
    void *buffer = self->symm.buffers[rank];
    uint64_t *there = words_of(self, (rank + 1) % size, rank);
    const uint64_t *here = words_of(self, rank, peer);
    for (int i = 0; i < WORDS; i++)
        there[i] = operation->bits * (uint64_t)(rank + 1) + (uint64_t)i;
    /* Where a rank dies only what waits for all ranks is sure to wait for that one. */
    bool has_signals = operation->bits >> 8 & 1 && !episode_is_deadly(self->episode);
    enum tutti_status status =
        has_signals
            ? signals_run(self)
            : tutti_symm_barrier(buffer, CHANNEL_BARRIER, SOAK_GENEROUS_MS, TUTTI_STREAM_DEFAULT);
    if (status)
        return exchange_suffer(self, status);
    for (int i = 0; i < WORDS; i++)
        RANKS_CHECK(here[i] == operation->bits * (uint64_t)(peer + 1) + (uint64_t)i);
    self->progress->operations += members_counts(self, &self->episode->comms[0]);
    status = tutti_symm_barrier(buffer, CHANNEL_BARRIER, SOAK_GENEROUS_MS, TUTTI_STREAM_DEFAULT);
    self->progress->steps++;
    return status ? exchange_suffer(self, status) : 0;
}
