# SPDX-License-Identifier: MIT
"""A pipeline on CPU: rank r computes stage r and sends the results to rank r + 1.

    tutti run -n 2 python pipeline.py
"""

import torch
import torch.distributed as dist

MICRO_BATCHES = 8

dist.init_process_group("tutti")
rank, size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
stages = [torch.nn.Linear(64, 64) for _ in range(size)]
batches = torch.randn(MICRO_BATCHES, 16, 64)

with torch.no_grad():
    results, sends = [], []
    # All receives are posted at once. Each micro-batch has its tag.
    arriving = [torch.empty(16, 64) for _ in range(MICRO_BATCHES)]
    receives = [dist.irecv(arriving[i], rank - 1, tag=i) for i in range(MICRO_BATCHES)] if rank else []
    for i in range(MICRO_BATCHES):
        if rank:
            receives[i].wait()
        out = stages[rank](arriving[i] if rank else batches[i])
        if rank + 1 < size:
            sends.append(dist.isend(out, rank + 1, tag=i))  # the work keeps the tensor
        results.append(out)
    for send in sends:
        send.wait()

    if rank == size - 1:
        expected = batches
        for stage in stages:
            expected = stage(expected)
        torch.testing.assert_close(torch.stack(results), expected)
        print(f"{MICRO_BATCHES} micro-batches through {size} stages: right")
dist.destroy_process_group()
