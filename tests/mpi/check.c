/* SPDX-License-Identifier: MIT */
/*
 * check [hosts|late]: each collective by its first name, which the preloaded library serves,
 * against the second one (PMPI_), which is the MPI's own. `hosts`: the ranks are on two hosts, by
 * name. `late`: a rank comes after the time-out of the others.
 */
#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Open MPI has no forms with large counts; the library has them with every MPI. */
#if defined(OPEN_MPI)
int MPI_Allreduce_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm);
int MPI_Reduce_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, int, MPI_Comm);
int MPI_Bcast_c(void *, MPI_Count, MPI_Datatype, int, MPI_Comm);
int MPI_Allgather_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype,
                    MPI_Comm);
int MPI_Allgatherv_c(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count[],
                     const MPI_Aint[], MPI_Datatype, MPI_Comm);
int MPI_Reduce_scatter_c(const void *, void *, const MPI_Count[], MPI_Datatype, MPI_Op, MPI_Comm);
int MPI_Reduce_scatter_block_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm);
int MPI_Alltoall_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype,
                   MPI_Comm);
int MPI_Alltoallv_c(const void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype, void *,
                    const MPI_Count[], const MPI_Aint[], MPI_Datatype, MPI_Comm);
int MPI_Gather_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, int,
                 MPI_Comm);
int MPI_Gatherv_c(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count[],
                  const MPI_Aint[], MPI_Datatype, int, MPI_Comm);
int MPI_Scatter_c(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Datatype, int,
                  MPI_Comm);
int MPI_Scatterv_c(const void *, const MPI_Count[], const MPI_Aint[], MPI_Datatype, void *,
                   MPI_Count, MPI_Datatype, int, MPI_Comm);
#pragma weak MPI_Allreduce_c
#pragma weak MPI_Reduce_c
#pragma weak MPI_Bcast_c
#pragma weak MPI_Allgather_c
#pragma weak MPI_Allgatherv_c
#pragma weak MPI_Reduce_scatter_c
#pragma weak MPI_Reduce_scatter_block_c
#pragma weak MPI_Alltoall_c
#pragma weak MPI_Alltoallv_c
#pragma weak MPI_Gather_c
#pragma weak MPI_Gatherv_c
#pragma weak MPI_Scatter_c
#pragma weak MPI_Scatterv_c
#endif

enum { RANKS = 8, MOST = 5000, BYTES = 16 * MOST * RANKS };

/* A communicator and one way to call. */
struct use {
    MPI_Comm comm;
    int rank, size, root;
    int count;           /* of a block's elements */
    bool wide, in_place; /* the form _c; MPI_IN_PLACE where a rank may pass it */
    bool derived;        /* rank 1 describes its data by another type */
};

/* The MPI's own calls get `in` and `want`, which are aligned; the others `sent` and `got`. */
static unsigned char in[BYTES], want[BYTES], rooms[2][BYTES + 8];
static unsigned char *sent, *got;
static int failures, world_rank;
static const char *about = "";

static void fail(const char *what, const struct use *use)
{
    if (failures++ < 5)
        fprintf(stderr,
                "rank %d: %s%s differs: %d of %d ranks, root %d, count %d, wide %d, in place %d, "
                "derived %d\n",
                world_rank, what, about, use->rank, use->size, use->root, use->count, use->wide,
                use->in_place, use->derived);
}

static void compare(const char *what, const struct use *use)
{
    if (memcmp(got, want, BYTES) != 0)
        fail(what, use);
}

/* Of truth values (l: integers, t: 0 or 1) some are 0. */
static uint64_t zeros(char kind, size_t bytes, uint32_t state)
{
    uint64_t mask = kind == 't' ? 0x0101010101010101 : UINT64_MAX;
    for (size_t at = 0; at < 8 && kind == 'l'; at += bytes)
        if (state >> (at + 8) & 1)
            mask &= ~(UINT64_MAX >> (64 - 8 * bytes) << 8 * at);
    return mask;
}

