# SPDX-License-Identifier: MIT
"""Operations of a tutti.ProcessGroup: messages with tags, and collectives of CUDA tensors, which go through the host."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Callable, Sequence

import torch

import tutti
from tutti._pg import SubmitOptions
from tutti._tutti import ffi, lib
from tutti.torch._operands import Operand, check_receiving, moved
from tutti.torch._work import Work, event

# For each function of a communicator: the one of process groups, and whether send and recv have a block for each rank.
_FUNCTIONS = {
    lib.tutti_broadcast_with: (lib.tutti_pg_broadcast, False, False),
    lib.tutti_reduce_with: (lib.tutti_pg_reduce, False, False),
    lib.tutti_all_gather_with: (lib.tutti_pg_all_gather, False, True),
    lib.tutti_gather_with: (lib.tutti_pg_gather, False, True),
    lib.tutti_reduce_scatter_with: (lib.tutti_pg_reduce_scatter, True, False),
    lib.tutti_scatter_with: (lib.tutti_pg_scatter, True, False),
}
Block = tuple[Any, int, int]  # address, number of elements, dtype


class BackgroundWork(Work):
    """wait() moves the data itself if the group's thread has not begun."""

    _work: tutti.Work
    explain: Callable[[BaseException], None] | None = None

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
                elif self.explain:
                    self.explain(error)
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


def start_collective(group: tutti.ProcessGroup, title: str, device: torch.device, calls: Sequence[tuple[Any, ...]],
                     written: Sequence[Any], inputs: Sequence[torch.Tensor], outputs: Any, timeout: float | None,
                     kept: Any, explain: Callable[[BaseException], None] | None) -> Work:
    """Runs the calls of ProcessGroup._collective() as one operation behind the device's current stream."""
    function, arguments = calls[0][0], calls[0][5:]
    if function is lib.tutti_send_with:  # an all-to-all: one message to each rank, one from each
        function, arguments = lib.tutti_pg_all_to_all, ()
        sides = [[call[1:4] for call in calls[i::2]] for i in (0, 1)]
    else:
        function, *wide = _FUNCTIONS[function]
        # An operand that this rank lacks is ffi.NULL itself.
        sides = [[(call[place], call[3] * (group.world_size if is_wide else 1), call[4])
                  for call in calls if call[place] is not ffi.NULL] for place, is_wide in zip((1, 2), wide)]
    (send, kept_send), (recv, kept_recv) = [_describe(side, device) for side in sides]
    stream = _stream(device)
    work = BackgroundWork(title, outputs, stream)
    work.explain = explain
    work.start(group, function, (send, len(sides[0]), recv, len(sides[1])), arguments, written,
               inputs, kept, {"timeout": timeout, "stream": stream})
    return work


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
