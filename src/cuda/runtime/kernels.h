/* SPDX-License-Identifier: MIT */
/*
 * The kernels of one context: embedded fatbins, each a driver library that is loaded once in a
 * process. A communicator finds all its functions at creation and has the driver load them, since
 * a first launch would allocate and synchronise. Functions stay in a context as long as it lives,
 * for later communicators: to load code waits until no kernel runs in the context, and such a
 * kernel may wait for the thread that loads. A communicator's kernels are all but those of
 * symmetric memory and of waiting kernels.
 *
 * A build without nvcc embeds stubs. libcuda loads a stub and finds no kernel in it. The first
 * caller that opens the driver looks one kernel up, and gets DECLINED with what to do.
 */
#ifndef TUTTI_CUDA_KERNELS_H
#define TUTTI_CUDA_KERNELS_H

#include "base/dtype.h"
#include "cuda/kernels/launch.h"
#include "cuda/runtime/driver.h"

/* Checks that this library has kernels. A build without nvcc embeds a stub in place of each fatbin.
 * libcuda finds no kernel in a stub. The stand-in for libcuda does, since its kernels are host
 * functions. Needs no context; one caller at a time. Returns DECLINED: the message says why there
 * are none, and how to get them. */
enum tutti_status cuda_kernels_check(const struct cuda_driver *driver);

/* Forms of a kernel: for any op and 2 to 8 ranks; for the sum of a fixed number of ranks; for that
 * sum where every thread has at most one whole, aligned unit (cuda_choice_is_once()). */
enum cuda_form { CUDA_ANY, CUDA_SUM, CUDA_SUM_ONCE, CUDA_FORMS };

/* Names of functions in the fatbins: KERNEL_DTYPE ("one_shot_ll_bfloat16") for CUDA_ANY,
 * KERNEL_DTYPE_sum_N for CUDA_SUM, KERNEL_DTYPE_sum_N_once for CUDA_SUM_ONCE; "barrier", "probe",
 * "symm" and "stream_wait".  A function that does not exist is NULL. Full-line kernels exist for
 * floats, not for host memory. Sums exist for 2, 3, 4 and 8 ranks of float32, float16 and
 * bfloat16, but not for mesh and ring; CUDA_SUM_ONCE not for kernels with tiles or pieces. For
 * other dtypes, and for host memory, two_shot_pipelined is two_shot_tiles_DTYPE. */
struct cuda_kernels {
    CUfunction all_reduce[CUDA_KERNELS][DTYPE_REALS][CUDA_FORMS];
    CUfunction barrier;
    CUfunction probe;
};

/* Loads the kernels for a world size into the current context; `staged`: those for host memory.
 * Returns CUDA (with the compute capability, if no fatbin serves it), NO_MEMORY. */
enum tutti_status cuda_kernels_load(const struct cuda_driver *driver, int size, bool staged,
                                    struct cuda_kernels *kernels);
/* The same for the kernel of symmetric memory, and for the kernel that makes a stream wait. */
enum tutti_status cuda_kernel_load_symm(const struct cuda_driver *driver, CUfunction *function);
enum tutti_status cuda_kernel_load_stream_wait(const struct cuda_driver *driver,
                                               CUfunction *function);

#endif
