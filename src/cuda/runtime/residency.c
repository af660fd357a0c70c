/* SPDX-License-Identifier: MIT */
/*
 * What is on a device at once. A kernel waits for its peers' blocks, so all blocks of a grid must
 * be on the device at once, beside those of the ranks that share it, or beside another
 * communicator's that waits for ranks which this one keeps from running.
 *
 * Grids are bounded when the communicator is created. A kernel that is launched ahead
 * (programmatically) is on the device while the one before it, of the same communicator, still
 * runs, and holds room. Where this communicator has the device alone nothing else needs that room.
 * Else an operation is launched ahead only if it and the one before it take no more of each
 * multiprocessor than the communicator's equal part. This holds as far as the device spreads the
 * blocks of a grid evenly; docs/streams.md has the count.
 *
 * A thread of ours has at most 128 registers (BOUNDS in operation.cuh), so CUDA_THREADS of them
 * take all 65536 of a multiprocessor, and all else in a smaller part: what a block takes is its
 * threads of CUDA_THREADS.
 */
#include "base/error.h"
#include "base/order.h"
#include "cuda/runtime/group_internal.h"

enum { DEVICES = 64 };

/* Communicators of this process whose kernels run on a device. Relaxed: a communicator is counted
 * before any of its ranks can launch, which the ranks' verdict sees to, and counts more than itself
 * only for its own launches. */
static uint32_t residents[DEVICES];

static uint32_t *residents_of(const struct cuda_group *group)
{
    return &residents[(unsigned)group->device.ordinal % DEVICES];
}

void cuda_residents_add(struct cuda_group *group, int count)
{
    order_fetch_add_relaxed_u32(residents_of(group), (uint32_t)count);
    group->resident = count > 0;
}

unsigned cuda_task_weight(const struct cuda_group *group, const struct cuda_task *task)
{
    const unsigned multiprocessors = (unsigned)group->device.multiprocessors;
    return (task->blocks + multiprocessors - 1) / multiprocessors * task->threads;
}

bool cuda_may_launch_ahead(const struct cuda_group *group, unsigned former, unsigned weight)
{
    if (!group->programmatic)
        return false;
    const uint32_t parts = order_load_relaxed_u32(residents_of(group));
    return parts <= 1 || parts * (former + weight) <= CUDA_WEIGHTS;
}

/* How many blocks of a multiprocessor's `most` a grid may have on all of them. */
static int grid_of(const struct cuda_group *group, int most, bool halved)
{
    const int multiprocessors = group->device.multiprocessors;
    int blocks = most * multiprocessors;
    if (halved) /* whole blocks on each, or half of the multiprocessors */
        blocks = most > 1 ? most / 2 * multiprocessors : multiprocessors / 2;
    return blocks / group->sharing;
}

/* How many blocks of so many threads fit at once, of the hungriest function that may be launched.
 */
static enum tutti_status blocks_limit(struct cuda_group *group, bool halved,
                                      struct cuda_choice *choice)
{
    const struct cuda_driver *driver = group->driver;
    int least = choice->blocks;
    if (!choice->blocks || !cuda_plan_has(&group->plan, (enum cuda_kernel)choice->kernel))
        return TUTTI_OK;
    for (int dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
        for (int form = 0; form < CUDA_FORMS; form++) {
            CUfunction function = group->kernels.all_reduce[choice->kernel][dtype][form];
            int blocks = 0;
            if (!function)
                continue;
            enum tutti_status status = CUDA_CALL(driver, occupancy, &blocks, function,
                                                 choice->threads + CUDA_CONTROL_THREADS, 0);
            if (status != TUTTI_OK)
                return status;
            blocks = grid_of(group, blocks, halved);
            least = blocks < least ? blocks : least;
        }
    }
    if (least < 1)
        return error_set(TUTTI_ERR_INVALID,
                         "device %d cannot run %s in blocks of %d threads, as the tuning table "
                         "has it: measure anew with `tutti tune`",
                         group->device.ordinal,
                         tutti_algo_name(cuda_kernel_algo((enum cuda_kernel)choice->kernel)),
                         (int)choice->threads);
    choice->blocks = (uint16_t)least;
    return TUTTI_OK;
}

enum tutti_status cuda_grids_limit(struct cuda_group *group, bool halved)
{
    enum tutti_status status = TUTTI_OK;
    for (int i = 0; i < CUDA_PLAN_CHOICES && status == TUTTI_OK; i++)
        status = blocks_limit(group, halved, &group->plan.choices[i]);
    return status;
}
