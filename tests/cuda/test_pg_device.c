/* SPDX-License-Identifier: MIT */
/*
 * Collectives of a process group on tensors of the group's device: one kernel each, on a stream of
 * the group, and nothing goes through the host. The blocks of a list that do not lie side by side
 * are copied within the device. Each rank is a process, so that the log of launches is its own.
 */
#include "device.h"
#include "pg.h"

#include <stdio.h>
#include <string.h>

enum {
    RANKS = 2,
    ELEMENTS = 1000,               /* of a block */
    GAP = 24,                      /* elements between the blocks of a list */
    LONG_ELEMENTS = (5 << 20) / 4, /* a list of two such blocks needs two pieces of 8 MiB */
};

static const struct kind {
    enum tutti_collective collective;
    bool each[2], of_root[2]; /* [send, receive]: a block for each rank; on the root alone */
} kinds[] = {
    {TUTTI_COLLECTIVE_ALL_GATHER, {false, true}, {false, false}},
    {TUTTI_COLLECTIVE_ALL_TO_ALL, {true, true}, {false, false}},
    {TUTTI_COLLECTIVE_BROADCAST, {false, false}, {true, false}},
    {TUTTI_COLLECTIVE_GATHER, {false, true}, {false, true}},
    {TUTTI_COLLECTIVE_SCATTER, {true, false}, {true, false}},
};

struct rank {
    struct ranks *ranks;
    int rank, root;
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    CUstream stream;
    float *data[2];          /* [send, receive] */
    float *blocks[2][RANKS]; /* where the blocks are */
    struct tutti_tensor tensors[2][RANKS];
    int counts[2];
    int64_t size, all; /* elements of a block, and of all blocks */
};

static float value_of(int from, int to, int64_t element)
{
    return (float)(from * 100 + to * 10 + (int)(element % 7));
}

static bool has_side(const struct rank *self, const struct kind *kind, int side)
{
    return !kind->of_root[side] || self->rank == self->root;
}

/* Describes one operand and fills it. The blocks of a list lie in the opposite order, with gaps. */
static void side_make(struct rank *self, const struct kind *kind, int side, bool list)
{
    const int blocks = kind->each[side] ? RANKS : 1, tensors = list ? blocks : 1;
    self->counts[side] = has_side(self, kind, side) ? tensors : 0;
    for (int b = 0; b < blocks; b++) {
        const int64_t at = list ? (RANKS - 1 - b) * (self->size + GAP) : b * self->size;
        self->blocks[side][b] = self->data[side] + at;
        for (int64_t e = 0; e < self->size; e++)
            self->blocks[side][b][e] = side ? -1 : value_of(self->rank, kind->each[0] ? b : 0, e);
    }
    for (int t = 0; t < tensors; t++) {
        self->tensors[side][t] =
            pg_vector(self->blocks[side][t], list || blocks == 1 ? &self->size : &self->all);
        self->tensors[side][t].device = TUTTI_DEVICE_CUDA;
        self->tensors[side][t].device_index = self->rank;
    }
}

static enum tutti_status submit(struct rank *self, enum tutti_collective collective,
                                tutti_work_t **work)
{
    const struct tutti_pg_call_options options = {.struct_size = sizeof options,
                                                  .stream = device_stream(self->stream)};
    const struct tutti_tensor *send = self->tensors[0], *recv = self->tensors[1];
    const int sends = self->counts[0], recvs = self->counts[1], root = self->root;
    if (collective == TUTTI_COLLECTIVE_ALL_GATHER)
        return tutti_pg_all_gather(self->pg, send, sends, recv, recvs, &options, work);
    if (collective == TUTTI_COLLECTIVE_ALL_TO_ALL)
        return tutti_pg_all_to_all(self->pg, send, sends, recv, recvs, &options, work);
    if (collective == TUTTI_COLLECTIVE_BROADCAST)
        return tutti_pg_broadcast(self->pg, send, sends, recv, recvs, root, &options, work);
    if (collective == TUTTI_COLLECTIVE_GATHER)
        return tutti_pg_gather(self->pg, send, sends, recv, recvs, root, &options, work);
    return tutti_pg_scatter(self->pg, send, sends, recv, recvs, root, &options, work);
}

