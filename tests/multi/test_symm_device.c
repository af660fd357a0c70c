/* SPDX-License-Identifier: MIT */
/*
 * Symmetric memory in host memory or on GPUs (the tests' device), among processes or threads. Data
 * that a rank writes into a peer's buffer is visible after a barrier or a signal, on a stream,
 * captured or not. Errors name the rank that is late, dead or has freed its buffer, and the streams
 * go on.
 */
#include "../tools/gpu.h"
#include "device.h"
#include "ranks.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WORDS = 4096, /* in each rank's part of a buffer */
    RINGS = 1000,
    RINGS_SHORT = 60,
    RINGS_CAPTURED = 10,
    RINGS_QUEUED =
        100, /* enqueued at once: on a full stream the host would wait inside the driver */
    REPLAYS = 20,
    SOON_MS = 50,
};

struct side {
    struct ranks *ranks;
    int rank;
    tutti_symm_group_t *group;
    uint64_t *buffer;
    struct tutti_symm_info info;
    tutti_stream_t stream;
};

static enum tutti_device test_device(void)
{
    return device_is_cuda() ? TUTTI_DEVICE_CUDA : TUTTI_DEVICE_CPU;
}

static enum tutti_status side_alloc(struct side *side, size_t bytes, uint64_t **buffer)
{
    void *memory = NULL;
    enum tutti_status status = tutti_symm_alloc(side->group, test_device(), bytes, &memory);
    if (status == TUTTI_OK)
        status = tutti_symm_rendezvous(memory, RANKS_TIMEOUT_MS, NULL);
    *buffer = memory;
    return status;
}

static int side_open(struct side *side, struct ranks *ranks, int rank, tutti_store_t *store)
{
    *side = (struct side){.ranks = ranks, .rank = rank, .info.struct_size = sizeof side->info};
    RANKS_CHECK(!device_is_cuda() || (device_bind(rank) && gpu_stream_create(&side->stream)));
    RANKS_CHECK(tutti_symm_group("test", rank, ranks->size, store, &side->group) == TUTTI_OK);
    RANKS_CHECK(side_alloc(side, (size_t)ranks->size * WORDS * sizeof(uint64_t), &side->buffer) ==
                TUTTI_OK);
    RANKS_CHECK(tutti_symm_rendezvous(side->buffer, 0, &side->info) == TUTTI_OK);
    return 0;
}

static void side_close(struct side *side)
{
    tutti_symm_group_destroy(side->group);
    if (device_is_cuda())
        gpu_stream_destroy(side->stream);
}

/* ---- on either device ------------------------------------------------------------------------ */

static bool copy(void *to, const void *from, size_t bytes)
{
    if (device_is_cuda())
        return gpu_copy(to, from, bytes);
    memcpy(to, from, bytes);
    return true;
}

static bool copy_on(void *to, const void *from, size_t bytes, tutti_stream_t stream)
{
    if (device_is_cuda())
        return gpu_copy_async(to, from, bytes, stream);
    memcpy(to, from, bytes);
    return true;
}

static bool stream_finish(struct side *side)
{
    return !device_is_cuda() || gpu_stream_synchronize(side->stream);
}

/* The part of rank `of`'s buffer that rank `from` writes. */
static uint64_t *part(struct side *side, int of, int from)
{
    const int64_t sizes[] = {WORDS};
    void *view = NULL;
    if (tutti_symm_buffer(side->buffer, of, sizes, 1, TUTTI_UINT64, (int64_t)from * WORDS, &view))
        abort();
    return view;
}

static uint64_t pattern(int round, int from, int to, int i)
{
    return (uint64_t)round << 48 | (uint64_t)from << 40 | (uint64_t)to << 32 | (uint64_t)i * 7;
}

/* ---- data ------------------------------------------------------------------------------------ */

