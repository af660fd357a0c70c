/* SPDX-License-Identifier: MIT */
/*
 * The kernels of one context: embedded fatbins, each a library of the driver's that is loaded once
 * a process. A communicator finds all its functions at creation and has the driver load them, since
 * a first launch would allocate and synchronise. Functions stay in a context as long as it lives,
 * for all communicators to come: to load code waits until no kernel runs in the context, and that
 * kernel may wait for the thread that loads. A communicator's kernels are all but those of
 * symmetric memory and of waiting kernels.
 *
 * A build without nvcc embeds stubs. libcuda loads a stub and refuses the first kernel of it, so
 * the first caller that opens the driver looks one kernel up and is declined with what to do.
 */
#ifndef TUTTI_CUDA_KERNELS_H
#define TUTTI_CUDA_KERNELS_H

#include "cuda/kernels/launch.h"
#include "cuda/runtime/driver.h"

/* Whether this library has kernels. A build without nvcc embeds a stub in place of each fatbin: a
 * fatbin that holds no kernel. libcuda finds none in it. The tests' stand-in for libcuda does,
 * since its kernels are host functions. Needs no context; one caller at a time. Returns DECLINED:
 * the message says why there are none, and how to get them. */
enum tutti_status cuda_kernels_check(const struct cuda_driver *driver);

/* Made for any op and 2 to 8 ranks; for the sum of as many ranks as there are; for that where every
 * thread has one whole, aligned unit at most (cuda_choice_is_once()). */
enum cuda_form { CUDA_ANY, CUDA_SUM, CUDA_SUM_ONCE, CUDA_FORMS };

/* Function names in the fatbins: KERNEL_DTYPE ("one_shot_ll_bfloat16") for CUDA_ANY,
 * KERNEL_DTYPE_sum_N for CUDA_SUM, with _once behind it for the last; "barrier", "probe", "symm"
 * and "waiting kernel" alone. The full-line kernels exist for floats only; the sums for 2, 3, 4 and
 * 8 ranks, for float32, float16 and bfloat16, and not by the links of a mesh or a ring; those of
 * one unit not where tiles or pieces go round: others are NULL. What is two_shot_pipelined of other
 * dtypes, and of all in the host's memory, is two_shot_tiles_DTYPE; the full-line kernels are not
 * for that memory. */
struct cuda_kernels {
    CUfunction all_reduce[CUDA_KERNELS][TUTTI_DTYPE_COUNT][CUDA_FORMS];
    CUfunction barrier;
    CUfunction probe;
};

/* Those of a world size, of the current context; `staged` are those for the host's memory. Returns
 * CUDA (with the device's capability, if no fatbin serves it), NO_MEMORY. */
enum tutti_status cuda_kernels_load(const struct cuda_driver *driver, int size, bool staged,
                                    struct cuda_kernels *kernels);
/* The same of the kernel of symmetric memory, and of the one of waiting kernels. */
enum tutti_status cuda_kernel_load_symm(const struct cuda_driver *driver, CUfunction *function);
enum tutti_status cuda_kernel_load_stream_wait(const struct cuda_driver *driver,
                                               CUfunction *function);

#endif