/* Numbers of a type of so many bytes: floats whose sums and products are exact, and short integers
 * whose sums do not overflow, where Open MPI saturates. MPICH 4.0 compares unsigned as int. */
static void fill(const struct use *use, char kind, size_t bytes)
{
    uint32_t state = (uint32_t)(use->rank * 77 + use->count + 1);
    for (size_t i = 0; i < BYTES / 8; i++) {
        state = state * 1664525 + 1013904223;
        const int number = (int)(state >> 20) % 17 + 1;
        if (kind == 'f' && bytes == 4)
            ((float *)(void *)in)[2 * i] = ((float *)(void *)in)[2 * i + 1] = (float)number;
        else if (kind == 'f')
            ((double *)(void *)in)[i] = number;
        else
            ((uint64_t *)(void *)in)[i] = zeros(kind, bytes, state) &
                                          ((uint64_t)state << 32 | state * 2654435761u) &
                                          (bytes < 4     ? 0x0303030303030303u
                                           : kind == 'u' ? 0x7fffffff7fffffff
                                                         : UINT64_MAX);
    }
    memcpy(sent, in, BYTES);
    memcpy(got, in, BYTES);
    memcpy(want, in, BYTES);
}

/* ---- reductions ------------------------------------------------------------------------------ */

struct kind {
    MPI_Datatype type;
    char kind; /* f, i, or b: bytes */
    size_t bytes;
};

static void reductions_of(const struct use *use, const struct kind *kind, MPI_Op op)
{
    int counts[RANKS];
    MPI_Count large[RANKS];
    const void *send = use->in_place ? MPI_IN_PLACE : sent, *own_send = send == sent ? in : send;
    const void *root_send = use->in_place && use->rank == use->root ? MPI_IN_PLACE : sent;
    const void *own_root_send = root_send == sent ? in : root_send;
    for (int r = 0; r < use->size; r++)
        large[r] = counts[r] = use->count ? (use->count + 3 * r) % MOST : 0;
    fill(use, kind->kind, kind->bytes);
    if (use->wide)
        MPI_Allreduce_c(send, got, use->count, kind->type, op, use->comm);
    else
        MPI_Allreduce(send, got, use->count, kind->type, op, use->comm);
    PMPI_Allreduce(own_send, want, use->count, kind->type, op, use->comm);
    compare("Allreduce", use);
    fill(use, kind->kind, kind->bytes);
    if (use->wide)
        MPI_Reduce_c(root_send, got, use->count, kind->type, op, use->root, use->comm);
    else
        MPI_Reduce(root_send, got, use->count, kind->type, op, use->root, use->comm);
    PMPI_Reduce(own_root_send, want, use->count, kind->type, op, use->root, use->comm);
    if (use->rank == use->root)
        compare("Reduce", use);
    fill(use, kind->kind, kind->bytes);
    if (use->wide)
        MPI_Reduce_scatter_block_c(send, got, use->count, kind->type, op, use->comm);
    else
        MPI_Reduce_scatter_block(send, got, use->count, kind->type, op, use->comm);
    PMPI_Reduce_scatter_block(own_send, want, use->count, kind->type, op, use->comm);
    if (memcmp(got, want, (size_t)use->count * kind->bytes) != 0)
        fail("Reduce_scatter_block", use);
    fill(use, kind->kind, kind->bytes);
    if (use->wide)
        MPI_Reduce_scatter_c(send, got, large, kind->type, op, use->comm);
    else
        MPI_Reduce_scatter(send, got, counts, kind->type, op, use->comm);
    PMPI_Reduce_scatter(own_send, want, counts, kind->type, op, use->comm);
    if (memcmp(got, want, (size_t)counts[use->rank] * kind->bytes) != 0)
        fail("Reduce_scatter", use);
}

