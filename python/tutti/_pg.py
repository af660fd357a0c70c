# SPDX-License-Identifier: MIT
"""Process groups: asynchronous operations with tags, and their works."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from concurrent.futures import Future
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Sequence, TypedDict

from tutti._buffers import Array, DeviceMemory, check_row_major, fill_tensor, host_array, stream_value
from tutti._comm import Communicator
from tutti._dtypes import Op, op_handle
from tutti._errors import Error, InvalidError, Timeout, TimeoutError, check, make_error, milliseconds, text
from tutti._handle import Handle, Unique
from tutti._handle import callback as this_callback
from tutti._signals import wait_in_slices
from tutti._store import Store
from tutti._tutti import ffi, lib

if TYPE_CHECKING:
    from typing_extensions import Unpack

_TIMED_OUT = -1  # not a status of the library
_SWEEP_MS = 50
_REDUCE = lib.tutti_pg_reduce, lib.tutti_pg_reduce_scatter


class SubmitOptions(TypedDict, total=False):
    """Options of an operation.

    tag       operations of one tag run in the order of their submission; 0 is the default
    timeout   seconds from the submission; None: the group's
    callback  a future, or a function. The group's thread, or a thread that waits for a work, calls the function once,
              with None or the exception. It may submit operations; it must not wait for one or close the group
    stream    for CUDA tensors: the operation waits for the work that is on the stream now
    """

    tag: int
    timeout: Timeout
    callback: Callable[[Error | None], object] | Future[None] | None
    stream: Any


class SparseTensor(NamedTuple):
    """A tensor in coordinate form: entry i has the index indices[:, i] and the row values[i].

    indices  int64, sparse dimensions x entries
    values   entries x dense sizes
    shape    the sizes of the sparse dimensions, then of the dense ones
    """

    indices: Array
    values: Array
    shape: tuple[int, ...]


class Work(Unique):
    """An operation under way. It keeps the operation's arrays; nothing else may use them until it is done."""

    def __init__(self, handle: Any, kept: Any = None) -> None:
        self._handle, self._kept = handle, kept

    @property
    def handle(self) -> Any:
        """The tutti_work_t *, for calls of tutti._lib."""
        return self._handle

    def _raise(self, status: int) -> None:
        raise make_error(status, lambda fault: lib.tutti_work_fault(self._handle, fault))

    def wait(self, timeout: Timeout = None) -> None:
        """Waits until the operation has ended; raises its exception.

        timeout: in seconds; if it expires, TimeoutError is raised, and the operation goes on. None: the operation's
        own time-out is the only limit.
        """
        def wait(timeout_ms: int) -> int:
            status = int(lib.tutti_work_wait_host(self._handle, timeout_ms))
            if status == lib.TUTTI_ERR_TIMEOUT:  # of the wait, or the operation's own, or the operation ended since then
                done, ended = self._test()
                if done:
                    status = _TIMED_OUT if ended == lib.TUTTI_ERR_TIMEOUT else ended
            return status

        status = wait_in_slices(wait, milliseconds(timeout) or -1)
        if status:
            self._raise(lib.TUTTI_ERR_TIMEOUT if status == _TIMED_OUT else status)

    def _test(self) -> tuple[bool, int]:
        done = ffi.new("bool *")
        status = lib.tutti_work_test(self._handle, done)
        return bool(done[0]), status

    def test(self) -> bool:
        """Whether the operation has ended; raises its exception if it has failed."""
        done, status = self._test()
        if status:
            self._raise(status)
        return done

    def wait_stream(self, stream: Any = None) -> None:
        """Makes a CUDA stream wait for the results. The host does not wait."""
        check(lib.tutti_work_wait_stream(self._handle, ffi.cast("tutti_stream_t", stream_value(stream))))

    def sparse_result(self) -> SparseTensor:
        """The coalesced result of a sparse sum: views of the work's memory. Do not write to them."""
        found = ffi.new("struct tutti_sparse_tensor *", {"struct_size": ffi.sizeof("struct tutti_sparse_tensor")})
        check(lib.tutti_work_sparse_result(self._handle, found))
        shape = tuple(found.sizes[0:found.sparse_dim + found.dense_dim])
        device = [found.device_index] if found.device == lib.TUTTI_DEVICE_CUDA else []
        make: Any = DeviceMemory if device else host_array
        indices = make(found.indices, (found.sparse_dim, found.nnz), lib.TUTTI_INT64, self, *device)
        values = make(found.values, (found.nnz, *shape[found.sparse_dim:]), found.dtype, self, *device)
        return SparseTensor(indices, values, shape)

    @property
    def title(self) -> str:
        """What the operation does: "all_reduce of 2 x 12 float32, sum"."""
        return text(lib.tutti_work_title(self._handle))

    @property
    def tag(self) -> int:
        return int(lib.tutti_work_tag(self._handle))

    @property
    def sequence(self) -> int:
        """The number of the operation in its tag, from 1."""
        return int(lib.tutti_work_sequence(self._handle))

    @property
    def source(self) -> int | None:
        """The sender of the message, for a recv() that is done; None for any other work."""
        rank = int(lib.tutti_work_source(self._handle))
        return None if rank < 0 else rank

    def __del__(self) -> None:
        if not self._test()[0]:
            _leave(self._handle, self._kept)
        else:
            lib.tutti_work_destroy(self._handle)

    def __repr__(self) -> str:
        return f"<tutti.Work {self.title}>"


