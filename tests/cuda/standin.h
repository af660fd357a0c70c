/* SPDX-License-Identifier: MIT */
/*
 * A stand-in for libcuda on host memory: the driver's calls that the library and the tests use.
 * Device memory is a memfd, so that processes and threads share what they map. A stream is a
 * thread. The kernels are the library's own, compiled for the CPU (emulator/). TUTTI_CUDA_LIBRARY
 * names this library. A test that links with it calls the driver by name, and has the functions
 * below.
 *
 * Environment, read by cuInit(); the last two by cuKernelGetFunction():
 *   TUTTI_STANDIN_DEVICES     number of devices, 8 by default; CUDA_VISIBLE_DEVICES (ordinals only)
 *                             chooses and renumbers
 *   TUTTI_STANDIN_CAPABILITY  of all devices, 9.0 by default
 *   TUTTI_STANDIN_MULTIPROCESSORS of each device, 2 by default: the emulator runs every thread
 *   TUTTI_STANDIN_VERSION     of the driver, 13000 by default
 *   TUTTI_STANDIN_NO_PEER     A-B,C-D: devices without access to each other's memory
 *   TUTTI_STANDIN_FAIL        CALL:N[:ERROR],...: the Nth call of CALL (0: each) in this process
 *                             returns ERROR, CUDA_ERROR_UNKNOWN (999) by default
 *   TUTTI_STANDIN_NO_WORDS    set: streams cannot wait for words in memory
 *   TUTTI_STANDIN_ONE_CHANNEL set: all streams of a device share one queue, which a wait blocks
 *   TUTTI_STANDIN_GUARD       set: the program cannot reach memory of cuMemAlloc(), nor can kernels
 *   TUTTI_STANDIN_SLOW        kernels whose name begins so take 20 ms more
 *   TUTTI_STANDIN_WRONG       kernels whose name begins so spoil a bit of the last rank's result
 *
 * It is stricter than libcuda: it checks handles; a call fails in a child of fork() or without a
 * context; a call that may synchronise spoils a capture in global mode, and fails.
 */
#ifndef TESTS_CUDA_STANDIN_H
#define TESTS_CUDA_STANDIN_H

#include "cuda/kernels/combine_launch.h"
#include "cuda/kernels/exchange.h"
#include "cuda/kernels/push.h"
#include "cuda/kernels/rows.h"
#include "cuda/kernels/stream_wait_launch.h"
#include "cuda/kernels/symm_launch.h"
#include "driver_more.h"

#include <stdbool.h>
#include <string.h>

enum { STANDIN_ATTRIBUTES = 4, STANDIN_NAME_BYTES = 64 };

/* One launch, eager or captured; replays are not counted as launches. */
struct standin_launch {
    char name[STANDIN_NAME_BYTES];
    CUstream stream;
    unsigned grid, block;
    unsigned attribute_count;
    CUlaunchAttribute attributes[STANDIN_ATTRIBUTES];
    struct cuda_launch parameters;
    struct cuda_symm_launch symm; /* those of that kernel, all 0 of others */
    bool captured;
};

/* The number of bytes of kernels in a fatbin. In a build without nvcc this library's fatbins are
 * stubs with no kernel; the stand-in accepts them all the same. */
static inline uint64_t standin_fatbin_bytes(const void *fatbin)
{
    uint64_t bytes;
    memcpy(&bytes, (const char *)fatbin + 8, sizeof bytes);
    return bytes;
}

/* As TUTTI_STANDIN_FAIL. NULL: no call fails any more; "*": all calls fail, as in a broken context.
 * Counting begins again. */
void standin_fail(const char *call, int at, CUresult error);
/* The number of times that a call ("cuMemMap", without its version) was made since the last
 * standin_forget(). */
uint64_t standin_calls(const char *call);
/* The last launches since then, at most `capacity`; returns how many there were. */
size_t standin_launches(struct standin_launch *launches, size_t capacity);
/* The name by which it was looked up. */
const char *standin_function_name(CUfunction function);
/* The number of kernels launched before cuFuncLoad(): libcuda would load these at the launch. */
size_t standin_late_loads(void);
void standin_forget(void);
/* The Nth asynchronous copy from now on, of any stream, waits until this is called again; 0: none.
 */
void standin_hold_copy(int at);
/* The Nth cuMemFreeHost() from now on waits, as for a stream, until this is called again; 0: none.
 */
void standin_hold_free(int at);
bool standin_free_is_held(void);
/* From now on this rank's kernels stop after they have pushed to their first peer, until they are
 * told to end; -1: no rank's. */
void standin_stand_still(int rank);
/* From now on devices have pinned memory at so many bytes after the host address. */
void standin_pinned_away(size_t bytes);
/* Waits until the destructors of user objects that are due have run. */
void standin_wait_idle(void);
/* The number of objects that live after that: allocations, mappings, streams, events, graphs ...
 * Names them on stderr if there are any. */
size_t standin_left(void);

#endif
