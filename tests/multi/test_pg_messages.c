/* SPDX-License-Identifier: MIT */
/*
 * Messages of a process group: random ones between all pairs, on tags that both ends take in orders
 * of their own, among collectives; any source; short ones that end before anybody asks for them;
 * to oneself; disagreements, time-outs, refusals, an exit.
 *
 * usage: test_pg_messages processes|threads
 */
#include "pg.h"
#include "random.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_RANKS = 4,
    MESSAGES = 120, /* from each rank to each other one */
    MESSAGES_SHORT = 40,
    TAGS = 7,
    LONG_ELEMENTS = 200000,
    MANY = 100, /* more than are kept with their data */
    KEPT = 16,  /* short messages of each sender that a rank keeps, at least; the most */
    KEPT_MOST = 32,
    KEPT_ELEMENTS = 256,
    ANY_TAG = 1000,
    SOON_MS = 50,
};

static enum tutti_status submit(tutti_pg_t *pg, bool sends, float *data, int64_t count, int peer,
                                uint32_t tag, int64_t timeout_ms, tutti_work_t **work)
{
    const struct tutti_tensor tensor = pg_vector(data, &count);
    const struct tutti_pg_call_options options = {
        .struct_size = sizeof options, .tag = tag, .timeout_ms = timeout_ms};
    return sends ? tutti_pg_send(pg, &tensor, peer, &options, work)
                 : tutti_pg_recv(pg, &tensor, peer, &options, work);
}

/* ---- random messages ------------------------------------------------------------------------- */

struct message {
    int peer;
    bool sends;
    uint32_t tag;
    int64_t count;
    int64_t element; /* the first one's value */
    float *data;
    tutti_work_t *work;
};

/* What both ends know of message `index` from one rank to another. */
static void message_make(struct message *message, int from, int to, int index)
{
    uint64_t random = (uint64_t)(from * 1000 + to * 100000 + index * 10000000);
    message->tag = (uint32_t)random_below(&random, TAGS);
    message->count =
        random_below(&random, 4) ? random_below(&random, 400) : random_below(&random, 2000);
    if (random_below(&random, 20) == 0)
        message->count = LONG_ELEMENTS + random_below(&random, 50);
    message->element = random_below(&random, 1000);
    message->data = malloc((size_t)message->count * sizeof(float) + 1);
}

/* All messages of this rank in an order of its own, in which those of one pair and tag stay in
 * order. */
static int messages_make(struct ranks *ranks, int rank, int each, struct message *messages)
{
    uint64_t random = (uint64_t)rank + 77;
    int next_index[2][MOST_RANKS][TAGS] = {{{0}}}, count = 0;
    const int all = 2 * (ranks->size - 1) * each;
    while (count < all) {
        struct message *message = &messages[count];
        const bool sends = random_below(&random, 2);
        const int peer = random_below(&random, ranks->size), tag = random_below(&random, TAGS);
        int *index = &next_index[sends][peer][tag];
        if (peer == rank)
            continue;
        for (; *index < each; ++*index) {
            message_make(message, sends ? rank : peer, sends ? peer : rank, *index);
            if (message->tag == (uint32_t)tag)
                break;
            free(message->data);
        }
        if (*index == each)
            continue;
        ++*index;
        message->sends = sends;
        message->peer = peer;
        for (int64_t e = 0; sends && e < message->count; e++)
            message->data[e] = (float)(message->element + e);
        count++;
    }
    return count;
}

/* Collectives among the messages; a scatter goes the same ways as they do. */
static bool collectives_run(tutti_pg_t *pg, int size, int rank)
{
    const int64_t block = 3000, all = block * size;
    static float flat[MOST_RANKS][3000 * MOST_RANKS], part[MOST_RANKS][3000];
    struct tutti_tensor whole = pg_vector(flat[rank], &all), own = pg_vector(part[rank], &block);
    tutti_work_t *scatter, *gather;
    bool good = true;
    for (int root = 0; root < size && good; root++) {
        for (int64_t e = 0; e < all; e++)
            flat[rank][e] = (float)(e + root);
        good = tutti_pg_scatter(pg, &whole, 1, &own, 1, root, NULL, &scatter) == TUTTI_OK &&
               pg_end(scatter) == TUTTI_OK;
        for (int64_t e = 0; e < block && good; e++)
            good = part[rank][e] == (float)(block * rank + e + root);
        memset(flat[rank], 0, sizeof flat[rank]);
        good = good && tutti_pg_gather(pg, &own, 1, &whole, 1, root, NULL, &gather) == TUTTI_OK &&
               pg_end(gather) == TUTTI_OK;
        for (int64_t e = 0; rank == root && e < all && good; e++)
            good = flat[rank][e] == (float)(e + root);
    }
    return good;
}