def wait_all(works: Sequence[Work], timeout: Timeout = None) -> None:
    """Waits until all works have ended; then raises the exception of the first in the list that has one. timeout: seconds for
    all of them; if it expires, the exception is a TimeoutError."""
    limit_ms = milliseconds(timeout)
    end = time.monotonic() + limit_ms / 1000
    error: BaseException | None = None
    for work in works:
        try:
            work.wait(max(0.0, end - time.monotonic()) if limit_ms > 0 else None)
        except Error as raised:
            error = error or raised
    if error:
        raise error


def wait_any(works: Sequence[Work], timeout: Timeout = None) -> int:
    """Waits until one of the works has ended, and returns its index; raises its exception. timeout: in seconds."""
    if not works:
        raise InvalidError("wait_any() of no works: expected at least one")
    limit_ms = milliseconds(timeout)
    end = time.monotonic() + limit_ms / 1000
    while True:
        for awaited in works:
            for index, work in enumerate(works):
                if work.test():
                    return index
            if limit_ms > 0 and time.monotonic() >= end:
                raise TimeoutError(f"none of {len(works)} works has ended after {limit_ms} ms; they go on")
            lib.tutti_work_wait_host(awaited._handle, 1)  # runs operations, of other works too


# Works that were dropped before they were done, with their arrays.
_left: deque[tuple[Any, Any]] = deque()
_sweeps = threading.Lock()  # held while a thread waits for them


def _leave(handle: Any, kept: Any) -> None:
    """Releases a work and its arrays when it is done."""
    _left.append((handle, kept))
    if not sys.is_finalizing() and _sweeps.acquire(blocking=False):
        threading.Thread(target=_sweep, name="tutti works", daemon=True).start()


def _sweep() -> None:
    done = ffi.new("bool *")
    while True:
        while _left:
            left = _left.popleft()
            lib.tutti_work_wait_host(left[0], _SWEEP_MS)
            lib.tutti_work_test(left[0], done)
            if done[0]:
                lib.tutti_work_destroy(left[0])
            else:
                _left.append(left)
            del left
        _sweeps.release()
        if not _left or not _sweeps.acquire(blocking=False):  # another one may have come before the release
            return


_callbacks: set[Any] = set()  # handles, until the library has called them


@ffi.def_extern(name="tutti_python_done")  # type: ignore[untyped-decorator]
def _done(context: Any, work: Any, status: int) -> None:
    """What the callback holds is released before `group` is reset: Handle.__del__()."""
    this_callback.group = ffi.from_handle(context)[1]
    try:
        _call_back(context, work, status)
    except BaseException:
        traceback.print_exc()
    this_callback.group = None