static bool is_right(const struct rank *self, const struct kind *kind)
{
    for (int b = 0; has_side(self, kind, 1) && b < (kind->each[1] ? RANKS : 1); b++)
        for (int64_t e = 0; e < self->size; e++)
            if (self->blocks[1][b][e] !=
                value_of(kind->each[1] ? b : self->root, kind->each[0] ? self->rank : 0, e))
                return false;
    return true;
}

/* One collective: what it launches and copies, and what it moves. */
static int collective_runs(struct rank *self, const struct kind *kind, bool list, int pieces)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    struct standin_launch launch = {.grid = 0};
    uint64_t copies = 0;
    tutti_work_t *work;
    for (int side = 0; side < 2; side++) {
        side_make(self, kind, side, list && kind->each[side]);
        if (list && kind->each[side] && has_side(self, kind, side))
            copies += RANKS;
    }
    standin_forget();
    RANKS_CHECK(submit(self, kind->collective, &work) == TUTTI_OK && pg_end(work) == TUTTI_OK);
    RANKS_CHECK(standin_launches(&launch, 1) == (size_t)pieces);
    RANKS_CHECK(strncmp(launch.name, "copy_", 5) == 0);
    RANKS_CHECK(launch.stream != self->stream && !launch.captured);
    RANKS_CHECK(standin_calls("cuMemcpyAsync") == copies * (uint64_t)pieces);
    RANKS_CHECK(standin_calls("cuMemcpy2DAsync") == 0);
    RANKS_CHECK(standin_calls("cuMemHostAlloc") == 0 && standin_calls("cuMemAlloc") == 0);
    RANKS_CHECK(is_right(self, kind));
    return 0;
}

static int open_rank(struct rank *self, struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_pg_options options = {.struct_size = sizeof options, .store = store};
    *self = (struct rank){.ranks = ranks, .rank = rank};
    RANKS_CHECK(device_join(ranks, rank, store, NULL, &self->comm) == TUTTI_OK);
    RANKS_CHECK(tutti_pg_create(self->comm, &options, &self->pg) == TUTTI_OK);
    RANKS_CHECK(cuStreamCreateWithPriority(&self->stream, CU_STREAM_NON_BLOCKING, 0) ==
                CUDA_SUCCESS);
    for (int side = 0; side < 2; side++)
        self->data[side] = device_alloc(RANKS * (LONG_ELEMENTS + GAP) * sizeof **self->data);
    return 0;
}

static void close_rank(struct rank *self)
{
    pg_part(self->comm, self->pg);
    cuStreamDestroy_v2(self->stream);
    for (int side = 0; side < 2; side++)
        device_free(self->data[side]);
}

static void set_size(struct rank *self, int64_t size)
{
    self->size = size;
    self->all = RANKS * size;
}

static int by_kernels(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    int failed = open_rank(&self, ranks, rank, store);
    tutti_work_t *work;
    set_size(&self, ELEMENTS);
    for (int side = 0; side < 2; side++)
        side_make(&self, &kinds[0], side, false);
    /* The first operation makes a page of fences. */
    RANKS_CHECK(submit(&self, kinds[0].collective, &work) == TUTTI_OK && pg_end(work) == TUTTI_OK);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (self.root = 0; self.root < RANKS && !failed; self.root++)
            for (int list = 0; list < 2 && !failed; list++) {
                failed = collective_runs(&self, &kinds[k], list, 1);
                if (failed)
                    fprintf(stderr, "%s, root %d, list %d\n",
                            tutti_collective_name(kinds[k].collective), self.root, list);
            }
    set_size(&self, LONG_ELEMENTS);
    self.root = 0;
    if (!failed)
        failed = collective_runs(&self, &kinds[0], true, 2);
    close_rank(&self);
    return failed;
}

