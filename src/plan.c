/* SPDX-License-Identifier: MIT */
#include "plan.h"

/* The roots' limits, inclusive. */
#define STRICT_ONE_SHOT_BYTES ((size_t)256 << 10)
#define STRICT_TWO_SHOT_BYTES ((size_t)10 << 20)

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static enum tutti_algo plan_strict(const struct plan_input *input, const char **reason)
{
    if (input->dtype != TUTTI_FLOAT32 && input->dtype != TUTTI_BFLOAT16) {
        *reason = "strict mode serves float32 and bfloat16 only";
        return TUTTI_ALGO_NONE;
    }
    if ((input->bytes | input->storage_offset_bytes) % 4) {
        *reason = "strict mode needs a storage offset and a byte count aligned to 4";
        return TUTTI_ALGO_NONE;
    }
    if (input->bytes <= least(STRICT_ONE_SHOT_BYTES, input->buffer_size)) {
        *reason = "strict mode: at most 256 KiB and the buffer size";
        return TUTTI_ALGO_ONE_SHOT;
    }
    if (input->bytes <= least(STRICT_TWO_SHOT_BYTES, input->buffer_size)) {
        *reason = "strict mode: at most 10 MiB and the buffer size";
        return TUTTI_ALGO_TWO_SHOT;
    }
    *reason = "strict mode: larger than 10 MiB or the buffer size";
    return TUTTI_ALGO_NONE;
}

/*
 * Measured (bench/README.md). One-shot moves N - 1 inputs into each rank in one hop, two-shot
 * 2 (N - 1) / N of one in two hops, so one-shot loses the sooner the more ranks there are, and the
 * sooner still where ranks share cores: then it is the cores' bytes that count.
 */
static size_t one_shot_bytes(const struct plan_input *input)
{
    if (input->oversubscribed)
        return ((size_t)64 << 10) / (size_t)input->world_size;
    if (input->world_size <= 2)
        return (size_t)128 << 10;
    if (input->world_size <= 4)
        return (size_t)32 << 10;
    return input->world_size <= 8 ? (size_t)16 << 10 : (size_t)4 << 10;
}

size_t plan_small_bytes(const struct plan_input *input)
{
    if (input->strict || input->forced != TUTTI_ALGO_NONE || input->table)
        return 0;
    return one_shot_bytes(input);
}

enum tutti_algo plan_pick(const struct plan_input *input, const char **reason)
{
    if (input->forced != TUTTI_ALGO_NONE) {
        *reason = "forced by the call, the options or TUTTI_ALGO";
        return input->forced;
    }
    if (input->strict)
        return plan_strict(input, reason);
    if (input->table) {
        *reason = "the tuning table";
        return TUTTI_ALGO_NONE;
    }
    if (input->bytes <= one_shot_bytes(input)) {
        *reason = "one hop is faster up to here";
        return TUTTI_ALGO_ONE_SHOT;
    }
    *reason = "each rank reduces its own chunk: fewer bytes from here on";
    return TUTTI_ALGO_TWO_SHOT;
}
