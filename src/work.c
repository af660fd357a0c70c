/* SPDX-License-Identifier: MIT */
/*
 * Work objects. Here are the points on a stream, and whether what lies before them ended well;
 * pg/work.c has the operations of process groups. On CUDA a point
 * is an event; CPU communicators complete before they return, so that theirs is passed at once.
 *
 * An event only says that the stream has passed it, and a kernel that gave up lets it pass too. So
 * whoever first finds a work passed asks the communicator for a fault; if there is none the work is
 * good for ever, else the fault stands for ever. That is strict: a fault which came after the work,
 * but before anybody asked, counts.
 *
 * Works are recycled, so that recording creates nothing: up to IDLE_MAX of them, events included,
 * wait in their communicator's pool. Pool and works live in no order: the pool counts its works and
 * goes with the last of them, or with the communicator.
 */
#include "work.h"

#include "comm.h"
#include "cuda/group.h"
#include "deadline.h"
#include "error.h"
#include "ipc/fork.h"
#include "order.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    IDLE_MAX = 32,
    SPINS = 200,    /* looks of a host wait before it sleeps in between */
    NAP_NS = 50000, /* then */
};

struct point {
    struct tutti_work work;
    struct work_pool *pool;
    struct cuda_work *cuda; /* NULL on CPU */
    int64_t timeout_ms;     /* the communicator's */
    uint32_t good;          /* passed, without a fault: release J1 pairs J1a */
    struct point *next;
};

struct work_pool {
    uint32_t references; /* of works that live, and the communicator's */
    uint32_t epoch;      /* of the process: ipc/fork.h */
    pthread_mutex_t lock;
    /* Under the lock, which a child of fork() must not take: */
    struct tutti_comm *comm; /* NULL once it is about to end */
    bool ending;             /* `fault` is not known yet */
    struct tutti_fault fault;
    struct point *idle;
    int idle_count;
};

/* ---- pool ------------------------------------------------------------------------------------ */

enum tutti_status work_pool_create(struct tutti_comm *comm, struct work_pool **pool)
{
    *pool = malloc(sizeof **pool);
    if (!*pool)
        return error_errno("malloc of a communicator's pool of works");
    **pool = (struct work_pool){.references = 1, .epoch = comm->epoch, .comm = comm};
    pthread_mutex_init(&(*pool)->lock, NULL);
    return TUTTI_OK;
}

static void works_free(struct point *list, bool child)
{
    while (list) {
        struct point *work = list;
        list = work->next;
        if (child)
            cuda_work_forget(work->cuda);
        else
            cuda_work_destroy(work->cuda);
        free(work);
    }
}

static void pool_release(struct work_pool *pool)
{
    if (order_fetch_add_u32(&pool->references, UINT32_MAX) != 1) /* N1, N1a if it is the last */
        return;
    bool child = fork_detected(pool->epoch);
    works_free(pool->idle, child); /* there are some in a child alone */
    if (!child)
        pthread_mutex_destroy(&pool->lock);
    free(pool);
}

void work_pool_suspend(struct work_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    struct point *idle = pool->idle;
    pool->idle = NULL;
    pool->comm = NULL;
    pool->ending = true;
    pthread_mutex_unlock(&pool->lock);
    works_free(idle, false);
}

void work_pool_end(struct work_pool *pool, const struct tutti_fault *fault)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->ending = false;
    pool->fault = *fault;
    pthread_mutex_unlock(&pool->lock);
    pool_release(pool);
}

void work_pool_forget(struct work_pool *pool)
{
    if (pool)
        pool_release(pool);
}

/* An idle one, NULL if there is none. */
static struct point *pool_take(struct work_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    struct point *work = pool->idle;
    if (work) {
        pool->idle = work->next;
        pool->idle_count--;
    }
    pthread_mutex_unlock(&pool->lock);
    return work;
}

static void pool_give(struct work_pool *pool, struct point *work)
{
    pthread_mutex_lock(&pool->lock);
    bool keep = pool->comm && pool->idle_count < IDLE_MAX;
    work->next = keep ? pool->idle : NULL;
    if (keep) {
        pool->idle = work;
        pool->idle_count++;
    }
    pthread_mutex_unlock(&pool->lock);
    if (!keep)
        works_free(work, false);
}

