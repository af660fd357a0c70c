/* SPDX-License-Identifier: MIT */
/*
 * A ring: each rank has a block of keys and looks for the key that is nearest to its query. As in
 * attention over a long sequence, the blocks travel around the ring: each rank sees all keys, but
 * never has more than two blocks.
 *
 *     tutti run -n 4 build/examples/ring
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tutti/tutti.h>

enum { BLOCK = 4096 };

static void must(enum tutti_status status)
{
    if (status == TUTTI_OK)
        return;
    fprintf(stderr, "%s\n", tutti_last_error());
    exit(1);
}

int main(void)
{
    static float keys[BLOCK], next_keys[BLOCK];
    tutti_store_t *store;
    tutti_comm_t *comm;
    struct tutti_launcher launcher = {.struct_size = sizeof launcher};
    must(tutti_info_launcher(&launcher));
    must(tutti_store_open("env:", 0, &store));
    must(tutti_comm_create(store, launcher.rank, launcher.world_size, NULL, &comm));
    const int rank = launcher.rank, size = launcher.world_size;
    const int next = (rank + 1) % size, before = (rank + size - 1) % size;

    for (int i = 0; i < BLOCK; i++)
        keys[i] = (float)(rank * BLOCK + i);
    const float query = (float)(rank * 7919 % (size * BLOCK));
    float nearest = keys[0];
    for (int turn = 0; turn < size; turn++) {
        for (int i = 0; i < BLOCK; i++)
            if (fabsf(keys[i] - query) < fabsf(nearest - query))
                nearest = keys[i];
        must(tutti_send_recv(keys, BLOCK, next, next_keys, BLOCK, before, TUTTI_FLOAT32, comm,
                             TUTTI_STREAM_DEFAULT));
        memcpy(keys, next_keys, sizeof keys);
    }
    int wrong = nearest != query, wrongs = 0;
    must(tutti_reduce(&wrong, &wrongs, 1, TUTTI_INT32, TUTTI_SUM, 0, comm, TUTTI_STREAM_DEFAULT));
    if (rank == 0)
        printf("%d blocks went around the ring, %d results are wrong\n", size, wrongs);
    tutti_comm_destroy(comm);
    tutti_store_close(store);
    return wrongs ? 1 : 0;
}