static int tables(struct side *side)
{
    struct ranks *ranks = side->ranks;
    const int rank = side->rank;
    void *view, *there[TUTTI_MAX_RANKS];
    uint32_t *pads[TUTTI_MAX_RANKS], *words;
    size_t bytes = (size_t)ranks->size * sizeof(void *);
    const int64_t whole[] = {(int64_t)ranks->size * WORDS};
    RANKS_CHECK(side->info.rank == rank && side->info.world_size == ranks->size);
    RANKS_CHECK(side->info.device == test_device() && side->info.signal_pad_bytes >= 2048);
    RANKS_CHECK(side->info.buffers[rank] == side->buffer);
    for (int r = 0; r < ranks->size; r++) {
        RANKS_CHECK(part(side, r, 0) == side->info.buffers[r]);
        RANKS_CHECK(tutti_symm_buffer(side->buffer, r, whole, 1, TUTTI_UINT64, 1, &view) ==
                    TUTTI_ERR_INVALID);
        RANKS_CHECK(tutti_symm_signal_pad(side->buffer, r, 0, 16, &words) == TUTTI_OK &&
                    words == side->info.signal_pads[r]);
    }
    RANKS_CHECK(tutti_symm_buffer(side->buffer, ranks->size, whole, 1, TUTTI_UINT64, 0, &view) ==
                TUTTI_ERR_INVALID);
    RANKS_CHECK(!side->info.device_buffers == !device_is_cuda());
    if (!device_is_cuda())
        return 0;
    RANKS_CHECK(copy(there, (const void *)side->info.device_buffers, bytes) &&
                memcmp(there, (const void *)side->info.buffers, bytes) == 0);
    RANKS_CHECK(copy((void *)pads, (const void *)side->info.device_signal_pads, bytes) &&
                memcmp((void *)pads, (const void *)side->info.signal_pads, bytes) == 0);
    return 0;
}

/* Each rank writes to all ranks. */
static int patterns(struct side *side)
{
    struct ranks *ranks = side->ranks;
    const int rank = side->rank, size = ranks->size;
    uint64_t *words = malloc((size_t)size * WORDS * sizeof *words);
    RANKS_CHECK(words);
    RANKS_CHECK(copy(words, side->buffer, (size_t)size * WORDS * sizeof *words));
    for (int i = 0; i < size * WORDS; i++)
        RANKS_CHECK(words[i] == 0);
    RANKS_CHECK(tutti_symm_barrier(side->buffer, 1, 0, side->stream) == TUTTI_OK &&
                stream_finish(side));
    for (int round = 1; round <= 4; round++) {
        for (int to = 0; to < size; to++) {
            for (int i = 0; i < WORDS; i++)
                words[i] = pattern(round, rank, to, i);
            RANKS_CHECK(copy(part(side, to, rank), words, WORDS * sizeof *words));
        }
        RANKS_CHECK(tutti_symm_barrier(side->buffer, 0, 0, side->stream) == TUTTI_OK);
        RANKS_CHECK(
            copy_on(words, side->buffer, (size_t)size * WORDS * sizeof *words, side->stream) &&
            stream_finish(side));
        for (int from = 0; from < size; from++)
            for (int i = 0; i < WORDS; i++)
                RANKS_CHECK(words[from * WORDS + i] == pattern(round, from, rank, i));
        RANKS_CHECK(tutti_symm_barrier(side->buffer, 1, 0, side->stream) == TUTTI_OK &&
                    stream_finish(side));
    }
    free(words);
    return 0;
}

/* ---- signals --------------------------------------------------------------------------------- */

/* Offsets in a rank's own part of its own buffer. */
enum { VALUES = 0, MAILBOX = 1024, LOG = 2048 };

/* Send a word to the right neighbour: write it and signal. Receive the left neighbour's word, log
 * it, and signal back that it was read. */
static bool ring_once(struct side *side, int i, int channel)
{
    const int rank = side->rank, size = side->ranks->size;
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    uint64_t *own = part(side, rank, rank), *theirs = part(side, right, right);
    void *buffer = side->buffer;
    tutti_stream_t on = side->stream;
    return copy_on(theirs + MAILBOX, own + VALUES + i, sizeof *own, on) &&
           tutti_symm_put_signal(buffer, right, channel, 0, on) == TUTTI_OK &&
           tutti_symm_wait_signal(buffer, left, channel, 0, on) == TUTTI_OK &&
           copy_on(own + LOG + i, own + MAILBOX, sizeof *own, on) &&
           tutti_symm_put_signal(buffer, left, channel + 1, 0, on) == TUTTI_OK &&
           tutti_symm_wait_signal(buffer, right, channel + 1, 0, on) == TUTTI_OK;
}

static bool values_set(struct side *side, int round, int count)
{
    uint64_t words[1024];
    for (int i = 0; i < count; i++)
        words[i] = pattern(round, side->rank, 0, i);
    return copy(part(side, side->rank, side->rank) + VALUES, words, (size_t)count * sizeof *words);
}

/* Return true if the log has what the left neighbour sent. */
static bool log_is(struct side *side, int round, int count)
{
    const int size = side->ranks->size, left = (side->rank + size - 1) % size;
    uint64_t words[1024];
    if (!stream_finish(side) ||
        !copy(words, part(side, side->rank, side->rank) + LOG, (size_t)count * sizeof *words))
        return false;
    for (int i = 0; i < count; i++)
        if (words[i] != pattern(round, left, 0, i))
            return false;
    return true;
}

