/* SPDX-License-Identifier: MIT */
/*
 * Work objects: the calls that all works have, and recorded works. The works of process
 * groups are in pg/work.c.
 *
 * A recorded work is a point on a stream: on CUDA an event. A CPU communicator completes its
 * operations before they return, so there the work is done at once.
 *
 * An event only says that the stream has passed it. The stream also passes it after a kernel gave
 * up. So the first caller that finds the event passed asks the communicator for a fault. If there
 * is none, the work has succeeded for good; else it has failed for good. A fault that came after
 * the work, but before that first call, therefore counts as the work's.
 *
 * Recording creates nothing once works have been destroyed: the communicator's pool keeps up to
 * IDLE_MAX of them, with their events, for reuse. Works may outlive the communicator, so the pool
 * counts its references: one of each work and one of the communicator. The last one frees it.
 */
#include "comm/work.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/options.h"
#include "base/order.h"
#include "base/wait.h"
#include "comm/run.h"
#include "ipc/fork.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    IDLE_MAX = 32,
    SPINS = 200, /* polls of a host wait before it naps between polls */
};

struct stream_point {
    struct tutti_work work;
    struct work_pool *pool;
    const struct backend_points *points; /* NULL: the work is done at once */
    void *point;
    int64_t timeout_ms; /* the communicator's */
    uint32_t succeeded; /* 1: passed without a fault; release J1 pairs J1a */
    struct stream_point *next;
};

