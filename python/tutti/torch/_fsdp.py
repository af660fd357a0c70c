# SPDX-License-Identifier: MIT
"""FSDP2's all-gather into symmetric memory."""

from __future__ import annotations

import weakref
from typing import Any, Sequence

import torch
from torch._C._distributed_c10d import AllgatherOptions

import tutti.torch


class _Lent:
    """Memory that a tensor has. When the tensor is gone, so is this."""

    def __init__(self, memory: Any) -> None:
        self.__cuda_array_interface__ = memory.array.__cuda_array_interface__


class AllGather:
    """The all-gather of a module of FSDP2, into buffers that the ranks have mapped:

        fully_shard(layer)
        layer.set_custom_all_gather(tutti.torch.AllGather())

    On CUDA a kernel then writes the parameters straight into the other ranks' buffers, with few multiprocessors
    (TUTTI_CALL_SYMMETRIC); on CPU the ranks read each other's without a copy in between. A buffer is used again once
    FSDP has freed its tensor, which it does in the same order on all ranks. So a module, or modules that share this object,
    keep as many buffers as they have in use at the same time. group: that of the module's mesh; None: the default one.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self._free: dict[tuple[str, int], list[Any]] = {}

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A tensor of one dimension. Collective when it needs a new buffer."""
        count = torch.Size(int(length) for length in size).numel()
        bytes_ = max(1, count * dtype.itemsize)
        free = self._free.setdefault((device.type, bytes_), [])
        backend = tutti.torch._backend("AllGather", self._group, device)
        memory = free.pop() if free else backend.symmetric_memory(bytes_, device.type)
        lent: Any = _Lent(memory) if device.type == "cuda" else memory.array[:]
        tensor = torch.as_tensor(lent, device=device) if device.type == "cuda" else torch.from_numpy(lent)
        weakref.finalize(lent, free.append, memory)
        return tensor[:count * dtype.itemsize].view(dtype)

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any,
                 async_op: bool = False) -> Any:
        if output_tensor.is_cuda:
            comm = tutti.torch.communicator(output_tensor.device, group)
            comm.all_gather(input_tensor, output_tensor, symmetric=True, stream=torch.cuda.current_stream())
            return None
        options = AllgatherOptions()
        options.asyncOp = async_op
        backend = tutti.torch._backend("AllGather", group, output_tensor.device)
        work = backend.all_gather_single(output_tensor, input_tensor, options)
        return work if async_op else None
