/* SPDX-License-Identifier: MIT */
/* Operations that wait by a poll: alone, beside one that waits for a word, until the poll or the
 * deadline ends the wait, and for memory for a process group's message. */
#include "comm/comm.h"
#include "cpu/algo/algo.h"
#include "cpu/call_list.h"
#include "cpu/transport/group.h"
#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 2, SHORT_MS = 100, NEVER_MS = -1, NAP_US = 20000 };

/* ---- an operation of one rank ---------------------------------------------------------------- */

static uint32_t event; /* the operation waits for it */

static bool has_come(struct peers *peers, void *state)
{
    (void)peers, (void)state;
    return order_load_acquire_u32(&event);
}

static bool never_comes(struct peers *peers, void *state, enum wait_depth depth, bool late,
                        struct tutti_fault *fault)
{
    (void)state, (void)depth, (void)late;
    fault->status = TUTTI_ERR_PEER_DEAD;
    fault->peer = !peers->rank;
    return true;
}

static bool knows_why_late(struct peers *peers, void *state, enum wait_depth depth, bool late,
                           struct tutti_fault *fault)
{
    (void)peers, (void)state, (void)depth;
    if (late)
        fault->status = TUTTI_ERR_NO_MEMORY;
    return late;
}

static const struct wait_poll plain = {.poll = has_come};
static const struct wait_poll hopeless = {.poll = has_come, .look = never_comes};
static const struct wait_poll explained = {.poll = has_come, .look = knows_why_late};
static const struct wait_poll *used = &plain;

static enum tutti_status start(void *group, struct request *request, void *state)
{
    (void)request;
    state_init(state);
    return lane_begin(group, LANE_NONE);
}

static enum step_progress step(void *group, struct request *request, void *state)
{
    (void)request;
    if (has_come(group, state))
        return step_end(state, TUTTI_OK);
    step_polls(group, state, used);
    return step_stopped(state);
}

static enum tutti_status run(void *group, struct request *request, tutti_stream_t stream)
{
    struct cpu_state state;
    (void)stream;
    return operation_run(group, request, &state, start, step, true);
}

static const struct algorithm polling = {
    .state_bytes = sizeof(struct cpu_state), .start = start, .step = step, .run = run};

static struct cpu_call call_of(struct tutti_comm *comm, const struct algorithm *algorithm,
                               int64_t timeout_ms)
{
    return (struct cpu_call){
        .group = comm->group,
        .peers = comm->peers,
        .request = {.choice.run = algorithm,
                    .collective = TUTTI_COLLECTIVE_BARRIER,
                    .signature = (uint64_t)TUTTI_COLLECTIVE_BARRIER << SIGNATURE_COLLECTIVE_AT,
                    .timeout_ms = timeout_ms,
                    .timeout_source = TIMEOUT_OF_CALL}};
}

