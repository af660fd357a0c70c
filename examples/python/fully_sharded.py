# SPDX-License-Identifier: MIT
"""Fully sharded data parallel (FSDP2) on CPU: every rank keeps a part of each parameter.

    tutti run -n 2 python fully_sharded.py
"""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("tutti")
rank, size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
for layer in model:
    if list(layer.parameters()):
        fully_shard(layer)  # all-gathers its parameters before use, reduce-scatters its gradients after
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
inputs = torch.randn(64, 16)
targets = inputs.sum(1, keepdim=True)

losses = []
for _ in range(50):
    optimizer.zero_grad()
    loss = (model(inputs[rank::size]) - targets[rank::size]).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

assert losses[-1] < losses[0] / 2
weight = model[0].weight
print(f"rank {rank} has {weight.to_local().numel()} of {weight.numel()} weights; loss {losses[0]:.2f}, then {losses[-1]:.2f}")
dist.destroy_process_group()