static int random_messages(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    const int each = ranks_operations(MESSAGES, MESSAGES_SHORT);
    struct message *messages = calloc((size_t)(2 * MOST_RANKS * each), sizeof *messages);
    RANKS_CHECK(messages);
    const int count = messages_make(ranks, rank, each, messages);
    for (int i = 0; i < count; i++) {
        struct message *message = &messages[i];
        RANKS_CHECK(submit(pg, message->sends, message->data, message->count, message->peer,
                           message->tag, 0, &message->work) == TUTTI_OK);
        if (i == count / 3 || i == count / 2)
            RANKS_CHECK(collectives_run(pg, ranks->size, rank));
    }
    for (int i = 0; i < count; i++) {
        struct message *message = &messages[i];
        RANKS_CHECK(tutti_work_wait_host(message->work, RANKS_TIMEOUT_MS) == TUTTI_OK);
        RANKS_CHECK(tutti_work_source(message->work) == (message->sends ? -1 : message->peer));
        for (int64_t e = 0; e < message->count; e++)
            RANKS_CHECK(message->data[e] == (float)(message->element + e));
        tutti_work_destroy(message->work);
        free(message->data);
    }
    free(messages);
    return 0;
}

/* ---- the other parts ------------------------------------------------------------------------- */

/* Rank 0 receives from any rank; the work tells from which. */
static int any_source(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    uint64_t seen = 0;
    float x[MOST_RANKS];
    tutti_work_t *works[MOST_RANKS];
    x[0] = (float)rank;
    if (rank) {
        RANKS_CHECK(submit(pg, true, x, 1, 0, ANY_TAG, 0, works) == TUTTI_OK);
        RANKS_CHECK(strcmp(tutti_work_title(works[0]), "send of 1 float32 to rank 0") == 0);
        RANKS_CHECK(tutti_work_collective(works[0]) == TUTTI_COLLECTIVE_SEND);
        RANKS_CHECK(pg_end(works[0]) == TUTTI_OK);
        return 0;
    }
    for (int i = 1; i < ranks->size; i++)
        RANKS_CHECK(submit(pg, false, &x[i], 1, TUTTI_ANY_SOURCE, ANY_TAG, 0, &works[i]) ==
                    TUTTI_OK);
    for (int i = 1; i < ranks->size; i++) {
        RANKS_CHECK(strcmp(tutti_work_title(works[i]), "recv of 1 float32 from any rank") == 0);
        RANKS_CHECK(tutti_work_wait_host(works[i], RANKS_TIMEOUT_MS) == TUTTI_OK);
        RANKS_CHECK(x[i] == (float)tutti_work_source(works[i]));
        seen |= UINT64_C(1) << tutti_work_source(works[i]);
        tutti_work_destroy(works[i]);
    }
    RANKS_CHECK(seen == (UINT64_C(1) << ranks->size) - 2);
    return 0;
}

/* Many that nobody has asked for yet, some of them empty, taken in the opposite order. */
static int unmatched(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    float data[MANY][2];
    tutti_work_t *works[MANY];
    bool done;
    if (rank > 1)
        return 0;
    for (int i = 0; i < MANY && rank == 0; i++) {
        data[i][0] = data[i][1] = (float)i;
        RANKS_CHECK(submit(pg, true, data[i], i % 3, 1, (uint32_t)i, 0, &works[i]) == TUTTI_OK);
    }
    if (rank == 0)
        ranks_raise(ranks, 1);
    RANKS_CHECK(ranks_await(ranks, 1, 1));
    for (int i = MANY; i-- > 0 && rank == 1;)
        RANKS_CHECK(submit(pg, false, data[i], i % 3, 0, (uint32_t)i, 0, &works[i]) == TUTTI_OK);
    for (int i = 0; i < MANY; i++) {
        RANKS_CHECK(tutti_work_wait_host(works[i], RANKS_TIMEOUT_MS) == TUTTI_OK);
        RANKS_CHECK(tutti_work_test(works[i], &done) == TUTTI_OK && done);
        for (int e = 0; e < i % 3; e++)
            RANKS_CHECK(data[i][e] == (float)i);
        tutti_work_destroy(works[i]);
    }
    return 0;
}

