/* SPDX-License-Identifier: MIT */
/* A rank's life in a cell: it is set up, has a few good operations, is struck or hears of it, ends,
 * and has another communicator. */
#include "matrix.h"

#include "base/deadline.h"
#include "device.h"
#include "pg_cuda.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FEW = 100, LAST = FAULT_AT + 1 }; /* elements in a group; the last operation */

/* ---- points ---------------------------------------------------------------------------------- */

/* Ways through the library that make a stage. */
static bool is_of_stage(enum faults_call call, enum stage stage)
{
    static const int calls[STAGES] = {
        [ONE_SHOT] = 1 << CALL_SMALL | 1 << CALL_ONE_SHOT | 1 << CALL_LINES,
        [TWO_SHOT] = 1 << CALL_TWO_SHOT | 1 << CALL_DIRECT | 1 << CALL_PIPELINED,
        [PAIR] = 1 << CALL_BROADCAST | 1 << CALL_COLLECT | 1 << CALL_DEAL | 1 << CALL_REDUCE |
                 1 << CALL_OFFER | 1 << CALL_TAKE | 1 << CALL_COLLECT_V | 1 << CALL_DEAL_V |
                 1 << CALL_GATHER_V | 1 << CALL_SCATTER_V | 1 << CALL_TO_ALL_V,
        [COUNTED] = 1 << CALL_COUNTED_TO_ALL | 1 << CALL_COUNTED_REDUCE,
        [NORM] = 1 << CALL_NORM | 1 << CALL_NORM_ROWS,
        [MESH] = 1 << CALL_MESH,
        [RING] = 1 << CALL_RING,
        [BARRIER] = 1 << CALL_BARRIER,
    };
    return calls[stage] >> call & 1;
}

static int operation_points(const struct cell *cell, struct faults_point *points, int most)
{
    int count, found = 0;
    const struct faults_point *all = faults_points(&count);
    for (int i = 0; i < count && found < most; i++)
        if (is_of_stage(all[i].call, cell->stage) &&
            (cell->fault->strike || faults_first_of_call(&all[i])))
            points[found++] = all[i];
    return found;
}

static int setup_points(const struct cell *cell, struct faults_point *points, int most)
{
    static const char *const names[] = {"meet.joined",    "open.arena",   "channel.announced",
                                        "channel.opened", "open.handles", "open.joined",
                                        "cuda.prepared",  "cuda.handles", "cuda.joined"};
    int count = cell->place == CUDA ? 9 : 6, found = 0;
    if (!cell->fault->strike || cell->fault->before) {
        /* How many files or descriptors are to be had. */
        count = cell->fault->sparse ? 4 : 1;
        for (; found < count && found < most; found++)
            points[found] = (struct faults_point){.name = "create", .passage = 1 + found};
        return found;
    }
    for (int i = 0; i < count && found < most; i++)
        if (cell->place != THREADS || strncmp(names[i], "channel", 7) != 0)
            points[found++] = (struct faults_point){.name = names[i], .passage = 1};
    return found;
}

static int group_points(const struct cell *cell, struct faults_point *points)
{
    const struct fault *fault = cell->fault;
    const bool cuda = cell->place == CUDA;
    points[0] =
        (struct faults_point){.name = cuda ? "group.decided" : "small.written", .passage = 1};
    points[1] =
        (struct faults_point){.name = cuda ? "group.launched" : "small.published", .passage = 1};
    if (fault->sparse)
        points[0].name = "sparse.coalesced";
    else if (fault->caller || !fault->strike)
        points[0].name = "group.submitted";
    return fault->sparse || fault->caller || !fault->strike ? 1 : 2;
}

int matrix_points(const struct cell *cell, struct faults_point *points, int most)
{
    points[0] = (struct faults_point){.name = "call.before", .call = CALL_SMALL, .passage = 1};
    switch (cell->stage) {
    case SETUP:
        return setup_points(cell, points, most);
    case BETWEEN:
        return 1;
    case GROUP:
        return group_points(cell, points);
    case DESTROY:
        if (cell->fault->strike)
            points[0].name = "close.left";
        return 1;
    case ONE_SHOT:
    case TWO_SHOT:
    case PAIR:
    case COUNTED:
    case NORM:
    case MESH:
    case RING:
    case BARRIER:
    case STAGES:
        break;
    }
    return operation_points(cell, points, most);
}

/* ---- operations ------------------------------------------------------------------------------ */

/* The group's thread is struck where it calls back. */
static void adopt(void *context, tutti_work_t *work, enum tutti_status status)
{
    struct matrix_rank *self = context;
    (void)work;
    (void)status;
    faults_arm(&self->base, self->cell->fault->strike);
}

