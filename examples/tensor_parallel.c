/* SPDX-License-Identifier: MIT */
/*
 * Tensor parallelism: the MLP blocks of a transformer, sharded over the ranks as in Megatron-LM
 * (Shoeybi et al. 2019). Each block computes x + gelu(x W1) W2. Each rank holds some columns of W1
 * and the same rows of W2. So the activation needs no data from other ranks. One all-reduce of the
 * partial products ends the block.
 *
 * First rank 0 writes a file of weights. Each rank reads its shard for the sharded run, and all
 * weights for an unsharded run to compare with. The two runs add in different orders, so they may
 * differ by 1e-5 of the largest output. The results of the ranks must be equal in every bit.
 *
 *     tutti run -n 4 --bind core build/examples/tensor_parallel
 */
#define _POSIX_C_SOURCE 200809L /* clock_gettime(), mkstemp(), pread() */

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tutti/tutti.h>
#include <unistd.h>

enum { BLOCKS = 4, TOKENS = 8, WIDTH = 256, INNER = 1024, PASSES = 10 };
static const double tolerance = 1e-5;

/* `count` columns of W1 and rows of W2 from `first`. W1 is stored transposed, so that both are
 * rows.
 */
struct shard {
    int first, count;
    float *w1, *w2; /* [BLOCKS][count][WIDTH] */
};

struct clock {
    double all_reduce, total;
};

/* ---- helpers --------------------------------------------------------------------------------- */

static void must(enum tutti_status status)
{
    if (status == TUTTI_OK)
        return;
    fprintf(stderr, "%s\n", tutti_last_error());
    exit(1);
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Reproducible numbers from -1 to 1. */
static float noise(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (float)(1 << 23) - 1;
}

/* ---- weights --------------------------------------------------------------------------------- */

/* For each block the file has W1 transposed, then W2: INNER rows of WIDTH numbers each. */
static void write_weights(int file)
{
    static float row[WIDTH];
    uint32_t state = 1;
    for (int i = 0; i < BLOCKS * 2 * INNER; i++) {
        for (int k = 0; k < WIDTH; k++)
            row[k] = noise(&state) / 16;
        if (write(file, row, sizeof row) != (ssize_t)sizeof row)
            die("write of the weights");
    }
}

static struct shard read_shard(int file, int first, int count)
{
    size_t bytes = (size_t)count * WIDTH * sizeof(float);
    struct shard shard = {first, count, malloc(BLOCKS * bytes + 1), malloc(BLOCKS * bytes + 1)};
    if (!shard.w1 || !shard.w2)
        die("memory for the weights");
    for (int block = 0; block < BLOCKS; block++) {
        char *to[2] = {(char *)shard.w1 + (size_t)block * bytes,
                       (char *)shard.w2 + (size_t)block * bytes};
        for (int matrix = 0; matrix < 2; matrix++) {
            int row = (block * 2 + matrix) * INNER + first;
            if (pread(file, to[matrix], bytes, (off_t)row * WIDTH * (off_t)sizeof(float)) !=
                (ssize_t)bytes)
                die("read of the weights");
        }
    }
    return shard;
}

static void free_shard(struct shard *shard)
{
    free(shard->w1);
    free(shard->w2);
}

/* Rank 0 writes the file and puts its name in the store. After all ranks have opened the file, rank
 * 0 unlinks it. */
static int open_weights(tutti_store_t *store, tutti_comm_t *comm)
{
    char path[] = "/tmp/tensor_parallel.XXXXXX";
    int file = -1;
    if (tutti_comm_rank(comm) == 0) {
        file = mkstemp(path);
        if (file < 0)
            die(path);
        write_weights(file);
        must(tutti_store_set(store, "weights", path, sizeof path));
    } else {
        size_t size;
        must(tutti_store_get(store, "weights", 0, path, sizeof path, &size));
        file = open(path, O_RDONLY);
        if (file < 0)
            die(path);
    }
    must(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT));
    if (tutti_comm_rank(comm) == 0)
        unlink(path);
    return file;
}

/* ---- the model ------------------------------------------------------------------------------- */

