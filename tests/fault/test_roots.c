/* SPDX-License-Identifier: MIT */
/*
 * Random programs of rooted collectives in which one rank, the victim, makes another call: another
 * root, another collective, another count, or two calls the other way round. Often no rank has to
 * wait for another one. Every rank gets MISMATCH at the latest in the next operation of all ranks,
 * and the error names calls that the two ranks have made under that number.
 *
 * usage: test_roots threads|processes
 *   TUTTI_TEST_OPERATIONS: how many programs; TUTTI_TEST_SEED: of the first one
 */
#include "../../tools/collective.h"
#include "../../tools/collective_call.h"
#include "random.h"
#include "ranks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CALLS = 40, MOST_RANKS = 8, MOST_COUNT = 20000, TIMEOUT_MS = 30000 };

struct call {
    enum tutti_collective collective;
    size_t count;
    int root;
};

/* A program: calls, of which each begins a group of calls or not; the last one is of all ranks. */
struct program {
    struct call calls[MOST_CALLS];
    int group_of[MOST_CALLS]; /* calls of one group have the same number; -1: not in a group */
    int calls_count;
    int differs; /* the victim's first other call */
    int victim;
    struct call victims[MOST_CALLS];
};

static const enum tutti_collective rooted[] = {
    TUTTI_COLLECTIVE_BROADCAST, TUTTI_COLLECTIVE_REDUCE,   TUTTI_COLLECTIVE_GATHER,
    TUTTI_COLLECTIVE_SCATTER,   TUTTI_COLLECTIVE_GATHER_V, TUTTI_COLLECTIVE_SCATTER_V};
static const enum tutti_collective of_all[] = {
    TUTTI_COLLECTIVE_BARRIER, TUTTI_COLLECTIVE_ALL_REDUCE, TUTTI_COLLECTIVE_ALL_GATHER};

#define PICK(array, state) (array)[random_below(state, (int)(sizeof(array) / sizeof *(array)))]

static size_t count_pick(uint64_t *state)
{
    static const size_t most[] = {1, 8, 200, 3000, MOST_COUNT};
    return (size_t)random_below(state, (int)PICK(most, state) + 1);
}

static struct call rooted_pick(uint64_t *state, int size)
{
    return (struct call){PICK(rooted, state), count_pick(state), random_below(state, size)};
}

static bool same(const struct call *a, const struct call *b)
{
    return a->collective == b->collective && a->root == b->root && a->count == b->count;
}

/* Another call than the right one; mostly with another root. */
static struct call other_pick(uint64_t *state, int size, const struct call *right)
{
    struct call call = *right;
    while (same(&call, right))
        switch (random_below(state, 4)) {
        case 0:
            call = rooted_pick(state, size);
            break;
        case 1:
            call.collective = PICK(rooted, state);
            break;
        default:
            call.root = random_below(state, size);
        }
    return call;
}

static void program_make(uint64_t *state, int size, struct program *program)
{
    const int before = random_below(state, 8), behind = random_below(state, 16);
    const bool grouped = random_below(state, 3) == 0;
    int group = 0;
    program->calls_count = before + 1 + behind + 2;
    program->victim = random_below(state, size);
    program->differs = before;
    for (int i = 0; i < program->calls_count; i++) {
        struct call *call = &program->calls[i];
        *call = rooted_pick(state, size);
        if (i < before && random_below(state, 4) == 0)
            call->collective = PICK(of_all, state);
        group += random_below(state, 3) == 0;
        program->group_of[i] = grouped ? group : -1;
    }
    struct call *last = &program->calls[program->calls_count - 1];
    last->collective = PICK(of_all, state);
    program->group_of[program->calls_count - 1] = -1;
    memcpy(program->victims, program->calls, sizeof program->calls);
    struct call *victims = &program->victims[before];
    if (random_below(state, 4) == 0 && behind && !same(&victims[0], &victims[1])) {
        const struct call first = victims[0];
        victims[0] = victims[1];
        victims[1] = first;
    } else {
        victims[0] = other_pick(state, size, &victims[0]);
    }
}

struct memory {
    float *send, *recv;
    size_t counts[MOST_CALLS]
                 [MOST_RANKS]; /* of each call: a group of calls reads them at its end */
};

/* `counts`: kept until the end of a group of calls, so that the call may be one of a group. */
static enum tutti_status call_run(const struct call *call, size_t *counts, tutti_comm_t *comm,
                                  const struct memory *memory)
{
    for (int r = 0; r < MOST_RANKS; r++)
        counts[r] = call->count;
    if (call->collective == TUTTI_COLLECTIVE_BARRIER)
        return tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT);
    return collective_call(call->collective, memory->send, memory->recv, counts, TUTTI_FLOAT32,
                           TUTTI_SUM, call->root, comm, NULL);
}

/* Runs calls up to the first error. Every call of a group writes to the same memory: this test
 * looks at statuses alone. */
