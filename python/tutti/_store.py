# SPDX-License-Identifier: MIT
"""Stores, where ranks meet, and the launcher's variables."""

from __future__ import annotations

import builtins
import os
import time
import weakref
from datetime import timedelta
from typing import Any, NamedTuple

from tutti._errors import Timeout, c_text, check, milliseconds, text
from tutti._handle import Handle
from tutti._signals import call_in_thread, wait_in_slices
from tutti._tutti import ffi, lib


class Launcher(NamedTuple):
    """What the launcher's environment variables say about this process."""

    name: str
    """torchrun, openmpi, hydra or slurm. `tutti run` sets torchrun's variables."""
    rank: int
    world_size: int
    local_rank: int
    """On this node; -1: not given."""
    local_size: int


def launcher() -> Launcher:
    """The launcher of this process. Raises InvalidError if no launcher is recognised or a variable is malformed."""
    found = ffi.new("struct tutti_launcher *", {"struct_size": ffi.sizeof("struct tutti_launcher")})
    check(lib.tutti_info_launcher(found))
    return Launcher(text(found.name), found.rank, found.world_size, found.local_rank, found.local_size)


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class Store(Handle):
    """A key-value store that all ranks reach: tutti_store_open() describes the URLs.

    url      "env:" as the launcher says; "tcp://HOST:PORT", with "?server=1" in one process; "file:PATH";
             "memory:NAME" among threads
    timeout  seconds for connecting, and the default of later calls; None: TUTTI_TIMEOUT_MS, else 600 s

    Keys are text of at most 8191 bytes, values are bytes (text is encoded as UTF-8). Several threads may use one store.
    Closing the handle that serves a store ends the store. Raises InvalidError, TimeoutError, NoMemoryError,
    SystemCallError (the server ended).
    """

    _title, _exit_order = "store", 2

    def __init__(self, url: str = "env:", timeout: Timeout = None) -> None:
        self._kept: Any = None
        self._timeout_ms = milliseconds(timeout)

        def connect() -> Any:
            store = ffi.new("tutti_store_t **")
            check(lib.tutti_store_open(c_text(url), self._timeout_ms, store))
            return store[0]

        self._open(call_in_thread(connect))

    @classmethod
    def _of(cls, handle: Any, kept: Any) -> Store:
        store = cls.__new__(cls)
        store._kept, store._timeout_ms = kept, 0
        store._open(handle)
        return store

    def _open(self, handle: Any) -> None:
        self._views: weakref.WeakSet[Store] = weakref.WeakSet()
        super()._open(handle)

    @classmethod
    def wrap(cls, store: Any) -> Store:
        """A store of the caller's own: an object with the methods of torch.distributed.Store.

        These are set, get, wait (with a datetime.timedelta), add, check, compare_set, delete_key and num_keys. Threads of
        the library may call them, several at once; one that waits must not block the others. Values are bytes that may be no
        text. A set-up leaves a method alone that has not returned by the set-up's deadline.
        """
        own = _Wrapped(store)
        context, handle = ffi.new_handle(own), ffi.new("tutti_store_t **")
        ops = ffi.new("struct tutti_store_ops *", {"struct_size": ffi.sizeof("struct tutti_store_ops")})
        for name in _OPS:
            setattr(ops, name, getattr(lib, f"tutti_python_{name}"))
        ops.close = lib.tutti_python_close
        check(lib.tutti_store_from_ops(ops, context, handle))
        own.context = context
        _used.add(own)
        return cls._of(handle[0], (own, context))

    @property
    def exception(self) -> BaseException | None:
        """The last exception of a wrapped store."""
        return self._kept[0].exception if isinstance(self._kept, tuple) else None

    @property
    def url(self) -> str | None:
        """The URL with which another process can open the same store; None if there is none."""
        url = lib.tutti_store_url(self.handle)
        return text(url) if url else None

    def prefix(self, prefix: str) -> Store:
        """A view of this store in which all keys begin with "PREFIX/". close() of this store closes it, too."""
        view = ffi.new("tutti_store_t **")
        check(lib.tutti_store_prefix(self.handle, c_text(prefix), view))
        made = Store._of(view[0], self)
        self._views.add(made)
        return made

    def set(self, key: str, value: bytes | str) -> None:
        """Binds key to value."""
        data = _bytes(value)
        check(lib.tutti_store_set(self.handle, c_text(key), data, len(data)))

    def _wait(self, wait: Any, timeout: float | None) -> int:
        """The status of wait(milliseconds)."""
        default = self._timeout_ms or int(os.environ.get("TUTTI_TIMEOUT_MS") or 600_000)
        return wait_in_slices(wait, milliseconds(timeout) or default, True)  # close() ends it with the slice

    def _value(self, call: Any) -> bytes:
        """The bytes that call(buffer, capacity, size) writes; calls again with a larger buffer if need be."""
        capacity, size = 4096, ffi.new("size_t *")
        while True:
            buffer = ffi.new("char[]", capacity)
            status = call(buffer, capacity, size)
            if status != lib.TUTTI_ERR_INVALID or size[0] <= capacity:
                check(status)
                return bytes(ffi.buffer(buffer, size[0]))
            capacity, size[0] = size[0], 0

    def get(self, key: str, timeout: float | None = None) -> bytes:
        """The value of key, once it exists. timeout: in seconds."""
        name = c_text(key)
        return self._value(lambda buffer, capacity, size: self._wait(
            lambda limit: lib.tutti_store_get(self.handle, name, limit, buffer, capacity, size), timeout))

    def wait(self, keys: list[str], timeout: float | None = None) -> None:
        """Returns once all keys exist. timeout: in seconds."""
        names = [ffi.new("char[]", c_text(key)) for key in keys]
        array = ffi.new("char *[]", names)
        check(self._wait(lambda limit: lib.tutti_store_wait(self.handle, array, len(names), limit), timeout))

    def add(self, key: str, amount: int) -> int:
        """Adds atomically to a counter, which begins at 0, and returns the sum."""
        result = ffi.new("int64_t *")
        check(lib.tutti_store_add(self.handle, c_text(key), amount, result))
        return int(result[0])

    def check(self, keys: list[str]) -> bool:
        """Whether all keys exist now."""
        names, exists = [ffi.new("char[]", c_text(key)) for key in keys], ffi.new("bool *")
        check(lib.tutti_store_check(self.handle, ffi.new("char *[]", names), len(names), exists))
        return bool(exists[0])

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Sets key to desired if its value is expected, or if it is absent and expected is empty. Returns the value."""
        name, old, new = c_text(key), _bytes(expected), _bytes(desired)
        return self._value(lambda buffer, capacity, size: lib.tutti_store_compare_set(
            self.handle, name, old, len(old), new, len(new), buffer, capacity, size))

    def delete_key(self, key: str) -> bool:
        """Deletes key. Returns whether it existed."""
        deleted = ffi.new("bool *")
        check(lib.tutti_store_delete(self.handle, c_text(key), deleted))
        return bool(deleted[0])

    def num_keys(self) -> int:
        """The number of keys of the whole store, internal ones included."""
        count = ffi.new("int64_t *")
        check(lib.tutti_store_num_keys(self.handle, count))
        return int(count[0])

    def close(self) -> None:
        """Closes the handle. The serving handle waits, at most 2 s, until the clients have closed theirs. Calls of other
        threads end first, with InvalidError; raises ConcurrentError if one goes on for 10 s."""
        for view in list(self._views):
            view.close()
        super().close()

    def _destroy(self, handle: Any) -> None:
        lib.tutti_store_close(handle)


class _Wrapped:
    """A store of the caller's, for the callbacks below."""

    context: Any

    def __init__(self, store: Any) -> None:
        self.store, self.exception = store, None


