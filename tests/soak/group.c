/* SPDX-License-Identifier: MIT */
#include "reference.h"
#include "soak.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TAGS = 5,
    TAG_FAULT = 99, /* of operations that fail and leave the group as it is */
    BATCH = 48,     /* operations under way at once */
    SMALL_LOG2 = 12,
    LARGE_LOG2 = 20,
    REGION_BYTES = 60 << 20,
    ROWS = 60,
    MOST_WIDTH = 4, /* elements of a row */
    MOST_NNZ = 40,
};

/* Equal on all ranks but for the memory. */
struct task {
    bool sparse;
    bool pair; /* of tensors a rank */
    enum tutti_dtype dtype;
    tutti_op_t op;
    int64_t count;
    size_t offset;
    uint32_t tag;
    uint64_t seed;
    int64_t sizes[2]; /* of a sparse one */
    unsigned char *memory;
    tutti_work_t *work;
};

/* ---- dense ----------------------------------------------------------------------------------- */

static void task_make(uint64_t *random, struct task *task)
{
    *task = (struct task){.seed = pool_random(random)};
    task->sparse = soak_below(random, 4) == 0;
    task->tag = (uint32_t)soak_below(random, TAGS);
    task->pair = soak_below(random, 3) == 0;
    task->offset = soak_below(random, POOL_PERIOD);
    task->sizes[0] = 1 + (int64_t)soak_below(random, ROWS);
    task->sizes[1] = 1 + (int64_t)soak_below(random, MOST_WIDTH);
    do { /* an average divides by ranks, where the reference divides by inputs */
        task->dtype = (enum tutti_dtype)soak_below(random, TUTTI_DTYPE_COUNT);
        task->op = (tutti_op_t)(uintptr_t)(1 + soak_below(random, REFERENCE_OPS - 1));
    } while (!reference_has(task->dtype, task->op) || (task->pair && task->op == TUTTI_AVG));
    size_t bytes = soak_bytes(random, soak_below(random, 20) ? SMALL_LOG2 : LARGE_LOG2);
    task->count = (int64_t)(bytes / tutti_dtype_size(task->dtype));
    if (task->sparse)
        task->dtype = soak_below(random, 2) ? TUTTI_FLOAT32 : TUTTI_INT64;
}

/* Two tensors of a rank are neighbours in the balanced tree over all of them, so their sum is that
 * of twice as many ranks. */
static const struct pool *pool_of(const struct soak_rank *self, const struct task *task)
{
    const int size = self->episode->size, reversed = self->episode->reversed;
    return task->pair ? self->soak->doubles[size][reversed] : self->soak->pools[size][reversed];
}

static size_t bytes_of(const struct task *task)
{
    return (size_t)task->count * tutti_dtype_size(task->dtype);
}

static enum tutti_status dense_submit(struct soak_rank *self, struct task *task,
                                      const struct tutti_pg_call_options *options)
{
    struct tutti_tensor tensors[2];
    const int count = task->pair ? 2 : 1;
    for (int i = 0; i < count; i++) {
        tensors[i] = (struct tutti_tensor){
            .struct_size = sizeof tensors[i],
            .data = task->memory + (size_t)i * bytes_of(task),
            .dtype = task->dtype,
            .dims = 1,
            .sizes = &task->count,
        };
        pool_input(pool_of(self, task), self->rank * count + i, task->dtype, task->offset,
                   (size_t)task->count, tensors[i].data);
    }
    tutti_op_t op = task->op == TUTTI_PREMUL_SUM ? self->soak->premul_sum : task->op;
    return tutti_pg_all_reduce(self->pg, tensors, count, op, options, &task->work);
}

static const char *dense_check(const struct soak_rank *self, const struct task *task)
{
    size_t index;
    for (int i = 0; i < (task->pair ? 2 : 1); i++)
        if (!pool_is_result(pool_of(self, task), task->dtype, task->op, task->offset,
                            (size_t)task->count, task->memory + (size_t)i * bytes_of(task), &index))
            return "another result";
    return NULL;
}

/* ---- sparse ---------------------------------------------------------------------------------- */

/* A rank's entries: small whole numbers, whose sums are exact whatever the order. */
static size_t entries_make(const struct task *task, int rank, int64_t *indices, int64_t *values)
{
    uint64_t random = task->seed + (uint64_t)rank;
    size_t nnz = soak_below(&random, MOST_NNZ + 1), width = (size_t)task->sizes[1];
    for (size_t i = 0; i < nnz; i++)
        indices[i] = (int64_t)soak_below(&random, (uint64_t)task->sizes[0]);
    for (size_t i = 0; i < nnz * width; i++)
        values[i] = (int64_t)soak_below(&random, 201) - 100;
    return nnz;
}

