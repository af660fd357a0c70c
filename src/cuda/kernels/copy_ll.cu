/* SPDX-License-Identifier: MIT */
/* Blocks of bytes with flags in band, for the smallest operations. */
#include "cuda/kernels/copy.cuh"

COPY_KERNEL(BOUNDS_ANY, copy_ll, blocks_run, flagged_region)