/* What the group's tensors are made of, on the host or on the rank's GPU. */
struct operands {
    int64_t indices[PG_ROWS];
    float values[PG_ROWS];
    float data[FEW];
};

static struct operands *operands_of(const struct matrix_rank *self)
{
    static _Thread_local struct operands host;
    for (int i = 0; i < PG_ROWS; i++)
        host.indices[i] = i;
    if (!self->device)
        return &host;
    if (!gpu_copy(self->device, &host, sizeof host))
        abort();
    return self->device;
}

static enum tutti_status submit(struct matrix_rank *self, int number, int64_t timeout_ms,
                                tutti_work_t **work)
{
    const enum faults_wrong wrong = self->base.wrong;
    const int64_t count = FEW - (wrong == WRONG_COUNT);
    const struct fault *fault = self->cell->fault;
    const enum tutti_device device = self->device ? TUTTI_DEVICE_CUDA : TUTTI_DEVICE_CPU;
    const int index = self->device ? pg_cuda_device(self->rank, 0) : 0;
    struct operands *operands = operands_of(self);
    struct tutti_tensor tensor = pg_vector(operands->data, &count);
    struct tutti_pg_call_options options = {.struct_size = sizeof options,
                                            .timeout_ms = timeout_ms};
    if (self->victim && number == FAULT_AT - 1 && fault->strike && !fault->caller) {
        options.callback = adopt;
        options.context = self;
    }
    if (fault->sparse || wrong == WRONG_ORDER) {
        struct tutti_sparse_tensor sparse =
            pg_entries(operands->indices, operands->values, number < FAULT_AT ? FEW : PG_ROWS);
        sparse.device = device;
        sparse.device_index = index;
        return tutti_pg_all_reduce_sparse(self->pg, &sparse, 1, &options, work);
    }
    tensor.device = device;
    tensor.device_index = index;
    if (wrong == WRONG_DTYPE)
        tensor.dtype = TUTTI_INT32;
    return tutti_pg_all_reduce(self->pg, &tensor, 1, wrong == WRONG_OP ? TUTTI_MAX : TUTTI_SUM,
                               &options, work);
}

static enum tutti_status group_call(struct matrix_rank *self, int number, int64_t timeout_ms)
{
    struct tutti_fault fault = {.struct_size = sizeof fault};
    enum tutti_status status = submit(self, number, timeout_ms, &self->work);
    if (status != TUTTI_OK)
        return status;
    faults_pass("group.submitted");
    /* A caller that waits for less than the group's time-out leaves all operations to the group's
     * thread. The fault strikes the thread that arms it. */
    status = tutti_work_wait_host(self->work, RANKS_TIMEOUT_MS - self->victim);
    if (status != TUTTI_OK)
        (void)tutti_work_fault(self->work, &fault);
    self->report->sequence = fault.sequence;
    tutti_work_destroy(self->work);
    self->work = NULL;
    return status;
}

static enum tutti_status call(struct matrix_rank *self, int number, int64_t timeout_ms)
{
    struct tutti_fault fault = {.struct_size = sizeof fault};
    if (self->cell->stage == GROUP)
        return group_call(self, number, timeout_ms);
    enum tutti_status status = faults_call(&self->base, timeout_ms);
    if (status != TUTTI_OK) {
        char text[sizeof self->report->text];
        snprintf(text, sizeof text, "%s", tutti_last_error());
        (void)tutti_comm_status(self->base.comm, &fault);
        self->report->sequence = fault.sequence;
        if (!self->report->text[0])
            snprintf(self->report->text, sizeof self->report->text, "%s", text);
    }
    return status;
}

/* The fault's operation and the next one, or until one fails. */
static enum tutti_status call_on(struct matrix_rank *self, int last)
{
    enum tutti_status status = TUTTI_OK;
    for (int i = FAULT_AT; i <= last && status == TUTTI_OK; i++) {
        status = call(self, i, self->timeout_ms);
        self->base.wrong = WRONG_NOTHING;
    }
    return status;
}

/* ---- what it says of itself ------------------------------------------------------------------ */

static void tell(struct matrix_rank *self, enum tutti_status status)
{
    const struct matrix_shared *shared =
        (const struct matrix_shared *)(void *)self->base.ranks->shared;
    int64_t happened = __atomic_load_n(&shared->faults.happened_ns, __ATOMIC_ACQUIRE);
    int64_t took = happened ? deadline_now() - happened : 0;
    self->report->took_ns = took > 0 ? took : 0;
    if (status != TUTTI_OK && !self->report->text[0])
        snprintf(self->report->text, sizeof self->report->text, "%s", tutti_last_error());
    __atomic_store_n(&self->report->status, (int)status, __ATOMIC_RELAXED);
}

