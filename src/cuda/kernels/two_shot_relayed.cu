/* SPDX-License-Identifier: MIT */
/*
 * The two-shot all-reduce of integers and bool, of which all bits are values, in byte lines.
 * Smaller ones take one hop: reduce_lines.cu, and between two ranks reduce_pipelined.cu, with one
 * block that goes to all.
 */
#include "cuda/kernels/reduce_blocks.cuh"
#include "cuda/kernels/relay.cuh"

#define KERNEL(name, T, SUM_OF, suffix)                                                            \
    KERNEL_DEFINE(BOUNDS, two_shot_relayed_##name##suffix,                                         \
                  relay_run<reduce_way<dtype_##T, SUM_OF, true>, byte_pipe>)
KERNELS_OF_INTEGERS(KERNEL)