static enum tutti_status program_run(const struct program *program, const struct call *calls,
                                     tutti_comm_t *comm, struct memory *memory)
{
    enum tutti_status status = TUTTI_OK;
    for (int i = 0; i < program->calls_count && status == TUTTI_OK; i++) {
        const int group = program->group_of[i];
        if (group >= 0 && (i == 0 || program->group_of[i - 1] != group))
            status = tutti_group_start();
        if (status == TUTTI_OK)
            status = call_run(&calls[i], memory->counts[i], comm, memory);
        if (group >= 0 && program->group_of[i + 1] != group) {
            const enum tutti_status ended = tutti_group_end();
            status = status == TUTTI_OK ? ended : status;
        }
    }
    return status;
}

/* Whether a rank has made a call like this one under the fault's number. */
static bool has_called(const struct program *program, int rank, uint64_t sequence,
                       const struct tutti_signature *signature)
{
    const struct call *calls = rank == program->victim ? program->victims : program->calls;
    if (sequence < 1 || sequence > (uint64_t)program->calls_count)
        return false;
    const struct call *call = &calls[sequence - 1];
    char text[64], root[16];
    struct tutti_fault fault = {.struct_size = sizeof fault,
                                .status = TUTTI_ERR_MISMATCH,
                                .rank = rank,
                                .peer = 0,
                                .expected = *signature};
    char whole[512];
    tutti_fault_format(&fault, whole, sizeof whole);
    snprintf(text, sizeof text, "rank %d has %s", rank, tutti_collective_name(call->collective));
    snprintf(root, sizeof root, ", root %d;", call->root);
    const bool is_rooted = call->collective != TUTTI_COLLECTIVE_BARRIER &&
                           call->collective != TUTTI_COLLECTIVE_ALL_REDUCE &&
                           call->collective != TUTTI_COLLECTIVE_ALL_GATHER;
    return strstr(whole, text) && (!is_rooted || strstr(whole, root));
}

static int check_fault(struct ranks *ranks, int rank, const struct program *program,
                       tutti_comm_t *comm)
{
    struct tutti_fault fault = {.struct_size = sizeof fault};
    RANKS_CHECK(tutti_comm_status(comm, &fault) == TUTTI_ERR_MISMATCH);
    RANKS_CHECK(fault.sequence > (uint64_t)program->differs);
    RANKS_CHECK(fault.rank == program->victim || fault.peer == program->victim);
    RANKS_CHECK(!fault.expected.collective ||
                has_called(program, fault.rank, fault.sequence, &fault.expected));
    RANKS_CHECK(!fault.seen.collective ||
                has_called(program, fault.peer, fault.sequence, &fault.seen));
    return 0;
}

static int disagree(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct program *program = ranks->context;
    const struct call *calls = rank == program->victim ? program->victims : program->calls;
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .timeout_ms = TIMEOUT_MS};
    const size_t bytes = (size_t)ranks->size * MOST_COUNT * sizeof(float);
    struct memory memory = {.send = calloc(1, bytes), .recv = calloc(1, bytes)};
    tutti_comm_t *comm;
    RANKS_CHECK(memory.send && memory.recv);
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    RANKS_CHECK(program_run(program, calls, comm, &memory) == TUTTI_ERR_MISMATCH);
    const int failed = check_fault(ranks, rank, program, comm);
    tutti_comm_destroy(comm);
    free(memory.send);
    free(memory.recv);
    return failed;
}

static void program_print(const struct program *program)
{
    for (int i = 0; i < program->calls_count; i++) {
        const struct call *right = &program->calls[i], *victims = &program->victims[i];
        fprintf(stderr, "  %2d group %2d: %s %zu root %d", i + 1, program->group_of[i],
                tutti_collective_name(right->collective), right->count, right->root);
        if (!same(right, victims))
            fprintf(stderr, "; rank %d: %s %zu root %d", program->victim,
                    tutti_collective_name(victims->collective), victims->count, victims->root);
        fprintf(stderr, "\n");
    }
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    const int skip = ranks_skip_cuda("rooted collectives are of CPU ranks");
    if (skip)
        return skip;
    const bool threads = strcmp(argv[1], "threads") == 0;
    const char *text = getenv("TUTTI_TEST_SEED");
    const uint64_t first = text ? strtoull(text, NULL, 0) : 1;
    const uint64_t end = first + (uint64_t)ranks_operations(400, 80);
    int failures = 0;
    for (uint64_t seed = first; seed < end && failures < 5; seed++) {
        uint64_t state = seed * 1000003;
        struct program program;
        const int size = 2 + random_below(&state, random_below(&state, 3) ? 3 : MOST_RANKS - 1);
        program_make(&state, size, &program);
        struct ranks *ranks = ranks_create(size, threads ? 0 : size, 0);
        ranks->context = &program;
        if (ranks_run(ranks, disagree)) {
            fprintf(stderr, "seed %" PRIu64 ", %d ranks, victim %d\n", seed, size, program.victim);
            program_print(&program);
            failures++;
        }
        ranks_destroy(ranks);
    }
    return failures ? 1 : 0;
}