/* The fault that stands; *known is false while that is being found out. */
static enum tutti_status pool_verdict(struct work_pool *pool, bool *known,
                                      struct tutti_fault *fault)
{
    enum tutti_status status = TUTTI_OK;
    char text[512];
    pthread_mutex_lock(&pool->lock);
    *known = !pool->ending;
    if (pool->comm) {
        status = tutti_comm_status(pool->comm, fault);
    } else if (!pool->ending && pool->fault.status != TUTTI_OK) {
        tutti_fault_format(&pool->fault, text, sizeof text);
        status = error_set(pool->fault.status, "%s", text);
        *fault = pool->fault;
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

/* ---- record ---------------------------------------------------------------------------------- */

static const struct work_class point_class;

static enum tutti_status record_check(struct tutti_comm *comm, tutti_stream_t stream)
{
    static const char call[] = "tutti_work_record";
    if (!comm)
        return error_set(TUTTI_ERR_INVALID, "%s: comm is NULL", call);
    if (fork_detected(comm->epoch))
        return comm_refuse_child(comm, call);
    if (!comm->ready)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: communicator \"%s\" has not met: call tutti_comm_rendezvous()", call,
                         comm->name);
    if (!comm->cuda && stream != TUTTI_STREAM_DEFAULT)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: stream %p: a CPU communicator takes TUTTI_STREAM_DEFAULT only", call,
                         (const void *)stream);
    /* A device's fault is looked for where the event is recorded. */
    if (order_load_acquire_u32(&comm->cpu.failed) || /* A4 pairs F4 */
        order_load_relaxed_u32(&comm->cpu.aborted))
        return tutti_comm_status(comm, NULL);
    return TUTTI_OK;
}

static enum tutti_status work_make(struct tutti_comm *comm, struct point **work)
{
    enum tutti_status status = TUTTI_OK;
    *work = pool_take(comm->works);
    if (*work)
        return TUTTI_OK;
    struct point *made = calloc(1, sizeof *made);
    if (!made)
        return error_errno("calloc of a work");
    if (comm->cuda)
        status = cuda_work_create(comm->cuda, &made->cuda);
    if (status != TUTTI_OK) {
        free(made);
        return status;
    }
    *work = made;
    return TUTTI_OK;
}

enum tutti_status tutti_work_record(tutti_comm_t *comm, tutti_stream_t stream, tutti_work_t **work)
{
    struct point *made;
    if (!work)
        return error_set(TUTTI_ERR_INVALID, "tutti_work_record: work is NULL");
    *work = NULL;
    enum tutti_status status = record_check(comm, stream);
    if (status == TUTTI_OK)
        status = work_make(comm, &made);
    if (status != TUTTI_OK)
        return status;
    if (comm->cuda)
        status = cuda_work_record(comm->cuda, made->cuda, stream);
    if (status != TUTTI_OK) {
        pool_give(comm->works, made);
        return error_context(status, "tutti_work_record");
    }
    made->work = (struct tutti_work){.class = &point_class, .title = "point"};
    made->pool = comm->works;
    made->timeout_ms = comm->timeout_ms;
    made->good = !comm->cuda;
    order_fetch_add_u32(&made->pool->references, 1); /* by who has one: no N1 to wait for */
    *work = &made->work;
    return TUTTI_OK;
}

/* ---- points: ask, wait ----------------------------------------------------------------------- */

static enum tutti_status point_check(const struct tutti_work *work, const char *call)
{
    const struct point *point = (const struct point *)work;
    if (fork_detected(point->pool->epoch))
        return error_set(TUTTI_ERR_INVALID,
                         "%s: the work belongs to the process that recorded it, not to its fork",
                         call);
    return TUTTI_OK;
}

static enum tutti_status look(struct point *point, const char *call, bool *done,
                              struct tutti_fault *fault)
{
    *done = true;
    if (order_load_acquire_u32(&point->good)) /* J1a pairs J1 */
        return TUTTI_OK;
    enum tutti_status status = cuda_work_test(point->cuda, done);
    if (status != TUTTI_OK)
        return error_context(status, "%s", call);
    if (*done)
        status = pool_verdict(point->pool, done, fault);
    if (status == TUTTI_OK && *done)
        order_store_release_u32(&point->good, 1); /* J1 pairs J1a: what the stream had written */
    return status;
}

static enum tutti_status point_fault(struct tutti_work *work, const char *call,
                                     struct tutti_fault *fault)
{
    struct point *point = (struct point *)work;
    bool done;
    enum tutti_status status = point_check(work, call);
    if (status == TUTTI_OK)
        status = look(point, call, &done, fault);
    fault->status = status;
    return status;
}

static enum tutti_status point_test(struct tutti_work *work, const char *call, bool *done)
{
    struct point *point = (struct point *)work;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    enum tutti_status status = point_check(work, call);
    return status == TUTTI_OK ? look(point, call, done, &fault) : status;
}

