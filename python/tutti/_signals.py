# SPDX-License-Identifier: MIT
"""Signal handlers run while a call waits: Python runs them only in the main thread, and not during a C call."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, TypeVar

from tutti._tutti import ffi, lib

T = TypeVar("T")
_SLICE_MS = 50


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def wait_in_slices(wait: Callable[[int], int], timeout_ms: int, always: bool = False) -> int:
    """The status of wait(timeout_ms). The main thread, or always, calls it with short time-outs, one after the other."""
    if not always and not in_main_thread():
        return wait(timeout_ms)
    end = time.monotonic() + timeout_ms / 1000
    while True:
        left = _SLICE_MS if timeout_ms < 0 else max(1, round((end - time.monotonic()) * 1000))
        status = wait(min(left, _SLICE_MS))
        if status != lib.TUTTI_ERR_TIMEOUT or timeout_ms >= 0 and left <= _SLICE_MS:
            return status


def call_in_thread(function: Callable[[], T], on_interrupt: Callable[[], object] | None = None) -> T:
    """Returns function(). The main thread runs it in another thread. If a signal handler raises, on_interrupt() has to
    end that call; without on_interrupt() the other thread goes on by itself."""
    if not in_main_thread():
        return function()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)
        ended.set()

    ended = threading.Event()  # before Python 3.13 an interrupted Thread.join() counts as the thread's end
    threading.Thread(target=run, daemon=True).start()
    try:
        ended.wait()
    except BaseException:
        if on_interrupt:
            on_interrupt()
            ended.wait()
        raise
    if errors:
        raise errors[0]
    return results[0]


class Interrupt:
    """The exception that a signal handler raised while an operation of a communicator waited."""

    exception: BaseException | None = None


def _keep_exception(kind: Any, exception: BaseException, traceback: Any) -> None:
    ffi.from_handle(traceback.tb_frame.f_locals["interrupt"]).exception = exception


@ffi.def_extern(name="tutti_python_signals", error=1, onerror=_keep_exception)  # type: ignore[untyped-decorator]
def _run_handlers(interrupt: Any) -> int:
    for _ in range(1):  # Python runs pending handlers where a function or a loop begins
        pass
    return 0
