/* SPDX-License-Identifier: MIT */
#include "cpu/transport/owner.h"

#include "cpu/reduce/reduce.h"

enum {
    BLOCK_BYTES = 16 * 1024, /* a copy for a third rank reads a block that is still in the cache */
};

void owner_reduce(const struct cpu_group *group, const struct request *request,
                  const void *const *in, unsigned char *const *out, size_t count, bool ahead)
{
    const size_t width = request->element_bytes,
                 block = group->size > 2 ? BLOCK_BYTES / width : count;
    const int next = (group->rank + 1) % group->size;
    for (size_t done = 0; done < count; done += block) {
        const size_t at = done * width, elements = count - done < block ? count - done : block;
        const void *leaves[TUTTI_MAX_RANKS];
        for (int leaf = 0; leaf < group->size; leaf++)
            leaves[leaf] = (const unsigned char *)in[leaf] + at;
        request->reduce(&(struct reduce_call){
            .out = out[next] + at,
            .copy = next == group->rank ? NULL : out[group->rank] + at,
            .in = leaves,
            .n = group->size,
            .count = elements,
            .scalar = request->scalar,
            .divisor = group->size,
            .begin = group->rank,
            .ahead = ahead,
        });
        for (int r = (next + 1) % group->size; r != group->rank; r = (r + 1) % group->size)
            group->isa->copy(out[r] + at, out[group->rank] + at, elements * width);
    }
}