static void product(void *a, void *b, int *count, MPI_Datatype *type)
{
    (void)type;
    for (int i = 0; i < *count; i++)
        ((int *)b)[i] *= ((int *)a)[i];
}

static void reductions(const struct use *use)
{
    const struct kind kinds[] = {
        {MPI_INT, 'i', 4},
        {MPI_FLOAT, 'f', 4},
        {MPI_DOUBLE, 'f', 8},
        {MPI_LONG, 'i', 8},
        {MPI_UNSIGNED_SHORT, 'i', 2},
        {MPI_SIGNED_CHAR, 'i', 1},
        {MPI_UINT64_T, 'u', 8},
        {MPI_C_DOUBLE_COMPLEX, 'f', 16},
        {MPI_UNSIGNED, 'u', 4},
        {MPI_BYTE, 'b', 1},
        {MPI_SIGNED_CHAR, 'l', 1},
        {MPI_SHORT, 'l', 2},
        {MPI_INT, 'l', 4},
        {MPI_UNSIGNED_LONG, 'l', 8},
        {MPI_C_BOOL, 't', 1},
    };
    const MPI_Op ops[] = {MPI_SUM, MPI_MAX,  MPI_MIN,  MPI_PROD, MPI_BAND,
                          MPI_BOR, MPI_BXOR, MPI_LAND, MPI_LOR,  MPI_LXOR};
    static unsigned turn;
    MPI_Op own;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t o = 0; o < sizeof ops / sizeof *ops; o++) {
            const bool bits = ops[o] == MPI_BAND || ops[o] == MPI_BOR || ops[o] == MPI_BXOR;
            const bool logical = ops[o] == MPI_LAND || ops[o] == MPI_LOR || ops[o] == MPI_LXOR;
            if (logical != (kinds[k].kind == 'l' || kinds[k].kind == 't') ||
                (kinds[k].kind == 'f' && bits) || (kinds[k].kind == 'b' && !bits) ||
                (kinds[k].bytes == 16 && !(ops[o] == MPI_SUM)) || (bits && use->in_place))
                continue;
            if (turn++ % 19 != 0 || (ops[o] == MPI_PROD && kinds[k].bytes < 4))
                continue; /* in all calls of this function each has its turn */
            char text[40];
            snprintf(text, sizeof text, " of type %zu, operation %zu,", k, o);
            about = text;
            reductions_of(use, &kinds[k], ops[o]);
            about = "";
        }
    const struct kind kind = {MPI_INT, 'i', 4};
    MPI_Op_create(product, 1, &own);
    reductions_of(use, &kind, own);
    MPI_Op_free(&own);
}

/* ---- moves ----------------------------------------------------------------------------------- */

/* Pairs of ints with a gap of one between pairs, as the other ranks' ints: `count` ints each. */
static int type_of(const struct use *use, MPI_Datatype *type)
{
    *type = MPI_INT;
    if (!use->derived || use->rank != 1 || use->count % 2)
        return use->count;
    MPI_Datatype pair;
    MPI_Type_contiguous(2, MPI_INT, &pair);
    MPI_Type_create_resized(pair, 0, 3 * sizeof(int), type);
    MPI_Type_commit(type);
    MPI_Type_free(&pair);
    return use->count / 2;
}

