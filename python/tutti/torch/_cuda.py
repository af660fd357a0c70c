# SPDX-License-Identifier: MIT
"""All-reduce and barrier on CUDA, by a communicator for each device, on the current stream."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Sequence

import torch
import torch.distributed as dist
from torch import _C

import tutti
from tutti._errors import InvalidError
from tutti._tutti import ffi, lib
from tutti.torch._operands import Operand, reduced_dtype, reduction
from tutti.torch._work import FINISHED, Work, event

if TYPE_CHECKING:
    from tutti.torch._group import ProcessGroup

_cast, _STREAM = ffi.cast, ffi.typeof("tutti_stream_t")


class CudaWork(Work):
    """wait() makes the current stream wait for the operation, not the host."""

    def __init__(self, title: str, outputs: Any, device: torch.device, kept: Any) -> None:
        super().__init__(title, outputs, torch.cuda.current_stream(device))
        self._device, self._kept, self._event = device, kept, None
        if not is_capturing(device):
            self._event = torch.cuda.Event()
            self._event.record(self._stream)
        self.finish()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if self._event is not None:
            self._event.wait(torch.cuda.current_stream(self._device))
        return True

    def is_completed(self) -> bool:
        return self._event is None or self._event.query()


def _communicator(group: ProcessGroup, device: torch.device) -> tutti.Communicator:
    """The group's communicator. The first call creates it and is collective."""
    if group._cuda_comm is None:
        store = tutti.Store.wrap(dist.PrefixStore("cuda", group._torch_store))
        with torch.cuda.device(device):
            group._cuda_comm = tutti.Communicator.from_store(
                store, group._rank, group._size, device="cuda", timeout=group._timeout.total_seconds())
        group._cuda_index = device.index
    if group._cuda_index != device.index:
        raise InvalidError(f"tutti: this group uses cuda:{group._cuda_index}, not {device}")
    return group._cuda_comm


def stream_of(index: int) -> Any:
    """The current stream of a device. torch.cuda.current_stream() takes 3 us more."""
    return _cast(_STREAM, _C._cuda_getCurrentRawStream(index))


def is_capturing(device: torch.device) -> bool:
    with torch.cuda.device(device):
        return bool(torch.cuda.is_current_stream_capturing())


def all_reduce(group: ProcessGroup, tensors: Sequence[torch.Tensor], device: torch.device, opts: Any) -> Work:
    """The tensors are used by the current stream alone, as PyTorch's allocator expects."""
    comm, (op, kept), limit = _communicator(group, device), reduction(opts.reduceOp), group._limit(opts)
    stream = stream_of(device.index)
    with event("all_reduce", tensors):
        for operand in map(Operand, tensors):
            at, tensor = operand.address, operand.tensor
            dtype = reduced_dtype(tensor)

            def call() -> None:
                status = lib.tutti_all_reduce_with(at, at, tensor.numel(), dtype, op, comm.handle, stream, limit)
                if status:
                    group._raise(status, comm)

            group._when_free(call)
            operand.done()
    return CudaWork("all_reduce", tensors, device, kept) if opts.asyncOp else FINISHED


def barrier(group: ProcessGroup, opts: Any) -> Work:
    """The host waits, too, as with NCCL."""
    device = torch.device("cuda", torch.cuda.current_device() if opts.device.index is None else opts.device.index)
    comm, stream = _communicator(group, device), torch.cuda.current_stream(device)

    def call() -> None:
        status = lib.tutti_barrier_with(comm.handle, ffi.NULL, 0, stream_of(device.index), group._limit(opts))
        if status:
            group._raise(status, comm)

    with event("barrier", []):
        group._when_free(call)
        if not is_capturing(device):
            stream.synchronize()
            status = lib.tutti_comm_status(comm.handle, ffi.NULL)
            if status:
                group._raise(status, comm)
    return CudaWork("barrier", [], device, None) if opts.asyncOp else FINISHED