/* A rank alone copies on the group's stream, and reduces on its host. */
static int alone(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const int64_t one = 1;
    struct rank self;
    tutti_work_t *work;
    int failed = open_rank(&self, ranks, rank, store);
    struct tutti_tensor send = pg_vector(self.data[0], &one), recv = pg_vector(self.data[1], &one);
    send.device = recv.device = TUTTI_DEVICE_CUDA;
    *self.data[0] = 3;
    *self.data[1] = -1;
    RANKS_CHECK(tutti_pg_all_gather(self.pg, &send, 1, &recv, 1, NULL, &work) == TUTTI_OK);
    RANKS_CHECK(pg_end(work) == TUTTI_OK && *self.data[1] == 3);
    *self.data[1] = -1;
    standin_forget();
    RANKS_CHECK(tutti_pg_all_gather(self.pg, &send, 1, &recv, 1, NULL, &work) == TUTTI_OK);
    RANKS_CHECK(pg_end(work) == TUTTI_OK && *self.data[1] == 3);
    RANKS_CHECK(standin_calls("cuMemcpyAsync") == 1); /* to the host and back it would be two */
    RANKS_CHECK(tutti_pg_all_reduce(self.pg, &recv, 1, TUTTI_SUM, NULL, &work) == TUTTI_OK);
    RANKS_CHECK(pg_end(work) == TUTTI_OK && *self.data[1] == 3);
    close_rank(&self);
    return failed;
}

/* A call of the driver fails on rank 0, when the others are inside the operation: the group ends
 * with that on all ranks. After its launch, rank 0 can fail when rank 1 has ended that operation,
 * with the right data: rank 1 hears of it in the next one. */
static int call_fails(struct ranks *ranks, int rank, tutti_store_t *store, const char *call)
{
    struct rank self;
    tutti_work_t *work;
    int failed = open_rank(&self, ranks, rank, store);
    set_size(&self, ELEMENTS);
    for (int side = 0; side < 2; side++)
        side_make(&self, &kinds[0], side, kinds[0].each[side]);
    RANKS_CHECK(submit(&self, kinds[0].collective, &work) == TUTTI_OK && pg_end(work) == TUTTI_OK);
    side_make(&self, &kinds[0], 1, true);
    if (rank == 0)
        standin_fail(call, 1, CUDA_ERROR_UNKNOWN);
    RANKS_CHECK(submit(&self, kinds[0].collective, &work) == TUTTI_OK);
    enum tutti_status status = pg_end(work);
    if (rank != 0 && status == TUTTI_OK && strcmp(call, "cuMemcpyAsync") == 0) {
        RANKS_CHECK(is_right(&self, &kinds[0]));
        status = submit(&self, kinds[0].collective, &work);
        if (status == TUTTI_OK)
            status = pg_end(work);
    }
    RANKS_CHECK(status == TUTTI_ERR_CUDA);
    standin_fail(NULL, 0, CUDA_SUCCESS);
    RANKS_CHECK(submit(&self, kinds[0].collective, &work) == TUTTI_ERR_CUDA);
    close_rank(&self);
    return failed;
}

static int launch_fails(struct ranks *ranks, int rank, tutti_store_t *store)
{
    return call_fails(ranks, rank, store, "cuLaunchKernelEx");
}

static int copy_fails(struct ranks *ranks, int rank, tutti_store_t *store)
{
    return call_fails(ranks, rank, store, "cuMemcpyAsync");
}

int main(void)
{
    static ranks_fn *const parts[] = {by_kernels, launch_fails, copy_fails};
    int failures = 0;
    device_setup();
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct ranks *ranks = ranks_create(RANKS, RANKS, 0);
        failures += ranks_run(ranks, parts[i]);
        ranks_destroy(ranks);
    }
    struct ranks *ranks = ranks_create(1, 1, 0);
    failures += ranks_run(ranks, alone);
    ranks_destroy(ranks);
    return failures ? 1 : 0;
}
