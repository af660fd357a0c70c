/* SPDX-License-Identifier: MIT */
/*
 * Messages of a process group on CUDA tensors: between devices, from a device to the host and back,
 * to oneself; a send whose stream is late, and those behind it.
 *
 * usage: test_pg_messages_cuda processes|threads
 */
#include "pg_cuda.h"

#include <stdlib.h>

enum { SOON_MS = 50, LONG = 300000, LATE_TAG = 5 };

/* A rank's group, and memory of LONG floats. */
struct life {
    struct ranks *ranks;
    int rank;
    tutti_pg_t *pg;
    float *host, *sent, *received; /* the last two are on the device */
    tutti_stream_t a, b;
};

static enum tutti_status submit(const struct life *life, bool sends, float *data, int64_t count,
                                int peer, uint32_t tag, int64_t timeout_ms, tutti_stream_t stream,
                                tutti_work_t **work)
{
    const bool on_host = data == life->host;
    const struct tutti_tensor tensor =
        on_host ? pg_vector(data, &count)
                : pg_cuda_vector(data, &count, pg_cuda_device(life->rank, 0));
    const struct tutti_pg_call_options options = {.struct_size = sizeof options,
                                                  .tag = tag,
                                                  .timeout_ms = timeout_ms,
                                                  .stream =
                                                      on_host ? TUTTI_STREAM_DEFAULT : stream};
    return sends ? tutti_pg_send(life->pg, &tensor, peer, &options, work)
                 : tutti_pg_recv(life->pg, &tensor, peer, &options, work);
}

static bool fill(const struct life *life, float *data, int64_t count, int first)
{
    for (int64_t i = 0; i < count; i++)
        life->host[i] = (float)(first + i % 1000);
    return data == life->host || gpu_copy(data, life->host, (size_t)count * sizeof *data);
}

static bool holds(const struct life *life, const float *data, int64_t count, int first)
{
    if (data != life->host && !gpu_copy(life->host, data, (size_t)count * sizeof *data))
        return false;
    for (int64_t i = 0; i < count; i++)
        if (life->host[i] != (float)(first + i % 1000))
            return false;
    return true;
}

/* To the rank after this one, as one side is ready or the other; streams wait for the receive. */
static int ring(const struct life *life, int64_t count, bool host_sends, bool host_receives)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank, size = ranks->size;
    const int after = (rank + 1) % size, before = (rank + size - 1) % size;
    float *from = host_sends ? life->host : life->sent;
    float *to = host_receives ? life->host : life->received;
    tutti_work_t *send, *recv;
    RANKS_CHECK(gpu_fill(life->received, 0, LONG * sizeof(float)));
    RANKS_CHECK(fill(life, from, count, rank));
    RANKS_CHECK(submit(life, true, from, count, after, 1, 0, life->a, &send) == TUTTI_OK);
    if (host_sends) /* the receive may use the same memory */
        RANKS_CHECK(count > 100 || tutti_work_wait_host(send, RANKS_TIMEOUT_MS) == TUTTI_OK);
    RANKS_CHECK(submit(life, false, to, count, before, 1, 0, life->a, &recv) == TUTTI_OK);
    if (!host_receives)
        RANKS_CHECK(tutti_work_wait_stream(recv, life->b) == TUTTI_OK &&
                    gpu_stream_synchronize(life->b));
    RANKS_CHECK(tutti_work_wait_host(recv, RANKS_TIMEOUT_MS) == TUTTI_OK);
    RANKS_CHECK(tutti_work_source(recv) == before && holds(life, to, count, before));
    RANKS_CHECK(pg_end(send) == TUTTI_OK && pg_end(recv) == TUTTI_OK);
    return 0;
}

static int to_self(const struct life *life, int64_t count)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank;
    tutti_work_t *send, *recv;
    RANKS_CHECK(fill(life, life->sent, count, rank));
    RANKS_CHECK(submit(life, true, life->sent, count, rank, 2, 0, life->a, &send) == TUTTI_OK);
    RANKS_CHECK(submit(life, false, life->received, count, rank, 2, 0, life->a, &recv) == TUTTI_OK);
    RANKS_CHECK(pg_end(send) == TUTTI_OK && pg_end(recv) == TUTTI_OK);
    RANKS_CHECK(holds(life, life->received, count, rank));
    return 0;
}