static void moves(const struct use *use)
{
    MPI_Datatype type;
    const int count = type_of(use, &type);
    const bool is_root = use->rank == use->root;
    const void *send = use->in_place ? MPI_IN_PLACE : sent, *own_send = send == sent ? in : send;
    const void *root_send = use->in_place && is_root ? MPI_IN_PLACE : sent;
    const void *own_root_send = root_send == sent ? in : root_send;
    MPI_Comm comm = use->comm;
    fill(use, 'i', 4);
    if (use->wide)
        MPI_Bcast_c(got, count, type, use->root, comm);
    else
        MPI_Bcast(got, count, type, use->root, comm);
    PMPI_Bcast(want, count, type, use->root, comm);
    compare("Bcast", use);
    if (use->wide)
        MPI_Allgather_c(send, count, type, got, count, type, comm);
    else
        MPI_Allgather(send, count, type, got, count, type, comm);
    PMPI_Allgather(own_send, count, type, want, count, type, comm);
    compare("Allgather", use);
    if (use->wide)
        MPI_Alltoall_c(send, count, type, got, count, type, comm);
    else
        MPI_Alltoall(send, count, type, got, count, type, comm);
    PMPI_Alltoall(own_send, count, type, want, count, type, comm);
    compare("Alltoall", use);
    fill(use, 'i', 4);
    if (use->wide)
        MPI_Gather_c(root_send, count, type, got, count, type, use->root, comm);
    else
        MPI_Gather(root_send, count, type, got, count, type, use->root, comm);
    PMPI_Gather(own_root_send, count, type, want, count, type, use->root, comm);
    compare("Gather", use);
    fill(use, 'i', 4);
    void *to = use->in_place && is_root ? MPI_IN_PLACE : got;
    if (use->wide)
        MPI_Scatter_c(sent, count, type, to, count, type, use->root, comm);
    else
        MPI_Scatter(sent, count, type, to, count, type, use->root, comm);
    PMPI_Scatter(in, count, type, to == got ? want : to, count, type, use->root, comm);
    compare("Scatter", use);
    if (type != MPI_INT)
        MPI_Type_free(&type);
}

/* A block for each rank, in both forms. */
struct blocks {
    int counts[RANKS], displs[RANKS];
    MPI_Count large[RANKS];
    MPI_Aint far[RANKS];
};

static void block_set(struct blocks *blocks, int rank, int count, int displ)
{
    blocks->large[rank] = blocks->counts[rank] = count;
    blocks->far[rank] = blocks->displs[rank] = displ;
}

/* `each`: rank r has some elements; the blocks lie in falling order, with gaps. `pair`: what two
 * ranks exchange. */
static void blocks_fill(const struct use *use, int unit, int back, struct blocks *each,
                        struct blocks *pair)
{
    for (int r = 0, at = use->size * (use->count + 2 * RANKS) - back; r < use->size; r++) {
        const int most = use->count / 4 * ((r + 1) % 3) + (use->count ? 2 * r : 0);
        const int count = most / unit / 2 * 2 * unit / 4 * 4 / unit;
        at -= count + 1;
        block_set(each, r, count, at);
        block_set(pair, r, (use->rank + r) % 3 * use->count / 8 * 4 / unit,
                  r * (use->count + 4) - back);
    }
}