def _call_back(context: Any, work: Any, status: int) -> None:
    callback, _ = ffi.from_handle(context)
    _callbacks.discard(context)
    error = None
    if status:
        lib.tutti_work_fault(work, ffi.NULL)  # gives this thread the error's text
        error = make_error(status, lambda fault: lib.tutti_work_fault(work, fault))
    if not isinstance(callback, Future):
        callback(error)
    elif not callback.set_running_or_notify_cancel():
        pass  # wait() and as_completed() have learned now that it was cancelled
    elif error:
        callback.set_exception(error)
    else:
        callback.set_result(None)


Arrays = Any  # one array, or a list of arrays


def _listed(arrays: Arrays) -> Sequence[Array]:
    return arrays if isinstance(arrays, (list, tuple)) else [arrays]


class _Opened(Handle):
    """The C handle of a process group. The communicator keeps it, not a weak reference to the group: if both are garbage of
    one cycle, such a reference is gone before the communicator closes."""

    _title, _exit_order = "process group", 0

    def __init__(self, handle: Any) -> None:
        self._open(handle)

    def close(self) -> None:
        if this_callback.group is not None and this_callback.group == self._handle:
            raise InvalidError("a callback closes its own process group: close it after the callback")
        super().close()

    def _destroy(self, handle: Any) -> None:
        lib.tutti_pg_destroy(handle)  # ends the waits itself