_used: set[_Wrapped] = set()  # until no call can come any more; a call may be under way when the handle is closed


@ffi.def_extern(name="tutti_python_close")  # type: ignore[untyped-decorator]
def _close(context: Any) -> None:
    _used.discard(ffi.from_handle(context))


_OPS: list[str] = []


def _store_op(function: Any) -> Any:
    """Makes function(store, ...) a callback of struct tutti_store_ops: its exceptions become statuses."""
    name = function.__name__[1:]

    def call(context: Any, *arguments: Any) -> int:
        wrapped = ffi.from_handle(context)
        try:
            function(wrapped.store, *arguments)
        except _TooLong:
            return int(lib.TUTTI_ERR_INVALID)
        except Exception as error:
            wrapped.exception = error
            late = isinstance(error, builtins.TimeoutError) or "time" in str(error).lower()  # c10d's DistStoreError
            return int(lib.TUTTI_ERR_TIMEOUT if late else lib.TUTTI_ERR_SYSTEM)
        return int(lib.TUTTI_OK)

    ffi.def_extern(name=f"tutti_python_{name}", error=lib.TUTTI_ERR_SYSTEM)(call)
    _OPS.append(name)
    return call


class _TooLong(Exception):
    """A value is longer than the caller's buffer."""


def _give(found: bytes | str, buffer: Any, capacity: int, size: Any) -> None:
    value = _bytes(found)
    if size:
        size[0] = len(value)
    if buffer:
        ffi.memmove(buffer, value, min(len(value), capacity))
        if len(value) > capacity:
            raise _TooLong


