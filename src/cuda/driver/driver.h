/* SPDX-License-Identifier: MIT */
/*
 * libcuda, opened at run time by the first caller that needs it, and never closed. No other file
 * knows its name. A machine without it has the CPU back end.
 *
 * Functions are found by the names of their symbols, version included (cuStreamGetCaptureInfo_v3):
 * the interface of such a name never changes, so the name determines the function's type. A driver
 * that lacks a name is declined; the message has the name. A driver for CUDA 12.4 has all names.
 * The kernels need a driver for CUDA 13, unless a ptxas of CUDA 12 has assembled them. A child of
 * fork() is declined once its parent has opened the driver.
 */
#ifndef TUTTI_CUDA_DRIVER_H
#define TUTTI_CUDA_DRIVER_H

#include "cuda/driver/driver_abi.h"
#include "tutti/tutti.h"

#include <stdbool.h>

enum {
    CUDA_DRIVER_LEAST =
        12040,            /* the oldest driver with all functions below: 1000 major + 10 minor */
    CUDA_NVCC_LEAST = 13, /* the nvcc that compiles the kernels */
};

struct cuda_driver {
#define CUDA_DRIVER_MEMBER(member, symbol, arguments) CUresult(*member) arguments;
    CUDA_DRIVER_MAP(CUDA_DRIVER_MEMBER)
#undef CUDA_DRIVER_MEMBER
};

/* The symbol of each member, in the same order. */
extern const struct cuda_names {
#define CUDA_NAME_MEMBER(member, symbol, arguments) const char *member;
    CUDA_DRIVER_MAP(CUDA_NAME_MEMBER)
#undef CUDA_NAME_MEMBER
} cuda_names;

/*
 * Opens libcuda on the first call, never closes it. For any thread. TUTTI_CUDA_LIBRARY names
 * another file than libcuda.so.1. Returns DECLINED and says what is missing: no library, no device,
 * a driver that is too old, no kernels in this build. A child of fork() after the first success
 * gets DECLINED, because CUDA does not survive a fork.
 */
enum tutti_status cuda_driver_open(const struct cuda_driver **driver);

/* Returns true if this process has opened libcuda, by Tutti or by the program. */
bool cuda_driver_in_use(void);

#endif