static float gelu(float x)
{
    return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

/* out += gelu(x W1) W2 over the shard's part of the inner dimension. */
static void multiply(const struct shard *shard, int block, const float *x, float *out)
{
    const float *w1 = shard->w1 + (size_t)block * (size_t)shard->count * WIDTH;
    const float *w2 = shard->w2 + (size_t)block * (size_t)shard->count * WIDTH;
    for (int token = 0; token < TOKENS; token++, x += WIDTH, out += WIDTH)
        for (int i = 0; i < shard->count; i++) {
            float inner = 0;
            for (int k = 0; k < WIDTH; k++)
                inner += x[k] * w1[i * WIDTH + k];
            inner = gelu(inner);
            for (int k = 0; k < WIDTH; k++)
                out[k] += inner * w2[i * WIDTH + k];
        }
}

/* Run all blocks over x, in place. With comm == NULL the shard has all weights. */
static void forward(const struct shard *shard, tutti_comm_t *comm, float *x, struct clock *clock)
{
    static float partial[TOKENS * WIDTH];
    double begin = now();
    for (int block = 0; block < BLOCKS; block++) {
        memset(partial, 0, sizeof partial);
        multiply(shard, block, x, partial);
        double reduce = now();
        if (comm)
            must(tutti_all_reduce(partial, partial, TOKENS * WIDTH, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                  TUTTI_STREAM_DEFAULT));
        clock->all_reduce += now() - reduce;
        for (int i = 0; i < TOKENS * WIDTH; i++)
            x[i] += partial[i];
    }
    clock->total += now() - begin;
}

static void make_input(float *x)
{
    uint32_t state = 2;
    for (int i = 0; i < TOKENS * WIDTH; i++)
        x[i] = noise(&state);
}

/* ---- checks ---------------------------------------------------------------------------------- */

static double relative_error(const float *x, const float *reference)
{
    float most = 0, largest = 0;
    for (int i = 0; i < TOKENS * WIDTH; i++) {
        most = fmaxf(most, fabsf(x[i] - reference[i]));
        largest = fmaxf(largest, fabsf(reference[i]));
    }
    return (double)most / (double)largest;
}

/* Return true if x has the same bits on all ranks: then minimum and maximum over the ranks are
 * equal.
 */
static bool same_everywhere(tutti_comm_t *comm, const float *x)
{
    static uint32_t least[TOKENS * WIDTH], largest[TOKENS * WIDTH];
    must(tutti_all_reduce(x, least, TOKENS * WIDTH, TUTTI_UINT32, TUTTI_MIN, comm,
                          TUTTI_STREAM_DEFAULT));
    must(tutti_all_reduce(x, largest, TOKENS * WIDTH, TUTTI_UINT32, TUTTI_MAX, comm,
                          TUTTI_STREAM_DEFAULT));
    return memcmp(least, largest, sizeof least) == 0;
}

int main(void)
{
    static float x[TOKENS * WIDTH], reference[TOKENS * WIDTH];
    struct tutti_launcher me = {.struct_size = sizeof me};
    struct clock sharded = {0}, whole = {0};
    tutti_store_t *store = NULL;
    tutti_comm_t *comm = NULL;
    must(tutti_info_launcher(&me));
    must(tutti_store_open("env:", 0, &store));
    must(tutti_comm_create(store, me.rank, me.world_size, NULL, &comm));

    int file = open_weights(store, comm);
    int first = INNER * me.rank / me.world_size;
    int end = INNER * (me.rank + 1) / me.world_size;
    struct shard mine = read_shard(file, first, end - first), all = read_shard(file, 0, INNER);
    close(file);

    make_input(reference);
    forward(&all, NULL, reference, &whole);
    for (int pass = 0; pass < PASSES; pass++) {
        make_input(x);
        forward(&mine, comm, x, &sharded);
    }
    double error = relative_error(x, reference);
    bool same = same_everywhere(comm, x);
    bool close_enough = error <= tolerance;
    if (me.rank == 0)
        printf(
            "%d blocks on %d ranks: %.3f ms a pass, unsharded %.3f ms; all-reduce %.1f %% of the "
            "time\nagainst the unsharded run: largest difference %.2g of the largest output (%s)\n"
            "bits on all ranks: %s\n",
            BLOCKS, me.world_size, sharded.total / PASSES * 1e3, whole.total * 1e3,
            100 * sharded.all_reduce / sharded.total, error, close_enough ? "ok" : "too much",
            same ? "equal" : "different");
    free_shard(&mine);
    free_shard(&all);
    tutti_comm_destroy(comm);
    tutti_store_close(store);
    return same && close_enough ? 0 : 1;
}
