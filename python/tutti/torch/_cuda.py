# SPDX-License-Identifier: MIT
"""Collectives on CUDA, by a communicator for each group: synchronous ones on the current stream, asynchronous ones on a stream
of the group."""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import nullcontext
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any, Callable, Sequence

import torch
import torch.distributed as dist
from torch import _C

import tutti
from tutti._errors import InvalidError, TimeoutError
from tutti._tutti import ffi, lib
from tutti.torch._background import start_collective
from tutti.torch._work import FINISHED, Work, event

if TYPE_CHECKING:
    from tutti.torch._group import ProcessGroup

_cast, _STREAM = ffi.cast, ffi.typeof("tutti_stream_t")
_streams: dict[Any, Any] = {}
_devices: dict[int, Device] = {}
_POLL_S = 50e-6
_ZERO = timedelta(0)
_make_work = dist.Work.__init__


class Device:
    """What the groups of this process share on a device: the order of their operations, and the events of their works.

    A kernel waits for its peers' kernels. If the kernels of two groups do not fit on the device together, and two ranks begin
    them in opposite order, each waits for the other. So the operations of different groups run in the order of their calls, on
    whatever streams they are. Those of one group are ordered by the library.
    """

    def __init__(self, index: int) -> None:
        self.index, self._sides = index, set[int]()
        self._blocks = 0.0  # of the kernels of all groups together
        self.user: object = None  # which group's the last operation was
        self.handle = 0  # its stream
        self._last: Any = None  # the same
        self._is_ordered = True
        self.events: list[Any] = []  # that no work has
        self.left: deque[tuple[Any, Any]] = deque()  # of works that are gone, and what their operations may still use

    def add(self, side: int) -> None:
        """A group more. Kernels that all fit, by the limit of their blocks, need no order."""
        self._sides.add(side)
        self._blocks += float(os.environ.get("TUTTI_MAX_BLOCKS") or 0) or inf
        self._is_ordered = self._blocks > torch.cuda.get_device_properties(self.index).multi_processor_count

    def order(self, user: object, handle: int, stream: Any = None, behind: int = 0) -> None:
        """A group's next operation comes to a stream; None: the current one. behind: a stream that it has been put behind."""
        if stream is None:
            if is_capturing(self.index):  # what is outside a capture is ordered by who launches the graph
                return
            stream = current_stream(self.index)
        if self._is_ordered and self._last is not None and self.user is not user and self.handle not in (handle, behind):
            self._put_behind(stream)
        self.user, self.handle, self._last = user, handle, stream

    def _put_behind(self, stream: Any) -> None:
        if self.handle not in self._sides and is_captured(self._last):  # by another thread
            return
        event = self.take()
        event.record(self._last)
        event.wait(stream)
        self.events.append(event)

    def take(self) -> Any:
        """An event. A stream that waits for an event waits for its last record before that, so others may record it again."""
        return self.events.pop() if self.events else torch.cuda.Event()

    def sweep(self) -> None:
        """Releases what ended operations have used."""
        while self.left:
            left = self.left.popleft()
            if not left[0].query():
                self.left.appendleft(left)
                return
            self.events.append(left[0])


class Streams:
    """A group's streams on its device: the current one, and the side stream for asynchronous operations."""

    def __init__(self, comm: tutti.Communicator, index: int) -> None:
        self.comm, self.index, self.key = comm, index, object()
        self.devices = [torch.device("cuda", index)]
        self.device = _devices.setdefault(index, Device(index))
        self.side = torch.cuda.Stream(index, priority=-1)
        self.side_handle = self.side.cuda_stream
        self.side_stream = _cast(_STREAM, self.side_handle)
        self.device.add(self.side_handle)

    def current(self) -> Any:
        """The current stream, for a synchronous operation. torch.cuda.current_stream() takes 3 us more."""
        handle, device = _C._cuda_getCurrentRawStream(self.index), self.device
        if device.handle != handle or device.user is not self.key:
            device.order(self.key, handle)
        return _cast(_STREAM, handle)


