/* SPDX-License-Identifier: MIT */
/*
 * Faults of direct copies between processes: a rank is killed before or behind a copy, or its
 * operand is not mapped. The other rank gets an error that names it. And a rank whose call fails
 * returns only once no peer writes into its memory any more.
 */
#include "base/point.h"
#include "ranks.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
    RANKS = 2,
    ROOT = 0,
    AT = 3,             /* the operation, counted from 1, in which it happens */
    BLOCK = 512 * 1024, /* the sender of a gather writes it, also if ranks share a core */
    SHORT_MS = 200,
    STOP_MS = 600,
    RETURNED = 0, /* flags */
    QUIET = 1,
};

enum action { KILL, UNMAP, LINGER, LEAP };

static const struct scenario {
    enum tutti_collective collective;
    int victim;
    const char *point;
    enum action action;
    enum tutti_status status; /* of the other rank */
    int more;                 /* it may get it that many operations later */
} scenarios[] = {
    {TUTTI_COLLECTIVE_GATHER, 1, "copies.writes", KILL, TUTTI_ERR_PEER_DEAD, 0},
    {TUTTI_COLLECTIVE_GATHER, 1, "direct.written", KILL, TUTTI_ERR_PEER_DEAD, 0},
    {TUTTI_COLLECTIVE_GATHER, 0, "pair.answered", KILL, TUTTI_ERR_PEER_DEAD, 0},
    {TUTTI_COLLECTIVE_GATHER, 0, "pair.entered", UNMAP, TUTTI_ERR_SYSTEM, 0},
    {TUTTI_COLLECTIVE_SCATTER, 0, "pair.offered", KILL, TUTTI_ERR_PEER_DEAD, 1},
    {TUTTI_COLLECTIVE_SCATTER, 1, "direct.read", KILL, TUTTI_ERR_PEER_DEAD, 0},
    {TUTTI_COLLECTIVE_SCATTER, 0, "pair.entered", UNMAP, TUTTI_ERR_SYSTEM, 0},
    {TUTTI_COLLECTIVE_BROADCAST, 0, "pair.entered", UNMAP, TUTTI_ERR_SYSTEM, 0},
    {TUTTI_COLLECTIVE_SEND, 0, "pair.offered", KILL, TUTTI_ERR_PEER_DEAD, 1},
    {TUTTI_COLLECTIVE_SEND, 0, "pair.entered", UNMAP, TUTTI_ERR_SYSTEM, 0},
    {TUTTI_COLLECTIVE_ALL_GATHER, 0, "direct.entered", KILL, TUTTI_ERR_PEER_DEAD, 0},
    {TUTTI_COLLECTIVE_ALL_GATHER, 1, "direct.read", KILL, TUTTI_ERR_PEER_DEAD, 0},
    {TUTTI_COLLECTIVE_ALL_GATHER, 1, "run.shown", UNMAP, TUTTI_ERR_SYSTEM, 0},
    {TUTTI_COLLECTIVE_GATHER, 1, "copies.writes", LINGER, TUTTI_ERR_TIMEOUT, 0},
    {TUTTI_COLLECTIVE_GATHER, 1, "copies.writes", LEAP, TUTTI_OK, 0}, /* the root leaves the call */
};

void (*point_hook)(const char *name);

static struct {
    const struct scenario *scenario; /* NULL on the other rank */
    unsigned char *many, *one;       /* the operand with all blocks, and that with one */
    int operation;
    bool done;
    bool leaps;
    sigjmp_buf jump;
} self;

static void sleep_ms(int ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}

static void hook(const char *name)
{
    const struct scenario *scenario = self.scenario;
    if (!scenario || self.done || self.operation != AT || strcmp(name, scenario->point) != 0)
        return;
    self.done = true;
    if (scenario->action == KILL)
        raise(SIGKILL);
    if (scenario->action >= LINGER) {
        sleep_ms(STOP_MS);
        return;
    }
    const bool is_many = scenario->collective == TUTTI_COLLECTIVE_GATHER ||
                         scenario->collective == TUTTI_COLLECTIVE_ALL_GATHER ||
                         scenario->collective == TUTTI_COLLECTIVE_SCATTER;
    munmap(is_many ? self.many + BLOCK : self.one, BLOCK); /* what concerns the other rank */
}

static enum tutti_status call(tutti_comm_t *comm, int rank, enum tutti_collective collective,
                              int64_t timeout_ms)
{
    const struct tutti_call_options options = {.struct_size = sizeof options,
                                               .timeout_ms = timeout_ms};
    self.operation++;
    if (collective == TUTTI_COLLECTIVE_ALL_GATHER)
        return tutti_all_gather_with(self.many + rank * BLOCK, self.many, BLOCK, TUTTI_UINT8, comm,
                                     TUTTI_STREAM_DEFAULT, &options);
    if (collective == TUTTI_COLLECTIVE_GATHER)
        return tutti_gather_with(self.one, self.many, BLOCK, TUTTI_UINT8, ROOT, comm,
                                 TUTTI_STREAM_DEFAULT, &options);
    if (collective == TUTTI_COLLECTIVE_SCATTER)
        return tutti_scatter_with(self.many, self.one, BLOCK, TUTTI_UINT8, ROOT, comm,
                                  TUTTI_STREAM_DEFAULT, &options);
    if (collective == TUTTI_COLLECTIVE_BROADCAST)
        return tutti_broadcast_with(self.one, self.one, BLOCK, TUTTI_UINT8, ROOT, comm,
                                    TUTTI_STREAM_DEFAULT, &options);
    return rank == 0 ? tutti_send_with(self.one, BLOCK, TUTTI_UINT8, 1, comm, TUTTI_STREAM_DEFAULT,
                                       &options)
                     : tutti_recv_with(self.one, BLOCK, TUTTI_UINT8, 0, comm, TUTTI_STREAM_DEFAULT,
                                       &options);
}

