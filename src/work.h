/* SPDX-License-Identifier: MIT */
/* What a communicator keeps for its work objects. It outlives the communicator while one of those
 * does. */
#ifndef TUTTI_WORK_H
#define TUTTI_WORK_H

#include "tutti/pg.h"

struct tutti_comm;
struct work_pool;

/* What a kind of work does; `call` is the public function, for its messages. The contracts are
 * those of the public functions; all but destroy are called in the process that made the work or in
 * a child of it, which they refuse. */
struct work_class {
    /* Whether it is this process that made the work. */
    enum tutti_status (*check)(const struct tutti_work *work, const char *call);
    enum tutti_status (*test)(struct tutti_work *work, const char *call, bool *done);
    enum tutti_status (*wait)(struct tutti_work *work, const char *call, tutti_stream_t stream);
    enum tutti_status (*result)(struct tutti_work *work, const char *call, int64_t timeout_ms);
    /* Fills all of *fault but struct_size; OK while the work is not done. */
    enum tutti_status (*fault)(struct tutti_work *work, const char *call,
                               struct tutti_fault *fault);
    void (*destroy)(struct tutti_work *work);
};

/* What every work begins with; constant. */
struct tutti_work {
    const struct work_class *class;
    const char *title;
    enum tutti_collective collective;
    uint32_t tag;
    uint64_t sequence;
    const struct tutti_tensor *tensors;
    int tensor_count;
};

/* Returns NO_MEMORY. */
enum tutti_status work_pool_create(struct tutti_comm *comm, struct work_pool **pool);
/* The communicator is about to end its operations: until work_pool_end() says how they did, no work
 * is done that was not before. Takes NULL. */
void work_pool_suspend(struct work_pool *pool);
/* They ended so, OK or not; the communicator gives the pool up. Takes NULL. */
void work_pool_end(struct work_pool *pool, const struct tutti_fault *fault);
/* In a child of fork(): gives up the copy. Takes NULL. */
void work_pool_forget(struct work_pool *pool);

#endif