/* As the dtype stores it. */
static void number_store(enum tutti_dtype dtype, int64_t value, unsigned char *to)
{
    const float single = (float)value;
    if (dtype == TUTTI_FLOAT32)
        memcpy(to, &single, sizeof single);
    else
        memcpy(to, &value, sizeof value);
}

static enum tutti_status sparse_submit(struct soak_rank *self, struct task *task,
                                       const struct tutti_pg_call_options *options)
{
    int64_t numbers[MOST_NNZ * MOST_WIDTH], *indices = (int64_t *)(void *)task->memory;
    unsigned char *values = task->memory + MOST_NNZ * sizeof *indices;
    size_t nnz = entries_make(task, self->rank, indices, numbers);
    size_t width = tutti_dtype_size(task->dtype);
    for (size_t i = 0; i < nnz * (size_t)task->sizes[1]; i++)
        number_store(task->dtype, numbers[i], values + i * width);
    const struct tutti_sparse_tensor tensor = {
        .struct_size = sizeof tensor,
        .dtype = task->dtype,
        .sparse_dim = 1,
        .dense_dim = 1,
        .sizes = task->sizes,
        .nnz = nnz,
        .indices = indices,
        .values = values,
    };
    return tutti_pg_all_reduce_sparse(self->pg, &tensor, 1, options, &task->work);
}

static const char *sparse_check(const struct soak_rank *self, const struct task *task)
{
    int64_t indices[MOST_NNZ], values[MOST_NNZ * MOST_WIDTH], sums[ROWS][MOST_WIDTH] = {{0}};
    bool present[ROWS] = {false};
    const size_t columns = (size_t)task->sizes[1], width = tutti_dtype_size(task->dtype);
    struct tutti_sparse_tensor result = {.struct_size = sizeof result};
    unsigned char element[8];
    size_t at = 0;
    for (int r = 0; r < self->episode->size; r++)
        for (size_t i = 0, nnz = entries_make(task, r, indices, values); i < nnz; i++) {
            present[indices[i]] = true;
            for (size_t c = 0; c < columns; c++)
                sums[indices[i]][c] += values[i * columns + c];
        }
    if (tutti_work_sparse_result(task->work, &result) != TUTTI_OK)
        return "no sparse result";
    for (int64_t row = 0; row < task->sizes[0]; row++) {
        if (!present[row])
            continue;
        if (at >= result.nnz || result.indices[at] != row)
            return "other indices";
        for (size_t c = 0; c < columns; c++) {
            number_store(task->dtype, sums[row][c], element);
            if (memcmp((const unsigned char *)result.values + (at * columns + c) * width, element,
                       width) != 0)
                return "other values";
        }
        at++;
    }
    return at == result.nnz ? NULL : "more entries";
}

/* ---- batches --------------------------------------------------------------------------------- */

static enum tutti_status task_submit(struct soak_rank *self, struct task *task, int64_t timeout_ms)
{
    const struct tutti_pg_call_options options = {
        .struct_size = sizeof options, .tag = task->tag, .timeout_ms = timeout_ms};
    task->work = NULL;
    return task->sparse ? sparse_submit(self, task, &options) : dense_submit(self, task, &options);
}

static int suffer(struct soak_rank *self, const struct task *task, enum tutti_status status)
{
    struct tutti_fault fault = {.struct_size = sizeof fault};
    const char *title = task->work ? tutti_work_title(task->work) : "a call of the group";
    if (!task->work || !tutti_work_fault(task->work, &fault))
        tutti_comm_status(self->comms[0], &fault);
    return life_suffer(self, 0, status, &fault, title);
}

/* One that was submitted. */
static int task_end(struct soak_rank *self, struct task *task)
{
    enum tutti_status status = tutti_work_wait_host(task->work, SOAK_GENEROUS_MS);
    const char *wrong = NULL;
    char text[200];
    int failed = 0;
    self->progress->steps++;
    if (status)
        failed = suffer(self, task, status);
    else
        wrong = task->sparse ? sparse_check(self, task) : dense_check(self, task);
    if (wrong) {
        snprintf(text, sizeof text, "%s, tag %u: %s", tutti_work_title(task->work), task->tag,
                 wrong);
        failed = ranks_fail(self->ranks, self->rank, __FILE__, __LINE__, text);
    }
    if (!failed && !status) {
        self->progress->operations += members_counts(self, &self->episode->comms[0]);
        self->progress->bytes += task->sparse ? 0 : bytes_of(task);
    }
    return failed;
}

static size_t room_of(const struct task *task)
{
    size_t bytes =
        task->sparse ? MOST_NNZ * (1 + MOST_WIDTH) * sizeof(int64_t) : 2 * bytes_of(task);
    return (bytes + SOAK_GUARD) / SOAK_GUARD * SOAK_GUARD;
}

