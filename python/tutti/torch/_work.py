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
from torch._C._autograd import _record_function_with_args_enter
from torch.autograd import profiler

from tutti._errors import InvalidError, TimeoutError

_HERE = nullcontext()
_futures = threading.Lock()  # for the futures of all works, and whether the works are over


class Event:
    """A context that is an event of PyTorch's profiler. The event of a work ends when the work does. PyTorch calls an event
    asynchronous if one thread begins it and another ends it."""

    def __init__(self, title: str, tensors: Sequence[torch.Tensor], work: Work | None) -> None:
        self._title, self._tensors, self._work = title, tensors, work
        self._ended: torch.futures.Future[None] = torch.futures.Future()
        self._thread = threading.get_ident()
        if work:
            work.event = self

    def __enter__(self) -> None:
        handle = _record_function_with_args_enter(f"tutti:{self._title}", *self._tensors)
        # The future's callback ends the event in the profiler of this thread, whichever thread completes the future.
        torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(handle, self._ended)

    def __exit__(self, kind: Any, *error: object) -> None:
        if self._work is None or kind is not None:
            self.end()

    def end(self) -> None:
        if threading.get_ident() != self._thread:
            self._ended.set_result(None)
            return
        other = threading.Thread(target=self._ended.set_result, args=(None,))
        other.start()
        other.join()


def event(title: str, tensors: Sequence[torch.Tensor], work: Work | None = None) -> Any:
    """An event, if a profiler runs."""
    return Event(title, tensors, work) if profiler._is_profiler_enabled else _HERE


class Work(dist.Work):
    """An operation under way. stream: of CUDA tensors."""

    event: Event | None = None

    def __init__(self, title: str, outputs: Any, stream: Any = None) -> None:
        super().__init__()
        self._title, self._outputs, self._stream = title, outputs, stream
        self._error: BaseException | None = None
        self._is_over = False
        # _future is what get_future() returns. finish() completes _begun, and so _future.
        self._future: torch.futures.Future[Any] | None = None
        self._begun: torch.futures.Future[Any] | None = None
        self._running = threading.Lock()  # held until the work is over and its future is done
        self._running.acquire()
        self._source = -1

    def on_stream(self) -> Any:
        """A context, in which the operation's copies are on its stream."""
        return _HERE if self._stream is None else torch.cuda.stream(self._stream)

    def finish(self, error: BaseException | None = None) -> None:
        """Called once, when the operation has ended."""
        self._error = error
        if self.event is not None:
            self.event.end()
        with _futures:
            self._is_over, begun = True, self._begun
        if begun is None:
            self._running.release()
        else:
            begun.set_result(self._outputs)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for the end. A time-out that expires raises; the operation goes on."""
        seconds = timeout.total_seconds()
        if not self._running.acquire(timeout=min(seconds, threading.TIMEOUT_MAX) if seconds > 0 else -1):
            raise TimeoutError(f"{self._title} has not ended after {seconds:g} s; it goes on")
        self._running.release()
        if self._error is not None:
            raise self._error
        if self._stream is not None:
            self.get_future().wait()  # makes the current stream wait for the copies
        return True

    def synchronize(self) -> None:
        self.wait()

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        return self._is_over if self._future is None else self._future.done()

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def _deliver(self, _: Any) -> Any:
        if self._error is not None:
            raise self._error
        return self._outputs

    def get_future(self) -> Any:
        """The future is completed by the thread that ran the operation. A failed one raises RuntimeError: PyTorch's C++ code
        sees only errors that a callback of a future has raised."""
        with _futures:
            if self._future is not None:
                return self._future
            begun: torch.futures.Future[Any] = torch.futures.Future(devices=self._stream and [self._stream.device])
            future = begun if self._is_over and self._error is None else begun.then(self._deliver)
            if self._has_typed_future():
                from tutti.torch._typed import tensor_list_after

                future = tensor_list_after(future, self._outputs)
            self._future = future
            if not self._is_over:
                running, self._begun = self._running, begun
                future.add_done_callback(lambda _: running.release())
                return future
        with self.on_stream():
            begun.set_result(self._outputs)
        return future

    def _has_typed_future(self) -> bool:
        """Whether the work may be one of DistributedDataParallel's FP16_COMPRESS hook. It takes no list of Python's."""
        return (self._title == "all_reduce" and self._stream is None and len(self._outputs) == 1
                and self._outputs[0].dtype is torch.float16)

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
        self._is_stopped = False

    def is_idle(self) -> bool:
        """Whether all operations have ended, with their futures' callbacks."""
        return self.submitted == self.ended

    def is_current(self) -> bool:
        """Whether the caller is a callback of an operation's future. What it calls must run at once: the operations in
        the queue have to wait for the callback."""
        return self._thread is threading.current_thread()

    def submit(self, call: Callable[[], None], work: Work) -> None:
        with self._lock:
            if self._is_stopped:
                raise InvalidError(f"tutti: {work._title} on a process group that has been destroyed")
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
        with self._lock:
            if not self._is_stopped:
                self._is_stopped = True
                self._queue.put(None)
            thread = self._thread
        if thread is None or self.is_current():
            return True
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

    def get_future(self) -> Any:
        if self._future is None:
            self._future = torch.futures.collect_all([work.get_future() for work in self._works])
        return self._future

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return all([work.wait(timeout) for work in self._works])

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((work.exception() for work in self._works if work.exception()), None)