static int ring(struct side *side)
{
    struct ranks *ranks = side->ranks;
    const int rank = side->rank, count = ranks_short() ? RINGS_SHORT : RINGS;
    RANKS_CHECK(values_set(side, 1, count));
    for (int i = 0; i < count; i++) {
        RANKS_CHECK(ring_once(side, i, 2));
        RANKS_CHECK(i % RINGS_QUEUED != 0 || stream_finish(side));
    }
    RANKS_CHECK(log_is(side, 1, count));
    RANKS_CHECK(tutti_symm_status(side->buffer, NULL) == TUTTI_OK);
    return 0;
}

static void *capture_ring(struct side *side, int channel)
{
    if (!gpu_capture_begin(side->stream))
        return NULL;
    bool ok = true;
    for (int i = 0; i < RINGS_CAPTURED && ok; i++)
        ok = ring_once(side, i, channel);
    ok = ok && tutti_symm_barrier(side->buffer, channel + 2, 0, side->stream) == TUTTI_OK;
    void *graph = gpu_capture_end(side->stream);
    return ok ? graph : NULL;
}

/* Two graphs on two channels, interleaved with eager calls. */
static int ring_captured(struct side *side)
{
    struct ranks *ranks = side->ranks;
    const int rank = side->rank;
    void *graphs[2];
    if (!device_is_cuda())
        return 0;
    for (int g = 0; g < 2; g++)
        RANKS_CHECK((graphs[g] = capture_ring(side, 2 * g)));
    for (int round = 2; round < 2 + REPLAYS; round++) {
        RANKS_CHECK(values_set(side, round, RINGS_CAPTURED + 1));
        for (int i = 0; i < 10; i++)
            RANKS_CHECK(gpu_graph_launch(graphs[(round + i) % 2], side->stream));
        RANKS_CHECK(ring_once(side, RINGS_CAPTURED, 2));
        RANKS_CHECK(log_is(side, round, RINGS_CAPTURED + 1));
    }
    for (int g = 0; g < 2; g++)
        gpu_graph_destroy(graphs[g]);
    RANKS_CHECK(tutti_symm_status(side->buffer, NULL) == TUTTI_OK);
    return 0;
}

