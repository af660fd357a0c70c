/* SPDX-License-Identifier: MIT */
/* What a test forces: a value of enum tutti_algo, or, from FORCED_KERNEL on, one of CUDA's kernels,
 * which have no public values. */
#ifndef TESTS_FORCED_H
#define TESTS_FORCED_H

#include "comm/comm.h"
#include "cuda/kernels/rows.h"

enum {
    FORCED_KERNEL = 16,
    FORCED_TUNED = CUDA_TWO_SHOT_PIPELINED + 1, /* kernels of tables, for floats */
    FORCED_ANY = CUDA_TWO_SHOT_RELAYED + 1,     /* and for integers */
};
#define FORCED(kernel) (FORCED_KERNEL + CUDA_##kernel)

/* Makes the communicator's next calls use the kernel, if it is one. Returns the algorithm to ask
 * for in the options of the call. */
static inline enum tutti_algo forced_algo(tutti_comm_t *comm, int forced)
{
    const bool is_kernel = forced >= FORCED_KERNEL;
    comm->rules.kernel = is_kernel ? forced - FORCED_KERNEL + 1 : 0;
    return is_kernel ? cuda_kernel_rows[forced - FORCED_KERNEL].algo : (enum tutti_algo)forced;
}

static inline const char *forced_name(int forced)
{
    return forced >= FORCED_KERNEL ? cuda_kernel_rows[forced - FORCED_KERNEL].name
                                   : tutti_algo_name((enum tutti_algo)forced);
}

#endif
