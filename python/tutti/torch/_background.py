# SPDX-License-Identifier: MIT
"""Operations of a tutti.ProcessGroup: messages with tags, and between several hosts the collectives of CUDA tensors. CUDA
tensors go through the host."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Callable, Sequence

import torch

import tutti
from tutti._pg import SubmitOptions
from tutti._tutti import ffi, lib
from tutti.torch._operands import Operand, check_receiving, moved
from tutti.torch._work import Work, event

Block = tuple[Any, int, int]  # address, number of elements, dtype
Submission = tuple[Any, Sequence[Any], Sequence[Any]]  # a function of the group, its operands, its other arguments


class BackgroundWork(Work):
    """wait() moves the data itself if the group's thread has not begun."""

    _work: tutti.Work

    def start(self, group: tutti.ProcessGroup, submissions: Sequence[Submission], written: Sequence[Any],
              inputs: Sequence[torch.Tensor], kept: Any, options: SubmitOptions,
              explain: Callable[[BaseException], None] | None = None) -> None:
        """Submits operations, which end in this order. written: the operands that receive. explain: completes an error."""
        self._written, self._explain = written, explain
        with event(self._title, inputs, self):
            for number, (function, operands, arguments) in enumerate(submissions, 1):
                if number == len(submissions):
                    options["callback"] = self._end
                self._work = group._submit(function, operands, (written, kept), arguments, options)

    def _end(self, error: BaseException | None) -> None:
        with self.on_stream():
            try:
                if error is None:
                    for operand in self._written:
                        operand.done()
                elif self._explain:
                    self._explain(error)
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


def _describe(blocks: Sequence[Block], device: torch.device, living: list[Any]) -> Any:
    """The blocks as a struct tutti_tensor[]. living: what must live during the call."""
    tensors = ffi.new("struct tutti_tensor[]", len(blocks))
    for tensor, (at, count, dtype) in zip(tensors, blocks):
        living.append(ffi.new("int64_t[1]", [count]))
        tensor.struct_size, tensor.data, tensor.dtype = ffi.sizeof("struct tutti_tensor"), at, dtype
        tensor.dims, tensor.sizes = 1, living[-1]
        if device.type == "cuda":
            tensor.device, tensor.device_index = lib.TUTTI_DEVICE_CUDA, device.index
    return tensors


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
    living: list[Any] = []
    described = _describe([(operand.address, count, dtype)], tensor.device, living)
    work = BackgroundWork(title, [tensor], stream)
    function = lib.tutti_pg_send if is_send else lib.tutti_pg_recv
    work.start(group, [(function, [described, peer], [])], [] if is_send else [operand], [tensor], operand,
               {"tag": tag, "stream": stream})
    return work


# ---- collectives of CUDA tensors

# A communicator's call: the group's call, and whether send and recv have a block for each rank.
_GROUP_CALLS = {
    lib.tutti_reduce_with: (lib.tutti_pg_reduce, False, False),
    lib.tutti_reduce_scatter_with: (lib.tutti_pg_reduce_scatter, True, False),
    lib.tutti_broadcast_with: (lib.tutti_pg_broadcast, False, False),
    lib.tutti_all_gather_with: (lib.tutti_pg_all_gather, False, True),
    lib.tutti_gather_with: (lib.tutti_pg_gather, False, True),
    lib.tutti_scatter_with: (lib.tutti_pg_scatter, True, False),
    lib.tutti_all_to_all_with: (lib.tutti_pg_all_to_all, True, True),
}


def _submission(group: tutti.ProcessGroup, call: Sequence[Any], device: torch.device, living: list[Any]) -> Submission:
    """A call (function, send, recv, count, dtype, op or root ...) of a communicator as one of the group. living: what must live
    until it is submitted."""
    function, send, recv, count, dtype, *arguments = call
    if function is lib.tutti_all_reduce_with:
        return lib.tutti_pg_all_reduce, (_describe([(recv, count, dtype)], device, living), 1), arguments
    function, send_all, recv_all = _GROUP_CALLS[function]
    root = arguments[-1] if arguments and isinstance(arguments[-1], int) else group.rank
    sends = function is not lib.tutti_pg_broadcast and function is not lib.tutti_pg_scatter or root == group.rank
    receives = function is not lib.tutti_pg_reduce and function is not lib.tutti_pg_gather or root == group.rank
    operands: list[Any] = []
    for at, used, is_all in (send, sends, send_all), (recv, receives, recv_all):
        blocks = [(at, count * (group.world_size if is_all else 1), dtype)]
        operands += (_describe(blocks, device, living), 1) if used else (ffi.NULL, 0)
    return function, operands, arguments


def start_collective(group: tutti.ProcessGroup, title: str, device: torch.device, calls: Sequence[Sequence[Any]],
                     operands: Sequence[Any], inputs: Sequence[torch.Tensor], outputs: Any, kept: Any,
                     timeout: float | None, explain: Callable[[BaseException], None] | None) -> Work:
    """Starts a communicator's calls as operations of the group. Sends and receives are those of an all-to-all, in the order of
    the peers."""
    living: list[Any] = []
    if calls[0][0] is lib.tutti_send_with:
        lists: list[Any] = []
        for wanted in lib.tutti_send_with, lib.tutti_recv_with:
            blocks = [(at, count, dtype) for function, at, count, dtype, _ in calls if function is wanted]
            lists += _describe(blocks, device, living), group.world_size
        submissions: list[Submission] = [(lib.tutti_pg_all_to_all, lists, [])]
    else:
        submissions = [_submission(group, call, device, living) for call in calls]
    stream = _stream(device)
    work = BackgroundWork(title, outputs, stream)
    work.start(group, submissions, operands, inputs, kept, {"stream": stream, "timeout": timeout}, explain)
    return work
