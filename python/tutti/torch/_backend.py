# SPDX-License-Identifier: MIT
"""The backend of one device in a group that has several: "cpu:tutti,cuda:nccl". PyTorch 2.14 or newer."""

from __future__ import annotations

from typing import Any, Callable

from torch._C import _distributed_c10d as c10d

from tutti.torch._group import ProcessGroup


class Backend(c10d.Backend):
    """Passes all calls on to a ProcessGroup."""

    def __init__(self, group: ProcessGroup) -> None:
        super().__init__(group.rank(), group.size())
        self._group = group

    supports_splitting = supports_coalescing = False

    def start_coalescing(self) -> None:
        self._group._start_coalescing(None)

    def end_coalescing(self) -> Any:
        return self._group._end_coalescing(None)


def _passing_on(name: str) -> Callable[..., Any]:
    def method(self: Backend, *arguments: Any, **more: Any) -> Any:
        return getattr(self._group, name)(*arguments, **more)

    return method


for _name in (
        "abort", "all_gather_single", "all_gather_single_coalesced", "all_to_all_single", "allgather", "allgather_coalesced",
        "allgather_into_tensor_coalesced", "_allgather_base", "allreduce", "allreduce_coalesced", "alltoall",
        "alltoall_base", "barrier", "broadcast", "communicator", "gather", "getBackendName", "monitored_barrier", "recv",
        "recv_anysource", "reduce", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single",
        "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "scatter", "send", "set_timeout", "_set_sequence_number_for_group", "shutdown",
        "symmetric", "symmetric_memory"):
    setattr(Backend, _name, _passing_on(_name))
