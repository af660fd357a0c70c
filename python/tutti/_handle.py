# SPDX-License-Identifier: MIT
"""What the classes with a C handle have in common: they are context managers, and close themselves.

close() never destroys a handle that a call uses. module.c lists the calls that run without the GIL, by the handles that
they pass. Calls that use a handle without passing it are in in_use(). close() first takes the handle out of the object,
so that no new call gets it, then ends the calls under way and waits for them.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
import time
import traceback
import weakref
from contextlib import contextmanager
from typing import Any, Iterator, NoReturn, TypeVar

from tutti._errors import ConcurrentError, InvalidError, check
from tutti._tutti import ffi, lib

H = TypeVar("H", bound="Handle")
_WAIT_S = 10.0  # for calls of other threads; those that can be ended take some ms

os.register_at_fork(after_in_child=lib.tutti_python_forked)


class _Callback(threading.local):
    """The process group, a tutti_pg_t *, whose callback this thread runs."""

    group: Any = None


callback = _Callback()


class Unique:
    """An object of this process that cannot be copied."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"a tutti.{type(self).__name__} cannot be copied or pickled: it belongs to this process; pass the "
                        "object itself, or make another one")


class Handle(Unique):
    _handle: Any = ffi.NULL  # NULL: not open yet, or closed
    _title = "object"
    _exit_order = -1  # at the end of the interpreter: the lowest is closed first; -1 is not closed

    def _open(self, handle: Any) -> None:
        """Takes a C handle."""
        self._closing = threading.RLock()
        self._users: list[int] = []  # the threads in in_use()
        self._handle = handle
        if self._exit_order >= 0:
            _all.add(self)

    def _destroy(self, handle: Any) -> int | None:
        """Destroys the C handle. Returns a status, or None."""
        raise NotImplementedError

    def _abort(self, handle: Any) -> None:
        """Ends the waits of calls under way."""

    @property
    def handle(self) -> Any:
        """The C handle, for calls of tutti._lib."""
        if not self._handle:
            raise InvalidError(f"the {self._title} is closed")
        return self._handle

    @contextmanager
    def in_use(self) -> Iterator[Any]:
        """The C handle, for calls that use it without passing it."""
        thread = threading.get_ident()
        self._users.append(thread)
        try:
            yield self.handle
        finally:
            self._users.remove(thread)

    def close(self) -> None:
        """Closes the object; calls of other threads end first. Raises ConcurrentError if one goes on for 10 s, and
        InvalidError in a signal handler or a callback that interrupts a call of this thread. Both leave the object open."""
        if self._handle and (lib.tutti_python_callers(self._handle) == 2 or threading.get_ident() in self._users):
            raise InvalidError(f"close() of the {self._title} interrupts a call of the same thread that uses it: close it after "
                               "the call")
        if not self._closing.acquire(timeout=2 * _WAIT_S):  # a second thread waits for the first one
            raise ConcurrentError(f"another thread has been closing the {self._title} for {2 * _WAIT_S:g} s: close again")
        try:
            handle, self._handle = self._handle, ffi.NULL
            if handle:
                self._close(handle)
        finally:
            self._closing.release()

    def _close(self, handle: Any) -> None:
        end = time.monotonic() + _WAIT_S
        for attempt in itertools.count():
            is_used = bool(self._users) or lib.tutti_python_callers(handle)
            status = lib.TUTTI_ERR_CONCURRENT if is_used else self._destroy(handle)
            if status != lib.TUTTI_ERR_CONCURRENT:
                return check(status or lib.TUTTI_OK)
            try:
                if not attempt:
                    self._abort(handle)
                if time.monotonic() > end:
                    raise ConcurrentError(f"a call of another thread has used the {self._title} for {_WAIT_S:g} s since close(): "
                                          "end that call, then close again")
                time.sleep(0.001)
            except BaseException:  # also of a signal handler
                self._handle = handle
                raise

    def __enter__(self: H) -> H:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        # When the interpreter ends, threads may be inside calls that never return to Python.
        if not getattr(self, "_handle", None) or sys.is_finalizing():
            return
        if callback.group is None:
            self.close()
        else:  # a callback, whose group may be closed here, dropped the last reference
            threading.Thread(target=self.close).start()


_all: weakref.WeakSet[Handle] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Runs before the interpreter ends: later, callbacks and calls of other threads would wait for the GIL for ever."""
    for handle in sorted(_all, key=lambda handle: handle._exit_order):
        try:
            handle.close()
        except Exception:
            traceback.print_exc()