/* Each rank waits for its sends, which fit into what the receiver keeps, before it receives. */
static int send_first(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    const int right = (rank + 1) % ranks->size, left = (rank + ranks->size - 1) % ranks->size;
    float data[KEPT_ELEMENTS];
    tutti_work_t *work;
    for (int i = 0; i < KEPT; i++) {
        for (int e = 0; e < KEPT_ELEMENTS; e++)
            data[e] = (float)(rank + i + e);
        RANKS_CHECK(submit(pg, true, data, KEPT_ELEMENTS, right, 0, 0, &work) == TUTTI_OK);
        RANKS_CHECK(pg_end(work) == TUTTI_OK);
    }
    for (int i = 0; i < KEPT; i++) {
        RANKS_CHECK(submit(pg, false, data, KEPT_ELEMENTS, left, 0, 0, &work) == TUTTI_OK);
        RANKS_CHECK(pg_end(work) == TUTTI_OK);
        for (int e = 0; e < KEPT_ELEMENTS; e++)
            RANKS_CHECK(data[e] == (float)(left + i + e));
    }
    return 0;
}

/* To oneself, short and long, either side first; lengths that differ; a send that nothing matches.
 */
static int to_self(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    float *data[2] = {calloc(LONG_ELEMENTS, sizeof(float)), calloc(LONG_ELEMENTS, sizeof(float))};
    tutti_work_t *works[2]; /* recv, send */
    for (int i = 0; i < 4; i++) {
        const bool first = i % 2; /* the send */
        const int64_t count = i < 2 ? KEPT_ELEMENTS : LONG_ELEMENTS;
        data[1][count - 1] = (float)(rank + i);
        for (int side = first, end = 2; end--; side = !side) {
            RANKS_CHECK(submit(pg, side, data[side], count,
                               first && !side ? TUTTI_ANY_SOURCE : rank, 2, 0,
                               &works[side]) == TUTTI_OK);
            if (i == 1 && side)
                RANKS_CHECK(tutti_work_wait_host(works[side], RANKS_TIMEOUT_MS) == TUTTI_OK);
        }
        RANKS_CHECK(tutti_work_wait_host(works[0], RANKS_TIMEOUT_MS) == TUTTI_OK);
        RANKS_CHECK(tutti_work_source(works[0]) == rank && data[0][count - 1] == (float)(rank + i));
        tutti_work_destroy(works[0]);
        RANKS_CHECK(pg_end(works[1]) == TUTTI_OK);
    }
    RANKS_CHECK(submit(pg, false, data[0], 1, rank, 2, 0, &works[0]) == TUTTI_OK);
    RANKS_CHECK(submit(pg, true, data[1], LONG_ELEMENTS, rank, 2, 0, &works[1]) == TUTTI_OK);
    RANKS_CHECK(pg_end(works[0]) == TUTTI_ERR_MISMATCH && pg_end(works[1]) == TUTTI_ERR_MISMATCH);
    RANKS_CHECK(submit(pg, true, data[1], LONG_ELEMENTS, rank, 2, SOON_MS, works) == TUTTI_OK);
    RANKS_CHECK(pg_end(works[0]) == TUTTI_ERR_TIMEOUT);
    RANKS_CHECK(strstr(tutti_last_error(), "nothing had matched it"));
    free(data[0]);
    free(data[1]);
    return 0;
}

