# SPDX-License-Identifier: MIT
"""Communicators and their collectives."""

from __future__ import annotations

import pickle
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Sequence, Tuple

import numpy as np

from tutti._buffers import Array, moved, operand, stream_value
from tutti._dtypes import DTYPES, HANDLES, QUANTS, SIZES, Op, algorithm_value, named_dtype, op_handle
from tutti._errors import InvalidError, Timeout, c_text, check, make_error, milliseconds, text
from tutti._groups import _group, _open_groups
from tutti._handle import Handle
from tutti._options import CallOptions, CommunicatorOptions, comm_options
from tutti._signals import Interrupt, call_in_thread
from tutti._store import Store, launcher
from tutti._tutti import ffi, lib

if TYPE_CHECKING:
    from typing_extensions import Unpack

_PROTOCOL = 5  # of pickle: every CPython that the package serves has it
_SIZE_OF_OPTIONS = ffi.sizeof("struct tutti_call_options")


def unique_id() -> bytes:
    """An id for the ranks of one communicator, to be copied to them by any means. It is a secret. This process must live
    until all ranks have their communicator, or, if they run on several hosts, until all have closed it. TUTTI_ID_ADDRESS
    names the address at which ranks of other hosts reach it. Raises InvalidError, NoMemoryError, SystemCallError."""
    made = ffi.new("struct tutti_unique_id *")
    check(lib.tutti_unique_id_create(made))
    return bytes(ffi.buffer(made))


def _dumped(value: Any) -> np.ndarray[Any, Any]:
    return np.frombuffer(pickle.dumps(value, _PROTOCOL), np.uint8)


def _loaded(data: Any, sizes: Sequence[int]) -> list[Any]:
    """The objects that lie one behind the other."""
    ends = list(accumulate(sizes))
    return [pickle.loads(data[begin:end].data) for begin, end in zip([0, *ends], ends)]


class Shrunk(NamedTuple):
    """The result of Communicator.shrink(). Operations count from 1; 0 is none."""

    comm: Communicator
    new_ranks: list[int]
    """By old rank; -1: left out."""
    completed_by_all: int
    """The last operation of the old communicator that all ranks of the new one have completed."""
    completed_by_any: int
    """The last operation of the old communicator that any rank of the new one has completed."""


Blocks = Tuple[Any, Any]  # counts and displacements: sequences or, with max_count, arrays; the latter may be None
_COUNTS = {DTYPES["int32"]: lib.TUTTI_CALL_INT32_COUNTS, DTYPES["int64"]: 0, DTYPES["uint64"]: 0}  # their flags
_REDUCE = lib.tutti_reduce_with, lib.tutti_reduce_scatter_with
# Without options: no stream, no struct.
_NOTHING: tuple[int, Any, Any] = 0, ffi.NULL, ffi.NULL


def _differ(send: tuple[Any, ...], send_blocks: int, recv: tuple[Any, ...], recv_blocks: int) -> InvalidError:
    def describe(name: str, given: tuple[Any, ...], blocks: int) -> str:
        if given[0] < 0:
            return f"{name} is None"
        dtype = text(lib.tutti_dtype_name(given[0]))
        return f"{name} has {given[1]} elements of {dtype} for {blocks} block{'s' if blocks > 1 else ''}"

    return InvalidError(f"send and recv do not fit: {describe('send', send, send_blocks)}, {describe('recv', recv, recv_blocks)}")


