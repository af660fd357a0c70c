/* SPDX-License-Identifier: MIT */
/*
 * Symmetric memory: buffers that every rank has mapped. The example uses them in three ways: an
 * all-reduce without copies, a message that is written directly into the neighbour's buffer and
 * announced by a signal, and reads from the peers' buffers.
 *
 *     tutti run -n 3 build/examples/symmetric
 */
#include <stdio.h>
#include <stdlib.h>
#include <tutti/tutti.h>

enum { COUNT = 1 << 16, CHANNEL = 0 };

static void must(enum tutti_status status)
{
    if (status == TUTTI_OK)
        return;
    fprintf(stderr, "%s\n", tutti_last_error());
    exit(1);
}

static void expect(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "wrong: %s\n", what);
    exit(1);
}

static float *allocate(tutti_symm_group_t *group, size_t count)
{
    void *buffer;
    must(tutti_symm_alloc(group, TUTTI_DEVICE_CPU, count * sizeof(float), &buffer));
    must(tutti_symm_rendezvous(buffer, 0, NULL));
    return buffer;
}

/* `in` and `out` lie in symmetric memory, so the peers access them directly, without copies. */
static void all_reduce(tutti_comm_t *comm, float *in, float *out)
{
    int rank = tutti_comm_rank(comm), size = tutti_comm_world_size(comm);
    for (int i = 0; i < COUNT; i++)
        in[i] = (float)(rank + i % 10);
    must(tutti_all_reduce(in, out, COUNT, TUTTI_FLOAT32, TUTTI_SUM, comm, TUTTI_STREAM_DEFAULT));
    for (int i = 0; i < COUNT; i++)
        expect(out[i] == (float)(size * (size - 1) / 2 + size * (i % 10)), "a sum");
}

/* Each rank writes a number into its right neighbour's mailbox. The signal releases the write, the
 * wait acquires it: no other synchronisation is needed. */
static void send_right(float *mailbox, int rank, int size)
{
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    const int64_t shape[] = {1};
    void *view;
    must(tutti_symm_buffer(mailbox, right, shape, 1, TUTTI_FLOAT32, 0, &view));
    *(float *)view = (float)rank;
    if (size > 1) {
        must(tutti_symm_put_signal(mailbox, right, CHANNEL, 0, TUTTI_STREAM_DEFAULT));
        must(tutti_symm_wait_signal(mailbox, left, CHANNEL, 0, TUTTI_STREAM_DEFAULT));
    }
    expect(*mailbox == (float)left, "the neighbour's message");
}

/* Each rank reads the last number of every rank's buffer between two barriers. After the first all
 * ranks have written. After the second all ranks have read. */
static void read_peers(float *buffer, int rank, int size)
{
    const int64_t shape[] = {1};
    buffer[COUNT - 1] = (float)(100 + rank);
    must(tutti_symm_barrier(buffer, CHANNEL, 0, TUTTI_STREAM_DEFAULT));
    for (int peer = 0; peer < size; peer++) {
        void *view;
        must(tutti_symm_buffer(buffer, peer, shape, 1, TUTTI_FLOAT32, COUNT - 1, &view));
        expect(*(const float *)view == (float)(100 + peer), "a peer's number");
    }
    must(tutti_symm_barrier(buffer, CHANNEL, 0, TUTTI_STREAM_DEFAULT));
}

int main(void)
{
    struct tutti_launcher me = {.struct_size = sizeof me};
    tutti_store_t *store = NULL;
    tutti_comm_t *comm = NULL;
    tutti_symm_group_t *group = NULL;
    must(tutti_info_launcher(&me));
    must(tutti_store_open("env:", 0, &store));
    must(tutti_comm_create(store, me.rank, me.world_size, NULL, &comm));
    must(tutti_symm_group("example", me.rank, me.world_size, store, &group));

    float *numbers = allocate(group, (size_t)2 * COUNT), *mailbox = allocate(group, 1);
    all_reduce(comm, numbers, numbers + COUNT);
    send_right(mailbox, me.rank, me.world_size);
    read_peers(numbers, me.rank, me.world_size);
    printf("rank %d of %d: sums, messages and views are right\n", me.rank, me.world_size);

    /* The free does not wait for peers. So each rank waits until all have finished reading. */
    must(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT));
    must(tutti_symm_free(mailbox));
    must(tutti_symm_free(numbers));
    tutti_symm_group_destroy(group);
    tutti_comm_destroy(comm);
    tutti_store_close(store);
    return 0;
}
