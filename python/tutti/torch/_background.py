# SPDX-License-Identifier: MIT
"""Messages with tags, by a tutti.ProcessGroup. Those of CUDA tensors go through the host."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Sequence

import torch

import tutti
from tutti._pg import SubmitOptions
from tutti._tutti import ffi, lib
from tutti.torch._operands import Operand, check_receiving, moved
from tutti.torch._work import Work, event

Block = tuple[Any, int, int]  # address, number of elements, dtype


class BackgroundWork(Work):
    """wait() moves the data itself if the group's thread has not begun."""

    _work: tutti.Work

    def start(self, group: tutti.ProcessGroup, function: Any, operands: Sequence[Any], arguments: Sequence[Any],
              written: Sequence[Any], inputs: Sequence[torch.Tensor], kept: Any, options: SubmitOptions) -> None:
        """written: the operands that receive."""
        self._written = written
        options["callback"] = self._end
        with event(self._title, inputs, self):
            self._work = group._submit(function, operands, (written, kept), arguments, options)

    def _end(self, error: BaseException | None) -> None:
        with self.on_stream():
            try:
                if error is None:
                    for operand in self._written:
                        operand.done()
            except BaseException as raised:
                error = raised
            self.finish(error)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        seconds = timeout.total_seconds()
        try:
            self._work.wait(seconds if seconds > 0 else None)
        except tutti.Error:
            if not self._work._test()[0]:  # this wait's own time-out
                raise
        return super().wait()

    def source_rank(self) -> int:
        return int(lib.tutti_work_source(self._work.handle))

    _source_rank = source_rank


def _describe(blocks: Sequence[Block], device: torch.device) -> tuple[Any, list[Any]]:
    """The blocks as a struct tutti_tensor[], and what must live during the call."""
    tensors, kept = ffi.new("struct tutti_tensor[]", len(blocks)), []
    for tensor, (at, count, dtype) in zip(tensors, blocks):
        kept.append(ffi.new("int64_t[1]", [count]))
        tensor.struct_size, tensor.data, tensor.dtype = ffi.sizeof("struct tutti_tensor"), at, dtype
        tensor.dims, tensor.sizes = 1, kept[-1]
        if device.type == "cuda":
            tensor.device, tensor.device_index = lib.TUTTI_DEVICE_CUDA, device.index
    return tensors, kept


def _stream(device: torch.device) -> Any:
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


def start_message(group: tutti.ProcessGroup, title: str, tensor: torch.Tensor, peer: int, tag: int) -> Work:
    is_send = title == "send"
    if peer == lib.TUTTI_ANY_SOURCE:
        title = "recvAnySource"  # as PyTorch's profiler has it
    if not is_send:
        check_receiving(title, [tensor])
    operand, stream = Operand(tensor), _stream(tensor.device)
    dtype, count = moved(tensor)
    described, _kept = _describe([(operand.address, count, dtype)], tensor.device)
    work = BackgroundWork(title, [tensor], stream)
    work.start(group, lib.tutti_pg_send if is_send else lib.tutti_pg_recv, [described, peer], [],
               [] if is_send else [operand], [tensor], operand, {"tag": tag, "stream": stream})
    return work