static unsigned char *block_map(size_t blocks)
{
    void *memory =
        mmap(NULL, blocks * BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memset(memory, 1, blocks * BLOCK);
}

/* The application's progress function, which ends the root's call by a jump. */
static int leap(void *context)
{
    (void)context;
    if (self.leaps && self.operation == AT)
        siglongjmp(self.jump, 1);
    return 0;
}

/* The call of the root has returned, so its caller uses the memory. The victim lets go on. */
static int root_uses_memory(struct ranks *ranks, int rank)
{
    memset(self.many, 5, RANKS * BLOCK);
    ranks_raise(ranks, RETURNED);
    RANKS_CHECK(ranks_await(ranks, QUIET, 1));
    for (int i = 0; i < RANKS * BLOCK; i++)
        RANKS_CHECK(self.many[i] == 5);
    return 0;
}

static int suffer(struct ranks *ranks, int rank, tutti_comm_t *comm)
{
    const struct scenario *scenario = ranks->context;
    const int64_t timeout_ms = scenario->action == LINGER ? SHORT_MS : RANKS_TIMEOUT_MS;
    const bool is_victim = rank == scenario->victim;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    enum tutti_status status = TUTTI_OK;
    char name[16];
    for (int i = 0; i <= scenario->more && status == TUTTI_OK; i++)
        status = call(comm, rank, scenario->collective, is_victim ? RANKS_TIMEOUT_MS : timeout_ms);
    RANKS_CHECK(status == scenario->status);
    RANKS_CHECK(tutti_comm_status(comm, &fault) == status && fault.peer == scenario->victim);
    snprintf(name, sizeof name, "rank %d", scenario->victim);
    RANKS_CHECK(strstr(tutti_last_error(), name));
    if (status == TUTTI_ERR_SYSTEM)
        RANKS_CHECK(strstr(tutti_last_error(), "could not copy the memory of") &&
                    strstr(tutti_last_error(), "Bad address"));
    if (scenario->action == LINGER && !is_victim)
        return root_uses_memory(ranks, rank);
    if (scenario->action == LINGER) {
        RANKS_CHECK(ranks_await(ranks, RETURNED, 1));
        ranks_raise(ranks, QUIET);
    }
    return 0;
}

/* The root leaves its call by a jump, and then destroys the communicator. */
static int leave(struct ranks *ranks, int rank, tutti_comm_t *comm)
{
    if (rank != ROOT) {
        RANKS_CHECK(call(comm, rank, TUTTI_COLLECTIVE_GATHER, RANKS_TIMEOUT_MS) ==
                    TUTTI_ERR_PEER_DEAD);
        tutti_comm_destroy(comm);
        RANKS_CHECK(ranks_await(ranks, RETURNED, 1));
        ranks_raise(ranks, QUIET);
        return 0;
    }
    self.leaps = true;
    if (sigsetjmp(self.jump, 0) == 0) {
        (void)call(comm, rank, TUTTI_COLLECTIVE_GATHER, RANKS_TIMEOUT_MS);
        RANKS_CHECK(!"left by a jump");
    }
    tutti_comm_destroy(comm);
    return root_uses_memory(ranks, rank);
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct scenario *scenario = ranks->context;
    const struct tutti_comm_options options = {
        .struct_size = sizeof options, .direct = TUTTI_DIRECT_ON, .progress = leap};
    tutti_comm_t *comm;
    self.many = block_map(RANKS);
    self.one = block_map(1);
    RANKS_CHECK(self.many && self.one);
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    if (rank == scenario->victim)
        self.scenario = scenario;
    for (int i = 1; i < AT; i++)
        RANKS_CHECK(call(comm, rank, scenario->collective, RANKS_TIMEOUT_MS) == TUTTI_OK);
    if (scenario->action == LEAP)
        return leave(ranks, rank, comm);
    const int failed = suffer(ranks, rank, comm);
    tutti_comm_destroy(comm);
    return failed;
}

int main(void)
{
    int failures = 0;
    int skip = ranks_skip_cuda("direct copies are the CPU's");
    if (!skip)
        skip = ranks_skip_direct();
    if (skip)
        return skip;
    point_hook = hook;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        struct ranks *ranks = ranks_create(RANKS, RANKS, 0);
        ranks->context = &scenarios[i];
        if (scenarios[i].action == KILL)
            ranks->expendable = UINT64_C(1) << scenarios[i].victim;
        const int failed = ranks_run(ranks, live);
        if (failed)
            printf("failed: %s of rank %d in a %s\n", scenarios[i].point, scenarios[i].victim,
                   tutti_collective_name(scenarios[i].collective));
        failures += failed;
        ranks_destroy(ranks);
    }
    return failures ? 1 : 0;
}