static void moves_v(const struct use *use)
{
    struct blocks each, pair;
    const bool is_root = use->rank == use->root;
    const void *send = use->in_place ? MPI_IN_PLACE : sent, *own_send = send == sent ? in : send;
    const void *root_send = use->in_place && is_root ? MPI_IN_PLACE : sent;
    const void *own_root_send = root_send == sent ? in : root_send;
    MPI_Datatype type;
    MPI_Comm comm = use->comm;
    const int unit = type_of(use, &type) * 2 == use->count && use->count ? 2 : 1;
    /* Displacements may be negative. */
    const int back = use->root % 2 ? use->size * (use->count + 2 * RANKS) : 0;
    const ptrdiff_t shift = back * (type == MPI_INT ? 1 : 3) * (ptrdiff_t)sizeof(int);
    blocks_fill(use, unit, back, &each, &pair);
    fill(use, 'i', 4);
    const int own = each.counts[use->rank];
    if (use->wide)
        MPI_Allgatherv_c(send, own, type, got + shift, each.large, each.far, type, comm);
    else
        MPI_Allgatherv(send, own, type, got + shift, each.counts, each.displs, type, comm);
    PMPI_Allgatherv(own_send, own, type, want + shift, each.counts, each.displs, type, comm);
    compare("Allgatherv", use);
    fill(use, 'i', 4);
    if (use->wide)
        MPI_Gatherv_c(root_send, own, type, got + shift, is_root ? each.large : NULL,
                      is_root ? each.far : NULL, type, use->root, comm);
    else
        MPI_Gatherv(root_send, own, type, got + shift, is_root ? each.counts : NULL,
                    is_root ? each.displs : NULL, type, use->root, comm);
    PMPI_Gatherv(own_root_send, own, type, want + shift, each.counts, each.displs, type, use->root,
                 comm);
    compare("Gatherv", use);
    fill(use, 'i', 4);
    void *to = use->in_place && is_root ? MPI_IN_PLACE : got;
    if (use->wide)
        MPI_Scatterv_c(sent + shift, is_root ? each.large : NULL, is_root ? each.far : NULL, type,
                       to, own, type, use->root, comm);
    else
        MPI_Scatterv(sent + shift, is_root ? each.counts : NULL, is_root ? each.displs : NULL, type,
                     to, own, type, use->root, comm);
    PMPI_Scatterv(in + shift, each.counts, each.displs, type, to == got ? want : to, own, type,
                  use->root, comm);
    compare("Scatterv", use);
    fill(use, 'i', 4);
    const void *send_at = send == sent ? sent + shift : send;
    if (use->wide)
        MPI_Alltoallv_c(send_at, pair.large, pair.far, type, got + shift, pair.large, pair.far,
                        type, comm);
    else
        MPI_Alltoallv(send_at, pair.counts, pair.displs, type, got + shift, pair.counts,
                      pair.displs, type, comm);
    PMPI_Alltoallv(send == sent ? in + shift : send, pair.counts, pair.displs, type, want + shift,
                   pair.counts, pair.displs, type, comm);
    compare("Alltoallv", use);
    if (type != MPI_INT)
        MPI_Type_free(&type);
}

/* ---- communicators --------------------------------------------------------------------------- */

static void all(MPI_Comm comm, int rounds)
{
    static const int counts[] = {0, 60, 2400};
    struct use use = {.comm = comm};
    MPI_Comm_rank(comm, &use.rank);
    MPI_Comm_size(comm, &use.size);
    for (int round = 0; round < rounds; round++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            use.count = counts[c];
            /* MPICH 4.0 ends in a long MPI_Reduce() in place whose root is not rank 0. */
            use.root = round / 2 && use.count > 1000 ? 0 : (round + (int)c) % use.size;
            use.wide = round % 2;
            use.in_place = round / 2;
            use.derived = false;
            const size_t apart = (size_t[]){0, 1, 4}[(c + (size_t)round) % 3]; /* not aligned */
            sent = rooms[0] + apart;
            got = rooms[1] + apart;
            reductions(&use);
            for (int derived = 0; derived < 2; derived++) {
                use.derived = derived;
                moves(&use);
                moves_v(&use);
            }
            MPI_Barrier(comm);
        }
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

/* A message that is begun before a collective and received behind it, where the receiver comes
 * late. Writes the longest time from the receive on. */
static void progress(MPI_Comm comm)
{
    double longest = 0;
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    for (int bytes = 4096; bytes <= 1 << 20; bytes *= 4)
        for (int late = 0; late < 2; late++) {
            char *message = malloc((size_t)bytes);
            MPI_Request request;
            int one = 1, sum = 0;
            memset(message, rank, (size_t)bytes);
            if (rank == 0)
                MPI_Isend(message, bytes, MPI_BYTE, 1, 5, comm, &request);
            if (rank == 1) {
                nanosleep(&(struct timespec){.tv_nsec = late ? 30000000 : 100000}, NULL);
                const double begin = now();
                MPI_Recv(message, bytes, MPI_BYTE, 0, 5, comm, MPI_STATUS_IGNORE);
                longest = now() - begin > longest ? now() - begin : longest;
                failures += message[bytes - 1] != 0;
            }
            MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm);
            failures += sum != size;
            if (rank == 0)
                MPI_Wait(&request, MPI_STATUS_IGNORE);
            free(message);
        }
    if (rank == 1)
        fprintf(stderr, "messages behind a collective took at most %.1f ms\n", longest);
}

