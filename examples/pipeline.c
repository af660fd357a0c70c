/* SPDX-License-Identifier: MIT */
/*
 * A pipeline: each rank has one layer of a model, takes batches from the previous rank and
 * passes the results on. Rank 0 reads the weights and scatters them, the last rank has the results.
 *
 *     tutti run -n 4 build/examples/pipeline
 */
#include <stdio.h>
#include <stdlib.h>
#include <tutti/tutti.h>

enum { WIDTH = 256, BATCHES = 20 };

static void must(enum tutti_status status)
{
    if (status == TUTTI_OK)
        return;
    fprintf(stderr, "%s\n", tutti_last_error());
    exit(1);
}

int main(void)
{
    tutti_store_t *store;
    tutti_comm_t *comm;
    struct tutti_launcher launcher = {.struct_size = sizeof launcher};
    must(tutti_info_launcher(&launcher));
    must(tutti_store_open("env:", 0, &store));
    must(tutti_comm_create(store, launcher.rank, launcher.world_size, NULL, &comm));
    const int rank = launcher.rank, last = launcher.world_size - 1;

    /* Layer r adds r + 1 to each element. */
    float layer[WIDTH], batch[WIDTH];
    float *layers = malloc((size_t)launcher.world_size * sizeof layer);
    if (!layers)
        return 1;
    for (int r = 0; rank == 0 && r <= last; r++)
        for (int i = 0; i < WIDTH; i++)
            layers[r * WIDTH + i] = (float)(r + 1);
    must(tutti_scatter(layers, layer, WIDTH, TUTTI_FLOAT32, 0, comm, TUTTI_STREAM_DEFAULT));

    const int added = (last + 1) * (last + 2) / 2; /* by all layers */
    int wrong = 0, wrongs = 0;
    for (int b = 0; b < BATCHES; b++) {
        for (int i = 0; rank == 0 && i < WIDTH; i++)
            batch[i] = (float)(b * WIDTH + i);
        if (rank > 0)
            must(tutti_recv(batch, WIDTH, TUTTI_FLOAT32, rank - 1, comm, TUTTI_STREAM_DEFAULT));
        for (int i = 0; i < WIDTH; i++)
            batch[i] += layer[i];
        if (rank < last)
            must(tutti_send(batch, WIDTH, TUTTI_FLOAT32, rank + 1, comm, TUTTI_STREAM_DEFAULT));
        for (int i = 0; rank == last && i < WIDTH; i++)
            wrong += batch[i] != (float)(b * WIDTH + i + added);
    }
    must(tutti_reduce(&wrong, &wrongs, 1, TUTTI_INT32, TUTTI_SUM, 0, comm, TUTTI_STREAM_DEFAULT));

    if (rank == 0)
        printf("%d batches passed %d layers, %d elements are wrong\n", BATCHES, last + 1, wrongs);
    free(layers);
    tutti_comm_destroy(comm);
    tutti_store_close(store);
    return wrongs ? 1 : 0;
}
