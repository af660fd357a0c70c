# SPDX-License-Identifier: MIT
"""The same bits on 1, 2 and 4 ranks: each rank sums its part by the same tree as the all-reduce.

    tutti run -n 2 python batch_invariance.py

The library adds ranks as (0 + 1) + (2 + 3). A program can cut a sum into four parts, and add the parts of one rank by
the same tree. Then the result does not depend on the number of ranks. This holds for float32 and float64, because a
rank's own sum is not rounded to fewer bits than the sum of the ranks.
"""

import torch
import torch.distributed as dist

PARTS = 4

dist.init_process_group("tutti")
rank, size = dist.get_rank(), dist.get_world_size()
assert PARTS % size == 0


def tree(terms):
    """((0 + 1) + (2 + 3)) + ...; the number of terms is a power of two."""
    while len(terms) > 1:
        terms = [terms[i] + terms[i + 1] for i in range(0, len(terms), 2)]
    return terms[0]


torch.manual_seed(0)
inputs, weights = torch.randn(8, 256), torch.randn(256, 32)
cut_inputs, cut_weights = inputs.chunk(PARTS, 1), weights.chunk(PARTS, 0)

mine = range(rank * PARTS // size, (rank + 1) * PARTS // size)
result = tree([cut_inputs[i] @ cut_weights[i] for i in mine])
dist.all_reduce(result)

alone = tree([cut_inputs[i] @ cut_weights[i] for i in range(PARTS)])  # what one rank would compute
assert torch.equal(result, alone)
if rank == 0:
    print(f"{size} ranks: the bits of one rank")
dist.destroy_process_group()
