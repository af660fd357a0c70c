# SPDX-License-Identifier: MIT
"""One exception class for each status of the library."""

from __future__ import annotations

import builtins
import threading
from datetime import timedelta
from numbers import Real
from typing import Any, Union

from tutti._tutti import ffi, lib

Timeout = Union[float, timedelta, None]
"""Seconds; None: the default."""


class Error(RuntimeError):
    """A call of the library failed. The text says what was wrong, on which rank, and what to do.

    status    the value of enum tutti_status
    rank      the rank that noticed the fault; None if no fault of a communicator or work is known
    peer      the rank that caused it; None if no single rank did
    sequence  the number of that operation, from 1; 0 before the first
    remedy    the last part of the text, what to do; "" if the text has none
    """

    status: int = lib.TUTTI_ERR_INVALID
    rank: int | None = None
    peer: int | None = None
    sequence: int | None = None

    @property
    def remedy(self) -> str:
        return str(self).rpartition(": ")[2] if ": " in str(self) else ""


class InvalidError(Error, ValueError):
    """An argument, option or environment variable is wrong. The call has done nothing."""


class DeclinedError(Error):
    """The library does not serve this machine, these ranks or this request."""

    status = lib.TUTTI_ERR_DECLINED


class TimeoutError(Error, builtins.TimeoutError):
    """A peer did not arrive in time."""

    status = lib.TUTTI_ERR_TIMEOUT


class PeerDeadError(Error):
    """The process of the rank `peer` ended, or destroyed its communicator."""

    status = lib.TUTTI_ERR_PEER_DEAD


class MismatchError(Error):
    """The ranks disagree about the operation or the configuration."""

    status = lib.TUTTI_ERR_MISMATCH


class ConcurrentError(Error):
    """Two callers used one communicator at the same time."""

    status = lib.TUTTI_ERR_CONCURRENT


class AbortedError(Error):
    """A rank aborted the communicator."""

    status = lib.TUTTI_ERR_ABORTED


class NoMemoryError(Error, MemoryError):
    """An allocation failed."""

    status = lib.TUTTI_ERR_NO_MEMORY


class SystemCallError(Error):
    """A system call failed."""

    status = lib.TUTTI_ERR_SYSTEM


class CudaError(Error):
    """A CUDA call failed."""

    status = lib.TUTTI_ERR_CUDA


class VersionError(Error):
    """The ranks, or the program and the library, have incompatible versions."""

    status = lib.TUTTI_ERR_VERSION


_CLASSES: dict[int, type[Error]] = {cls.status: cls for cls in (
    InvalidError, DeclinedError, TimeoutError, PeerDeadError, MismatchError, ConcurrentError, AbortedError,
    NoMemoryError, SystemCallError, CudaError, VersionError)}


# Names in the library's texts, and their names in Python.
_NAMES = {
    "tutti_comm_abort()": "Communicator.abort()",
    "tutti_comm_create()": "Communicator.from_store()",
    "tutti_comm_shrink()": "Communicator.shrink()",
    "in options->exclude": "in exclude",
    "a group (tutti_group_start())": "`with tutti.group():`",
    "tutti_op_create_premul_sum()": "tutti.premul_sum()",
    "tutti_pg_create()": "tutti.ProcessGroup()",
    "tutti_symm_rendezvous()": "rendezvous()",
    "tutti_unique_id_create()": "tutti.unique_id()",
}


def text(string: Any) -> str:
    """A C string."""
    return str(ffi.string(string).decode(errors="replace"))


def make_error(status: int, fault_of: Any = None) -> Error:
    """The exception of the calling thread's last error. fault_of(fault) fills the fault of the object that has failed."""
    message = text(lib.tutti_last_error())
    for name, name_here in _NAMES.items():
        message = message.replace(name, name_here)
    error = _CLASSES.get(status, Error)(message)
    error.status = status
    if fault_of is not None:
        fault = ffi.new("struct tutti_fault *", {"struct_size": ffi.sizeof("struct tutti_fault")})
        fault_of(fault)
        if fault.status == status:
            error.rank = fault.rank
            error.peer = None if fault.peer < 0 else fault.peer
            error.sequence = fault.sequence
    return error


def c_text(value: str) -> bytes:
    """The text for C, which ends a text at its first NUL."""
    if "\0" in value:
        raise InvalidError(f"{value!r} contains a NUL character: names, keys and URLs have none")
    return value.encode()


def check(status: int) -> None:
    """Raises the exception of a status other than TUTTI_OK."""
    if status:
        raise make_error(status)


def milliseconds(timeout: Timeout) -> int:
    """A time-out in C's form: None is 0, the default; negative, infinite, or longer than 292 years never ends."""
    if timeout is None:
        return 0
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if not isinstance(seconds, Real) or seconds != seconds:
        raise InvalidError(f"timeout is {timeout!r}: expected seconds (a number or a datetime.timedelta), or None")
    if seconds < 0 or seconds > threading.TIMEOUT_MAX:
        return -1
    return max(1, round(seconds * 1000))
