/* SPDX-License-Identifier: MIT */
/* Blocks of bytes in byte lines: half as many bytes on the wire as copy_ll.cu. */
#include "cuda/kernels/copy.cuh"

COPY_KERNEL(BOUNDS_ANY, copy_lines, blocks_run, byte_region)