/* A length, short or long, and a dtype that differ. A short send has ended by then. */
static int mismatches(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    static const char *const texts[] = {"of 5 float32", "of 70000 float32", "of 4 int32"};
    static const int64_t counts[] = {5, 70000, 4};
    float *data = calloc(70000, sizeof *data);
    RANKS_CHECK(data);
    for (int i = 0; i < 3 && rank < 2; i++) {
        const struct tutti_pg_call_options options = {.struct_size = sizeof options, .tag = 3};
        const int64_t four = 4;
        struct tutti_tensor tensor = pg_vector(data, rank == 0 ? &counts[i] : &four);
        struct tutti_fault fault = {.struct_size = sizeof fault};
        tutti_work_t *work;
        if (rank == 0 && i == 2)
            tensor.dtype = TUTTI_INT32;
        RANKS_CHECK((rank == 0 ? tutti_pg_send : tutti_pg_recv)(pg, &tensor, 1 - rank, &options,
                                                                &work) == TUTTI_OK);
        if (rank == 0 && i != 1) {
            RANKS_CHECK(pg_end(work) == TUTTI_OK);
            continue;
        }
        RANKS_CHECK(tutti_work_wait_host(work, RANKS_TIMEOUT_MS) == TUTTI_ERR_MISMATCH);
        RANKS_CHECK(strstr(tutti_last_error(), texts[i]));
        RANKS_CHECK(strstr(tutti_last_error(), "recv of 4 float32"));
        RANKS_CHECK(tutti_work_fault(work, &fault) == TUTTI_ERR_MISMATCH);
        RANKS_CHECK(fault.rank == rank && fault.peer == 1 - rank);
        RANKS_CHECK(fault.expected.count == (size_t)*tensor.sizes);
        tutti_work_destroy(work);
    }
    free(data);
    return 0;
}

/* Nobody sends, nobody receives in time. A send that has ended with TIMEOUT is not received later.
 */
static int time_outs(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    float x = -1, y = 0;
    tutti_work_t *work = NULL;
    for (int peer = TUTTI_ANY_SOURCE; peer < ranks->size; peer++) {
        RANKS_CHECK(submit(pg, false, &y, 1, peer, 4, SOON_MS, &work) == TUTTI_OK);
        RANKS_CHECK(tutti_work_wait_host(work, RANKS_TIMEOUT_MS) == TUTTI_ERR_TIMEOUT);
        RANKS_CHECK(strstr(tutti_last_error(), peer < 0 || peer == rank ? "nothing had matched it"
                                                                        : "had not submitted it"));
        RANKS_CHECK(tutti_work_source(work) == -1);
        tutti_work_destroy(work);
    }
    RANKS_CHECK(pg_goes_on(pg, 1, ranks->size));
    for (int i = 0; i <= KEPT_MOST + 1 && rank == 0;
         i++) { /* one long, then one more than are kept */
        float *data = calloc(LONG_ELEMENTS, sizeof *data);
        const bool is_kept = i && i <= KEPT;
        data[0] = (float)i;
        RANKS_CHECK(submit(pg, true, data, i ? 1 : LONG_ELEMENTS, 1, 5, is_kept ? 0 : SOON_MS,
                           &work) == TUTTI_OK);
        const enum tutti_status status = tutti_work_wait_host(work, RANKS_TIMEOUT_MS);
        RANKS_CHECK(is_kept ? status == TUTTI_OK
                            : status == TUTTI_ERR_TIMEOUT ||
                                  (status == TUTTI_OK && i && i <= KEPT_MOST));
        tutti_work_destroy(work);
        free(data);
    }
    if (rank == 0)
        RANKS_CHECK(submit(pg, true, &x, 1, 1, 5, 0, &work) == TUTTI_OK);
    RANKS_CHECK(pg_goes_on(pg, 1, ranks->size));
    for (int i = 1; rank == 1 && (i == 1 || y != x); i++) {
        RANKS_CHECK(submit(pg, false, &y, 1, 0, 5, 0, &work) == TUTTI_OK);
        RANKS_CHECK(pg_end(work) == TUTTI_OK && (y == x || y == (float)i));
        RANKS_CHECK(y != x || i > KEPT);
    }
    if (rank == 0)
        RANKS_CHECK(pg_end(work) == TUTTI_OK);
    return 0;
}

