/* SPDX-License-Identifier: MIT */
/*
 * The shortest time that this machine allows for an all-reduce of float32 among ranks with several
 * threads: the copies and sums of the operation, by pinned threads that start together and wait for
 * nobody. The results are not sums of one moment, and nobody reads them.
 *
 * Arenas: a rank copies the blocks of its peers into its arena, adds the peers' pieces of its own
 * block, writes the result twice, and copies the other results out of the arenas.
 *
 * Kernel: process_vm_readv() reads the peers' pieces and results, so nothing passes an arena. The
 * peers are this process, which costs the kernel as much as another one.
 */
#include "base/order.h"
#include "cores.h"
#include "now.h"
#include "stats.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MOST = 64, ARENA_FLOATS = (1 << 20) / sizeof(float), SLOTS = 4, SKIPPED = 77 };
enum way { ARENAS, KERNEL, WAYS };

struct member {
    pthread_t thread;
    int rank, part, core;
    double ns; /* of the last pass */
    float *piece;
};

static int ranks = 2, threads = 1, rounds = 100;
static size_t floats = (size_t)4 << 20; /* of a rank */
static float *data[MOST];
static float *arena[MOST]; /* for each part SLOTS times a piece of each block, and the result */
static struct member members[MOST];
static uint32_t arrived, generation;
static struct samples slowest[WAYS]; /* of each pass */

/* A spin: of two that sleep one would begin before the other. */
static void meet(void)
{
    const uint32_t before = order_load_acquire_u32(&generation); /* GA pairs GR */

    if (order_fetch_add_u32(&arrived, 1) + 1 == (uint32_t)(ranks * threads)) {
        order_store_release_u32(&arrived, 0);
        order_store_release_u32(&generation, before + 1); /* GR: all passes are done */
        return;
    }
    while (order_load_acquire_u32(&generation) == before)
        order_pause();
}

/* The place of block `block` in a slot of a rank's arena; place `ranks` is the result's. */
static float *arena_place(int rank, int part, int slot, int block, size_t most)
{
    const int place = slot % SLOTS * (ranks + 1) + block;
    return arena[rank] + (size_t)part * ARENA_FLOATS + (size_t)place * most;
}

static void add(float *restrict to, const float *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] += from[i];
}

/* Reads slots that the peers wrote some pieces before: two cores never use a line at once. */
static void piece_arenas(const struct member *own, int slot, size_t at, size_t count, size_t most)
{
    const size_t block = floats / (size_t)ranks, bytes = count * sizeof(float);
    const int rank = own->rank, part = own->part, before = slot + SLOTS / 2;
    float *result = data[rank] + (size_t)rank * block + at;

    for (int i = 1; i < ranks; i++) {
        const int to = (rank + i) % ranks;
        memcpy(arena_place(rank, part, slot, to, most), data[rank] + (size_t)to * block + at,
               bytes);
    }
    for (int i = 1; i < ranks; i++)
        add(result, arena_place((rank + i) % ranks, part, before, rank, most), count);
    memcpy(arena_place(rank, part, slot, ranks, most), result, bytes);
    for (int i = 1; i < ranks; i++) {
        const int from = (rank + i) % ranks;
        memcpy(data[rank] + (size_t)from * block + at, arena_place(from, part, before, ranks, most),
               bytes);
    }
}

static void kernel_read(float *to, const float *from, size_t bytes)
{
    const struct iovec local = {to, bytes}, remote = {(void *)(uintptr_t)from, bytes};

    if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != (ssize_t)bytes) {
        perror("bound_ranks: process_vm_readv");
        exit(EXIT_FAILURE);
    }
}

static void piece_kernel(const struct member *own, size_t at, size_t count)
{
    const size_t block = floats / (size_t)ranks, bytes = count * sizeof(float);
    float *result = data[own->rank] + (size_t)own->rank * block + at;

    for (int r = 0; r < ranks; r++) {
        if (r == own->rank)
            continue;
        kernel_read(own->piece, data[r] + (size_t)own->rank * block + at, bytes);
        add(result, own->piece, count);
    }
    for (int r = 0; r < ranks; r++)
        if (r != own->rank)
            kernel_read(data[own->rank] + (size_t)r * block + at, data[r] + (size_t)r * block + at,
                        bytes);
}