def _wait_for(store: Any, keys: list[str], timeout_ms: int) -> None:
    """Polls for short waits, because PyTorch's TCPStore warns of each wait that times out."""
    if not 0 <= timeout_ms < 1000:
        store.wait(keys, timedelta(milliseconds=timeout_ms) if timeout_ms >= 0 else timedelta(days=365))
        return
    end = time.monotonic() + timeout_ms / 1000
    while not store.check(keys):
        if time.monotonic() >= end:
            raise builtins.TimeoutError
        time.sleep(0.001)


@_store_op
def _set(store: Any, key: Any, value: Any, size: int) -> None:
    store.set(text(key), bytes(ffi.buffer(value, size)))


_ABSENT = "tutti: absent"  # no value of a key


def _look(store: Any, key: str) -> Any:
    """The value of key now, None if there is none. PyTorch's get() waits, as long as the store likes, for a key that a peer
    has deleted meanwhile; compare_set() returns at once, and what it was told to expect if the key is absent."""
    found = store.compare_set(key, _ABSENT, _ABSENT)
    return None if found in (_ABSENT, _ABSENT.encode()) else found


@_store_op
def _get(store: Any, key: Any, timeout_ms: int, value: Any, capacity: int, size: Any) -> None:
    name, end = text(key), time.monotonic() + timeout_ms / 1000
    while True:
        left_ms = round((end - time.monotonic()) * 1000)
        _wait_for(store, [name], timeout_ms if timeout_ms < 0 else max(left_ms, 0))
        found = _look(store, name)
        if found is not None:
            break
    _give(found, value, capacity, size)


@_store_op
def _wait(store: Any, keys: Any, count: int, timeout_ms: int) -> None:
    _wait_for(store, [text(keys[i]) for i in range(count)], timeout_ms)


@_store_op
def _add(store: Any, key: Any, amount: int, result: Any) -> None:
    found = store.add(text(key), amount)
    if result:
        result[0] = found


@_store_op
def _check(store: Any, keys: Any, count: int, exists: Any) -> None:
    exists[0] = store.check([text(keys[i]) for i in range(count)])


def _text_or_bytes(data: Any, size: int) -> str | bytes:
    """PyTorch declares str, but also takes bytes."""
    value = bytes(ffi.buffer(data, size))
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


@_store_op
def _compare_set(store: Any, key: Any, expected: Any, expected_size: int, desired: Any, desired_size: int, value: Any,
                 capacity: int, size: Any) -> None:
    found = store.compare_set(text(key), _text_or_bytes(expected, expected_size), _text_or_bytes(desired, desired_size))
    _give(found, value, capacity, size)


@_store_op
def _delete_key(store: Any, key: Any, deleted: Any) -> None:
    found = store.delete_key(text(key))
    if deleted:
        deleted[0] = found


@_store_op
def _num_keys(store: Any, count: Any) -> None:
    count[0] = store.num_keys()