class Communicator(Handle):
    """The ranks of a node that call collectives together. Make one by from_env(), from_store() or from_id().

    All ranks make their calls in the same order; one thread at a time uses a communicator. Operands are numpy arrays,
    objects with __dlpack__ (PyTorch, CuPy, JAX), or other objects with a buffer, C-contiguous and of any alignment. On CPU
    a call blocks, without the GIL, until it is done. A signal handler that raises, as for Ctrl-C, ends the call
    and aborts the communicator.

    If a collective raises InvalidError, DeclinedError, ConcurrentError or VersionError, it has done nothing. If it
    raises TimeoutError, PeerDeadError, MismatchError, AbortedError or CudaError, the communicator has failed on all
    ranks. The conditions are those of the C functions of the same names.
    """

    def __init__(self) -> None:
        raise TypeError("use Communicator.from_env(), from_store() or from_id()")

    _title, _exit_order = "communicator", 1
    _store: Store | None
    _interrupt: Interrupt
    _kept: Any
    _groups: set[Any]  # of process groups, to be closed first
    rank: int
    world_size: int

    @classmethod
    def from_env(cls, **options: Unpack[CommunicatorOptions]) -> Communicator:
        """The communicator of all ranks that the launcher started: tutti run, torchrun, mpirun, srun."""
        me = launcher()
        store = Store("env:", options.get("timeout"))
        try:
            comm = cls.from_store(store, me.rank, me.world_size, **options)
        except BaseException:
            store.close()
            raise
        comm._store = store
        return comm

    @classmethod
    def from_store(cls, store: Store, rank: int, world_size: int, **options: Unpack[CommunicatorOptions]) -> Communicator:
        """Meets the other ranks at a store, which is used only during the call, with a fabric until the close.

        Raises also TimeoutError, PeerDeadError, MismatchError (the configurations differ), NoMemoryError, SystemCallError.
        """
        given, interrupt, kept = comm_options(options, world_size)
        # On CUDA the communicator uses this thread's current context, so this thread has to meet.
        # A fabric may belong to this thread, too.
        given.defer = given.device == lib.TUTTI_DEVICE_CPU and not given.fabric
        if given.fabric:
            kept.append(store)
        comm = ffi.new("tutti_comm_t **")

        def meet() -> None:
            status = lib.tutti_comm_rendezvous(comm[0])
            if status:
                raise make_error(status) from store.exception

        with store.in_use() as c_store:
            status = lib.tutti_comm_create(c_store, rank, world_size, given, comm)
            if status:
                raise make_error(status) from store.exception
            try:
                if given.defer:
                    call_in_thread(meet, lambda: lib.tutti_comm_abort(comm[0]))
            except BaseException:
                lib.tutti_comm_destroy(comm[0])
                raise
        return cls._of(comm[0], interrupt, kept)

    @classmethod
    def from_id(cls, unique_id: bytes, rank: int, world_size: int, **options: Unpack[CommunicatorOptions]) -> Communicator:
        """Meets the other ranks that have the id of tutti.unique_id(), without a store.

        Raises what from_store() raises; at once InvalidError (no id, or this rank has had its communicator), DeclinedError
        (of another host, without TUTTI_ID_ADDRESS), PeerDeadError or SystemCallError (the process that made the id has ended).
        """
        if len(unique_id) != ffi.sizeof("struct tutti_unique_id"):
            raise InvalidError(f"an id has {ffi.sizeof('struct tutti_unique_id')} bytes, not {len(unique_id)}")
        given, interrupt, kept = comm_options(options, world_size)
        c_id, comm = ffi.new("struct tutti_unique_id *", [unique_id]), ffi.new("tutti_comm_t **")

        def create() -> None:
            check(lib.tutti_comm_create_from_id(c_id, rank, world_size, given, comm))

        if given.device == lib.TUTTI_DEVICE_CPU:
            call_in_thread(create)
        else:
            create()
        return cls._of(comm[0], interrupt, kept)

    def split(self, color: int | None, key: int = 0, **options: Unpack[CommunicatorOptions]) -> Communicator | None:
        """A communicator of the ranks with this color, ordered by key, then by rank. All ranks call it.

        color    0 or more; None: this rank takes part and gets None
        options  of the new communicator; an absent one is as in this communicator

        Raises InvalidError, DeclinedError, ConcurrentError, TimeoutError, PeerDeadError, MismatchError,
        AbortedError, NoMemoryError, SystemCallError.
        """
        given, interrupt, kept = comm_options(options, None)
        comm = ffi.new("tutti_comm_t **")
        status = lib.tutti_comm_split(
            self._handle, lib.TUTTI_NO_COLOR if color is None else color, key, given, comm)
        if status:
            self._raise(status)
        return Communicator._of(comm[0], interrupt, kept) if comm[0] else None

    def dup(self, **options: Unpack[CommunicatorOptions]) -> Communicator:
        """A communicator of the same ranks, with its own operations. All ranks call it. Raises what split() raises."""
        given, interrupt, kept = comm_options(options, self.world_size)
        comm = ffi.new("tutti_comm_t **")
        status = lib.tutti_comm_dup(self._handle, given, comm)
        if status:
            self._raise(status)
        return Communicator._of(comm[0], interrupt, kept)

    @classmethod
    def _of(cls, handle: Any, interrupt: Interrupt, kept: Any) -> Communicator:
        comm = cls.__new__(cls)
        comm._interrupt, comm._kept, comm._store, comm._groups = interrupt, kept, None, set()
        comm.rank = lib.tutti_comm_rank(handle)
        comm.world_size = lib.tutti_comm_world_size(handle)
        comm._open(handle)
        return comm

    def _raise(self, status: int) -> None:
        """Raises the exception of a failed call: with the communicator's fault, or that of a signal handler."""
        exception, self._interrupt.exception = self._interrupt.exception, None
        if exception is not None:
            raise exception
        if not self._handle and status == lib.TUTTI_ERR_INVALID:
            raise InvalidError("the communicator is closed")
        raise make_error(status, lambda fault: lib.tutti_comm_status(self._handle, fault))

    def _extra(self, options: CallOptions) -> tuple[int, Any, Any]:
        """The stream as an integer and in C's type, and a struct tutti_call_options * or NULL."""
        if not options:
            return _NOTHING
        unknown = options.keys() - CallOptions.__annotations__.keys()
        if unknown:
            raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
        stream = stream_value(options.get("stream"))
        return stream, ffi.cast("tutti_stream_t", stream), ffi.new("struct tutti_call_options *", {
            "struct_size": _SIZE_OF_OPTIONS, "timeout_ms": milliseconds(options.get("timeout")),
            "algo": algorithm_value(options.get("algorithm")),
            "flags": ((0 if options.get("zero_copy", True) else lib.TUTTI_CALL_NO_ZERO_COPY)
                      | (lib.TUTTI_CALL_SYMMETRIC if options.get("symmetric") else 0)
                      | (lib.TUTTI_CALL_COPY_ENGINE if options.get("copy_engine") else 0)
                      | (lib.TUTTI_CALL_DEVICE_COUNTS if "max_count" in options else 0)),
            "max_blocks": options.get("max_blocks", 0), "max_count": options.get("max_count", 0)})

    def all_reduce(self, send: Array, recv: Array | None = None, op: str | Op = "sum",
                   **options: Unpack[CallOptions]) -> Any:
        """Sets recv[i] on every rank to op over all ranks' send[i]. recv None: in place. Returns recv.

        The result has the same bits on all ranks, for every size and algorithm except "ring".
        """
        stream, c_stream, extra = self._extra(options) if options else _NOTHING
        source, dtype, count, _kept = operand(send, recv is None, stream)
        target = source
        if recv is not None:
            target, to_dtype, to_count, _kept_too = operand(recv, True, stream)
            if to_count != count or to_dtype != dtype:
                raise _differ((dtype, count), 1, (to_dtype, to_count), 1)
        status = lib.tutti_all_reduce_with(
            source, target, count, dtype, HANDLES.get(op) or op_handle(op), self._handle, c_stream, extra)
        if status:
            self._raise(status)
        if _open_groups:
            self._keep(source, target, _kept, send, recv, op, extra)
        return send if recv is None else recv

    def all_reduce_rms_norm(self, input: Array, weight: Array, *, epsilon: float = 1e-6, weight_bias: float = 0.0,
                            residual: Array | None = None, residual_out: Array | None = None,
                            norm_out: Array | None = None, quant: str = "none", quant_out: Array | None = None,
                            scales: Array | None = None, scale_strides: tuple[int, int] = (0, 0),
                            **options: Unpack[CallOptions]) -> Any:
        """The sum over all ranks' input, of shape [tokens, hidden], then residual, RMSNorm and quantisation, in one
        operation: tutti_all_reduce_rms_norm() says what it computes, and what the arrays must be.

        weight         [hidden]; its size is the length of a row
        residual_out   the sum with the residual. None: written into residual, if that is given
        norm_out       None: input, if nothing is quantised, else no such output
        quant          "none", "fp8_tensor", "fp8_token", "fp8_group", "fp8_group_ue8m0" or "int8_token"; the others need
                       quant_out, of one byte for each element, and scales
        scale_strides  of scales by group: from one token, and from one group or word, to the next; (0, 0): rows without gaps

        Returns norm_out, else quant_out.
        """
        stream, c_stream, extra = self._extra(options)
        kind = next((value for name, value in QUANTS.items() if name == quant), None)
        if kind is None:
            raise InvalidError(f"quant {quant!r} is none of {', '.join(QUANTS)}")
        if norm_out is None and not kind:
            norm_out = input
        if residual_out is None:
            residual_out = residual
        source, dtype, count, *kept = operand(input, norm_out is input or residual_out is input, stream)
        weights, weight_dtype, hidden, *_kept = operand(weight, False, stream)
        norm = ffi.new("struct tutti_rms_norm *", {
            "struct_size": ffi.sizeof("struct tutti_rms_norm"), "tokens": count // hidden if hidden else 0, "hidden": hidden,
            "dtype": dtype, "input": ffi.cast("void *", source), "weight": ffi.cast("void *", weights),
            "weight_dtype": weight_dtype, "weight_bias": weight_bias, "epsilon": epsilon, "quant": kind,
            "scale_token_stride": scale_strides[0], "scale_group_stride": scale_strides[1]})
        kept += _kept
        for name, array in (("residual_in", residual), ("residual_out", residual_out), ("norm_out", norm_out)):
            if array is None:
                continue
            address, found, size, owner = operand(array, name != "residual_in", stream)
            if (found, size) != (dtype, count):
                raise _differ((dtype, count), 1, (found, size), 1)
            setattr(norm, name, ffi.cast("void *", address))
            kept.append(owner)
        for name, array in (("quant_out", quant_out), ("scales", scales)):
            if array is None:
                continue
            address, found, size, owner, _width = moved(array, name == "quant_out" or quant != "fp8_tensor", stream)
            if name == "quant_out" and SIZES[found] * size != count:
                raise InvalidError(f"quant_out has {SIZES[found] * size} bytes for {count} elements")
            setattr(norm, name, ffi.cast("void *", address))
            kept.append(owner)
        if hidden and count % hidden:
            raise InvalidError(f"input has {count} elements, which are no rows of {hidden}, as weight has")
        status = lib.tutti_all_reduce_rms_norm_with(norm, self._handle, c_stream, extra)
        if status:
            self._raise(status)
        return quant_out if norm_out is None else norm_out

    def _keep(self, *used: Any) -> None:
        """Keeps what a call uses until the end of this thread's group, if it has one."""
        if _group.depth:
            _group.kept.append((self, *used))

    def _run(self, function: Any, send: Array | None, recv: Array | None, send_blocks: int, recv_blocks: int,
             options: CallOptions, *arguments: Any) -> Any:
        """Calls function(send, recv, count, dtype, *arguments, ...) and returns recv; None is NULL. send and recv have so
        many blocks of `count` elements."""
        stream, c_stream, extra = self._extra(options)
        read = operand if function in _REDUCE else moved
        source = (ffi.NULL, -1, -1, None) if send is None else read(send, False, stream)
        target = (ffi.NULL, -1, -1, None) if recv is None else read(recv, True, stream)
        (_, dtype, count, *_), blocks = (target, recv_blocks) if send is None else (source, send_blocks)
        count, rest = divmod(count, blocks)  # of a block
        if dtype < 0 or rest or recv is not None and target[1:3] != (dtype, count * recv_blocks):
            raise _differ(source[1:3], send_blocks, target[1:3], recv_blocks)
        status = function(source[0], target[0], count, dtype, *arguments, self._handle, c_stream, extra)
        if status:
            self._raise(status)
        if _open_groups:
            self._keep(source, target, extra)
        return recv

    def _blocks(self, name: str, size: int, width: int, counts: Sequence[int],
                displacements: Sequence[int] | None) -> list[Any]:
        """The blocks of an operand in C's types, with `width` of the library's elements for each of the array's. Checks them
        against its size, which the library does not know."""
        size //= width
        places = [0, *accumulate(counts)][:-1] if displacements is None else displacements
        if not len(counts) == len(places) == self.world_size:
            raise InvalidError(f"{name} has {len(counts)} counts and {len(places)} displacements for {self.world_size} ranks")
        for rank, (count, place) in enumerate(zip(counts, places)):
            if count < 0 or place < 0 or count and count + place > size:
                raise InvalidError(
                    f"the block of rank {rank}, {count} elements from {place} on, is not in {name}, which has {size}")
        return [ffi.new("size_t[]", [number * width for number in numbers]) for numbers in (counts, places)]

    def _device_blocks(self, name: str, stream: int, flags: set[int], counts: Array,
                       displacements: Array | None) -> list[Any]:
        """The same, of arrays that are read when the operation runs. The library checks what they hold. Adds the flag of
        each array's dtype."""
        found = []
        for array in counts, displacements:
            if array is None:
                found.append(ffi.NULL)
                continue
            address, dtype, size, owner = operand(array, False, stream)
            if dtype not in _COUNTS or size != self.world_size:
                raise InvalidError(f"{name}: with max_count, counts and displacements are arrays of {self.world_size} int32, "
                                   f"int64 or uint64: this one has {size} {text(lib.tutti_dtype_name(dtype))}")
            flags.add(_COUNTS[dtype])
            found.append(ffi.cast("size_t *", address))
            if _open_groups:
                self._keep(owner, array)
        return found

    def _run_v(self, function: Any, send: Array | None, recv: Array | None, sent: Blocks | None, received: Blocks | None,
               options: CallOptions, *arguments: Any, reduces: bool = False) -> Any:
        """Calls function(send, ..., recv, ..., dtype, *arguments, ...) and returns recv. An operand of one block for each
        rank has counts and displacements; None: the operand is one block."""
        stream, c_stream, extra = self._extra(options)
        dtype, given = None, []
        flags: set[int] = set()
        for name, array, blocks in (("send", send, sent), ("recv", recv, received)):
            if array is None:
                given += [ffi.NULL, 0] if blocks is None else [ffi.NULL, ffi.NULL, ffi.NULL]
                continue
            used = (*operand(array, name == "recv", stream), 1) if reduces else moved(array, name == "recv", stream)
            address, found, size, _kept, width = used
            if dtype not in (None, found):
                raise InvalidError("send and recv differ in their dtype")
            dtype = found
            if "max_count" in options:
                if width != 1 or not size:
                    raise InvalidError(f"{name}: with max_count an array has elements, of one of the library's dtypes")
                setattr(extra, f"{name}_extent", size)
            given += [address, *([size] if blocks is None else self._device_blocks(name, stream, flags, *blocks)
                                 if "max_count" in options else self._blocks(name, size, width, *blocks))]
            if _open_groups:
                self._keep(_kept)
        if dtype is None:
            raise InvalidError("neither send nor recv is given")
        if len(flags) > 1:
            raise InvalidError("with max_count, counts and displacements are all int32, or all int64 and uint64")
        for flag in flags:
            extra.flags |= flag
        status = function(*given, dtype, *arguments, self._handle, c_stream, extra)
        if status:
            self._raise(status)
        if _open_groups:
            self._keep(given, extra)
        return recv

    def all_gather_v(self, send: Array, recv: Array, counts: Sequence[int], displacements: Sequence[int] | None = None,
                     **options: Unpack[CallOptions]) -> Any:
        """all_gather() of blocks of different lengths: block r of recv has counts[r] elements, from displacements[r] on.

        counts are equal on all ranks. displacements None, here and below: the blocks lie one behind the other.
        """
        return self._run_v(lib.tutti_all_gather_v_with, send, recv, None, (counts, displacements), options)

    def reduce_scatter_v(self, send: Array, recv: Array, counts: Sequence[int], displacements: Sequence[int] | None = None,
                         op: str | Op = "sum", **options: Unpack[CallOptions]) -> Any:
        """reduce_scatter() of blocks of different lengths: recv on rank r has counts[r] elements. Equal on all ranks."""
        def call(send: Any, c_counts: Any, c_displacements: Any, recv: Any, count: int, *others: Any) -> int:
            if "max_count" not in options and count != counts[self.rank]:
                raise InvalidError(f"recv has {count} elements, the block of this rank {counts[self.rank]}")
            return int(lib.tutti_reduce_scatter_v_with(send, c_counts, c_displacements, recv, *others))

        return self._run_v(call, send, recv, (counts, displacements), None, options, op_handle(op), reduces=True)

    def all_to_all_v(self, send: Array, recv: Array, send_counts: Sequence[int], recv_counts: Sequence[int],
                     send_displacements: Sequence[int] | None = None, recv_displacements: Sequence[int] | None = None,
                     **options: Unpack[CallOptions]) -> Any:
        """all_to_all() of blocks of different lengths: block p of send on rank r goes to block r of recv on rank p. Not in
        place."""
        return self._run_v(lib.tutti_all_to_all_v_with, send, recv, (send_counts, send_displacements),
                           (recv_counts, recv_displacements), options)

    def gather_v(self, send: Array, recv: Array | None = None, counts: Sequence[int] = (),
                 displacements: Sequence[int] | None = None, root: int = 0, **options: Unpack[CallOptions]) -> Any:
        """gather() of blocks of different lengths. recv, counts and displacements are the root's."""
        return self._run_v(lib.tutti_gather_v_with, send, recv if self.rank == root else None, None,
                           (counts, displacements), options, root)

    def scatter_v(self, send: Array | None, recv: Array, counts: Sequence[int] = (),
                  displacements: Sequence[int] | None = None, root: int = 0, **options: Unpack[CallOptions]) -> Any:
        """scatter() of blocks of different lengths. send, counts and displacements are the root's."""
        return self._run_v(lib.tutti_scatter_v_with, send if self.rank == root else None, recv, (counts, displacements),
                           None, options, root)

    def all_gather(self, send: Array, recv: Array, **options: Unpack[CallOptions]) -> Any:
        """Gathers one block from each rank: block r of recv is rank r's send. Returns recv.

        recv has world_size times the elements of send. In place, send is this rank's block of recv.
        """
        return self._run(lib.tutti_all_gather_with, send, recv, 1, self.world_size, options)

    def reduce_scatter(self, send: Array, recv: Array, op: str | Op = "sum", **options: Unpack[CallOptions]) -> Any:
        """Reduces one block for each rank: recv on rank r is op over all ranks' block r of send. Returns recv.

        send has world_size times the elements of recv. In place, recv is this rank's block of send.
        """
        return self._run(lib.tutti_reduce_scatter_with, send, recv, self.world_size, 1, options, op_handle(op))

    def all_to_all(self, send: Array, recv: Array | None = None, **options: Unpack[CallOptions]) -> Any:
        """Sends one block to each rank: block r of recv on rank p is block p of send on rank r. Returns recv.

        send and recv have world_size blocks of one size. recv None: in place.
        """
        return self._run(lib.tutti_all_to_all_with, send, send if recv is None else recv, self.world_size,
                         self.world_size, options)

    def broadcast(self, send: Array | None, recv: Array | None = None, root: int = 0,
                  **options: Unpack[CallOptions]) -> Any:
        """Sets recv on every rank to the root's send. Returns recv. recv None: the array `send` receives.

        The other ranks may pass None for send.
        """
        recv = send if recv is None else recv
        return self._run(lib.tutti_broadcast_with, send if self.rank == root else None, recv, 1, 1, options, root)

    def reduce(self, send: Array, recv: Array | None = None, op: str | Op = "sum", root: int = 0,
               **options: Unpack[CallOptions]) -> Any:
        """Sets recv on the root to op over all ranks' send, with the bits of the all-reduce. Returns recv, the root's.

        recv None: in place at the root. The other ranks' recv is ignored.
        """
        recv = None if self.rank != root else send if recv is None else recv
        return self._run(lib.tutti_reduce_with, send, recv, 1, 1, options, op_handle(op), root)

    def gather(self, send: Array, recv: Array | None = None, root: int = 0, **options: Unpack[CallOptions]) -> Any:
        """Sets block r of recv on the root to rank r's send. Returns recv, the root's.

        recv has world_size times the elements of send; the other ranks' recv is ignored, but with symmetric or copy_engine.
        In place, send is the root's block of recv.
        """
        needed = self.rank == root or options.get("symmetric") or options.get("copy_engine")
        found = self._run(lib.tutti_gather_with, send, recv if needed else None, 1, self.world_size, options, root)
        return found if self.rank == root else None

    def scatter(self, send: Array | None, recv: Array, root: int = 0, **options: Unpack[CallOptions]) -> Any:
        """Sets recv on rank r to block r of the root's send. Returns recv.

        send has world_size times the elements of recv; the other ranks' send is ignored. In place, recv is the root's
        block of send.
        """
        return self._run(lib.tutti_scatter_with, send if self.rank == root else None, recv, self.world_size, 1, options,
                         root)

    def send(self, array: Array, peer: int, **options: Unpack[CallOptions]) -> None:
        """Sends the elements of an array to rank `peer`, which takes them by recv(). Returns once array may be reused."""
        stream, c_stream, extra = self._extra(options)
        source, dtype, count, _kept, _ = moved(array, False, stream)
        status = lib.tutti_send_with(source, count, dtype, peer, self._handle, c_stream, extra)
        if status:
            self._raise(status)
        if _open_groups:
            self._keep(source, _kept, extra)

    def recv(self, array: Array, peer: int, **options: Unpack[CallOptions]) -> Any:
        """Takes the next message of rank `peer`, of array's dtype and size. Returns array."""
        stream, c_stream, extra = self._extra(options)
        target, dtype, count, _kept, _ = moved(array, True, stream)
        status = lib.tutti_recv_with(target, count, dtype, peer, self._handle, c_stream, extra)
        if status:
            self._raise(status)
        if _open_groups:
            self._keep(target, _kept, extra)
        return array

    def send_recv(self, send: Array, to: int, recv: Array, source: int, stream: Any = None) -> Any:
        """Sends to rank `to` and receives from rank `source` at the same time; both may be the caller. One dtype, two
        sizes. Returns recv."""
        value = stream_value(stream)
        sent, dtype, send_count, _kept, _ = moved(send, False, value)
        target, to_dtype, recv_count, _kept_too, _ = moved(recv, True, value)
        if to_dtype != dtype:
            raise _differ((dtype, send_count), 1, (to_dtype, recv_count), 1)
        status = lib.tutti_send_recv(sent, send_count, to, target, recv_count, source, dtype, self._handle,
                                     ffi.cast("tutti_stream_t", value))
        if status:
            self._raise(status)
        if _open_groups:
            self._keep(sent, target, _kept, _kept_too)
        return recv

    def barrier(self, ranks: Sequence[int] = (), **options: Unpack[CallOptions]) -> None:
        """Returns after every rank, or every rank of a subset that contains the caller, has called it."""
        _, c_stream, extra = self._extra(options)
        subset = ffi.new("int[]", list(ranks)) if len(ranks) else ffi.NULL
        status = lib.tutti_barrier_with(self._handle, subset, len(ranks), c_stream, extra)
        if status:
            self._raise(status)
        if _open_groups:
            self._keep(subset, extra)

    # ---- picklable objects: two calls, of the sizes and of the bytes, so not in a group

    def _sizes(self) -> Any:
        if _group.depth:
            raise InvalidError("objects cannot be moved in a group of calls: their sizes are needed first")
        return np.empty(self.world_size, np.int64)

    def broadcast_object(self, value: Any = None, root: int = 0, **options: Unpack[CallOptions]) -> Any:
        """Returns the root's value, which is pickled, on all ranks. The others need not pass one. On CPU, here and below.

        Receiving an object runs code that its sender chooses."""
        size, data = self._sizes()[:1], None
        if self.rank == root:
            data = _dumped(value)
            size[0] = data.size
        self.broadcast(size, root=root, **options)
        received = np.empty(size[0], np.uint8)
        self.broadcast(data, received, root, **options)
        return value if self.rank == root else pickle.loads(received.data)

    def all_gather_object(self, value: Any, **options: Unpack[CallOptions]) -> list[Any]:
        """Returns the values of all ranks, in rank order."""
        sizes, data = self._sizes(), _dumped(value)
        self.all_gather(np.array([data.size]), sizes, **options)
        counts = sizes.tolist()
        return _loaded(self.all_gather_v(data, np.empty(sum(counts), np.uint8), counts, **options), counts)

    def gather_object(self, value: Any, root: int = 0, **options: Unpack[CallOptions]) -> list[Any] | None:
        """Returns the values of all ranks, in rank order, on the root; None on the others."""
        sizes, data = self._sizes(), _dumped(value)
        if self.rank != root:
            self.gather(np.array([data.size]), root=root, **options)
            self.gather_v(data, root=root, **options)
            return None
        self.gather(np.array([data.size]), sizes, root, **options)
        counts = sizes.tolist()
        return _loaded(self.gather_v(data, np.empty(sum(counts), np.uint8), counts, root=root, **options), counts)

    def scatter_object(self, values: Sequence[Any] | None = None, root: int = 0, **options: Unpack[CallOptions]) -> Any:
        """Returns value r of the root's sequence on rank r."""
        sizes, size, data = None, self._sizes()[:1], None
        if self.rank == root:
            if values is None or len(values) != self.world_size:
                raise InvalidError(f"the root scatters {'None' if values is None else f'{len(values)} objects'} to "
                                   f"{self.world_size} ranks: expected an object for each rank")
            dumped = [_dumped(value) for value in values]
            sizes, data = np.array([each.size for each in dumped]), np.concatenate(dumped)
        self.scatter(sizes, size, root, **options)
        received = np.empty(size[0], np.uint8)
        self.scatter_v(data, received, () if sizes is None else sizes.tolist(), root=root, **options)
        return pickle.loads(received.data)

    def send_object(self, value: Any, peer: int, **options: Unpack[CallOptions]) -> None:
        """Sends a value to rank `peer`, which takes it by recv_object()."""
        size, data = self._sizes()[:1], _dumped(value)
        size[0] = data.size
        self.send(size, peer, **options)
        self.send(data, peer, **options)

    def recv_object(self, peer: int, **options: Unpack[CallOptions]) -> Any:
        """Returns the value of the next send_object() of rank `peer`."""
        size = self.recv(self._sizes()[:1], peer, **options)
        received = np.empty(size[0], np.uint8)
        self.recv(received, peer, **options)
        return pickle.loads(received.data)

    # ---- queries and the end

    def algorithm(self, count: int, dtype: Any = "float32", op: str | Op = "sum",
                  **options: Unpack[CallOptions]) -> tuple[str, str]:
        """The algorithm that an all-reduce of count elements would use, and the reason. Local."""
        algo, reason = ffi.new("enum tutti_algo *"), ffi.new("char **")
        check(lib.tutti_comm_algorithm(self.handle, count, named_dtype(dtype), op_handle(op), self._extra(options)[2], algo,
                                       reason))
        return text(lib.tutti_algo_name(algo[0])), text(reason[0])

    def status(self) -> None:
        """If the communicator has failed, raises the exception of the fault. Does not wait."""
        status = lib.tutti_comm_status(self.handle, ffi.NULL)
        if status:
            self._raise(status)

    def describe(self) -> dict[str, str]:
        """Name, state, rank, world size, device, leaf order, algorithm, topology and its reason, memory, ... as text."""
        size = lib.tutti_comm_describe(self.handle, ffi.NULL, 0) + 4096
        buffer = ffi.new("char[]", size)
        lib.tutti_comm_describe(self.handle, buffer, size)
        found: dict[str, str] = {}
        for line in text(buffer).splitlines():
            key, _, value = line.partition(": ")
            found[key] = f"{found[key]}\n{value}" if key in found else value  # a line of "links" for each rank
        return found

    def dump(self, pattern: str | None = None) -> None:
        """Dumps this rank's flight recorder to a file, for `tutti diagnose`. Any thread may call it.

        pattern: a directory, or a path with %r (rank), %p (process id), %n, %g, %h; None: as TUTTI_DUMP says.
        """
        check(lib.tutti_comm_dump(self.handle, ffi.NULL if pattern is None else c_text(pattern)))

    def finalize(self, timeout: Timeout = None) -> None:
        """Waits until the operations that this rank has enqueued have ended; the communicator then takes no more."""
        status = lib.tutti_comm_finalize(self.handle, milliseconds(timeout))
        if status:
            self._raise(status)

    def shrink(self, store: Store, exclude: Sequence[int] = (), timeout: Timeout = None) -> Shrunk:
        """Makes a new communicator of the remaining ranks. All of them call this. Close the old communicator, too.

        store    another handle to the store of this communicator, or any store that the ranks can reach; with a fabric kept
                 until the close
        exclude  live ranks to leave out
        timeout  seconds for the whole call; None: the communicator's

        Raises DeclinedError (the others go on without this rank), TimeoutError, PeerDeadError, AbortedError,
        ConcurrentError, MismatchError, NoMemoryError, SystemCallError, CudaError.
        """
        excluded, ranks = ffi.new("int[]", list(exclude)), ffi.new("int[]", self.world_size)
        options = ffi.new("struct tutti_shrink_options *", {
            "struct_size": ffi.sizeof("struct tutti_shrink_options"), "exclude": excluded if exclude else ffi.NULL,
            "exclude_count": len(exclude), "timeout_ms": milliseconds(timeout)})
        result = ffi.new("struct tutti_shrink_result *", {
            "struct_size": ffi.sizeof("struct tutti_shrink_result"), "capacity": self.world_size, "new_ranks": ranks})
        comm = ffi.new("tutti_comm_t **")
        check(lib.tutti_comm_shrink(self.handle, store.handle, options, comm, result))
        # The new communicator keeps the progress function of the old one, and its context with it.
        kept = [*self._kept, store]
        return Shrunk(Communicator._of(comm[0], self._interrupt, kept), list(ranks), result.completed_by_all,
                      result.completed_by_any)

    def close(self) -> None:
        """Destroys the communicator, and its process groups. Local. Operations of peers that still need this rank get
        PeerDeadError. Calls of other threads end first, by abort(). Raises InvalidError if a group of calls that is not
        ended has calls of the communicator, or if a signal handler interrupts one; ConcurrentError if a call of another
        thread goes on for 10 s."""
        if any(call[0] is self for call in _group.kept):
            raise InvalidError("the communicator has calls in a group: close it after the end of the group")
        for group in list(self._groups):
            group.close()
        super().close()
        store, self._store = self._store, None
        if store:
            store.close()

    def _destroy(self, handle: Any) -> int:
        return int(lib.tutti_comm_destroy(handle))

    def _abort(self, handle: Any) -> None:
        lib.tutti_comm_abort(handle)

    def abort(self) -> None:
        """Ends all waits on all ranks with AbortedError. Any thread may call it, also in a signal handler."""
        lib.tutti_comm_abort(self._handle)

    def __repr__(self) -> str:
        return f"<tutti.Communicator rank {self.rank} of {self.world_size}>"