/* A graph that is launched after its buffer was freed does nothing, and its stream goes on. */
static int outlive(struct side *side)
{
    struct ranks *ranks = side->ranks;
    const int rank = side->rank;
    uint64_t *buffer;
    if (!device_is_cuda())
        return 0;
    RANKS_CHECK(side_alloc(side, 100, &buffer) == TUTTI_OK);
    RANKS_CHECK(gpu_capture_begin(side->stream));
    RANKS_CHECK(tutti_symm_barrier(buffer, 0, 0, side->stream) == TUTTI_OK);
    void *graph = gpu_capture_end(side->stream);
    RANKS_CHECK(graph && gpu_graph_launch(graph, side->stream) && stream_finish(side));
    RANKS_CHECK(tutti_symm_status(buffer, NULL) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_free(buffer) == TUTTI_OK);
    RANKS_CHECK(gpu_graph_launch(graph, side->stream) && stream_finish(side));
    gpu_graph_destroy(graph);
    return 0;
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* On CPU the call returns the error. On CUDA the call returns OK, and after the stream has ended
 * the buffer has the error. */
static int expect_failure(struct side *side, uint64_t *buffer, enum tutti_status called,
                          enum tutti_status expected, int peer, uint32_t channel)
{
    struct ranks *ranks = side->ranks;
    const int rank = side->rank;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    char words[2][32];
    snprintf(words[0], sizeof words[0], "rank %d", peer);
    snprintf(words[1], sizeof words[1], "channel %u", (unsigned)channel);
    RANKS_CHECK(called == (device_is_cuda() ? TUTTI_OK : expected));
    if (device_is_cuda()) {
        RANKS_CHECK(stream_finish(side));
        RANKS_CHECK(tutti_symm_status(buffer, &fault) == expected && fault.status == expected);
        RANKS_CHECK(fault.rank == rank && fault.peer == peer);
        RANKS_CHECK(fault.expected.parameter == channel);
    }
    RANKS_CHECK(strstr(tutti_last_error(), words[0]) && strstr(tutti_last_error(), words[1]));
    if (!device_is_cuda())
        return 0;
    /* The failure stays, on this buffer only. */
    RANKS_CHECK(tutti_symm_put_signal(buffer, peer, 7, 0, side->stream) == expected);
    RANKS_CHECK(strstr(tutti_last_error(), words[0]));
    RANKS_CHECK(tutti_symm_barrier(buffer, 7, 0, side->stream) == expected);
    return 0;
}

static int late(struct side *side)
{
    struct ranks *ranks = side->ranks;
    const int rank = side->rank;
    uint64_t *buffers[2];
    for (int i = 0; i < 2; i++)
        RANKS_CHECK(side_alloc(side, 100, &buffers[i]) == TUTTI_OK);
    if (rank == 0) {
        enum tutti_status status = tutti_symm_wait_signal(buffers[0], 1, 3, SOON_MS, side->stream);
        int failed = expect_failure(side, buffers[0], status, TUTTI_ERR_TIMEOUT, 1, 3);
        RANKS_CHECK(!failed && strstr(tutti_last_error(), "raised"));
        RANKS_CHECK(tutti_symm_put_signal(buffers[1], 1, 4, SOON_MS, side->stream) == TUTTI_OK);
        status = tutti_symm_put_signal(buffers[1], 1, 4, SOON_MS, side->stream);
        failed = expect_failure(side, buffers[1], status, TUTTI_ERR_TIMEOUT, 1, 4);
        RANKS_CHECK(!failed && strstr(tutti_last_error(), "taken"));
    }
    RANKS_CHECK(tutti_symm_barrier(side->buffer, 0, 0, side->stream) == TUTTI_OK &&
                stream_finish(side));
    RANKS_CHECK(tutti_symm_status(side->buffer, NULL) == TUTTI_OK);
    for (int i = 0; i < 2; i++)
        RANKS_CHECK(tutti_symm_free(buffers[i]) == TUTTI_OK);
    return 0;
}

/* Rank 1 raises a last signal and then frees its buffer. The peers still get that signal. */
static int leave(struct side *side)
{
    struct ranks *ranks = side->ranks;
    const int rank = side->rank;
    uint64_t *buffer;
    RANKS_CHECK(side_alloc(side, 100, &buffer) == TUTTI_OK);
    if (rank == 1) {
        for (int r = 0; r < ranks->size; r++)
            RANKS_CHECK(r == rank ||
                        tutti_symm_put_signal(buffer, r, 0, 0, side->stream) == TUTTI_OK);
        RANKS_CHECK(tutti_symm_free(buffer) == TUTTI_OK);
        RANKS_CHECK(tutti_symm_status(buffer, NULL) == TUTTI_ERR_INVALID);
    } else {
        enum tutti_status status = tutti_symm_wait_signal(buffer, 1, 0, 0, side->stream);
        RANKS_CHECK(status == TUTTI_OK && stream_finish(side));
        RANKS_CHECK(tutti_symm_status(buffer, NULL) == TUTTI_OK);
        status = tutti_symm_wait_signal(buffer, 1, 5, 0, side->stream);
        int failed = expect_failure(side, buffer, status, TUTTI_ERR_PEER_DEAD, 1, 5);
        RANKS_CHECK(!failed && tutti_symm_free(buffer) == TUTTI_OK);
    }
    RANKS_CHECK(tutti_symm_barrier(side->buffer, 0, 0, side->stream) == TUTTI_OK &&
                stream_finish(side));
    return 0;
}

/* The free does not wait for absent peers, whatever is still under way on the rank's streams. */
static int free_under_way(struct side *side)
{
    struct ranks *ranks = side->ranks;
    const int rank = side->rank;
    uint64_t *buffer;
    RANKS_CHECK(side_alloc(side, 100, &buffer) == TUTTI_OK);
    if (rank == 0 && device_is_cuda()) {
        RANKS_CHECK(tutti_symm_wait_signal(buffer, 1, 0, 0, side->stream) == TUTTI_OK);
        /* Rank 1 may have freed its buffer by now: then the wait has failed, and so does this call.
         */
        enum tutti_status status = tutti_symm_barrier(buffer, 1, 0, side->stream);
        RANKS_CHECK(status == TUTTI_OK || status == TUTTI_ERR_PEER_DEAD);
    }
    RANKS_CHECK(tutti_symm_free(buffer) == TUTTI_OK && stream_finish(side));
    RANKS_CHECK(tutti_symm_barrier(side->buffer, 0, 0, side->stream) == TUTTI_OK &&
                stream_finish(side));
    return 0;
}

static int disagree(struct side *side)
{
    struct ranks *ranks = side->ranks;
    const int rank = side->rank;
    enum tutti_device kind = rank == 1 ? TUTTI_DEVICE_CPU : test_device();
    uint64_t *buffer;
    void *other;
    RANKS_CHECK(side_alloc(side, rank == 1 ? 200 : 100, &buffer) == TUTTI_ERR_MISMATCH);
    RANKS_CHECK(strstr(tutti_last_error(), "100") && strstr(tutti_last_error(), "200"));
    RANKS_CHECK(tutti_symm_alloc(side->group, kind, 100, &other) == TUTTI_OK);
    if (device_is_cuda()) {
        RANKS_CHECK(tutti_symm_rendezvous(other, 0, NULL) == TUTTI_ERR_MISMATCH);
        RANKS_CHECK(strstr(tutti_last_error(), "CUDA device") &&
                    strstr(tutti_last_error(), "memory of the host"));
    }
    RANKS_CHECK(tutti_symm_free(other) == TUTTI_OK && tutti_symm_free(buffer) == TUTTI_OK);
    RANKS_CHECK(side_alloc(side, 100, &buffer) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_free(buffer) == TUTTI_OK);
    return 0;
}

/* A communicator accepts symmetric memory like any other memory of its device. */
static int reduce(struct side *side, tutti_store_t *store)
{
    struct ranks *ranks = side->ranks;
    const int rank = side->rank;
    float values[64];
    uint64_t *own = part(side, rank, rank);
    tutti_comm_t *comm;
    void *host;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    for (int i = 0; i < 64; i++)
        values[i] = (float)(rank + 1);
    RANKS_CHECK(copy(own, values, sizeof values));
    RANKS_CHECK(device_all_reduce(own, own, 64, TUTTI_FLOAT32, TUTTI_SUM, comm, side->stream,
                                  NULL) == TUTTI_OK);
    RANKS_CHECK(stream_finish(side) && copy(values, own, sizeof values));
    for (int i = 0; i < 64; i++)
        RANKS_CHECK(values[i] == (float)(ranks->size * (ranks->size + 1) / 2));
    RANKS_CHECK(tutti_symm_alloc(side->group, TUTTI_DEVICE_CPU, 256, &host) == TUTTI_OK);
    if (device_is_cuda()) {
        RANKS_CHECK(device_all_reduce(host, host, 64, TUTTI_FLOAT32, TUTTI_SUM, comm, side->stream,
                                      NULL) == TUTTI_ERR_INVALID);
        RANKS_CHECK(strstr(tutti_last_error(), "host memory"));
    }
    RANKS_CHECK(tutti_symm_free(host) == TUTTI_OK);
    tutti_comm_destroy(comm);
    return 0;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static int (*const parts[])(struct side *) = {
        tables, patterns, ring, ring_captured, outlive, late, leave, free_under_way, disagree};
    struct side side;
    int failed = side_open(&side, ranks, rank, store);
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !failed; i++)
        failed = parts[i](&side);
    if (!failed)
        failed = reduce(&side, store);
    side_close(&side);
    return failed;
}

