/* SPDX-License-Identifier: MIT */
/* The reduction that the owner of a chunk does for all ranks. */
#include "cpu/algo/algo.h"

enum {
    BLOCK_BYTES = 16 * 1024, /* a copy for a third rank reads a block that is still in the cache */
};

void owner_reduce(const struct cpu_group *group, const struct request *request,
                  const void *const *in, unsigned char *const *out, size_t count, bool ahead)
{
    const size_t width = request->element_bytes,
                 block = group->peers.size > 2 ? BLOCK_BYTES / width : count;
    const int next = (group->peers.rank + 1) % group->peers.size;
    for (size_t done = 0; done < count; done += block) {
        const size_t at = done * width, elements = count - done < block ? count - done : block;
        const void *leaves[NODE_RANKS];
        for (int leaf = 0; leaf < group->peers.size; leaf++)
            leaves[leaf] = (const unsigned char *)in[leaf] + at;
        request->reduce(&(struct reduce_call){
            .out = out[next] + at,
            .copy = next == group->peers.rank ? NULL : out[group->peers.rank] + at,
            .in = leaves,
            .n = group->peers.size,
            .count = elements,
            .scalar = request->scalar,
            .divisor = group->peers.size,
            .begin = group->peers.rank,
            .ahead = ahead,
        });
        for (int r = (next + 1) % group->peers.size; r != group->peers.rank;
             r = (r + 1) % group->peers.size)
            group->isa->copy(out[r] + at, out[group->peers.rank] + at, elements * width);
    }
}
