# SPDX-License-Identifier: MIT
"""Communicators and their collectives."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Callable, Sequence, TypedDict, TypeVar

from tutti._buffers import Operand, operand, stream_value
from tutti._dtypes import Op, algorithm_value, op_handle
from tutti._errors import InvalidError, make_error, milliseconds
from tutti._store import Store, launcher
from tutti._tutti import ffi, lib

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
_DEVICES = {"cpu": lib.TUTTI_DEVICE_CPU, "cuda": lib.TUTTI_DEVICE_CUDA}
_SIZE_OF_OPTIONS = ffi.sizeof("struct tutti_call_options")


class CommunicatorOptions(TypedDict, total=False):
    """Options of a communicator; struct tutti_comm_options describes them. One that is absent is the library's default."""

    name: str
    """Only ranks with the same name meet."""
    device: str
    """"cpu" or "cuda"."""
    timeout: float | None
    """Seconds, for the meeting and for each operation."""
    buffer_size: int
    strict: bool
    algorithm: str | None
    leaf_order: Sequence[int]
    programmatic_launch: bool
    arena_bytes: int


class CallOptions(TypedDict, total=False):
    """Options of a collective.

    timeout    seconds from the operation's first wait; None: the communicator's
    algorithm  of an all-reduce, equal on all ranks: "one_shot", "two_shot", ...; None: the communicator's choice
    zero_copy  False: copy, also where the operands are symmetric memory
    stream     of a CUDA communicator: an address, or a stream of PyTorch, CuPy, Numba or cuda.core. The call returns after
               the operation is enqueued. None: the legacy default stream
    """

    timeout: float | None
    algorithm: str | None
    zero_copy: bool
    stream: Any


class _Interrupt:
    """The exception that a signal handler raised while an operation waited."""

    exception: BaseException | None = None


def _keep_exception(kind: Any, exception: BaseException, traceback: Any) -> None:
    ffi.from_handle(traceback.tb_frame.f_locals["interrupt"]).exception = exception


@ffi.def_extern(name="tutti_python_signals", error=1, onerror=_keep_exception)  # type: ignore[untyped-decorator]
def _signals(interrupt: Any) -> int:
    # Python runs the handlers of pending signals at the begin of any function, or in the loop.
    for _ in range(1):
        pass
    return 0


def _comm_options(given: CommunicatorOptions, world_size: int) -> tuple[Any, list[Any]]:
    """A struct tutti_comm_options *, and what it refers to."""
    options = ffi.new("struct tutti_comm_options *", {"struct_size": ffi.sizeof("struct tutti_comm_options")})
    kept: list[Any] = []
    unknown = given.keys() - CommunicatorOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
    if "name" in given:
        kept.append(ffi.new("char[]", given["name"].encode()))
        options.name = kept[-1]
    device = given.get("device", "cpu")
    if device not in _DEVICES:
        raise InvalidError(f"no device {device!r}: cpu or cuda")
    options.device = _DEVICES[device]
    options.timeout_ms = milliseconds(given.get("timeout"))
    options.buffer_size = given.get("buffer_size", 0)
    options.arena_bytes = given.get("arena_bytes", 0)
    options.algo = algorithm_value(given.get("algorithm"))
    if "strict" in given:
        options.strict = lib.TUTTI_STRICT_ON if given["strict"] else lib.TUTTI_STRICT_OFF
    if "programmatic_launch" in given:
        options.programmatic_launch = (
            lib.TUTTI_PROGRAMMATIC_ON if given["programmatic_launch"] else lib.TUTTI_PROGRAMMATIC_OFF)
    if "leaf_order" in given:
        if len(given["leaf_order"]) != world_size:
            raise InvalidError(f"leaf_order has {len(given['leaf_order'])} ranks, the communicator {world_size}")
        kept.append(ffi.new("int[]", list(given["leaf_order"])))
        options.leaf_order = kept[-1]
    return options, kept