/* The last rank's process is killed. This ends the other ranks' waits. */
static int die(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int victim = ranks->size - 1;
    struct side side;
    int failed = side_open(&side, ranks, rank, store);
    RANKS_CHECK(!failed);
    RANKS_CHECK(tutti_symm_barrier(side.buffer, 0, 0, side.stream) == TUTTI_OK &&
                stream_finish(&side));
    if (rank == victim) {
        RANKS_CHECK(ranks_await(ranks, 1, (uint32_t)ranks->size - 1));
        raise(SIGKILL);
    }
    ranks_raise(ranks, 1);
    enum tutti_status status =
        tutti_symm_wait_signal(side.buffer, victim, 6, RANKS_TIMEOUT_MS, side.stream);
    failed = expect_failure(&side, side.buffer, status, TUTTI_ERR_PEER_DEAD, victim, 6);
    side_close(&side);
    return failed;
}

int main(int argc, char **argv)
{
    bool processes = argc > 1 && strcmp(argv[1], "processes") == 0;
    int failures = 0, skip = ranks_skip(2);
    if (skip)
        return skip;
    if (processes && ranks_fit(4)) { /* two of two threads each */
        struct ranks *ranks = ranks_create(4, 2, 0);
        failures += ranks_run(ranks, live);
        ranks_destroy(ranks);
    }
    for (int size = 2; size <= 4 && ranks_fit(size); size++) {
        struct ranks *ranks = ranks_create(size, processes ? size : 0, 0);
        failures += ranks_run(ranks, live);
        ranks_destroy(ranks);
        if (!processes)
            continue;
        ranks = ranks_create(size, size, 0);
        ranks->expendable = UINT64_C(1) << (size - 1);
        failures += ranks_run(ranks, die);
        ranks_destroy(ranks);
    }
    return failures ? 1 : 0;
}