/* As many as fit are under way at once; their tags come in another order on each rank. */
static int batch_run(struct soak_rank *self, struct task *tasks, int count)
{
    int failed = 0;
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        tasks[i].memory = self->memory[0] + used;
        tasks[i].work = NULL;
        used += room_of(&tasks[i]);
    }
    self->progress->inside = 1;
    for (uint32_t t = 0; t < TAGS; t++)
        for (int i = 0; i < count && !failed && !self->failed[0]; i++) {
            if (tasks[i].tag != (t + (uint32_t)self->rank) % TAGS)
                continue;
            enum tutti_status status = task_submit(self, &tasks[i], 0);
            failed = status ? suffer(self, &tasks[i], status) : 0;
        }
    for (int i = 0; i < count; i++) {
        if (tasks[i].work && !failed)
            failed = task_end(self, &tasks[i]);
        if (!failed)
            tutti_work_destroy(tasks[i].work);
    }
    self->progress->inside = 0;
    return failed;
}

/* ---- faults that the group survives ---------------------------------------------------------- */

static void task_spoil(struct task *task, enum soak_fault fault)
{
    if (fault == SOAK_COUNT)
        task->count++;
    else if (fault == SOAK_DTYPE)
        task->dtype = TUTTI_FLOAT64;
    else if (fault == SOAK_OP)
        task->op = TUTTI_MAX;
}

/* An operation that one rank makes too late, or another one of. */
static int special_run(struct soak_rank *self, struct task *task)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    const enum soak_fault fault = self->episode->fault;
    const bool is_victim = fault_is_victim(self), is_late = fault == SOAK_LATE;
    struct tutti_fault told = {.struct_size = sizeof told};
    *task = (struct task){.dtype = TUTTI_FLOAT32,
                          .op = TUTTI_SUM,
                          .count = 1 + task->count % 1000,
                          .tag = TAG_FAULT,
                          .memory = self->memory[0]};
    if (is_victim && is_late)
        RANKS_CHECK(ranks_await(ranks, SOAK_FAILED, (uint32_t)self->episode->size - 1));
    else if (is_victim)
        task_spoil(task, fault);
    else if (is_late)
        RANKS_CHECK(fault_begin_timeout(self));
    RANKS_CHECK(task_submit(self, task, is_late ? SOAK_PATIENCE_MS : 0) == TUTTI_OK);
    enum tutti_status status = tutti_work_wait_host(task->work, SOAK_GENEROUS_MS);
    RANKS_CHECK(tutti_work_fault(task->work, &told) == status);
    const char *why = status ? fault_explains(self, status, &told, 0) : "no error";
    tutti_work_destroy(task->work);
    fault_notice(self);
    ranks_raise(ranks, SOAK_FAILED);
    return why ? ranks_fail(ranks, rank, __FILE__, __LINE__, why) : 0;
}

static bool is_survived(enum soak_fault fault)
{
    return fault >= SOAK_LATE && fault <= SOAK_OP;
}

static int fault_come(struct soak_rank *self, struct task *task)
{
    if (is_survived(self->episode->fault))
        return special_run(self, task);
    if (!fault_is_victim(self) || episode_is_of_setup(self->episode))
        return 0;
    bool is_process =
        self->episode->fault != SOAK_ABORT_THREAD && self->episode->fault != SOAK_FORK;
    return is_process && self->episode->thread_of[self->rank] ? 0 : fault_arm(self);
}

/* Everybody's last operation: what is to fail has failed by then. */
static int group_end(struct soak_rank *self)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    const enum soak_fault fault = self->episode->fault;
    struct task task = {.dtype = TUTTI_FLOAT32, .op = TUTTI_SUM, .count = 1};
    int failed = fault_await(self);
    if (!failed && !self->failed[0])
        failed = batch_run(self, &task, 1);
    bool ends = episode_is_deadly(self->episode) || fault == SOAK_ABORT_THREAD;
    if (!failed)
        RANKS_CHECK(ends == (self->failed[0] != TUTTI_OK));
    return failed;
}

int group_run(struct soak_rank *self)
{
    const struct soak_episode *episode = self->episode;
    struct task tasks[BATCH];
    int failed = 0, done = 0;
    const struct task nothing = {0};
    enum tutti_status status = tutti_pg_create(self->comms[0], NULL, &self->pg);
    if (status)
        return suffer(self, &nothing, status);
    while (done < episode->operations && !failed && !self->failed[0]) {
        int count = 1 + (int)soak_below(&self->random, BATCH);
        size_t used = 0;
        for (int i = 0; i < count; i++) {
            task_make(&self->random, &tasks[i]);
            used += room_of(&tasks[i]);
        }
        struct task special = tasks[0];
        if (episode->fault_at >= done && episode->fault_at < done + count)
            failed = fault_come(self, &special);
        if (used > REGION_BYTES)
            count = 1;
        if (!failed)
            failed = batch_run(self, tasks, count);
        done += count;
    }
    return failed ? failed : group_end(self);
}
