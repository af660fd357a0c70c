# SPDX-License-Identifier: MIT
"""Messages between two ranks, with tags: works of a tutti.ProcessGroup."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch.autograd import profiler

import tutti
from tutti._tutti import ffi, lib
from tutti.torch._operands import Operand, moved
from tutti.torch._work import Work


class Message(Work):
    """wait() moves the data itself if the group's thread has not begun."""

    def __init__(self, title: str, tensor: torch.Tensor) -> None:
        super().__init__(title, [tensor])
        self._operand = Operand(tensor)
        self._work: tutti.Work | None = None

    def start(self, group: tutti.ProcessGroup, peer: int, tag: int) -> Message:
        function = lib.tutti_pg_send if self._title == "send" else lib.tutti_pg_recv
        dtype, count = moved(self._operand.memory)
        sizes = ffi.new("int64_t[1]", [count])
        tensor = ffi.new("struct tutti_tensor *", {
            "struct_size": ffi.sizeof("struct tutti_tensor"), "data": self._operand.address, "dtype": dtype,
            "dims": 1, "sizes": sizes})
        self._work = group._submit(function, [tensor], self._operand, [peer], {"tag": tag, "callback": self._end})
        return self

    def _end(self, error: tutti.Error | None) -> None:
        if error is None and self._title != "send":
            self._operand.done()
        self.finish(error)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        seconds = timeout.total_seconds()
        assert self._work is not None
        self._work.wait(seconds if seconds > 0 else None)
        return True

    synchronize = block_current_stream = wait

    def source_rank(self) -> int:
        assert self._work is not None
        return int(lib.tutti_work_source(self._work.handle))

    _source_rank = source_rank


def start_message(group: tutti.ProcessGroup, title: str, tensor: torch.Tensor, peer: int, tag: int) -> Message:
    if not profiler._is_profiler_enabled:
        return Message(title, tensor).start(group, peer, tag)
    with profiler.record_function(f"tutti:{title}") as event:
        work = Message(title, tensor).start(group, peer, tag)
        event._call_end_callbacks_on_future(work.get_future())
    return work
