/* SPDX-License-Identifier: MIT */
/*
 * Threads of OpenMP for tutti_comm_options.parallel: ranks with several threads share the copies
 * and sums of long operations among them.
 *
 *     options.parallel = tutti_parallel_openmp;
 *     options.threads = omp_get_max_threads();
 */
#ifndef TUTTI_OPENMP_H
#define TUTTI_OPENMP_H

#include "tutti/tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- threads of OpenMP that share a rank's work ---------------------------------------------- */

/* Finds a function for tutti_comm_options.parallel that runs tasks on the threads of the OpenMP
 * library that this process has loaded, by whatever module, such as PyTorch: GNU's, LLVM's or
 * Intel's. If there is none it loads libgomp.so.1. The caller need not be compiled for OpenMP.
 * Thread-safe. Returns DECLINED (there is no OpenMP library; the message lists what was looked
 * for). */
TUTTI_API enum tutti_status tutti_parallel_find(tutti_parallel_t *parallel);

#ifdef _OPENMP
#include <omp.h>

/* A tutti_parallel_t for a program that is compiled for OpenMP. Inside a parallel region of OpenMP
 * the calling thread alone runs the tasks, unless nested regions are active. */
static inline void tutti_parallel_openmp(void *parallel_context, int tasks,
                                         void (*task)(void *argument, int i), void *argument)
{
    (void)parallel_context;
#pragma omp parallel num_threads(tasks)
    for (int i = omp_get_thread_num(); i < tasks; i += omp_get_num_threads())
        task(argument, i);
}
#endif

#ifdef __cplusplus
}
#endif

#endif