class ProcessGroup(Handle):
    """Asynchronous operations of the ranks of a communicator, or of some of them.

    comm     a CPU communicator without `ranks` serves only the group from then on
    ranks    the members, equal on all of them; their order gives the ranks of the group. They meet at the store,
             which a group of several hosts uses until its close
    timeout  seconds, for operations without their own; None: the communicator's
    threads  number of host threads that reduce large CUDA tensors where ranks are threads; 0: half of the cores, at most 8
    max_blocks  of the kernels of a group of a CUDA communicator; 0: the communicator's

    Arrays are dense, with their dimensions in any order. An operation keeps its arrays. Any thread may submit. Raises
    InvalidError, DeclinedError, ConcurrentError, MismatchError, TimeoutError, PeerDeadError, AbortedError,
    NoMemoryError, SystemCallError, CudaError.
    """

    def __init__(self, comm: Communicator, ranks: Sequence[int] | None = None, store: Store | None = None,
                 timeout: Timeout = None, threads: int = 0, max_blocks: int = 0) -> None:
        members = ffi.NULL if ranks is None else ffi.new("int[]", list(ranks))
        options = ffi.new("struct tutti_pg_options *", {
            "struct_size": ffi.sizeof("struct tutti_pg_options"), "timeout_ms": milliseconds(timeout), "ranks": members,
            "rank_count": 0 if ranks is None else len(ranks), "threads": threads, "max_blocks": max_blocks})
        group = ffi.new("tutti_pg_t **")
        with store.in_use() if store else nullcontext(ffi.NULL) as options.store:
            check(lib.tutti_pg_create(comm.handle, options, group))
        self._opened, self.comm, self._store = _Opened(group[0]), comm, store
        self.rank = comm.rank if ranks is None else list(ranks).index(comm.rank)
        self.world_size = comm.world_size if ranks is None else len(ranks)
        comm._groups.add(self._opened)

    @property
    def _handle(self) -> Any:
        return self._opened._handle

    def _submit(self, function: Any, operands: Sequence[Any], kept: Any, arguments: Sequence[Any],
                options: SubmitOptions) -> Work:
        """Calls function(group, *operands, *arguments, options, work)."""
        unknown = options.keys() - SubmitOptions.__annotations__.keys()
        if unknown:
            raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
        extra = ffi.new("struct tutti_pg_call_options *", {
            "struct_size": ffi.sizeof("struct tutti_pg_call_options"), "tag": options.get("tag", 0),
            "timeout_ms": milliseconds(options.get("timeout")),
            "stream": ffi.cast("tutti_stream_t", stream_value(options.get("stream")))})
        callback = options.get("callback")
        if callback is not None:
            extra.context = context = ffi.new_handle((callback, self.handle))
            extra.callback = lib.tutti_python_done
            _callbacks.add(context)
        work = ffi.new("tutti_work_t **")
        status = function(self.handle, *operands, *arguments, extra, work)
        if status:
            if callback is not None:
                _callbacks.discard(context)
            raise make_error(status)
        return Work(work[0], kept)

    def _tensors(self, arrays: Arrays, writable: bool, moves: bool, options: SubmitOptions) -> tuple[Any, Any]:
        """The arguments that stand for arrays, and what must live. moves: the operation does not reduce."""
        listed, stream = _listed(arrays), stream_value(options.get("stream"))
        tensors = ffi.new("struct tutti_tensor[]", len(listed))
        kept = [fill_tensor(tensors[i], array, writable, stream, moves) for i, array in enumerate(listed)]
        return (tensors, len(listed)), kept

    def all_reduce(self, arrays: Arrays, op: str | Op = "sum", **options: Unpack[SubmitOptions]) -> Work:
        """Reduces an array, or a list of arrays of one shape and dtype, of each rank: first each rank's own, then across
        ranks. Every array receives the result."""
        tensors, kept = self._tensors(arrays, True, False, options)
        return self._submit(lib.tutti_pg_all_reduce, tensors, kept, [op_handle(op)], options)

    def _exchange(self, function: Any, send: Arrays | None, recv: Arrays | None,
                  arguments: Sequence[Any], options: SubmitOptions) -> Work:
        """Submits an operation with two operands, of which a rank may lack one."""
        moves = function not in _REDUCE
        sent, kept = ((ffi.NULL, 0), []) if send is None else self._tensors(send, False, moves, options)
        received, kept_too = ((ffi.NULL, 0), []) if recv is None else self._tensors(recv, True, moves, options)
        return self._submit(function, (*sent, *received), (kept, kept_too), arguments, options)

    def all_gather(self, send: Arrays, recv: Arrays, **options: Unpack[SubmitOptions]) -> Work:
        """Gathers one block from each rank. An operand of a block for each rank, here recv, is one array of all blocks, or
        a list of an array for each rank. Lists of n arrays, or of n lists one behind the other, move n pairs. CPU arrays,
        here and below."""
        return self._exchange(lib.tutti_pg_all_gather, send, recv, [], options)

    def reduce_scatter(self, send: Arrays, recv: Arrays, op: str | Op = "sum", **options: Unpack[SubmitOptions]) -> Work:
        """Reduces one block for each rank; send has a block for each rank."""
        return self._exchange(lib.tutti_pg_reduce_scatter, send, recv, [op_handle(op)], options)

    def all_to_all(self, send: Arrays, recv: Arrays, **options: Unpack[SubmitOptions]) -> Work:
        """Sends one block to each rank; both have a block for each rank. In lists each block may have any length."""
        return self._exchange(lib.tutti_pg_all_to_all, send, recv, [], options)

    def broadcast(self, send: Arrays | None, recv: Arrays | None = None, root: int = 0,
                  **options: Unpack[SubmitOptions]) -> Work:
        """Sets recv on every rank to the root's send. recv None: the arrays of `send` receive."""
        recv = send if recv is None else recv
        return self._exchange(lib.tutti_pg_broadcast, send if self.rank == root else None, recv, [root], options)

    def reduce(self, send: Arrays, recv: Arrays | None = None, op: str | Op = "sum", root: int = 0,
               **options: Unpack[SubmitOptions]) -> Work:
        """Sets recv on the root to op over all ranks' send. recv None: in place at the root."""
        recv = None if self.rank != root else send if recv is None else recv
        return self._exchange(lib.tutti_pg_reduce, send, recv, [op_handle(op), root], options)

    def gather(self, send: Arrays, recv: Arrays | None = None, root: int = 0, **options: Unpack[SubmitOptions]) -> Work:
        """Sets block r of the root's recv to rank r's send."""
        return self._exchange(lib.tutti_pg_gather, send, recv if self.rank == root else None, [root], options)

    def scatter(self, send: Arrays | None, recv: Arrays, root: int = 0, **options: Unpack[SubmitOptions]) -> Work:
        """Sets recv on rank r to block r of the root's send."""
        return self._exchange(lib.tutti_pg_scatter, send if self.rank == root else None, recv, [root], options)

    def send(self, array: Array, peer: int, **options: Unpack[SubmitOptions]) -> Work:
        """Sends the elements of an array to a rank of the group, where recv() with the same tag takes them. The work is
        done when the array may be reused: at once for 1 KiB or less, otherwise when that recv() has matched it."""
        (tensor, _), kept = self._tensors([array], False, True, options)
        return self._submit(lib.tutti_pg_send, [tensor, peer], kept, [], options)

    def recv(self, array: Array, peer: int | None = None, **options: Unpack[SubmitOptions]) -> Work:
        """Takes a message of a rank, or of any if peer is None: Work.source is the sender."""
        (tensor, _), kept = self._tensors([array], True, True, options)
        source = lib.TUTTI_ANY_SOURCE if peer is None else peer
        return self._submit(lib.tutti_pg_recv, [tensor, source], kept, [], options)

    def barrier(self, **options: Unpack[SubmitOptions]) -> Work:
        """A work that is done once all ranks have called this."""
        return self._submit(lib.tutti_pg_barrier, (), None, [], options)

    def all_reduce_sparse(self, tensors: SparseTensor | list[SparseTensor], **options: Unpack[SubmitOptions]) -> Work:
        """Sums sparse tensors of all ranks, one or a list of each. Work.sparse_result() gives the result.

        Ranks may have different numbers of entries; dtype and shape are equal on all ranks.
        """
        listed = tensors if isinstance(tensors, list) else [tensors]
        stream = stream_value(options.get("stream"))
        structs, kept = ffi.new("struct tutti_sparse_tensor[]", len(listed)), []
        for struct, tensor in zip(structs, listed):
            kept += _fill_sparse(struct, tensor, stream)
        return self._submit(lib.tutti_pg_all_reduce_sparse, (structs, len(listed)), kept, [], options)

    def close(self) -> None:
        """Destroys the group. Local and bounded. All works are done then; those under way end with AbortedError. Raises
        InvalidError in a callback of the group."""
        self._opened.close()
        self.comm._groups.discard(self._opened)


