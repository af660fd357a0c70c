# SPDX-License-Identifier: MIT
"""Stores, at which ranks meet, and what the launcher says."""

from __future__ import annotations

from typing import Any, NamedTuple

from tutti._errors import InvalidError, check, milliseconds
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
    """Who launched this process. Raises InvalidError if no launcher is recognised or a variable is malformed."""
    found = ffi.new("struct tutti_launcher *", {"struct_size": ffi.sizeof("struct tutti_launcher")})
    check(lib.tutti_info_launcher(found))
    return Launcher(ffi.string(found.name).decode(), found.rank, found.world_size, found.local_rank, found.local_size)


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class Store:
    """A key-value store that all ranks reach: tutti_store_open() describes the URLs.

    url      "env:" as the launcher says; "tcp://HOST:PORT", with "?server=1" in one process; "file:PATH";
             "memory:NAME" among threads
    timeout  seconds for connecting, and the default of later calls; None: TUTTI_TIMEOUT_MS, else 600 s

    Keys are text of at most 8191 bytes, values are bytes (text is encoded as UTF-8). Several threads may use one store.
    Closing the handle that serves a store ends the store. Raises InvalidError, TimeoutError, NoMemoryError,
    SystemCallError (the server ended).
    """

    def __init__(self, url: str = "env:", timeout: float | None = None) -> None:
        store = ffi.new("tutti_store_t **")
        self._handle = ffi.NULL
        self._parent: Store | None = None
        check(lib.tutti_store_open(url.encode(), milliseconds(timeout), store))
        self._handle = store[0]

    @classmethod
    def _of(cls, handle: Any, parent: Store | None = None) -> Store:
        store = cls.__new__(cls)
        store._handle, store._parent = handle, parent
        return store

    @property
    def handle(self) -> Any:
        """The tutti_store_t *, for calls of tutti._lib."""
        if not self._handle:
            raise InvalidError("the store is closed")
        return self._handle

    @property
    def url(self) -> str | None:
        """The URL with which another process can open the same store; None if there is none."""
        url = lib.tutti_store_url(self.handle)
        return ffi.string(url).decode() if url else None

    def prefix(self, prefix: str) -> Store:
        """A view of this store in which all keys begin with "PREFIX/". Close it first."""
        view = ffi.new("tutti_store_t **")
        check(lib.tutti_store_prefix(self.handle, prefix.encode(), view))
        return Store._of(view[0], self)

    def set(self, key: str, value: bytes | str) -> None:
        """Binds key to value."""
        data = _bytes(value)
        check(lib.tutti_store_set(self.handle, key.encode(), data, len(data)))

    def _value(self, call: Any) -> bytes:
        """What call(buffer, capacity, size) gives, which may need a larger buffer."""
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
        name, limit = key.encode(), milliseconds(timeout)
        return self._value(lambda buffer, capacity, size: lib.tutti_store_get(
            self.handle, name, limit, buffer, capacity, size))

    def wait(self, keys: list[str], timeout: float | None = None) -> None:
        """Returns once all keys exist. timeout: in seconds."""
        names = [ffi.new("char[]", key.encode()) for key in keys]
        check(lib.tutti_store_wait(self.handle, ffi.new("char *[]", names), len(names), milliseconds(timeout)))

    def add(self, key: str, amount: int) -> int:
        """Adds atomically to a counter, which begins at 0, and returns the sum."""
        result = ffi.new("int64_t *")
        check(lib.tutti_store_add(self.handle, key.encode(), amount, result))
        return int(result[0])

    def check(self, keys: list[str]) -> bool:
        """Whether all keys exist now."""
        names, exists = [ffi.new("char[]", key.encode()) for key in keys], ffi.new("bool *")
        check(lib.tutti_store_check(self.handle, ffi.new("char *[]", names), len(names), exists))
        return bool(exists[0])

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Sets key to desired if its value is expected, or if it is absent and expected is empty; the value then."""
        name, old, new = key.encode(), _bytes(expected), _bytes(desired)
        return self._value(lambda buffer, capacity, size: lib.tutti_store_compare_set(
            self.handle, name, old, len(old), new, len(new), buffer, capacity, size))

    def delete_key(self, key: str) -> bool:
        """Deletes key; whether it existed."""
        deleted = ffi.new("bool *")
        check(lib.tutti_store_delete(self.handle, key.encode(), deleted))
        return bool(deleted[0])

    def num_keys(self) -> int:
        """The number of keys of the whole store, internal ones included."""
        count = ffi.new("int64_t *")
        check(lib.tutti_store_num_keys(self.handle, count))
        return int(count[0])

    def close(self) -> None:
        """Closes the handle. The handle that serves waits, at most 2 s, until the clients have closed theirs."""
        handle, self._handle = self._handle, ffi.NULL
        lib.tutti_store_close(handle)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()