/* A stream holds up two sends: one ends at its time-out, the other is sent when the stream goes on.
 * A later one of their tag waits for them, one of another tag does not. */
static int late(const struct life *life)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank, size = ranks->size;
    const int after = (rank + 1) % size, before = (rank + size - 1) % size;
    struct pg_brake brake;
    tutti_work_t *given_up, *held, *behind, *other, *works[3];
    bool done = true;
    RANKS_CHECK(fill(life, life->sent, 3, rank));
    RANKS_CHECK(pg_brake_put(&brake, life->a));
    RANKS_CHECK(submit(life, true, life->sent, 1, after, LATE_TAG, SOON_MS, life->a, &given_up) ==
                TUTTI_OK);
    RANKS_CHECK(submit(life, true, life->sent, 1, after, LATE_TAG, 0, life->a, &held) == TUTTI_OK);
    RANKS_CHECK(submit(life, true, life->sent + 1, 1, after, LATE_TAG, 0, life->b, &behind) ==
                TUTTI_OK);
    RANKS_CHECK(submit(life, true, life->sent + 2, 1, after, 0, 0, life->b, &other) == TUTTI_OK);
    for (int i = 0; i < 3; i++)
        RANKS_CHECK(submit(life, false, life->received + i, 1, before, i < 2 ? LATE_TAG : 0, 0,
                           life->b, &works[i]) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_host(given_up, RANKS_TIMEOUT_MS) == TUTTI_ERR_TIMEOUT);
    RANKS_CHECK(strstr(tutti_last_error(), "had not reached the input"));
    tutti_work_destroy(given_up);
    RANKS_CHECK(pg_end(other) == TUTTI_OK && pg_end(works[2]) == TUTTI_OK);
    RANKS_CHECK(tutti_work_test(held, &done) == TUTTI_OK && !done);
    RANKS_CHECK(tutti_work_test(behind, &done) == TUTTI_OK && !done);
    pg_brake_release(&brake);
    RANKS_CHECK(pg_end(held) == TUTTI_OK && pg_end(behind) == TUTTI_OK);
    RANKS_CHECK(pg_end(works[0]) == TUTTI_OK && pg_end(works[1]) == TUTTI_OK);
    RANKS_CHECK(holds(life, life->received, 3, before));
    return 0;
}

static int parts(const struct life *life)
{
    static const int64_t counts[] = {0, 3, LONG};
    int failed = 0;
    for (int i = 0; i < 3 && !failed; i++) {
        failed = ring(life, counts[i], false, false);
        if (!failed)
            failed = ring(life, counts[i], false, true);
        if (!failed && counts[i] < LONG)
            failed = ring(life, counts[i], true, false);
        if (!failed)
            failed = to_self(life, counts[i]);
    }
    return failed ? failed : late(life);
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct life life = {.ranks = ranks, .rank = rank};
    tutti_comm_t *comm;
    RANKS_CHECK(pg_cuda_bind(rank));
    life.host = malloc(LONG * sizeof(float));
    life.sent = gpu_alloc(LONG * sizeof(float));
    life.received = gpu_alloc(LONG * sizeof(float));
    RANKS_CHECK(life.host && life.sent && life.received);
    RANKS_CHECK(gpu_stream_create(&life.a) && gpu_stream_create(&life.b));
    /* CUDA may wait for the kernels of other ranks while it allocates, so it is done before. */
    RANKS_CHECK(pg_cuda_join(ranks, rank, store, false, &comm, &life.pg) == TUTTI_OK);
    const int failed = parts(&life);
    RANKS_CHECK(failed || ranks_meet(ranks, 0)); /* no rank frees while another has a brake on */
    pg_part(comm, life.pg);
    gpu_stream_destroy(life.a);
    gpu_stream_destroy(life.b);
    gpu_free(life.sent);
    gpu_free(life.received);
    free(life.host);
    return failed;
}

int main(int argc, char **argv)
{
    return pg_cuda_skip() ? 77 : pg_main(argc, argv, 2, (ranks_fn *const[]){live}, 1);
}