def _fill_sparse(struct: Any, tensor: SparseTensor, stream: int) -> list[Any]:
    described = ffi.new("struct tutti_tensor[2]")
    kept = [fill_tensor(described[0], tensor.indices, False, stream),
            fill_tensor(described[1], tensor.values, False, stream), described]
    indices, values = described
    sparse_dim, dense_dim = indices.sizes[0] if indices.dims == 2 else -1, values.dims - 1
    if indices.dims != 2 or indices.dtype != lib.TUTTI_INT64 or values.dims < 1:
        raise InvalidError("a sparse tensor has indices of int64, sparse dimensions x entries, and values, one row an entry")
    if (len(tensor.shape) != sparse_dim + dense_dim or indices.sizes[1] != values.sizes[0]
            or tuple(values.sizes[1:1 + dense_dim]) != tuple(tensor.shape[sparse_dim:])):
        raise InvalidError(f"indices, values and shape {tensor.shape} of a sparse tensor do not fit")
    for each in indices, values:
        check_row_major(each, each.sizes)
    sizes = ffi.new("int64_t[]", list(tensor.shape))
    struct.struct_size = ffi.sizeof("struct tutti_sparse_tensor")
    struct.dtype, struct.device, struct.device_index = values.dtype, values.device, values.device_index
    struct.sparse_dim, struct.dense_dim, struct.sizes, struct.nnz = sparse_dim, dense_dim, sizes, values.sizes[0]
    struct.indices, struct.values = ffi.cast("int64_t *", indices.data), values.data
    return [*kept, sizes]