static enum tutti_status point_wait(struct tutti_work *work, const char *call,
                                    tutti_stream_t stream)
{
    struct point *point = (struct point *)work;
    enum tutti_status status = point_check(work, call);
    if (status != TUTTI_OK)
        return status;
    if (point->cuda) {
        status = cuda_work_wait(point->cuda, stream);
        return status == TUTTI_OK ? TUTTI_OK : error_context(status, "%s", call);
    }
    if (stream != TUTTI_STREAM_DEFAULT)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: stream %p: the work of a CPU communicator takes "
                         "TUTTI_STREAM_DEFAULT only",
                         call, (const void *)stream);
    return TUTTI_OK;
}

static enum tutti_status point_result(struct tutti_work *work, const char *call, int64_t timeout_ms)
{
    struct point *point = (struct point *)work;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    enum tutti_status status = point_check(work, call);
    if (status != TUTTI_OK)
        return status;
    timeout_ms = timeout_ms ? timeout_ms : point->timeout_ms;
    int64_t deadline = deadline_after(timeout_ms);
    for (int turn = 0;; turn++) {
        bool done;
        status = look(point, call, &done, &fault);
        if (status != TUTTI_OK || done)
            return status;
        if (deadline_passed(deadline))
            return error_set(TUTTI_ERR_TIMEOUT,
                             "%s: the stream has not passed the work within %" PRId64
                             " ms: look at what is on it, and wait again",
                             call, timeout_ms);
        if (turn < SPINS)
            order_pause();
        else
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
}

static void point_destroy(struct tutti_work *work)
{
    struct point *point = (struct point *)work;
    struct work_pool *pool = point->pool;
    if (fork_detected(pool->epoch)) {
        point->next = NULL;
        works_free(point, true);
    } else {
        pool_give(pool, point);
    }
    pool_release(pool);
}

static const struct work_class point_class = {
    .check = point_check,
    .test = point_test,
    .wait = point_wait,
    .result = point_result,
    .fault = point_fault,
    .destroy = point_destroy,
};

/* ---- any work -------------------------------------------------------------------------------- */

static enum tutti_status refuse_null(const char *call, const char *what)
{
    return error_set(TUTTI_ERR_INVALID, "%s: %s is NULL", call, what);
}

enum tutti_status tutti_work_test(tutti_work_t *work, bool *done)
{
    static const char call[] = "tutti_work_test";
    if (!done)
        return refuse_null(call, "done");
    *done = false;
    return work ? work->class->test(work, call, done) : refuse_null(call, "work");
}

enum tutti_status tutti_work_wait(tutti_work_t *work, tutti_stream_t stream)
{
    static const char call[] = "tutti_work_wait";
    return work ? work->class->wait(work, call, stream) : refuse_null(call, "work");
}

enum tutti_status tutti_work_result(tutti_work_t *work, int64_t timeout_ms)
{
    static const char call[] = "tutti_work_result";
    return work ? work->class->result(work, call, timeout_ms) : refuse_null(call, "work");
}

enum tutti_status tutti_work_fault(tutti_work_t *work, struct tutti_fault *fault)
{
    static const char call[] = "tutti_work_fault";
    struct tutti_fault found = {.struct_size = sizeof found, .peer = -1};
    if (!work)
        return refuse_null(call, "work");
    if (fault && fault->struct_size < sizeof fault->struct_size)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: fault->struct_size is %zu: set it to sizeof(struct tutti_fault), %zu",
                         call, fault->struct_size, sizeof *fault);
    enum tutti_status status = work->class->fault(work, call, &found);
    if (fault) {
        size_t size = fault->struct_size;
        memset(fault, 0, size);
        memcpy(fault, &found, size < sizeof found ? size : sizeof found);
        fault->struct_size = size;
    }
    return status;
}

const char *tutti_work_title(const tutti_work_t *work)
{
    return work ? work->title : NULL;
}

enum tutti_collective tutti_work_collective(const tutti_work_t *work)
{
    return work ? work->collective : (enum tutti_collective)0;
}

uint32_t tutti_work_tag(const tutti_work_t *work)
{
    return work ? work->tag : 0;
}

uint64_t tutti_work_sequence(const tutti_work_t *work)
{
    return work ? work->sequence : 0;
}

enum tutti_status tutti_work_tensors(const tutti_work_t *work, const struct tutti_tensor **tensors,
                                     int *count)
{
    static const char call[] = "tutti_work_tensors";
    if (!work || !tensors || !count)
        return refuse_null(call, !work ? "work" : !tensors ? "tensors" : "count");
    enum tutti_status status = work->class->check(work, call);
    *tensors = status == TUTTI_OK ? work->tensors : NULL;
    *count = status == TUTTI_OK ? work->tensor_count : 0;
    return status;
}

void tutti_work_destroy(tutti_work_t *work)
{
    if (work)
        work->class->destroy(work);
}
