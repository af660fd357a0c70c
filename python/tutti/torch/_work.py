# SPDX-License-Identifier: MIT
"""Works of torch.distributed, and the thread that runs asynchronous operations."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist

from tutti._errors import Error, TimeoutError


_HERE = nullcontext()


class Work(dist.Work):
    """An operation under way. The future is completed by the thread that ran the operation. stream: of CUDA tensors."""

    def __init__(self, title: str, outputs: Any, stream: Any = None) -> None:
        super().__init__()
        self._title, self._outputs, self._stream = title, outputs, stream
        self._error: BaseException | None = None
        self._future: torch.futures.Future[Any] | None = torch.futures.Future(devices=stream and [stream.device])
        self._ended = threading.Event()
        self._source = -1

    def on_stream(self) -> Any:
        """A context, in which the operation's copies are on its stream."""
        return _HERE if self._stream is None else torch.cuda.stream(self._stream)

    def finish(self, error: BaseException | None = None) -> None:
        """Called once, when the operation has ended."""
        self._error = error
        self._ended.set()
        assert self._future is not None
        if error is None:
            self._future.set_result(self._outputs)
        else:
            self._future.set_exception(error if isinstance(error, Exception) else Error(repr(error)))

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for the end. A time-out that expires raises; the operation goes on."""
        seconds = timeout.total_seconds()
        if not self._ended.wait(seconds if 0 < seconds < threading.TIMEOUT_MAX else None):
            raise TimeoutError(f"{self._title} has not ended after {seconds:g} s; it goes on")
        if self._error is not None:
            raise self._error
        if self._stream is not None:
            self.get_future().wait()  # makes the current stream wait for the copies
        return True

    def synchronize(self) -> None:
        self.wait()

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        return self._ended.is_set()

    def is_success(self) -> bool:
        return self._ended.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def get_future(self) -> Any:
        return self._future

    def result(self) -> Any:
        self.wait()
        return self._outputs

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank


class _Finished(Work):
    """What a synchronous call returns, the same object each time."""

    def __init__(self) -> None:
        super().__init__("", [])
        self.finish()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True


FINISHED = _Finished()


class Worker:
    """A thread that runs operations of one group in the order of their submission."""

    def __init__(self, name: str) -> None:
        self.submitted = self.ended = 0
        self._queue: SimpleQueue[tuple[Callable[[], None], Work] | None] = SimpleQueue()
        self._name, self._lock = name, threading.Lock()
        self._thread: threading.Thread | None = None

    def is_idle(self) -> bool:
        """Whether all operations have ended, with their futures' callbacks."""
        return self.submitted == self.ended

    def is_current(self) -> bool:
        """Whether the caller is a callback of an operation's future. What it calls must run at once: the operations in
        the queue have to wait for the callback."""
        return self._thread is threading.current_thread()

    def submit(self, call: Callable[[], None], work: Work) -> None:
        with self._lock:
            self.submitted += 1
            self._queue.put((call, work))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            run(*item)
            del item  # the operation's tensors
            self.ended += 1

    def stop(self, timeout: float | None = None) -> bool:
        """Ends the thread after what was submitted. False if that takes longer than timeout, in seconds."""
        thread = self._thread
        if thread is None or self.is_current():
            return True
        self._queue.put(None)
        thread.join(timeout)
        return not thread.is_alive()


def run(call: Callable[[], None], work: Work) -> None:
    error: BaseException | None = None
    with work.on_stream():
        try:
            call()
        except BaseException as raised:
            error = raised
        work.finish(error)


class Together(Work):
    """Several works as one."""

    def __init__(self, works: Sequence[Work]) -> None:
        super().__init__("coalesced operations", [work._outputs for work in works])
        self._works = works
        self._future = torch.futures.collect_all([work.get_future() for work in works])

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return all([work.wait(timeout) for work in self._works])

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((work.exception() for work in self._works if work.exception()), None)
