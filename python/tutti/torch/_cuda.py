# SPDX-License-Identifier: MIT
"""Collectives on CUDA, by a communicator for each group, on the current stream."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable, Sequence

import torch
import torch.distributed as dist
from torch import _C

import tutti
from tutti._errors import InvalidError
from tutti._tutti import ffi, lib
from tutti.torch._work import FINISHED, Work, event

if TYPE_CHECKING:
    from tutti.torch._group import ProcessGroup

_cast, _STREAM = ffi.cast, ffi.typeof("tutti_stream_t")
_streams: dict[Any, Any] = {}


class CudaWork(Work):
    """wait() makes the current stream wait for the operation, not the host. The operation is on its stream already, and its
    end is an event there. In a capture there is no event: what follows on the stream is ordered by the graph."""

    def __init__(self, group: ProcessGroup, title: str, outputs: Any, index: int, kept: Any) -> None:
        super().__init__(title, outputs, current_stream(index))
        self._index, self._kept, self._events = index, kept, group._cuda_events
        self._event = None
        if not is_capturing(index):
            self._event = self._events.pop() if self._events else torch.cuda.Event()
            self._event.record(self._stream)
        self.finish()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        stream = current_stream(self._index)
        if self._event is not None and stream is not self._stream:
            self._event.wait(stream)
        return True

    def is_completed(self) -> bool:
        return self._event is None or self._event.query()

    def __del__(self) -> None:
        """A stream that waits for an event waits for its last record before that, so another work may have it."""
        if getattr(self, "_event", None) is not None:
            self._events.append(self._event)


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


def current_stream(index: int) -> Any:
    """The same as an object, which is one for each stream."""
    key = _C._cuda_getCurrentStream(index)
    stream = _streams.get(key)
    if stream is None:
        stream = _streams[key] = torch.cuda.Stream(stream_id=key[0], device_index=key[1], device_type=key[2])
    return stream


def is_capturing(index: int) -> bool:
    """Whether the device's current stream is being captured."""
    if _C._cuda_getDevice() == index:
        return bool(_C._cuda_isCurrentStreamCapturing())
    with torch.cuda.device(index):
        return bool(_C._cuda_isCurrentStreamCapturing())


def collective(group: ProcessGroup, title: str, device: torch.device, calls: Sequence[tuple[Any, ...]],
               operands: Sequence[Any], inputs: Sequence[torch.Tensor], outputs: Any, opts: Any, kept: Any,
               explain: Callable[[BaseException], None] | None) -> Work:
    """Enqueues the calls of ProcessGroup._collective(). The operands are used by the current stream alone, as PyTorch's
    allocator expects."""
    comm, stream, limit = _communicator(group, device), stream_of(device.index), group._limit(opts)
    # Messages run together; collectives one after the other, each a kernel.
    steps = [calls] if calls[0][0] is lib.tutti_send_with else [[call] for call in calls]
    with event(title, inputs):
        for step in steps:
            group._when_free(lambda: group._call(step, comm, stream, limit, explain))
        for operand in operands:
            operand.done()
    return CudaWork(group, title, outputs, device.index, kept) if opts.asyncOp else FINISHED


def barrier(group: ProcessGroup, opts: Any) -> Work:
    """The host waits, too, as with NCCL."""
    device = torch.device("cuda", torch.cuda.current_device() if opts.device.index is None else opts.device.index)
    comm = _communicator(group, device)

    def call() -> None:
        status = lib.tutti_barrier_with(comm.handle, ffi.NULL, 0, stream_of(device.index), group._limit(opts))
        if status:
            group._raise(status, comm)

    with event("barrier", []):
        group._when_free(call)
        if not is_capturing(device.index):
            torch.cuda.current_stream(device).synchronize()
            status = lib.tutti_comm_status(comm.handle, ffi.NULL)
            if status:
                group._raise(status, comm)
    return CudaWork(group, "barrier", [], device.index, None) if opts.asyncOp else FINISHED