/* What a peer has begun before a barrier is there behind it, for a test that looks once. Windows of
 * Open MPI 4.1 crash among ranks of which no kernel copies the messages. */
static void window(MPI_Comm comm)
{
#if defined OMPI_MAJOR_VERSION && OMPI_MAJOR_VERSION < 5
    (void)comm;
#else
    static double memory[2];
    const int root = 0;
    MPI_Group all, group;
    MPI_Win window;
    int rank, flag;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_group(comm, &all);
    (rank == 0 ? MPI_Group_excl : MPI_Group_incl)(all, 1, &root, &group);
    MPI_Win_create(memory, sizeof memory, 1, MPI_INFO_NULL, comm, &window);
    for (int i = 0; i < 20; i++) {
        if (rank == 0)
            MPI_Win_start(group, 0, window);
        else
            MPI_Win_post(group, 0, window);
        MPI_Barrier(comm);
        if (rank == 0)
            MPI_Win_complete(window);
        MPI_Barrier(comm);
        if (rank == 0)
            continue;
        MPI_Win_test(window, &flag);
        failures += !flag;
        if (!flag)
            MPI_Win_wait(window);
    }
    MPI_Win_free(&window);
    MPI_Group_free(&group);
    MPI_Group_free(&all);
#endif
}

/* With a time-out: rank 1 comes after it, and rank 0 hears of that. */
static void late(MPI_Comm comm)
{
    int one = 1, sum = 0;
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    for (int i = 0; i < 3; i++)
        MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm);
    if (world_rank == 1)
        nanosleep(&(struct timespec){.tv_sec = 2}, NULL);
    const int code = MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm);
    failures += world_rank == 0 && code == MPI_SUCCESS;
}

int main(int argc, char **argv)
{
    const bool hosts = argc > 1 && strcmp(argv[1], "hosts") == 0;
    const char *number = getenv("PMI_RANK") ? getenv("PMI_RANK") : getenv("OMPI_COMM_WORLD_RANK");
    MPI_Comm duplicate, part, alone;
    if (hosts)
        setenv("TUTTI_HOST_ID", number && atoi(number) < 2 ? "a" : "b", 1);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    if (hosts) {
        MPI_Comm_split(MPI_COMM_WORLD, world_rank < 2, 0, &part);
        all(MPI_COMM_WORLD, 2);
        all(part, 2);
        MPI_Comm_free(&part);
        MPI_Finalize();
        return failures != 0;
    }
    if (argc > 1) {
        late(MPI_COMM_WORLD);
        MPI_Finalize();
        return failures != 0;
    }
    all(MPI_COMM_WORLD, 4);
    progress(MPI_COMM_WORLD);
    window(MPI_COMM_WORLD);
    MPI_Comm_dup(MPI_COMM_WORLD, &duplicate);
    MPI_Comm_split(duplicate, world_rank != 2, -world_rank, &part);
    MPI_Comm_dup(MPI_COMM_SELF, &alone);
    all(duplicate, 1);
    all(part, 1);
    all(alone, 1);
    MPI_Comm_free(&duplicate);
    MPI_Barrier(part); /* it does not need the communicator of which it was made */
    MPI_Comm_free(&part);
    MPI_Comm_free(&alone);
    for (int i = 0; i < 20; i++) {
        int one = 1, sum = 0, size;
        MPI_Comm_dup(MPI_COMM_WORLD, &duplicate);
        MPI_Comm_size(duplicate, &size);
        for (int call = 0; call < i % 4; call++) {
            MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, duplicate);
            failures += sum != size;
        }
        MPI_Comm_free(&duplicate);
    }
    MPI_Finalize();
    return failures != 0;
}
