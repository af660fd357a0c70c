/* SPDX-License-Identifier: MIT */
/* The common part of all kinds of works, and the pool of a communicator's recorded works. */
#ifndef TUTTI_WORK_H
#define TUTTI_WORK_H

#include "tutti/pg.h"

struct tutti_comm;
struct work_pool;

/* The functions of one kind of work. Their contracts are those of the public functions. `call`
 * names the public function, for error messages. */
struct work_class {
    /* Return OK if this process made the work, else INVALID. It comes before each of the next four.
     */
    enum tutti_status (*check)(const struct tutti_work *work, const char *call);
    enum tutti_status (*test)(struct tutti_work *work, const char *call, bool *done);
    enum tutti_status (*wait)(struct tutti_work *work, const char *call, tutti_stream_t stream);
    enum tutti_status (*result)(struct tutti_work *work, const char *call, int64_t timeout_ms);
    /* Fill all fields of *fault except struct_size. Return OK while the work is not done. */
    enum tutti_status (*fault)(struct tutti_work *work, const char *call,
                               struct tutti_fault *fault);
    void (*destroy)(struct tutti_work *work);
};

/* Each kind of work begins with this struct. Its fields are constant. */
struct tutti_work {
    const struct work_class *class;
    const char *title;
    enum tutti_collective collective;
    uint32_t tag;
    uint64_t sequence;
    const struct tutti_tensor *tensors;
    int tensor_count;
};

/* The pool keeps destroyed works for reuse and knows the communicator's fault. It outlives
 * the communicator while one of its works lives. Returns NO_MEMORY. */
enum tutti_status work_pool_create(struct tutti_comm *comm, struct work_pool **pool);
/* The communicator is about to end its operations. From now until work_pool_end() no work becomes
 * done. Takes NULL. */
void work_pool_suspend(struct work_pool *pool);
/* The operations have ended with *fault (its status may be OK). Drops the communicator's reference.
 * Takes NULL. */
void work_pool_end(struct work_pool *pool, const struct tutti_fault *fault);
/* Drops the communicator's reference in a child of fork(). Takes NULL. */
void work_pool_forget(struct work_pool *pool);

#endif
