# SPDX-License-Identifier: MIT
"""DistributedDataParallel on CPU: every rank trains on its part of a batch.

    tutti run -n 2 python data_parallel.py      # or torchrun --nproc-per-node 2
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("tutti")
rank, size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)  # the same model and data on all ranks
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
inputs = torch.randn(64, 16)
targets = inputs.sum(1, keepdim=True)

for step in range(50):
    optimizer.zero_grad()
    loss = (model(inputs[rank::size]) - targets[rank::size]).square().mean()
    loss.backward()  # gradients are summed during the backward pass
    optimizer.step()
    total = loss.detach()
    dist.all_reduce(total, dist.ReduceOp.AVG)
    if step == 0:
        first = total.item()

assert total.item() < first / 2
if rank == 0:
    print(f"loss {first:.2f}, after 50 steps {total.item():.2f}")
dist.destroy_process_group()
