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
#include "cuda/driver/driver.h"
#include "cuda/kernels/rows.h"

/* Checks that this library has kernels. A build without nvcc embeds a stub in place of each fatbin.
 * libcuda finds no kernel in a stub. The stand-in for libcuda does, since its kernels are host
 * functions. Needs no context; one caller at a time. Returns DECLINED: the message says why there
 * are none, and how to get them. */
enum tutti_status cuda_kernels_check(const struct cuda_driver *driver);

/* The functions of a communicator's kernels. Names of functions in the fatbins: KERNEL_DTYPE
 * ("one_shot_ll_bfloat16") for CUDA_ANY, KERNEL_DTYPE_sum_N for CUDA_SUM, KERNEL_DTYPE_sum_N_once
 * for CUDA_SUM_ONCE; KERNEL is the row's name or its `other`. A kernel without dtypes has one
 * function, of its own name, at [kernel][0][CUDA_ANY]. "probe" is in the barrier's fatbin,
 * "announce" in that of combine. A function that does not exist is NULL: cuda_kernel_has(). */
struct cuda_kernels {
    CUfunction functions[CUDA_KERNELS][DTYPE_REALS][CUDA_FORMS];
    CUfunction probe, announce;
};

/* Loads the kernels for a world size into the current context; `on_host`: those for host memory.
 * Returns CUDA (with the compute capability, if no fatbin serves it), NO_MEMORY. */
enum tutti_status cuda_kernels_load(const struct cuda_driver *driver, int size, bool on_host,
                                    struct cuda_kernels *kernels);
/* The same for the kernel behind other kernels, rms_norm_rows: ranks that share only the host's
 * memory have no other one. `alone`: reduce_alone too, the other one of a rank alone. */
enum tutti_status cuda_kernels_load_rows(const struct cuda_driver *driver, bool alone,
                                         struct cuda_kernels *kernels);
/* The same, and those of combine.cu: for ranks that a fabric of devices joins. */
enum tutti_status cuda_kernels_load_fabric(const struct cuda_driver *driver, int size,
                                           struct cuda_kernels *kernels);
/* The same for one kernel without dtypes. */
enum tutti_status cuda_kernel_load(const struct cuda_driver *driver, enum cuda_kernel kernel,
                                   CUfunction *function);

#endif