class Communicator:
    """The ranks of a node that call collectives together. Make one by from_env() or from_store().

    All ranks make their calls in the same order; one thread at a time uses a communicator. Operands are numpy arrays,
    objects with __dlpack__ (PyTorch, CuPy, JAX), or other objects with a buffer, C-contiguous and of any alignment. On CPU
    a call blocks, without the GIL, until it is done; a signal handler that raises, such as Ctrl-C, ends it and aborts
    the communicator.

    A collective raises InvalidError, DeclinedError, ConcurrentError or VersionError, and has then done nothing; or
    TimeoutError, PeerDeadError, MismatchError, AbortedError or CudaError, and the communicator has then failed on all
    ranks. The conditions are those of the C functions of the same names.
    """

    def __init__(self) -> None:
        raise TypeError("use Communicator.from_env() or Communicator.from_store()")

    _handle: Any
    _store: Store | None
    _interrupt: _Interrupt
    _kept: Any
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
        """Meets the other ranks at a store, which is used until the return.

        Raises also TimeoutError, PeerDeadError, MismatchError (the configurations differ), NoMemoryError, SystemCallError.
        """
        given, kept = _comm_options(options, world_size)
        interrupt = _Interrupt()
        if given.device == lib.TUTTI_DEVICE_CPU:
            handle = ffi.new_handle(interrupt)
            progress = ffi.new("struct tutti_python_progress *", {
                "interrupt": handle, "thread": threading.main_thread().native_id or 0})
            kept += handle, progress
            given.progress = ffi.addressof(lib, "tutti_python_progress")
            given.progress_context = progress
        comm = ffi.new("tutti_comm_t **")
        status = lib.tutti_comm_create(store.handle, rank, world_size, given, comm)
        if status:
            raise make_error(status)
        return cls._of(comm[0], interrupt, kept)

    @classmethod
    def _of(cls, handle: Any, interrupt: _Interrupt, kept: Any) -> Communicator:
        comm = cls.__new__(cls)
        comm._handle, comm._interrupt, comm._kept, comm._store = handle, interrupt, kept, None
        comm.rank = lib.tutti_comm_rank(handle)
        comm.world_size = lib.tutti_comm_world_size(handle)
        return comm

    @property
    def handle(self) -> Any:
        """The tutti_comm_t *, for calls of tutti._lib."""
        if not self._handle:
            raise InvalidError("the communicator is closed")
        return self._handle

    def _raise(self, status: int) -> None:
        """Raises the exception of a call on this communicator: with the fault, or what a signal handler raised."""
        exception, self._interrupt.exception = self._interrupt.exception, None
        if exception is not None:
            raise exception
        if not self._handle:
            raise InvalidError("the communicator is closed")
        error = make_error(status)
        fault = ffi.new("struct tutti_fault *", {"struct_size": ffi.sizeof("struct tutti_fault")})
        if lib.tutti_comm_status(self._handle, fault) == status and fault.status == status:
            error.rank, error.sequence = fault.rank, fault.sequence
            error.peer = None if fault.peer < 0 else fault.peer
        raise error

    def all_reduce(self, send: Any, recv: Any = None, op: str | Op = "sum", **options: Unpack[CallOptions]) -> Any:
        """Sets recv[i] on every rank to op over all ranks' send[i]. Returns recv. recv None: in place, in send.

        The result has the same bits on all ranks, for every size and algorithm (except "ring").
        """
        source, dtype, count, _ = operand(send, recv is None)
        target = source
        if recv is not None:
            target, *same, _ = operand(recv, True)
            if same != [dtype, count]:
                raise InvalidError("send and recv differ in dtype or size")
        status = lib.tutti_all_reduce(source, target, count, dtype, op_handle(op), self._handle, ffi.NULL)
        if status:
            self._raise(status)
        return send if recv is None else recv

    def close(self) -> None:
        """Destroys the communicator. Local. Operations of peers that still need this rank get PeerDeadError."""
        handle, self._handle = self._handle, ffi.NULL
        lib.tutti_comm_destroy(handle)
        store, self._store = self._store, None
        if store:
            store.close()

    def abort(self) -> None:
        """Ends all waits on all ranks with AbortedError. Any thread may call it, also in a signal handler."""
        lib.tutti_comm_abort(self._handle)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def __repr__(self) -> str:
        return f"<tutti.Communicator rank {self.rank} of {self.world_size}>"
