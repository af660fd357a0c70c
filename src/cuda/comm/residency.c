/* SPDX-License-Identifier: MIT */
/*
 * Blocks that are on a device at once. A kernel waits for its peers' blocks. So all blocks of a
 * grid must be on the device at once, together with the blocks of ranks that share the device, and
 * with the blocks of any other communicator that waits for ranks which this communicator delays.
 *
 * Grids are limited when the communicator is created. A kernel that is launched ahead
 * (programmatically) takes room while the one before it still runs. A communicator that is alone on
 * the device can spare that room. Otherwise an operation is launched ahead only if it and the
 * one before it take at most the communicator's equal part of each multiprocessor. This is correct
 * if the device spreads the blocks of a grid evenly; docs/streams.md has the calculation.
 *
 * A thread of our kernels has at most 128 registers (BOUNDS in operation.cuh). So CUDA_THREADS of
 * them take all 65536 registers of a multiprocessor, and a smaller part of everything else. A block
 * with T threads takes T / CUDA_THREADS of a multiprocessor.
 */
#include "base/error.h"
#include "base/order.h"
#include "cuda/comm/group_internal.h"

enum { DEVICES = 64 };

/* Communicators of this process with kernels on a device. Relaxed: a communicator is counted before
 * its ranks launch, since all ranks agree on the status of each step. It reads the count for its
 * own launches alone. */
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

/* Limits a choice to the communicator's option, and to the blocks that fit at once, of the function
 * that needs most. */
static enum tutti_status blocks_limit(struct cuda_group *group, struct cuda_choice *choice)
{
    const CUfunction *functions = &group->kernels.functions[choice->kernel][0][0];
    int least = choice->blocks;
    if (group->max_blocks && group->max_blocks < least)
        least = group->max_blocks;
    for (int f = 0; f < DTYPE_REALS * CUDA_FORMS; f++) {
        int blocks = 0;
        if (!least || !functions[f])
            continue;
        enum tutti_status status = CUDA_CALL(group->driver, occupancy, &blocks, functions[f],
                                             choice->threads + CUDA_CONTROL_THREADS, 0);
        if (status != TUTTI_OK)
            return status;
        blocks = blocks * group->device.multiprocessors / group->sharing;
        if (blocks < 1)
            return error_set(TUTTI_ERR_INVALID,
                             "device %d cannot run %s in blocks of %d threads, as the tuning table "
                             "has it: measure again with `tutti tune`",
                             group->device.ordinal, cuda_kernel_rows[choice->kernel].name,
                             (int)choice->threads);
        least = blocks < least ? blocks : least;
    }
    choice->blocks = (uint16_t)least;
    return TUTTI_OK;
}

enum tutti_status cuda_grids_limit(struct cuda_group *group)
{
    enum tutti_status status = TUTTI_OK;
    for (int i = 0; i < CUDA_PLAN_CHOICES && status == TUTTI_OK; i++)
        status = blocks_limit(group, &group->plan.choices[i]);
    return status;
}