/* All survivors know: a victim that stands still, or is about to, is woken. */
static void share_news(struct matrix_rank *self)
{
    struct ranks *ranks = self->base.ranks;
    const struct matrix_shared *shared = (const struct matrix_shared *)(void *)ranks->shared;
    const int victim = self->base.scenario->victim;
    const int *status = &shared->reports[victim].status;
    ranks_raise(ranks, HEARD);
    if ((matrix_outcome(self->cell->fault, self->cell->stage)->victim & VICTIM_ENDS) ||
        self->cell->place == THREADS || !ranks_await(ranks, HEARD, (uint32_t)ranks->size - 1))
        return;
    for (int i = 0; i < 2000 && __atomic_load_n(status, __ATOMIC_RELAXED) == NO_STATUS; i++) {
        kill(ranks->pids[victim], SIGCONT);
        usleep(10000);
    }
}

/* ---- the set-up ------------------------------------------------------------------------------ */

static enum tutti_status set_up(struct matrix_rank *self)
{
    tutti_store_t *store = self->wrapped ? self->wrapped : self->base.store;
    self->options.defer = true;
    enum tutti_status status =
        tutti_comm_create(store, self->rank, self->size, &self->options, &self->base.comm);
    if (status == TUTTI_OK && self->victim && self->cell->stage == SETUP &&
        (self->cell->fault->thrown || self->cell->fault->absent))
        return TUTTI_OK;
    if (status == TUTTI_OK)
        status = tutti_comm_rendezvous(self->base.comm);
    /* Whoever is struck late has done its part. */
    if (status == TUTTI_OK)
        status = tutti_barrier(self->base.comm, NULL, 0, TUTTI_STREAM_DEFAULT);
    return status;
}

static int live_setup(struct matrix_rank *self)
{
    const struct fault *fault = self->cell->fault;
    self->options.timeout_ms = self->cell->place == CUDA ? CUDA_PATIENCE_MS : SETUP_PATIENCE_MS;
    if (matrix_outcome(fault, SETUP)->survivors == ONE_OF(OK))
        self->options.timeout_ms = RANKS_TIMEOUT_MS;
    if (self->victim && fault->strike && !fault->before)
        faults_arm(&self->base, fault->strike);
    else if (self->victim && !(fault->before && fault->sparse))
        faults_happened(self->base.ranks);
    tell(self, set_up(self));
    if (!self->victim)
        share_news(self);
    return 0;
}

/* ---- operations, and the end ----------------------------------------------------------------- */

static enum tutti_status suffer(struct matrix_rank *self)
{
    struct ranks *ranks = self->base.ranks;
    const struct fault *fault = self->cell->fault;
    if (self->cell->stage == DESTROY && fault->absent) {
        tutti_comm_destroy(self->base.comm);
        self->base.comm = NULL;
        return TUTTI_OK;
    }
    ranks_raise(ranks, FAULTS_FLAG);
    ranks_await(ranks, FAULTS_FLAG, (uint32_t)ranks->size - 1);
    return call_on(self, LAST);
}

/* Its destroy is what is struck. */
static enum tutti_status end(struct matrix_rank *self)
{
    const struct fault *fault = self->cell->fault;
    if (fault->strike)
        faults_arm(&self->base, fault->strike);
    else
        faults_happened(self->base.ranks);
    if (fault->absent)
        ranks_await(self->base.ranks, HEARD, (uint32_t)self->base.ranks->size - 1);
    tutti_comm_destroy(self->base.comm);
    self->base.comm = NULL;
    return TUTTI_OK;
}

static enum tutti_status err(struct matrix_rank *self)
{
    struct ranks *ranks = self->base.ranks;
    const struct fault *fault = self->cell->fault;
    const bool fails = matrix_outcome(fault, self->cell->stage)->survivors != ONE_OF(OK);
    if (!fault->strike)
        faults_happened(ranks);
    if (fault->absent)
        ranks_await(ranks, HEARD, (uint32_t)ranks->size - 1);
    if (self->cell->stage == GROUP && fault->caller)
        faults_arm(&self->base, fault->strike);
    self->base.wrong = fault->wrong;
    self->timeout_ms = RANKS_TIMEOUT_MS;
    if (sigsetjmp(*(sigjmp_buf *)matrix_jump_target(), 1))
        return TUTTI_OK;
    return call_on(self, fails ? LAST + 1 : LAST);
}

/* Whether the victim goes on, and makes the next communicator with the others. */
static bool lives_on(const struct cell *cell)
{
    return !cell->fault->thrown &&
           !(matrix_outcome(cell->fault, cell->stage)->victim & VICTIM_ENDS);
}

