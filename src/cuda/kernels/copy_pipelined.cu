/* SPDX-License-Identifier: MIT */
/* Blocks of bytes of any size in byte lines. */
#include "cuda/kernels/copy.cuh"
#include "cuda/kernels/pipe.cuh"

COPY_KERNEL(BOUNDS, copy_pipelined, pipe_run, byte_pipe)
