/* SPDX-License-Identifier: MIT */
/* Communicators of GPUs that `tutti info` tries: what they say of themselves, what they choose for
 * every size of bfloat16, and a checked all-reduce. */
#ifndef TUTTI_TOOL_INFO_TRIAL_H
#define TUTTI_TOOL_INFO_TRIAL_H

#include "tutti/tutti.h"

#include <jansson.h>

enum { TRIAL_RANKS = 8 };

/* Each returns {"test", "result", "declined", "setup_ms", "describe", "choices"}; result is "ok" or
 * what went wrong. Threads of this process, which has opened CUDA: rank r on device r, or all on
 * device 0; the communicator is created with that algorithm. */
json_t *trial_of_threads(int ranks, bool share, enum tutti_algo algo);
/* Two processes, both on device 0. The caller has no other thread, and has not opened CUDA. */
json_t *trial_of_processes(void);

#endif
