/* SPDX-License-Identifier: MIT */
/* Which algorithm: a pure function of the request and what the ranks have agreed on. */
#ifndef TUTTI_PLAN_H
#define TUTTI_PLAN_H

#include "tutti/tutti.h"

struct plan_input {
    size_t bytes;
    enum tutti_dtype dtype;
    enum tutti_algo forced; /* by the call or the communicator, else NONE */
    bool strict;
    uint64_t storage_offset_bytes;
    size_t buffer_size;
    int world_size;
    bool oversubscribed;
    bool table; /* the back end has one: what is measured is left to it */
};

/* Up to how many bytes plan_pick() says one-shot whatever the call, but for its own choice of
 * algorithm: 0 in strict mode and where one is forced. Looked up at set-up, so that small
 * operations need not ask. */
size_t plan_small_bytes(const struct plan_input *input);

/* NONE only in strict mode, and for the back end's table. *reason is a static sentence. */
enum tutti_algo plan_pick(const struct plan_input *input, const char **reason);

#endif