class CudaWork(Work):
    """An asynchronous operation on the group's side stream, which it puts behind the current one. wait() puts the stream that is
    current then behind the operation; the host does not wait.

    Until then the work keeps the tensors, as ProcessGroupNCCL of new versions does: the allocator gives freed memory to the
    stream that it was allocated on, which is behind the operation after the wait. Tensor.record_stream() would do, too, but costs
    an event for each free, and keeps memory until the host has seen it.

    In a capture the operation is on the current stream, so a work that nobody waits for leaves no stream unjoined."""

    _error, _is_over, _source = None, True, -1
    _future, _begun = None, None
    _captured: Any = None  # the stream in a capture
    _event: Any = None
    _kept: Any = None

    def __init__(self, streams: Streams) -> None:
        _make_work(self)
        self._streams, device = streams, streams.device
        if is_capturing(device.index):
            self._captured, self._event = current_stream(device.index), device.take()
            return
        if device.left:
            device.sweep()
        stream = current_stream(device.index)
        self._event = event = device.events.pop() if device.events else device.take()
        event.record(stream)
        event.wait(streams.side)
        if device.handle != streams.side_handle or device.user is not streams.key:
            device.order(streams.key, streams.side_handle, streams.side, stream.cuda_stream)

    @property
    def stream(self) -> Any:
        """For the library."""
        return self._streams.side_stream if self._captured is None else self._streams.current()

    @property
    def _stream(self) -> Any:
        return self._streams.side if self._captured is None else self._captured

    def end(self, title: str, outputs: Any, kept: Any) -> CudaWork:
        """The operation is on its stream."""
        self._title, self._outputs = title, outputs
        if self._captured is None:
            self._event.record(self._streams.side)
            self._kept = outputs, kept
        else:
            self._event.record(self._captured)
        return self

    def wait(self, timeout: timedelta = _ZERO) -> bool:
        """With a time-out the host waits, too. If it expires, this raises; the operation goes on."""
        stream = current_stream(self._streams.index)
        if timeout > _ZERO:
            end = time.monotonic() + timeout.total_seconds()
            while not self.is_completed():
                if time.monotonic() > end:
                    raise TimeoutError(f"{self._title} has not ended after {timeout.total_seconds():g} s; it goes on")
                time.sleep(_POLL_S)
        if self._captured is None or (self._captured is not stream and is_captured(self._captured)):
            self._event.wait(stream)
        self._kept = None
        return True

    def get_future(self) -> Any:
        """A future that is done. Who waits for it puts the stream that is current behind the operation. Threads of autograd ask for
        one for each bucket of DistributedDataParallel, where torch.cuda.stream() alone takes 50 us."""
        if self._future is None:
            index, stream = self._streams.index, self._stream
            future: torch.futures.Future[Any] = torch.futures.Future(devices=self._streams.devices)
            former, device_index, device_type = _C._cuda_getCurrentStream(index)
            _C._cuda_setStream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)
            try:
                future.set_result(self._outputs)
            finally:
                _C._cuda_setStream(stream_id=former, device_index=device_index, device_type=device_type)
            self._future = future
        return self._future

    def is_completed(self) -> bool:
        return self._captured is not None or bool(self._event.query())

    def exception(self) -> BaseException | None:
        """The communicator's fault, once the operation has ended."""
        if self.is_completed():
            try:
                self._streams.comm.status()
            except tutti.Error as error:
                return error
        return None

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def __del__(self) -> None:
        if self._kept is not None:
            self._streams.device.left.append((self._event, self._kept))
        elif self._event is not None:
            self._streams.device.events.append(self._event)


def _communicator(group: ProcessGroup, device: torch.device) -> tuple[tutti.Communicator, Streams]:
    """The group's communicator, and its streams. The first call creates them and is collective."""
    if group._cuda_comm is None:
        store = tutti.Store.wrap(dist.PrefixStore("cuda", group._torch_store))
        with torch.cuda.device(device):
            group._cuda_comm = tutti.Communicator.from_store(
                store, group._rank, group._size, device="cuda", timeout=group._timeout.total_seconds())
        group._cuda_index = device.index
        group._cuda_streams = Streams(group._cuda_comm, device.index)
    if group._cuda_index != device.index:
        raise InvalidError(f"tutti: this group uses cuda:{group._cuda_index}, not {device}")
    return group._cuda_comm, group._cuda_streams


def current_stream(index: int) -> Any:
    """A device's current stream, the same object each time."""
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


def refuse_capture(title: str, device: torch.device) -> None:
    if device.type == "cuda" and is_capturing(device.index):
        raise InvalidError(f"tutti: {title} CUDA tensors goes through the host, so it cannot be captured")


def is_captured(stream: Any) -> bool:
    with torch.cuda.stream(stream):
        return bool(_C._cuda_isCurrentStreamCapturing())


def collective(group: ProcessGroup, title: str, device: torch.device, calls: Sequence[tuple[Any, ...]],
               operands: Sequence[Any], inputs: Sequence[torch.Tensor], outputs: Any, opts: Any, kept: Any,
               explain: Callable[[BaseException], None] | None) -> Work:
    """Enqueues the calls of ProcessGroup._collective(). Between hosts the group's process group runs them."""
    if group._on_hosts:
        refuse_capture(f"between hosts {title} of", device)
        seconds = opts.timeout.total_seconds() if opts.timeout > _ZERO else None
        return start_collective(group._background, title, device, calls, operands, inputs, outputs, kept, seconds, explain)
    comm, streams, limit = *_communicator(group, device), group._limit(opts)
    work = CudaWork(streams) if opts.asyncOp else None
    stream = work.stream if work else streams.current()
    # Messages run together; collectives one after the other, each a kernel.
    steps = [calls] if calls[0][0] is lib.tutti_send_with else [[call] for call in calls]
    with event(title, inputs), work.on_stream() if work else nullcontext():
        try:
            for step in steps:
                group._when_free(lambda: group._call(step, comm, stream, limit, explain))
            for operand in operands:
                operand.done()
        finally:
            if work:
                work.end(title, outputs, (operands, kept))
    return work or FINISHED


def barrier(group: ProcessGroup, opts: Any) -> Work | None:
    """The host waits, too, as with NCCL. None: the ranks run on several hosts, and only their CPUs can meet."""
    device = torch.device("cuda", torch.cuda.current_device() if opts.device.index is None else opts.device.index)
    if group._on_hosts:
        torch.cuda.current_stream(device).synchronize()
        return None
    comm, streams = _communicator(group, device)

    def call() -> None:
        status = lib.tutti_barrier_with(comm.handle, ffi.NULL, 0, streams.current(), group._limit(opts))
        if status:
            group._raise(status, comm)

    with event("barrier", []):
        group._when_free(call)
        if is_capturing(device.index):
            return CudaWork(streams).end("barrier", [], None) if opts.asyncOp else FINISHED
        torch.cuda.current_stream(device).synchronize()
        status = lib.tutti_comm_status(comm.handle, ffi.NULL)
        if status:
            group._raise(status, comm)
    return FINISHED