/* Of a CUDA communicator its operations are on the devices. */
static enum tutti_status group_create(struct matrix_rank *self)
{
    const struct tutti_pg_options options = {.struct_size = sizeof options,
                                             .store = self->base.store};
    if (self->cell->place != CUDA)
        return tutti_pg_create(self->base.comm, NULL, &self->pg);
    self->device = gpu_alloc(sizeof(struct operands));
    return self->device ? tutti_pg_create(self->base.comm, &options, &self->pg) : TUTTI_ERR_CUDA;
}

static int live_operation(struct matrix_rank *self)
{
    struct ranks *ranks = self->base.ranks;
    const int rank = self->base.rank;
    const struct fault *fault = self->cell->fault;
    const enum stage stage = self->cell->stage;
    self->options.timeout_ms = RANKS_TIMEOUT_MS;
    RANKS_CHECK(set_up(self) == TUTTI_OK);
    if (stage == GROUP)
        RANKS_CHECK(group_create(self) == TUTTI_OK);
    self->timeout_ms = matrix_outcome(fault, stage)->survivors & ONE_OF(ERR_TIMEOUT)
                           ? PATIENCE_MS
                           : RANKS_TIMEOUT_MS;
    if (self->victim && fault->strike && stage != DESTROY && stage != GROUP)
        faults_arm(&self->base, fault->strike);
    for (int i = 1; i < FAULT_AT; i++)
        RANKS_CHECK(call(self, i, RANKS_TIMEOUT_MS) == TUTTI_OK);
    if (!self->victim) {
        tell(self, suffer(self));
        share_news(self);
    } else {
        tell(self, stage == DESTROY ? end(self) : err(self));
    }
    /* Who leaves before the others have looked is gone, whatever it did before. */
    ranks_raise(ranks, DONE);
    if (stage != DESTROY && lives_on(self->cell))
        ranks_await(ranks, DONE, (uint32_t)ranks->size);
    return 0;
}

/* ---- afterwards ------------------------------------------------------------------------------ */

/* A communicator of those who live, on a store that nobody has touched. */
static bool goes_on(const struct matrix_rank *self)
{
    const struct ranks *ranks = self->base.ranks;
    const int victim = self->base.scenario->victim;
    const bool lives = lives_on(self->cell);
    const int size = ranks->size - !lives;
    const int rank = self->base.rank - (!lives && self->base.rank > victim);
    struct tutti_comm_options options = {
        .struct_size = sizeof options, .name = "anew", .timeout_ms = RANKS_TIMEOUT_MS};
    char url[160];
    float one = 1, sum = 0;
    tutti_store_t *store;
    tutti_comm_t *comm;
    if (self->victim && !lives)
        return true;
    snprintf(url, sizeof url, "file:%s-anew", getenv("TUTTI_DIR"));
    if (tutti_store_open(url, RANKS_TIMEOUT_MS, &store) != TUTTI_OK)
        return false;
    bool good = tutti_comm_create(store, rank, size, &options, &comm) == TUTTI_OK &&
                tutti_all_reduce(&one, &sum, 1, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                 TUTTI_STREAM_DEFAULT) == TUTTI_OK &&
                sum == (float)size;
    tutti_comm_destroy(comm);
    tutti_store_close(store);
    return good;
}

int matrix_live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct matrix_shared *shared = (struct matrix_shared *)(void *)ranks->shared;
    const struct cell *cell = ranks->context;
    struct holdings before = matrix_holdings();
    struct matrix_rank self = {.cell = cell,
                               .report = &shared->reports[rank],
                               .victim = rank == cell->scenario.victim,
                               .rank = rank,
                               .size = ranks->size,
                               .options = {.struct_size = sizeof self.options, .name = "matrix"}};
    self.report->status = NO_STATUS;
    int failed = faults_begin(&self.base, ranks, rank, store);
    if (failed)
        return failed;
    if (cell->fault->prepare)
        cell->fault->prepare(&self);
    failed = cell->stage == SETUP ? live_setup(&self) : live_operation(&self);
    tutti_work_destroy(self.work);
    tutti_pg_destroy(self.pg);
    gpu_free(self.device);
    tutti_comm_destroy(self.base.comm);
    if (cell->fault->mend)
        cell->fault->mend(&self);
    RANKS_CHECK(failed || goes_on(&self));
    self.report->anew = true;
    /* Thread ranks read each other's operands: those of an operation that was left live until the
     * others have left it, too. */
    if (!ranks->processes)
        ranks_await(ranks, HEARD, (uint32_t)ranks->size - 1);
    faults_end(&self.base);
    if (ranks->processes)
        matrix_left(&before, self.report->left, sizeof self.report->left);
    self.report->ended = true;
    return failed;
}
