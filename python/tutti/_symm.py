# SPDX-License-Identifier: MIT
"""Symmetric memory: each rank's buffer is mapped by all ranks."""

from __future__ import annotations

import math
import weakref
from contextlib import nullcontext
from typing import Any

import numpy as np

from tutti._buffers import DeviceMemory, host_array, stream_value
from tutti._dtypes import SIZES, named_dtype
from tutti._errors import InvalidError, Timeout, c_text, check, milliseconds
from tutti._handle import Handle
from tutti._info import info
from tutti._options import DEVICES
from tutti._store import Store
from tutti._tutti import ffi, lib


class SymmetricGroup(Handle):
    """1 to 64 ranks that share memory.

    name   1 to 63 bytes, equal on all ranks; a process registers a name only once for each rank
    store  stays open until the group's first rendezvous() has ended

    Raises InvalidError (also if the name is registered), NoMemoryError, SystemCallError.
    """

    _title = "group"

    def __init__(self, name: str, rank: int, world_size: int, store: Store) -> None:
        group = ffi.new("tutti_symm_group_t **")
        check(lib.tutti_symm_group(c_text(name), rank, world_size, store.handle, group))
        self._store, self.rank, self.world_size = store, rank, world_size
        self._has_met = False
        self._memory: weakref.WeakSet[SymmetricMemory] = weakref.WeakSet()
        self._open(group[0])

    def alloc(self, shape: int | tuple[int, ...], dtype: Any = "float32", device: str = "cpu") -> SymmetricMemory:
        """Allocates a zeroed array on this rank. Local. device "cuda": the current CUDA device.

        Raises InvalidError, NoMemoryError, SystemCallError, CudaError, DeclinedError.
        """
        return SymmetricMemory(self, (shape,) if isinstance(shape, int) else tuple(shape), named_dtype(dtype), device)

    def close(self) -> None:
        """Frees the group and its memory. Its arrays must not be used any more. Local. Raises what free() raises."""
        for memory in list(self._memory):
            memory.free()
        super().close()

    def _destroy(self, handle: Any) -> None:
        lib.tutti_symm_group_destroy(handle)


class SymmetricMemory(Handle):
    """An array on each rank of a group. `array` is this rank's: a numpy array, or an object with
    __dlpack__ and __cuda_array_interface__. It keeps the memory, until free() or the group's close()."""

    _title = "memory"

    def __init__(self, group: SymmetricGroup, shape: tuple[int, ...], dtype: int, device: str) -> None:
        buffer = ffi.new("void **")
        if device not in DEVICES:
            raise InvalidError(f"no device {device!r}: cpu or cuda")
        check(lib.tutti_symm_alloc(group.handle, DEVICES[device], SIZES[dtype] * math.prod(shape), buffer))
        self.group, self.shape, self._dtype, self._device = group, shape, dtype, device
        self._device_index = int(info("cuda.device")) if device == "cuda" else -1
        self._open(buffer[0])
        group._memory.add(self)

    def _view(self, address: Any, shape: tuple[int, ...], dtype: int) -> Any:
        if self._device == "cpu":
            return host_array(address, shape, dtype, self)
        return DeviceMemory(address, shape, dtype, self, self._device_index)

    @property
    def array(self) -> Any:
        """This rank's array."""
        return self._view(self.handle, self.shape, self._dtype)

    def rendezvous(self, timeout: Timeout = None) -> SymmetricMemory:
        """Maps the memory of all ranks. All ranks call it for their allocations in the same order. Returns itself.

        Raises InvalidError, DeclinedError, TimeoutError, PeerDeadError, MismatchError (the sizes differ),
        ConcurrentError, NoMemoryError, SystemCallError, VersionError, CudaError.
        """
        with nullcontext() if self.group._has_met else self.group._store.in_use():
            check(lib.tutti_symm_rendezvous(self.handle, milliseconds(timeout), ffi.NULL))
        self.group._has_met = True
        return self

    def peer(self, rank: int, shape: tuple[int, ...] | None = None, dtype: Any = None, offset: int = 0) -> Any:
        """The array of a rank, after rendezvous(); or one of another shape and dtype from element `offset` on."""
        shape, value = self.shape if shape is None else shape, self._dtype if dtype is None else named_dtype(dtype)
        view = ffi.new("void **")
        check(lib.tutti_symm_buffer(self.handle, rank, list(shape), len(shape), value, offset, view))
        return self._view(view[0], shape, value)

    def signal_pad(self, rank: int, count: int, offset: int = 0) -> np.ndarray[Any, Any] | DeviceMemory:
        """`count` words (uint32) of a rank's signal pad, from word `offset` on. The channels come first."""
        view = ffi.new("uint32_t **")
        check(lib.tutti_symm_signal_pad(self.handle, rank, offset, count, view))
        found: np.ndarray[Any, Any] | DeviceMemory = self._view(view[0], (count,), lib.TUTTI_UINT32)
        return found

    def barrier(self, channel: int = 0, timeout: Timeout = None, stream: Any = None) -> None:
        """A barrier of all ranks: what a rank wrote before is visible to all after. One caller at a time per channel.

        On CUDA the stream waits, here and below. Raises InvalidError, TimeoutError, PeerDeadError, CudaError.
        """
        check(lib.tutti_symm_barrier(self.handle, channel, milliseconds(timeout), _stream(stream)))

    def put_signal(self, peer: int, channel: int = 0, timeout: Timeout = None, stream: Any = None) -> None:
        """Raises this rank's signal at a peer, once the peer has taken the previous one. Releases earlier writes."""
        check(lib.tutti_symm_put_signal(self.handle, peer, channel, milliseconds(timeout), _stream(stream)))

    def wait_signal(self, peer: int, channel: int = 0, timeout: Timeout = None, stream: Any = None) -> None:
        """Waits for a peer's signal and takes it. Acquires the peer's earlier writes."""
        check(lib.tutti_symm_wait_signal(self.handle, peer, channel, milliseconds(timeout), _stream(stream)))

    def status(self) -> None:
        """If this rank's memory has failed, raises the exception. Does not wait."""
        check(lib.tutti_symm_status(self.handle, ffi.NULL))

    def free(self) -> None:
        """Frees this rank's memory and its views of the peers'; their arrays must not be used any more. Local. Raises
        ConcurrentError if a wait of another thread on this memory goes on for 10 s."""
        self.close()

    def _destroy(self, handle: Any) -> int:
        return int(lib.tutti_symm_free(handle))


def _stream(stream: Any) -> Any:
    return ffi.cast("tutti_stream_t", stream_value(stream))