static int refusals(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    float x = 1;
    tutti_work_t *work = NULL;
    RANKS_CHECK(submit(pg, false, &x, 1, ranks->size, 0, 0, &work) == TUTTI_ERR_INVALID && !work);
    RANKS_CHECK(strstr(tutti_last_error(), "peer is"));
    RANKS_CHECK(submit(pg, true, &x, 1, TUTTI_ANY_SOURCE, 0, 0, &work) == TUTTI_ERR_INVALID);
    RANKS_CHECK(submit(pg, false, NULL, 1, !rank, 0, 0, &work) == TUTTI_ERR_INVALID && !work);
    RANKS_CHECK(tutti_pg_send(pg, NULL, !rank, NULL, &work) == TUTTI_ERR_INVALID && !work);
    RANKS_CHECK(tutti_work_source(NULL) == -1);
    return 0;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    RANKS_CHECK(pg_join(ranks, rank, store, &comm, &pg) == TUTTI_OK);
    int failed = random_messages(ranks, rank, pg);
    if (!failed)
        failed = any_source(ranks, rank, pg);
    if (!failed)
        failed = unmatched(ranks, rank, pg);
    if (!failed)
        failed = send_first(ranks, rank, pg);
    if (!failed)
        failed = to_self(ranks, rank, pg);
    if (!failed)
        failed = mismatches(ranks, rank, pg);
    if (!failed)
        failed = time_outs(ranks, rank, pg);
    if (!failed)
        failed = refusals(ranks, rank, pg);
    if (!failed) /* no rank leaves before all have finished */
        RANKS_CHECK(pg_goes_on(pg, 1, ranks->size));
    pg_part(comm, pg);
    return failed;
}

/* The last rank leaves. Messages with it, and collectives, end; messages of the others go on. */
static int exits(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int last = ranks->size - 1;
    float x = 1, last_words[2] = {3, 0}, *data = calloc(LONG_ELEMENTS, sizeof *data);
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    tutti_work_t *work;
    RANKS_CHECK(pg_join(ranks, rank, store, &comm, &pg) == TUTTI_OK);
    RANKS_CHECK(pg_goes_on(pg, 1, ranks->size));
    if (rank == last) { /* what it sends is received all the same */
        RANKS_CHECK(submit(pg, true, last_words, 1, 0, 1, 0, &work) == TUTTI_OK);
        RANKS_CHECK(pg_end(work) == TUTTI_OK);
    }
    for (int i = 0; i < 2 && rank < last; i++) { /* before the exit and after it */
        struct tutti_fault fault = {.struct_size = sizeof fault};
        float y = -1;
        tutti_work_t *received;
        RANKS_CHECK(submit(pg, (rank + i) % 2, data, LONG_ELEMENTS, last, 0, 0, &work) == TUTTI_OK);
        RANKS_CHECK(tutti_work_wait_host(work, RANKS_TIMEOUT_MS) == TUTTI_ERR_PEER_DEAD);
        RANKS_CHECK(tutti_work_fault(work, &fault) == TUTTI_ERR_PEER_DEAD && fault.peer == last);
        tutti_work_destroy(work);
        if (last == 1)
            continue;
        RANKS_CHECK(submit(pg, true, &x, 1, (rank + 1) % last, 0, 0, &work) == TUTTI_OK);
        RANKS_CHECK(submit(pg, false, &y, 1, (rank + last - 1) % last, 0, 0, &received) ==
                    TUTTI_OK);
        RANKS_CHECK(pg_end(received) == TUTTI_OK && pg_end(work) == TUTTI_OK && y == x);
    }
    for (int i = 0; i < 2 && rank == 0; i++) {
        RANKS_CHECK(submit(pg, false, &last_words[1], 1, last, 1, 0, &work) == TUTTI_OK);
        RANKS_CHECK(pg_end(work) == (i ? TUTTI_ERR_PEER_DEAD : TUTTI_OK));
        RANKS_CHECK(last_words[1] == last_words[0]);
    }
    if (rank < last) {
        RANKS_CHECK(pg_sum(pg, &x, 0, 0, &work) == TUTTI_ERR_PEER_DEAD);
        RANKS_CHECK(strstr(tutti_last_error(), "collectives of the process group have ended"));
    }
    free(data);
    pg_part(comm, pg);
    return 0;
}

int main(int argc, char **argv)
{
    return pg_main(argc, argv, 2, (ranks_fn *const[]){live, exits}, 2);
}