struct work_pool {
    uint32_t references; /* one of each live work, and the communicator's */
    uint32_t epoch;      /* of the process: ipc/fork.h */
    pthread_mutex_t lock;
    /* Protected by the lock, which a child of fork() must not take: */
    struct tutti_comm *comm; /* NULL after work_pool_suspend() */
    bool ending;             /* between suspend and end: `fault` is not known yet */
    struct tutti_fault fault;
    struct stream_point *idle;
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

static void points_free(struct stream_point *list, bool child)
{
    while (list) {
        struct stream_point *work = list;
        list = work->next;
        if (work->points)
            (child ? work->points->forget : work->points->destroy)(work->point);
        free(work);
    }
}

static void pool_release(struct work_pool *pool)
{
    if (order_fetch_add_u32(&pool->references, UINT32_MAX) != 1) /* N1; the last one: N1a */
        return;
    bool child = fork_detected(pool->epoch);
    points_free(pool->idle, child); /* only a child of fork() still has any here */
    if (!child)
        pthread_mutex_destroy(&pool->lock);
    free(pool);
}

void work_pool_suspend(struct work_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    struct stream_point *idle = pool->idle;
    pool->idle = NULL;
    pool->comm = NULL;
    pool->ending = true;
    pthread_mutex_unlock(&pool->lock);
    points_free(idle, false);
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

/* Take an idle work from the pool; NULL if there is none. */
static struct stream_point *pool_take(struct work_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    struct stream_point *work = pool->idle;
    if (work) {
        pool->idle = work->next;
        pool->idle_count--;
    }
    pthread_mutex_unlock(&pool->lock);
    return work;
}

static void pool_put(struct work_pool *pool, struct stream_point *work)
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
        points_free(work, false);
}

/* Return the communicator's fault, or OK. Set *known to false while it is being closed and its
 * fault is not known yet. */
static enum tutti_status pool_fault(struct work_pool *pool, bool *known, struct tutti_fault *fault)
{
    enum tutti_status status = TUTTI_OK;
    char text[512];
    pthread_mutex_lock(&pool->lock);
    *known = !pool->ending;
    if (pool->comm) {
        status = pool->comm->backend->status(pool->comm->group, fault);
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

static enum tutti_status point_make(struct tutti_comm *comm, struct stream_point **work)
{
    enum tutti_status status = TUTTI_OK;
    *work = pool_take(comm->works);
    if (*work)
        return TUTTI_OK;
    struct stream_point *made = calloc(1, sizeof *made);
    if (!made)
        return error_errno("calloc of a work");
    made->points = comm->backend->points;
    if (made->points)
        status = made->points->create(comm->group, &made->point);
    if (status != TUTTI_OK) {
        free(made);
        return status;
    }
    *work = made;
    return TUTTI_OK;
}

static enum tutti_status work_record(struct tutti_comm *comm, tutti_stream_t stream,
                                     tutti_work_t **work)
{
    struct stream_point *made;
    enum tutti_status status = point_make(comm, &made);
    if (status != TUTTI_OK)
        return status;
    if (made->points)
        status = made->points->record(comm->group, made->point, stream);
    if (status != TUTTI_OK) {
        pool_put(comm->works, made);
        return status;
    }
    made->work = (struct tutti_work){.class = &point_class, .title = "point"};
    made->pool = comm->works;
    made->timeout_ms = comm->timeout_ms;
    made->succeeded = !made->points;
    /* The communicator holds a reference (N1), so this addition needs no order. */
    order_fetch_add_u32(&made->pool->references, 1);
    *work = &made->work;
    return TUTTI_OK;
}

static enum tutti_status record_check(struct tutti_comm *comm, const char *call,
                                      tutti_stream_t stream)
{
    enum tutti_status status = comm_check_met(comm, call, COMM_MEET_FIRST);
    if (status != TUTTI_OK)
        return status;
    status = call_check_stream(comm, call, stream);
    if (status != TUTTI_OK)
        return status;
    /* work_record() reports a fault on a device. */
    if (peers_have_failed(comm->peers))
        return comm->backend->status(comm->group, NULL);
    return TUTTI_OK;
}

enum tutti_status tutti_work_record(tutti_comm_t *comm, tutti_stream_t stream, tutti_work_t **work)
{
    static const char call[] = "tutti_work_record";
    if (!work)
        return error_set(TUTTI_ERR_INVALID, "%s: work is NULL", call);
    *work = NULL;
    enum tutti_status status = record_check(comm, call, stream);
    if (status != TUTTI_OK)
        return status;
    status = work_record(comm, stream, work);
    return status == TUTTI_OK ? TUTTI_OK : error_context(status, "%s", call);
}

/* ---- recorded works: test and wait ----------------------------------------------------------- */

static enum tutti_status point_check(const struct tutti_work *work, const char *call)
{
    const struct stream_point *point = (const struct stream_point *)work;
    if (fork_detected(point->pool->epoch))
        return error_set(TUTTI_ERR_INVALID,
                         "%s: the work belongs to the parent process: record one after fork()",
                         call);
    return TUTTI_OK;
}

static enum tutti_status point_poll(struct stream_point *point, const char *call, bool *done,
                                    struct tutti_fault *fault)
{
    *done = true;
    if (order_load_acquire_u32(&point->succeeded)) /* J1a pairs J1 */
        return TUTTI_OK;
    enum tutti_status status = point->points->test(point->point, done);
    if (status != TUTTI_OK)
        return error_context(status, "%s", call);
    if (*done)
        status = pool_fault(point->pool, done, fault);
    if (status == TUTTI_OK && *done)
        order_store_release_u32(&point->succeeded, 1); /* J1 pairs J1a: the stream's writes */
    return status;
}

static enum tutti_status point_fault(struct tutti_work *work, const char *call,
                                     struct tutti_fault *fault)
{
    bool done;
    fault->status = point_poll((struct stream_point *)work, call, &done, fault);
    return fault->status;
}

static enum tutti_status point_test(struct tutti_work *work, const char *call, bool *done)
{
    struct tutti_fault fault = {.struct_size = sizeof fault};
    return point_poll((struct stream_point *)work, call, done, &fault);
}

static enum tutti_status point_wait(struct tutti_work *work, const char *call,
                                    tutti_stream_t stream)
{
    struct stream_point *point = (struct stream_point *)work;
    if (point->points) {
        enum tutti_status status = point->points->wait(point->point, stream);
        return status == TUTTI_OK ? TUTTI_OK : error_context(status, "%s", call);
    }
    if (stream != TUTTI_STREAM_DEFAULT)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: stream %p: the work of a CPU communicator takes "
                         "TUTTI_STREAM_DEFAULT only",
                         call, (const void *)stream);
    return TUTTI_OK;
}

struct point_wait {
    struct stream_point *point;
    const char *call;
    enum tutti_status status;
};

/* Return true if the work has ended or its test has failed. */
static bool point_is_over(void *context)
{
    struct point_wait *wait = context;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    bool done;
    wait->status = point_poll(wait->point, wait->call, &done, &fault);
    return wait->status != TUTTI_OK || done;
}

static enum tutti_status point_result(struct tutti_work *work, const char *call, int64_t timeout_ms)
{
    struct point_wait wait = {.point = (struct stream_point *)work, .call = call};
    timeout_ms = timeout_ms ? timeout_ms : wait.point->timeout_ms;
    if (wait_spin(point_is_over, &wait, 0, SPINS) ||
        wait_napping(point_is_over, &wait, deadline_after(timeout_ms), WAIT_NAP_NS))
        return wait.status;
    return error_set(TUTTI_ERR_TIMEOUT,
                     "%s: the stream has not passed the work within %" PRId64
                     " ms: check what runs on the stream, then wait again",
                     call, timeout_ms);
}

static void point_destroy(struct tutti_work *work)
{
    struct stream_point *point = (struct stream_point *)work;
    struct work_pool *pool = point->pool;
    if (fork_detected(pool->epoch)) {
        point->next = NULL;
        points_free(point, true);
    } else {
        pool_put(pool, point);
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

static enum tutti_status work_check(const struct tutti_work *work, const char *call)
{
    return work ? work->class->check(work, call) : refuse_null(call, "work");
}

enum tutti_status tutti_work_test(tutti_work_t *work, bool *done)
{
    static const char call[] = "tutti_work_test";
    if (!done)
        return refuse_null(call, "done");
    *done = false;
    enum tutti_status status = work_check(work, call);
    return status == TUTTI_OK ? work->class->test(work, call, done) : status;
}

enum tutti_status tutti_work_wait_stream(tutti_work_t *work, tutti_stream_t stream)
{
    static const char call[] = "tutti_work_wait_stream";
    enum tutti_status status = work_check(work, call);
    return status == TUTTI_OK ? work->class->wait(work, call, stream) : status;
}

enum tutti_status tutti_work_wait_host(tutti_work_t *work, int64_t timeout_ms)
{
    static const char call[] = "tutti_work_wait_host";
    enum tutti_status status = work_check(work, call);
    return status == TUTTI_OK ? work->class->result(work, call, timeout_ms) : status;
}

enum tutti_status tutti_work_fault(tutti_work_t *work, struct tutti_fault *fault)
{
    static const char call[] = "tutti_work_fault";
    struct tutti_fault found = {.struct_size = sizeof found, .peer = -1};
    if (!work)
        return refuse_null(call, "work");
    if (options_check_out("tutti_work_fault: fault", "tutti_fault", fault, sizeof *fault))
        return TUTTI_ERR_INVALID;
    found.status = work_check(work, call);
    enum tutti_status status =
        found.status == TUTTI_OK ? work->class->fault(work, call, &found) : found.status;
    if (fault)
        options_copy_out(fault, &found, sizeof found);
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