/* This member's part of every block. */
static void pass(struct member *own, enum way way)
{
    const size_t block = floats / (size_t)ranks, part = block / (size_t)threads;
    const size_t fits = ARENA_FLOATS / SLOTS / (size_t)(ranks + 1) / 16 * 16;
    const size_t most = part < fits ? part : fits;
    const size_t end = part * (size_t)(own->part + 1);

    meet();
    const int64_t start = now_ns();
    int slot = 0;
    for (size_t at = part * (size_t)own->part; at < end; at += most, slot++) {
        const size_t count = end - at < most ? end - at : most;
        if (way == ARENAS)
            piece_arenas(own, slot, at, count, most);
        else
            piece_kernel(own, at, count);
    }
    own->ns = (double)(now_ns() - start);
    meet();
}

static void slowest_add(int way)
{
    double most = 0;

    for (int i = 0; i < ranks * threads; i++)
        most = members[i].ns > most ? members[i].ns : most;
    samples_add(&slowest[way], most);
}

static void *member_run(void *context)
{
    struct member *own = context;

    cores_bind(own->core);
    if (own->part == 0) { /* the rank's own core touches its memory first */
        memset(data[own->rank], 0, floats * sizeof(float));
        memset(arena[own->rank], 0, (size_t)threads * ARENA_FLOATS * sizeof(float));
    }
    for (int i = 0; i < rounds * WAYS; i++) {
        pass(own, i / rounds);
        if (own == members) /* the others wait for this one before they go on */
            slowest_add(i / rounds);
    }
    return NULL;
}

static bool memory_make(int r)
{
    data[r] = aligned_alloc(4096, floats * sizeof(float));
    arena[r] = aligned_alloc(4096, (size_t)threads * ARENA_FLOATS * sizeof(float));
    return data[r] && arena[r];
}

int main(int argc, char **argv)
{
    static const char *const names[WAYS] = {"arenas", "kernel"};
    ranks = argc > 1 ? atoi(argv[1]) : ranks;
    threads = argc > 2 ? atoi(argv[2]) : threads;
    const long kib = argc > 3 ? atol(argv[3]) : 16384;
    rounds = argc > 4 ? atoi(argv[4]) : rounds;
    const int all = ranks * threads;
    int cores[MOST];
    if (argc > 5 || ranks < 2 || threads < 1 || all > MOST || rounds < 1 || kib < all) {
        fprintf(stderr,
                "usage: bound_ranks [RANKS (2)] [THREADS (1)] [KIB (16384)] [ROUNDS (100)]; "
                "2 to 64 threads in all, at least 1 KiB for each\n");
        return EXIT_FAILURE;
    }
    if (cores_find(cores, all) < all) {
        fprintf(stderr, "bound_ranks: %d cores are needed\n", all);
        return SKIPPED;
    }
    floats = (size_t)kib * 1024 / sizeof(float) / (size_t)all / 16 * 16 * (size_t)all;
    for (int i = 0; i < all; i++) {
        members[i].core = cores[i];
        members[i].rank = i / threads;
        members[i].part = i % threads;
        members[i].piece = malloc(ARENA_FLOATS * sizeof(float));
        if (!members[i].piece || (i < ranks && !memory_make(i)))
            return EXIT_FAILURE;
    }
    for (int i = 1; i < all; i++)
        if (pthread_create(&members[i].thread, NULL, member_run, &members[i]) != 0)
            return EXIT_FAILURE;
    member_run(members);
    for (int i = 1; i < all; i++)
        pthread_join(members[i].thread, NULL);
    for (int way = 0; way < WAYS; way++)
        printf("%d ranks of %d threads, %ld KiB, %s: %.2f us (median of %zu)\n", ranks, threads,
               kib, names[way], samples_median(&slowest[way]) * 1e-3, slowest[way].count);
    for (int i = 0; i < all; i++) {
        free(members[i].piece);
        free(i < ranks ? data[i] : NULL);
        free(i < ranks ? arena[i] : NULL);
    }
    for (int way = 0; way < WAYS; way++)
        samples_fini(&slowest[way]);
    return EXIT_SUCCESS;
}
