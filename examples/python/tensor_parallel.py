# SPDX-License-Identifier: MIT
"""Tensor parallel on CPU: a layer is cut by columns, the next one by rows; one all-reduce adds the parts.

    tutti run -n 2 python tensor_parallel.py
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("tutti")
size = dist.get_world_size()

torch.manual_seed(0)
whole = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.GELU(), torch.nn.Linear(128, 32))
inputs = torch.randn(4, 32)
expected = whole(inputs)

mesh = init_device_mesh("cpu", (size,))
parts = parallelize_module(whole, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
found = parts(inputs)

torch.testing.assert_close(found, expected)
if dist.get_rank() == 0:
    print(f"each of {size} ranks has {parts[0].weight.to_local().shape[0]} of 128 columns; the results agree")
dist.destroy_process_group()
