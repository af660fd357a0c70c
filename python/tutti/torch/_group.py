# SPDX-License-Identifier: MIT
"""The process group: a communicator for the collectives of CPU tensors, one for those of CUDA tensors (_cuda.py), and a
tutti.ProcessGroup for messages and sparse sums.

All collectives of CPU tensors run on one communicator in the order of their calls. A synchronous one runs in the
caller's thread. Asynchronous ones run in a thread of the group, and so does a synchronous one while that thread has
work. So one rank may call synchronously and another asynchronously. The tutti.ProcessGroup cannot run asynchronous
ones: its operations never match those of the communicator, and a synchronous sum of 4 bytes on it takes 16 us instead
of 1.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import time
import weakref
from datetime import timedelta
from typing import Any, Callable, NoReturn, Sequence

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.autograd import profiler

import tutti
from tutti._errors import ConcurrentError, InvalidError, check, milliseconds
from tutti._tutti import ffi, lib
from tutti.torch import _cuda
from tutti.torch._background import start_message
from tutti.torch._monitored import monitored_barrier
from tutti.torch._operands import (
    HANDLES, VALUES, Blocks, Operand, address, check_receiving, moved, reduced_dtype, reduction)
from tutti.torch._work import FINISHED, Together, Work, Worker, event, run

_groups: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()
_SIZE_OF_OPTIONS = ffi.sizeof("struct tutti_call_options")
_ZERO = timedelta(0)
_WORKS_AT_EXIT_S = 1.0
_cast, _POINTER, _NULL, _all_reduce = ffi.cast, ffi.typeof("void *"), ffi.NULL, lib.tutti_all_reduce_with
_ABORTED = lib.TUTTI_ERR_ABORTED
_CONCURRENT, _INVALID = lib.TUTTI_ERR_CONCURRENT, lib.TUTTI_ERR_INVALID
_AllreduceOptions, _handle_of = c10d.AllreduceOptions, HANDLES.get
_real_value_of = {dtype: value for dtype, value in VALUES.items() if not dtype.is_complex}.get
_REFUSAL_BYTES = 4099  # of messages that no caller sends
_CPU = torch.device("cpu")
Call = tuple[Any, ...]  # a function of the library, and its arguments before the communicator


class ProcessGroup(dist.ProcessGroup):
    """What torch.distributed.init_process_group("tutti") and new_group() make."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, name: str = "") -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._name, self._desc = rank, size, name, ""
        self._torch_store, self._barriers, self._exchanges = store, 0, 0
        self._symmetric: tutti.SymmetricGroup | None = None
        self._cuda_comm: tutti.Communicator | None = None
        self._cuda_index = -1  # the device of _cuda_comm
        self._cuda_streams: Any = None  # of _cuda_comm
        self._coalesced: list[Work] | None = None
        self._store = tutti.Store.wrap(store)
        self._timeout = timeout
        seconds = timeout.total_seconds()
        self._comm = tutti.Communicator.from_store(self._store, rank, size, timeout=seconds, fabric=_fabric(),
                                                   threads=_threads())
        self._on_hosts = int(self._comm.describe().get("hosts", "1")) > 1
        self._background = tutti.ProcessGroup(self._comm.dup(), timeout=seconds)
        self._worker = Worker(f"tutti {name}")
        self._options = ffi.NULL
        self._is_destroyed = False
        _groups.add(self)

    # ---- names and settings

    def getBackendName(self) -> str:
        return "tutti"

    name = _get_backend_name = getBackendName

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    _set_group_name = setGroupName

    def getGroupDesc(self) -> str:
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc

    _set_group_desc = setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    getRank, getSize = rank, size

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")] + ([torch.device("cuda")] if torch.cuda.is_available() else [])

    supports_splitting = supports_coalescing = supports_time_estimate = False

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        return self

    def get_group_store(self) -> Any:
        return self._torch_store

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the time-out of later operations."""
        self._timeout = timeout
        self._options = _call_options(timeout)

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        pass  # the library compares its own sequence numbers

    # ---- running an operation

    def _start(self, title: str, call: Callable[[], None], inputs: Sequence[torch.Tensor], outputs: Any,
               asynchronous: bool, stream: Any = None) -> Work:
        """inputs: what a profiler shows."""
        worker = self._worker
        if not asynchronous and not profiler._is_profiler_enabled and (worker.is_idle() or worker.is_current()):
            try:
                call()
                return FINISHED
            except ConcurrentError:
                pass  # another thread is inside: the call joins the queue
        work = Work(title, outputs, stream)
        with event(title, inputs, work):
            if worker.is_current():
                run(lambda: self._when_free(call), work)
            else:
                worker.submit(lambda: self._when_free(call), work)
        return self._started(work, asynchronous)

    def _when_free(self, call: Callable[[], None]) -> None:
        """Runs a call once no other thread is inside the communicator. That thread found the queue empty before this call
        joined it, so there is at most one for each thread. It has no means to wake this one."""
        end = time.monotonic() + self._timeout.total_seconds()
        while True:
            try:
                return call()
            except ConcurrentError:
                if time.monotonic() > end:
                    raise
            time.sleep(50e-6)

    def _started(self, work: Work, asynchronous: bool) -> Work:
        if not asynchronous:
            work.wait()
        elif self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _limit(self, opts: Any) -> Any:
        """The options with the time-out of a call."""
        return _call_options(opts.timeout) if opts.timeout > _ZERO else self._options

    def _raise(self, status: int, comm: tutti.Communicator | None = None,
               explain: Callable[[BaseException], None] | None = None) -> None:
        try:
            (comm or self._comm)._raise(status)
        except tutti.MismatchError as error:
            if explain:
                explain(error)
            raise
        except tutti.TimeoutError as error:
            error.args = (f"the timeout has expired: {error}",)  # programs look for this word
            raise

    def _collective(self, title: str, device: torch.device, calls: Sequence[Call], operands: Sequence[Any],
                    inputs: Sequence[torch.Tensor], outputs: Any, opts: Any, kept: Any = None,
                    explain: Callable[[BaseException], None] | None = None) -> Work:
        """Starts calls of the library. operands: those that receive. inputs: what a profiler shows. explain: completes an
        error."""
        for operand in operands:
            check_receiving(title, operand.receivers)
        if device.type == "cuda":
            work = _cuda.collective(self, title, device, calls, operands, inputs, outputs, opts, kept, explain)
            return self._started(work, opts.asyncOp)
        options = self._limit(opts)

        def call(kept: Any = kept) -> None:
            self._call(calls, self._comm, _NULL, options, explain)
            for operand in operands:
                operand.done()

        return self._start(title, call, inputs, outputs, opts.asyncOp)

    def _call(self, calls: Sequence[Call], comm: tutti.Communicator, stream: Any, options: Any,
              explain: Callable[[BaseException], None] | None) -> None:
        """Makes calls of the library, as one group of calls if they are several."""
        handle = comm._handle
        if len(calls) == 1:
            status = calls[0][0](*calls[0][1:], handle, stream, options)
        else:
            check(lib.tutti_group_start())
            for function, *arguments in calls:
                function(*arguments, handle, stream, options)
            status = lib.tutti_group_end()  # also the status of a refused call
        if status:
            self._raise(status, comm, explain)

    # ---- the short way: the work for other cases takes longer than a small operation

    def _short(self, opts: Any, kind: Any, *tensors: torch.Tensor) -> Any:
        """The communicator, the stream and the work of the usual call: its options are of this kind, its tensors dense, of one
        device, and used as they are; on CPU it is synchronous. Else None."""
        if type(opts) is not kind or profiler._is_profiler_enabled or opts.timeout > _ZERO:
            return None
        index = tensors[0].get_device()
        for tensor in tensors:
            # A sparse tensor is not contiguous, a ZeroTensor has no address, and only complex tensors are conjugated.
            if (_real_value_of(tensor.dtype) is None or not tensor.is_contiguous() or tensor.is_neg()
                    or tensor.get_device() != index or not tensor.data_ptr()):
                return None
        if tensors[0].is_cuda:
            if index != self._cuda_index:
                return None
            if not opts.asyncOp:
                return self._cuda_comm, self._cuda_streams.current(), FINISHED
            work = _cuda.CudaWork(self._cuda_streams)
            return self._cuda_comm, work.stream, work
        worker = self._worker
        if tensors[0].is_cpu and not opts.asyncOp and worker.submitted == worker.ended:
            return self._comm, _NULL, FINISHED
        return None

    def _short_end(self, status: int, comm: tutti.Communicator, work: Any, title: str, outputs: Any,
                   kept: Any = None) -> Work | None:
        """None: the call takes the long way, on which errors of the caller have their texts."""
        if not status:
            return work if work is FINISHED else self._started(work.end(title, outputs, kept), True)
        if status == _ABORTED or (status not in (_CONCURRENT, _INVALID) and not self._is_destroyed):
            self._raise(status, comm)
        return None

    # ---- reductions

    def _all_reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:
        device = self._device("all_reduce", tensors)
        op, kept = reduction(opts.reduceOp)
        operands = [Operand(tensor) for tensor in tensors]
        calls = [(lib.tutti_all_reduce_with, at := operand.address, at, operand.tensor.numel(),
                  reduced_dtype(operand.tensor), op) for operand in operands]
        return self._collective("all_reduce", device, calls, operands, tensors, tensors, opts, (operands, kept))

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, **more: Any) -> Work:
        if type(opts) is _AllreduceOptions and type(tensors) is list:
            # The short way of dist.all_reduce(), without calls in between.
            (tensor,), op, worker = tensors, _handle_of(hash(opts.reduceOp)), self._worker
            dtype, at = _real_value_of(tensor.dtype), 0
            if (dtype is not None and op is not None and tensor.is_contiguous() and not tensor.is_neg()
                    and not profiler._is_profiler_enabled and opts.timeout <= _ZERO):
                at = tensor.data_ptr()
            if at:
                comm, stream, work = None, _NULL, FINISHED
                if tensor.is_cpu:
                    if worker.submitted == worker.ended and not opts.asyncOp:
                        comm = self._comm
                elif tensor.is_cuda and tensor.get_device() == self._cuda_index:
                    comm = self._cuda_comm
                    if opts.asyncOp:
                        work = _cuda.CudaWork(self._cuda_streams)
                        stream = work.stream
                    else:
                        stream = self._cuda_streams.current()
                if comm is not None:
                    at = _cast(_POINTER, at)
                    status = _all_reduce(at, at, tensor.numel(), dtype, op, comm._handle, stream, self._options)
                    if not status:
                        if work is not FINISHED:
                            work.end("all_reduce", tensors, None)
                            if self._coalesced is not None:
                                self._coalesced.append(work)
                        return work
                    if status == _ABORTED or (status != _CONCURRENT and not self._is_destroyed):
                        self._raise(status, comm)
        opts = _options(c10d.AllreduceOptions, opts, timeout, reduceOp=more.get("op"))
        tensor, = tensors = _listed(tensors)
        if tensor.is_sparse:
            return self._all_reduce_sparse(tensor, opts)
        return self._all_reduce(tensors, opts)

    def all_reduce_into(self, output: torch.Tensor, given: torch.Tensor, opts: Any) -> Work:
        """Out of place, of two tensors with one shape and dtype."""
        op = _handle_of(hash(opts.reduceOp))
        if op is not None and (found := self._short(opts, c10d.AllreduceOptions, output, given)):
            comm, stream, ours = found
            status = _all_reduce(_cast(_POINTER, given.data_ptr()), _cast(_POINTER, output.data_ptr()), given.numel(),
                                 VALUES[given.dtype], op, comm._handle, stream, self._options)
            if (work := self._short_end(status, comm, ours, "all_reduce", [output], given)) is not None:
                return work
        device = self._device("all_reduce", [output, given])
        if device.type == "cuda" and self._on_hosts:
            output.copy_(given)
            return self._all_reduce([output], opts)
        handle, kept = reduction(opts.reduceOp)
        send, receive = Operand(given), Operand(output)
        call = (lib.tutti_all_reduce_with, send.address, receive.address, given.numel(), reduced_dtype(given), handle)
        return self._collective("all_reduce", device, [call], [receive], [given], [output], opts, (send, kept))

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        return self._all_reduce(tensors, _options(c10d.AllreduceCoalescedOptions, opts))

    def _all_reduce_sparse(self, tensor: torch.Tensor, opts: Any) -> Work:
        if int(opts.reduceOp.op) != int(dist.ReduceOp.RedOpType.SUM):
            raise InvalidError("tutti: sparse tensors can only be summed")
        self._check_open("all_reduce")
        _cuda.refuse_capture("all_reduce of sparse", tensor.device)
        timeout = opts.timeout
        stream = torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None
        own = tensor.detach().cpu()

        def call() -> None:
            entries = tutti.SparseTensor(own._indices().contiguous(), own._values().contiguous(), tuple(own.shape))
            work = self._background.all_reduce_sparse(
                entries, timeout=timeout.total_seconds() if timeout > _ZERO else None)
            work.wait()
            indices, values, shape = work.sparse_result()
            found = torch.sparse_coo_tensor(torch.from_numpy(indices), torch.from_dlpack(values), shape,
                                            is_coalesced=True, check_invariants=False)
            with torch.no_grad():
                tensor.copy_(found.to(tensor.device))

        return self._start("all_reduce_sparse", call, [tensor], [tensor], opts.asyncOp, stream)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None) -> Work:
        tensor, = tensors = _listed(tensors)
        if found := self._short(opts, c10d.ReduceOptions, tensor):
            handle, (comm, stream, ours) = _handle_of(hash(opts.reduceOp)), found
            if handle is not None:
                at = _cast(_POINTER, tensor.data_ptr())
                status = lib.tutti_reduce_with(at, at, tensor.numel(), VALUES[tensor.dtype], handle, opts.rootRank,
                                               comm._handle, stream, self._options)
                if (work := self._short_end(status, comm, ours, "reduce", tensors)) is not None:
                    return work
        opts = _rooted(c10d.ReduceOptions, opts, timeout, reduceOp=op)
        device = self._device("reduce", tensors)
        self._check_rank("reduce", "root", opts.rootRank)
        handle, kept = reduction(opts.reduceOp)
        operand = Operand(tensor)
        call = (lib.tutti_reduce_with, at := operand.address, at, tensor.numel(), reduced_dtype(tensor), handle,
                opts.rootRank)
        received = [operand] if opts.rootRank == self._rank else []
        return self._collective("reduce", device, [call], received, tensors, tensors, opts, (operand, kept))

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        device = self._device("reduce_scatter", outputs)
        opts = _options(c10d.ReduceScatterOptions, opts, timeout)
        for tensors in inputs:
            self._check_count(tensors)
        sends = [Blocks(tensors, output, filled=True) for tensors, output in zip(inputs, outputs)]
        return self._reduce_scatter(device, outputs, sends, [tensor for tensors in inputs for tensor in tensors], opts)

    def _reduce_scatter(self, device: torch.device, outputs: Sequence[torch.Tensor], sends: Sequence[Any],
                        inputs: Sequence[torch.Tensor], opts: Any) -> Work:
        op, kept = reduction(opts.reduceOp)
        receives = [Operand(output) for output in outputs]
        calls = [(lib.tutti_reduce_scatter_with, send.address, receive.address, receive.tensor.numel(),
                  reduced_dtype(receive.tensor), op) for send, receive in zip(sends, receives)]
        return self._collective("reduce_scatter", device, calls, receives, inputs, outputs, opts, (sends, kept))

    def reduce_scatter_single_coalesced(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor],
                                        opts: Any = None) -> Work:
        """Functional collectives come here with one tensor."""
        if len(outputs) == len(inputs) == 1:
            return self.reduce_scatter_single(outputs[0], inputs[0], opts)
        return self._reduce_scatter_singles(outputs, inputs, opts)

    def _reduce_scatter_singles(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any) -> Work:
        device = self._device("reduce_scatter", [*outputs, *inputs])
        for output, given in zip(outputs, inputs):
            self._check_blocks(output, given)
        return self._reduce_scatter(device, outputs, [Operand(tensor) for tensor in inputs], inputs,
                                    _options(c10d.ReduceScatterOptions, opts))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Work:
        if self._is_block(output, given) and (found := self._short(opts, c10d.ReduceScatterOptions, output, given)):
            op, (comm, stream, ours) = _handle_of(hash(opts.reduceOp)), found
            if op is not None:
                status = lib.tutti_reduce_scatter_with(
                    _cast(_POINTER, given.data_ptr()), _cast(_POINTER, output.data_ptr()), output.numel(),
                    VALUES[output.dtype], op, comm._handle, stream, self._options)
                if (work := self._short_end(status, comm, ours, "reduce_scatter", [output], given)) is not None:
                    return work
        return self._reduce_scatter_singles([output], [given], opts)

    _reduce_scatter_base = reduce_scatter_single

    # ---- copies

    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        tensor, = tensors = _listed(tensors)
        if found := self._short(opts, c10d.BroadcastOptions, tensor):
            at, (comm, stream, ours) = _cast(_POINTER, tensor.data_ptr()), found
            status = lib.tutti_broadcast_with(at, at, tensor.numel(), VALUES[tensor.dtype], opts.rootRank, comm._handle, stream,
                                              self._options)
            if (work := self._short_end(status, comm, ours, "broadcast", tensors)) is not None:
                return work
        opts = _rooted(c10d.BroadcastOptions, opts, timeout)
        device = self._device("broadcast", tensors)
        self._check_rank("broadcast", "root", opts.rootRank)
        operand = Operand(tensor)
        dtype, count = moved(tensor)
        call = (lib.tutti_broadcast_with, at := operand.address, at, count, dtype, opts.rootRank)
        received = [] if opts.rootRank == self._rank else [operand]
        return self._collective("broadcast", device, [call], received, tensors, tensors, opts, operand)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        device = self._device("all_gather", inputs)
        for tensors in outputs:
            self._check_count(tensors)
        blocks = [Blocks(tensors, given, filled=False) for tensors, given in zip(outputs, inputs)]
        return self._all_gather(device, blocks, inputs, outputs, _options(c10d.AllgatherOptions, opts, timeout))

    def _all_gather(self, device: torch.device, receives: Sequence[Any], inputs: Sequence[torch.Tensor], outputs: Any,
                    opts: Any) -> Work:
        sends = [Operand(given) for given in inputs]
        calls = []
        for send, receive in zip(sends, receives):
            dtype, count = moved(send.tensor)
            calls.append((lib.tutti_all_gather_with, send.address, receive.address, count, dtype))
        return self._collective("all_gather", device, calls, receives, inputs, outputs, opts, sends)

    def allgather_coalesced(self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor],
                            opts: Any = None) -> Work:
        """outputs: a list for each rank, of a tensor for each input."""
        self._check_count(outputs)
        return self.allgather([list(tensors) for tensors in zip(*outputs)], inputs, opts)

    def all_gather_single_coalesced(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor],
                                    opts: Any = None) -> Work:
        """Functional collectives come here with one tensor."""
        if len(outputs) == len(inputs) == 1:
            return self.all_gather_single(outputs[0], inputs[0], opts)
        return self._all_gather_singles(outputs, inputs, opts)

    def _all_gather_singles(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any) -> Work:
        device = self._device("all_gather", [*outputs, *inputs])
        for output, given in zip(outputs, inputs):
            self._check_blocks(given, output)
        return self._all_gather(device, [Operand(output) for output in outputs], inputs, outputs,
                                _options(c10d.AllgatherOptions, opts))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Work:
        if self._is_block(given, output) and (found := self._short(opts, c10d.AllgatherOptions, output, given)):
            comm, stream, ours = found
            status = lib.tutti_all_gather_with(
                _cast(_POINTER, given.data_ptr()), _cast(_POINTER, output.data_ptr()), given.numel(), VALUES[given.dtype],
                comm._handle, stream, self._options)
            if (work := self._short_end(status, comm, ours, "all_gather", [output], given)) is not None:
                return work
        return self._all_gather_singles([output], [given], opts)

    _allgather_base = all_gather_single

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs] if outputs else [], [inputs]
        opts = _rooted(c10d.GatherOptions, opts, timeout)
        given, = inputs
        device = self._device("gather", inputs)
        self._check_rank("gather", "root", opts.rootRank)
        send, receives, to = Operand(given), [], ffi.NULL
        if opts.rootRank == self._rank:
            self._check_count(outputs[0])
            receives = [Blocks(outputs[0], given, filled=False)]
            to = receives[0].address
        dtype, count = moved(given)
        call = (lib.tutti_gather_with, send.address, to, count, dtype, opts.rootRank)
        return self._collective("gather", device, [call], receives, inputs, outputs, opts, send)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs] if inputs else []
        opts = _rooted(c10d.ScatterOptions, opts, timeout)
        output, = outputs
        device = self._device("scatter", outputs)
        self._check_rank("scatter", "root", opts.rootRank)
        receive, send, source = Operand(output), None, ffi.NULL
        if opts.rootRank == self._rank:
            self._check_count(inputs[0])
            send = Blocks(inputs[0], output, filled=True)
            source = send.address
        dtype, count = moved(output)
        call = (lib.tutti_scatter_with, source, receive.address, count, dtype, opts.rootRank)
        return self._collective("scatter", device, [call], [receive], inputs[0] if inputs else [], outputs, opts, send)

    def alltoall(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """Messages in one group of calls: the lengths differ from pair to pair of ranks."""
        device = self._device("all_to_all", [*outputs, *inputs])
        self._check_count(outputs)
        self._check_count(inputs)
        receives, sends = [Operand(tensor) for tensor in outputs], [Operand(tensor) for tensor in inputs]
        return self._all_to_all(device, [operand.memory for operand in receives], [operand.memory for operand in sends],
                                receives, inputs, outputs, _options(c10d.AllToAllOptions, opts))

    def all_to_all_single(self, output: torch.Tensor, given: torch.Tensor, output_splits: Sequence[int] = (),
                          input_splits: Sequence[int] = (), opts: Any = None) -> Work:
        """On CPU always messages, so that a rank may name equal sizes where another names none."""
        is_even = given.is_cuda and not output_splits and not input_splits and self._is_even(output, given)
        if is_even and (found := self._short(opts, c10d.AllToAllOptions, output, given)):
            comm, stream, ours = found
            status = lib.tutti_all_to_all_with(
                _cast(_POINTER, given.data_ptr()), _cast(_POINTER, output.data_ptr()), given.numel() // self._size,
                VALUES[given.dtype], comm._handle, stream, self._options)
            if (work := self._short_end(status, comm, ours, "all_to_all", [output], given)) is not None:
                self._exchanges += 1
                return work
        device = self._device("all_to_all", [output, given])
        receive, send = Operand(output), Operand(given)
        try:
            outputs, inputs = self._parts(receive.memory, output_splits), self._parts(send.memory, input_splits)
        except InvalidError as error:
            self._refuse_all_to_all(device, error)
        opts = _options(c10d.AllToAllOptions, opts)
        if not is_even:
            return self._all_to_all(device, outputs, inputs, [receive], [given], [output], opts)
        dtype, count = moved(given)
        call = (lib.tutti_all_to_all_with, send.address, receive.address, count // self._size, dtype)
        self._exchanges += 1
        number = self._exchanges
        return self._collective("all_to_all", device, [call], [receive], [given], [output], opts, (send, receive),
                                lambda error: self._explain(error, number))

    def _parts(self, tensor: torch.Tensor, splits: Sequence[int]) -> list[torch.Tensor]:
        rows = tensor.size(0) if tensor.dim() else 0
        if not splits:
            if rows % self._size:
                raise InvalidError(f"tutti: all_to_all of {rows} rows by {self._size} ranks, without a list of sizes")
            splits = [rows // self._size] * self._size
        self._check_count(splits)
        if sum(splits) != rows or min(splits) < 0:
            raise InvalidError(f"tutti: all_to_all of {rows} rows, but the sizes {list(splits)}")
        return list(tensor.detach().split(list(splits)))

    def _all_to_all(self, device: torch.device, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor],
                    operands: Sequence[Operand], shown: Sequence[torch.Tensor], result: Any, opts: Any) -> Work:
        """outputs, inputs: a contiguous tensor for each rank."""
        given, taken = inputs[self._rank], outputs[self._rank]
        if given.numel() != taken.numel() or given.dtype != taken.dtype:
            self._refuse_all_to_all(device, InvalidError(
                f"tutti: all_to_all, in which rank {self._rank} sends {given.numel()} elements of {given.dtype} to itself, "
                f"and receives {taken.numel()} of {taken.dtype}"))
        return self._exchange(device, outputs, inputs, operands, shown, result, opts)

    def _exchange(self, device: torch.device, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor],
                  operands: Sequence[Operand], shown: Sequence[torch.Tensor], result: Any, opts: Any) -> Work:
        calls = []
        for peer, (given, output) in enumerate(zip(inputs, outputs)):
            for function, tensor in (lib.tutti_send_with, given), (lib.tutti_recv_with, output):
                dtype, count = moved(tensor)
                calls.append((function, address(tensor), count, dtype, peer))
        self._exchanges += 1
        number = self._exchanges
        return self._collective("all_to_all", device, calls, operands, shown, result, opts, (outputs, inputs),
                                lambda error: self._explain(error, number))

    def _explain(self, error: Any, number: int) -> None:
        """Adds to a MismatchError why ranks have refused all-to-all `number` of the group."""
        keys = [f"tutti/refused/{number}/{rank}" for rank in range(self._size)]
        if not isinstance(error, tutti.MismatchError):
            return
        try:
            reasons = [self._torch_store.get(key).decode() for key in keys if self._torch_store.check([key])]
        except RuntimeError as gone:
            reasons = [f"the store tells no more: {gone}"]
        error.args = ("; ".join([str(error), *reasons]),)

    def _refuse_all_to_all(self, device: torch.device, error: InvalidError) -> NoReturn:
        """Refuses a call whose sizes this rank alone may have got wrong. The others get messages that cannot be theirs, and so
        tutti.MismatchError at once. If all ranks refuse their calls, these messages match, and the group goes on."""
        self._torch_store.set(f"tutti/refused/{self._exchanges + 1}/{self._rank}",
                              f"rank {self._rank} has refused its call: {error}")
        blocks = torch.empty((2, self._size, _REFUSAL_BYTES), dtype=torch.uint8, device=device)
        options = c10d.AllToAllOptions()
        options.asyncOp = True
        self._exchange(device, blocks[0], blocks[1], [], [], [], options)
        raise error

    alltoall_base = all_to_all_single

    # ---- messages

    def _message(self, title: str, tensors: Any, peer: int, tag: int) -> Work:
        tensor, = _listed(tensors)
        _cuda.refuse_capture(f"{title} of", self._device(title, [tensor]))
        if peer != lib.TUTTI_ANY_SOURCE:
            self._check_rank(title, "peer", peer)
        return self._started(start_message(self._background, title, tensor, peer, tag), True)

    def send(self, tensors: Any, peer: int, tag: int = 0) -> Work:
        """The work ends when a receive of the same tag has taken the message."""
        return self._message("send", tensors, peer, tag)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Work:
        return self._message("recv", tensors, peer, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        return self._message("recv", tensors, lib.TUTTI_ANY_SOURCE, tag)

    # ---- barriers

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work:
        if isinstance(opts, timedelta):
            opts, timeout = None, opts
        opts = _options(c10d.BarrierOptions, opts, timeout)
        self._check_open("barrier")
        if opts.device is not None and opts.device.type == "cuda" and (work := _cuda.barrier(self, opts)) is not None:
            return work
        limit = self._limit(opts)

        def call() -> None:
            status = lib.tutti_barrier_with(self._comm._handle, ffi.NULL, 0, ffi.NULL, limit)
            if status:
                self._raise(status)

        return self._start("barrier", call, [], [], opts.asyncOp)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier through the store: rank 0 names the ranks that do not come in time."""
        self._check_open("monitored_barrier")
        self._barriers += 1
        monitored_barrier(self._torch_store, f"tutti/monitored/{self._barriers}", self._rank, self._size,
                          self._timeout if timeout is None else timeout, wait_all_ranks)

    # ---- coalescing

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> Work:
        works, self._coalesced = self._coalesced, None
        return Together(works) if works else FINISHED

    # ---- what torch.distributed does not have

    def communicator(self, device: torch.device) -> tutti.Communicator:
        """That of tutti.torch.communicator()."""
        self._check_open("communicator")
        if device.type == "cpu":
            return self._comm
        comm, streams = _cuda._communicator(self, device)
        streams.current()  # the next operation comes to that stream
        return comm

    # ---- symmetric memory

    def symmetric(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The tensor of tutti.torch.empty()."""
        bytes_ = max(1, dtype.itemsize * torch.Size(shape).numel())
        tensor = torch.from_numpy(self.symmetric_memory(bytes_, "cpu").array)
        return tensor[:bytes_ if torch.Size(shape).numel() else 0].view(dtype).view(shape)

    def symmetric_memory(self, bytes_: int, device: str) -> tutti.SymmetricMemory:
        """Memory of all ranks, zeroed. Collective."""
        self._check_open("symmetric memory")
        if self._symmetric is None:
            store = tutti.Store.wrap(dist.PrefixStore("symmetric", self._torch_store))
            name = "torch/" + hashlib.sha1(self._name.encode()).hexdigest()
            self._symmetric = tutti.SymmetricGroup(name, self._rank, self._size, store)
        return self._symmetric.alloc(bytes_, "uint8", device).rendezvous(self._timeout.total_seconds())

    # ---- the end

    def abort(self) -> None:
        """Ends all operations on all ranks with tutti.AbortedError."""
        self._comm.abort()
        if self._cuda_comm is not None:
            self._cuda_comm.abort()
        self._background.close()

    def shutdown(self) -> None:
        """Ends the group on this rank. Operations under way get a second to end."""
        self._is_destroyed = True
        if not self._worker.stop(_WORKS_AT_EXIT_S):
            self._comm.abort()
            self._worker.stop()
        self._background.comm.close()
        self._comm.close()
        if self._cuda_comm is not None:
            self._cuda_comm.close()

    # ---- checks

    def _device(self, title: str, tensors: Sequence[torch.Tensor]) -> torch.device:
        """The device of the operands, on which the operation can run."""
        self._check_open(title)
        device = tensors[0].device if tensors else _CPU
        for tensor in tensors:
            if tensor.layout is not torch.strided or tensor.device != device or not (tensor.is_cpu or tensor.is_cuda):
                raise InvalidError(f"tutti: {title} of dense tensors on the CPU or on one CUDA device only, not of "
                                   f"{tensor.layout} on {tensor.device}")
            if tensor.is_quantized:
                raise InvalidError(f"tutti: {title} of a quantized tensor, {tensor.dtype}: pass its int_repr(), and the scale "
                                   f"and the zero point beside it")
        return device

    def _check_open(self, title: str) -> None:
        if self._is_destroyed:
            raise InvalidError(f"tutti: {title} on process group \"{self._name}\", which has been destroyed")

    def _check_rank(self, title: str, role: str, rank: int) -> None:
        if not 0 <= rank < self._size:
            raise InvalidError(f"tutti: {title} with {role} {rank} in a group of {self._size} ranks: 0 to {self._size - 1}")

    def _check_count(self, tensors: Sequence[Any]) -> None:
        if len(tensors) != self._size:
            raise InvalidError(f"tutti: a list of {len(tensors)} for {self._size} ranks")

    def _is_block(self, block: torch.Tensor, whole: torch.Tensor) -> bool:
        return bool(whole.numel() == block.numel() * self._size and whole.dtype == block.dtype)

    def _is_even(self, output: torch.Tensor, given: torch.Tensor) -> bool:
        return bool(output.numel() == given.numel() and output.dtype == given.dtype and given.dim() > 0 and output.dim() > 0
                    and given.size(0) % self._size == output.size(0) % self._size == 0)

    def _check_blocks(self, block: torch.Tensor, whole: torch.Tensor) -> None:
        if not self._is_block(block, whole):
            raise InvalidError(f"tutti: {whole.numel()} elements of {whole.dtype} do not hold {self._size} blocks of "
                               f"{block.numel()} of {block.dtype}")


@functools.cache
def _fabric() -> tutti.Fabric | None:
    """That of all groups, whose ranks may then run on several hosts."""
    url = os.environ.get("TUTTI_FABRIC")
    return tutti.Fabric(url) if url else None


def _threads() -> int:
    """PyTorch's threads, which share the work of long collectives of CPU tensors."""
    try:
        check(lib.tutti_parallel_find(ffi.new("tutti_parallel_t *")))
    except tutti.DeclinedError:  # PyTorch without OpenMP
        return 1
    return min(int(torch.get_num_threads()), int(lib.TUTTI_MAX_THREADS))


def _call_options(timeout: timedelta) -> Any:
    return ffi.new("struct tutti_call_options *", {
        "struct_size": _SIZE_OF_OPTIONS, "timeout_ms": milliseconds(timeout.total_seconds())})


def _listed(tensors: Any) -> Sequence[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def _options(kind: Any, given: Any, timeout: timedelta | None = None, **fields: Any) -> Any:
    """An options object, even if the caller gave none, or a ReduceOp instead."""
    if type(given) is kind:
        return given
    options = kind()
    if given is not None:
        fields["reduceOp"] = given
    for name, value in fields.items():
        if value is not None:
            setattr(options, name, value)
    if timeout is not None:
        options.timeout = timeout
    return options


def _rooted(kind: Any, given: Any, timeout: timedelta | None, **fields: Any) -> Any:
    """As _options(); the caller may have given the root instead."""
    if type(given) is int:
        return _options(kind, None, timeout, rootRank=given, **fields)
    return _options(kind, given, timeout, **fields)


@atexit.register
def _shut_down() -> None:
    """Runs before the interpreter ends: later, threads would wait for the GIL for ever."""
    for group in list(_groups):
        group.shutdown()
