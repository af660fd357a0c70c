/* SPDX-License-Identifier: MIT */
/* Trials of GPU communicators for `tutti info`: their descriptions, their choices for every size of
 * bfloat16, and a checked all-reduce. */
#ifndef TUTTI_TOOL_INFO_TRIAL_H
#define TUTTI_TOOL_INFO_TRIAL_H

#include "tutti/tutti.h"

#include <jansson.h>

enum { TRIAL_RANKS = 8 };

/* Each returns {"test", "result", "declined", "setup_ms", "describe", "choices"}. The result is
 * "ok" or what went wrong. The ranks are threads of this process, which has opened CUDA: rank r on
 * device r, or all on device 0. The communicator is created with `algo`. */
json_t *trial_of_threads(int ranks, bool share, enum tutti_algo algo);
/* Two processes, both on device 0. The caller has no other thread, and has not opened CUDA. */
json_t *trial_of_processes(void);

#endif