/* Runs the operation of one communicator, alone or beside a barrier of another one. */
static enum tutti_status poll_on(struct tutti_comm *comm, struct tutti_comm *beside,
                                 int64_t timeout_ms, enum tutti_status *other)
{
    struct cpu_call first = call_of(comm, &polling, timeout_ms), second;
    struct cpu_states states = {0};
    if (beside) {
        second = call_of(beside, &cpu_meeting, RANKS_TIMEOUT_MS);
        first.next = &second;
    }
    cpu_call_list_run(&first, &states);
    free(states.memory);
    *other = beside ? second.status : TUTTI_OK;
    return first.status;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static enum tutti_status join(const struct ranks *ranks, int rank, tutti_store_t *store,
                              const char *name, int (*progress)(void *), tutti_comm_t **comm)
{
    const struct tutti_comm_options options = {
        .struct_size = sizeof options, .name = name, .progress = progress};
    return ranks_join(ranks, rank, store, &options, comm);
}

/* Rank 0 polls and is in the barrier at the same time. Rank 1 ends either first. */
static int beside(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm, *words;
    enum tutti_status other;
    RANKS_CHECK(join(ranks, rank, store, "polls", NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(join(ranks, rank, store, "words", NULL, &words) == TUTTI_OK);
    for (int round = 0; round < 4; round++) {
        if (rank == 0) {
            const bool alone = round == 3;
            RANKS_CHECK(poll_on(comm, alone ? NULL : words, RANKS_TIMEOUT_MS, &other) == TUTTI_OK);
            RANKS_CHECK(other == TUTTI_OK);
            order_store_relaxed_u32(&event, 0);
        } else {
            usleep(round * NAP_US);
            if (round % 2)
                order_store_release_u32(&event, 1);
            usleep(round * NAP_US);
            RANKS_CHECK(round == 3 || tutti_barrier(words, NULL, 0, TUTTI_STREAM_DEFAULT) == 0);
            if (round % 2 == 0)
                order_store_release_u32(&event, 1);
        }
        RANKS_CHECK(tutti_barrier(words, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    }
    RANKS_CHECK(tutti_comm_destroy(comm) == TUTTI_OK && tutti_comm_destroy(words) == TUTTI_OK);
    return 0;
}

static int cancel(void *context)
{
    (void)context;
    return 1;
}

/* The event never comes. The wait of rank 0 ends in each way, alone and beside a barrier. */
static int without_event(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const struct {
        const char *name;
        const struct wait_poll *poll;
        int64_t timeout_ms;
        int (*progress)(void *);
        bool aborts;
        enum tutti_status status;
        const char *text;
    } rows[] = {
        {"late", &plain, SHORT_MS, NULL, false, TUTTI_ERR_TIMEOUT, "end its own part"},
        {"why", &explained, SHORT_MS, NULL, false, TUTTI_ERR_NO_MEMORY, "could not do its part"},
        {"look", &hopeless, NEVER_MS, NULL, false, TUTTI_ERR_PEER_DEAD, "rank 1 is gone"},
        {"abort", &plain, NEVER_MS, NULL, true, TUTTI_ERR_ABORTED, "rank 1 aborted"},
        {"cancel", &plain, NEVER_MS, cancel, false, TUTTI_ERR_ABORTED, "rank 0 aborted"},
    };
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
        const size_t row = i / 2;
        tutti_comm_t *comm, *words;
        enum tutti_status other;
        RANKS_CHECK(join(ranks, rank, store, rows[row].name, rows[row].progress, &comm) == 0);
        RANKS_CHECK(join(ranks, rank, store, "words", NULL, &words) == TUTTI_OK);
        if (rank == 0) {
            used = rows[row].poll;
            RANKS_CHECK(poll_on(comm, i % 2 ? words : NULL, rows[row].timeout_ms, &other) ==
                        rows[row].status);
            RANKS_CHECK(other == TUTTI_OK);
            RANKS_CHECK(tutti_comm_status(comm, NULL) == rows[row].status);
            RANKS_CHECK(strstr(tutti_last_error(), rows[row].text));
            used = &plain;
        } else {
            usleep(NAP_US);
            if (rows[row].aborts)
                tutti_comm_abort(comm);
            RANKS_CHECK(i % 2 == 0 ||
                        tutti_barrier(words, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        }
        RANKS_CHECK(tutti_barrier(words, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        RANKS_CHECK(tutti_comm_destroy(comm) == TUTTI_OK && tutti_comm_destroy(words) == TUTTI_OK);
    }
    return 0;
}

/* How often a message of rank 0 cannot be taken for lack of memory. */
struct taker {
    struct cpu_group *group;
    int left;
};

static bool take(void *context, int from)
{
    struct taker *taker = context;
    struct cpu_message message;
    if (!cpu_message_next(taker->group, from, &message) || taker->left-- > 0)
        return false;
    cpu_message_taken(taker->group, from);
    return true;
}

/* A message of a process group stands before the pieces of the gather. */
static int message_before(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const int failures[] = {0, 1, 5000, INT32_MAX};
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        const bool forever = failures[i] == INT32_MAX;
        const struct tutti_call_options options = {.struct_size = sizeof options,
                                                   .timeout_ms = SHORT_MS};
        const float sent = (float)rank + 1;
        float received[SIZE] = {0};
        tutti_comm_t *comm, *words;
        RANKS_CHECK(join(ranks, rank, store, "messages", NULL, &comm) == TUTTI_OK);
        RANKS_CHECK(join(ranks, rank, store, "words", NULL, &words) == TUTTI_OK);
        struct taker taker = {comm->group, failures[i]};
        if (rank == 0)
            RANKS_CHECK(
                cpu_message_send(comm->group, 1, &(struct cpu_message){.kind = 1}, NULL, 0));
        else
            cpu_group_set_messages(comm->group, take, &taker);
        const enum tutti_status status =
            tutti_gather_with(&sent, received, 1, TUTTI_FLOAT32, 1, comm, TUTTI_STREAM_DEFAULT,
                              forever ? &options : NULL);
        RANKS_CHECK(rank == 0 || status == (forever ? TUTTI_ERR_NO_MEMORY : TUTTI_OK));
        if (rank == 1 && forever)
            RANKS_CHECK(strstr(tutti_last_error(), "rank 1 could not do its part"));
        else if (rank == 1)
            RANKS_CHECK(received[0] == 1 && received[1] == 2 && taker.left == -1);
        RANKS_CHECK(tutti_barrier(words, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        RANKS_CHECK(tutti_comm_destroy(comm) == TUTTI_OK && tutti_comm_destroy(words) == TUTTI_OK);
    }
    return 0;
}

int main(void)
{
    ranks_fn *const tests[] = {beside, without_event, message_before};
    int failures = ranks_skip_cuda("operations of CPU ranks");
    for (size_t i = 0; i < sizeof tests / sizeof *tests && failures == 0; i++) {
        struct ranks *ranks = ranks_create(SIZE, 0, 0);
        failures += ranks_run(ranks, tests[i]);
        ranks_destroy(ranks);
    }
    return failures;
}
