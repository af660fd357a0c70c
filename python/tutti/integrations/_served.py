# SPDX-License-Identifier: MIT
"""The communicator that serves a group of an engine, and how the ranks of the group agree on it."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, _C

import tutti
from tutti._dtypes import SUM
from tutti._tutti import ffi, lib
from tutti.torch._operands import VALUES, Operand, moved

_MEETING_S = 60.0  # all ranks are there when the meeting begins
_cast, _POINTER, _STREAM = ffi.cast, ffi.typeof("void *"), ffi.typeof("tutti_stream_t")


class Served:
    """The collectives of a group's ranks. They run on the current stream of `device`, or return when they are done.

    Tensors are contiguous. As with NCCL, operations have no time-out unless TUTTI_TIMEOUT_MS sets one: a rank may compile
    kernels for minutes while its peers wait. A dead peer ends the wait.
    """

    def __init__(self, comm: tutti.Communicator, device: torch.device) -> None:
        self.comm, self.size, self._is_cuda = comm, comm.world_size, device.type == "cuda"
        self._index = torch.cuda.current_device() if self._is_cuda and device.index is None else device.index
        self._options = ffi.new("struct tutti_call_options *", {
            "struct_size": ffi.sizeof("struct tutti_call_options"), "timeout_ms": 0 if _environment_limits() else -1})

    def reduces(self, tensor: Tensor) -> bool:
        """Whether the library has the tensor's dtype. All ranks of an engine have the same."""
        return tensor.dtype in VALUES

    def _call(self, function: Any, *operands: Any) -> None:
        stream = _cast(_STREAM, _C._cuda_getCurrentRawStream(self._index)) if self._is_cuda else ffi.NULL
        status = function(*operands, self.comm._handle, stream, self._options)
        if status:
            self.comm._raise(status)

    def _run(self, function: Any, send: Tensor, recv: Tensor, block: Tensor, *more: Any) -> None:
        """block: the operand of one block, as C's count and dtype say it."""
        dtype, count = moved(block)
        self._call(function, _cast(_POINTER, send.data_ptr()), _cast(_POINTER, recv.data_ptr()), count, dtype, *more)

    def run_norm(self, norm: Any, operands: Sequence[Tensor], outputs: Sequence[Tensor], changed: Sequence[Operand]) -> None:
        """All-reduce and RMSNorm: what tutti.torch._norm calls."""
        self._call(lib.tutti_all_reduce_rms_norm_with, norm)
        for each in changed:
            each.done()

    def all_reduce(self, given: Tensor, output: Tensor) -> None:
        """Sums; output may be the input."""
        self._run(lib.tutti_all_reduce_with, given, output, given, SUM.handle)

    def reduce_scatter(self, given: Tensor, output: Tensor) -> None:
        """Sums."""
        self._run(lib.tutti_reduce_scatter_with, given, output, output, SUM.handle)

    def all_gather(self, given: Tensor, output: Tensor) -> None:
        """Of any dtype, and so is gather()."""
        self._run(lib.tutti_all_gather_with, given, output, given)

    def gather(self, given: Tensor, output: Tensor, root: int) -> None:
        """output: the root's; the others' is ignored."""
        self._run(lib.tutti_gather_with, given, output, given, root)

    def close(self) -> None:
        self.comm.close()


def fuses() -> bool:
    """Whether all-reduces may run together with the norm behind them. TUTTI_FUSE=0: no."""
    return os.environ.get("TUTTI_FUSE", "1").lower() not in ("0", "off", "false", "no")


def missing(*seams: str) -> str:
    """The first of these functions and classes that the engine lacks, or "". Its modules are read, not imported."""
    for seam in seams:
        module, _, name = seam.rpartition(".")
        if module in sys.modules:
            found = hasattr(sys.modules[module], name)
        else:
            package, *parts = module.split(".")
            spec = importlib.util.find_spec(package)
            files = [Path(place, *parts).with_suffix(".py") for place in spec.submodule_search_locations or ()] if spec else []
            source = next((file.read_text() for file in files if file.is_file()), "")
            found = re.search(rf"^(class|def) {name}\b", source, re.MULTILINE) is not None
        if not found:
            return seam
    return ""


def joined(blocks: Tensor, dim: int) -> Tensor:
    """Blocks of all ranks, whose dimension 0 is the rank, joined along `dim` of a block."""
    size, *shape = blocks.shape
    shape[dim] *= size
    return blocks.movedim(0, dim).reshape(shape)


def _environment_limits() -> bool:
    return os.environ.get("TUTTI_TIMEOUT_MS", "0") != "0"


def _host() -> str:
    """Differs between hosts, and between containers with networks of their own."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/net')}"


def _offer(rank: int, device: torch.device) -> tuple[str, str, bytes]:
    """Why this rank cannot take part, or ""; its host; rank 0's id."""
    try:
        if device.type not in ("cpu", "cuda"):
            return f"Tutti has nothing for {device.type} tensors", "", b""
        return "", _host(), b"" if rank else tutti.unique_id()
    except Exception as error:
        return f"{type(error).__name__}: {error}", "", b""


def _first(reasons: list[str]) -> str:
    return next((f"rank {rank}: {reason}" for rank, reason in enumerate(reasons) if reason), "")


def _together(value: Any, group: Any, size: int) -> list[Any]:
    found = [None] * size
    dist.all_gather_object(found, value, group)
    return found


def _meet(group: Any, device: torch.device) -> tuple[tutti.Communicator | None, str]:
    """The communicator, or why there is none, which is the same on all ranks."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    offers = _together(_offer(rank, device), group, size)
    if refusal := _first([reason for reason, _, _ in offers]):
        return None, refusal
    if len({host for _, host, _ in offers}) > 1:
        return None, "its ranks are on several hosts"
    comm, reason = None, ""
    try:
        timeout = None if _environment_limits() else _MEETING_S
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            comm = tutti.Communicator.from_id(offers[0][2], rank, size, device=device.type, timeout=timeout)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    refusal = _first(_together(reason, group, size))
    if refusal and comm:
        comm.close()
    return None if refusal else comm, refusal


def serve(group: Any, device: torch.device, title: str, what: str, engine: str, log: Callable[..., None]) -> Served | None:
    """The communicator for a group of processes of an engine; None: the engine's own serves it. Collective; rank 0 logs.

    group   of torch.distributed, over which the ranks agree: with tensors on the CPU
    title   the group's name in the log
    what    it serves
    """
    try:
        comm, refusal = _meet(group, device)
        rank, size = dist.get_rank(group), dist.get_world_size(group)
    except Exception as error:  # torch.distributed does not know the group
        comm, refusal, rank, size = None, f"{type(error).__name__}: {error}", 0, 0
    if rank == 0:
        if comm:
            log("Tutti %s serves group %s: %s of %d ranks on %s.", tutti.__version__, title, what, size, device.type)
        else:
            log("Tutti does not serve group %s: %s. %s's own communicator does.", title, refusal, engine)
    return Served(comm, device) if comm else None
