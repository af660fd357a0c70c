# SPDX-License-Identifier: MIT
"""SGLang's plug-in: Tutti does the custom all-reduce of CUDA groups.

SGLang asks dispatch_custom_allreduce() for the class of a group's custom all-reduce. The hook returns a function in its place.
It makes SGLang's own object, which models with fused kernels of their own look for, and puts Tutti's all-reduce in front. Where
SGLang has no object for the group (three ranks, say), Tutti's stands alone. SGLang calls NCCL for all-gathers and reduce-scatters,
and its own kernel for CPU tensors, and has no seam there.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import Any, Callable, Iterator

import torch
from torch import Tensor

from tutti.integrations._served import Served, serve

_TARGET = "sglang.srt.distributed.device_communicators.custom_all_reduce.dispatch_custom_allreduce"
_log = logging.getLogger("sglang.srt.tutti")


def register() -> None:
    """Registers the hook."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_TARGET, _dispatch, HookType.AROUND)


def _dispatch(original: Callable[..., Any], group: Any, device: torch.device) -> Callable[..., Any]:
    own = original(group=group, device=device)
    return own if torch.version.hip else lambda group, device: _all_reduce(own, group, device)


def _all_reduce(own: Callable[..., Any], group: Any, device: torch.device) -> Any:
    """The custom all-reduce of a group. own: makes SGLang's."""
    made = own(group=group, device=device)
    served = serve(group, torch.device(device), getattr(group, "group_desc", "") or "of SGLang", "all-reduce", "SGLang", _log.info)
    if served is None:
        return made
    if made.disabled:
        return AllReduce(served)
    front = AllReduce(served, made)
    # SGLang sets made.disabled for a while to switch custom all-reduces off.
    made.should_custom_ar, made.custom_all_reduce, made.close = front.should_custom_ar, front.custom_all_reduce, front.close
    return made


class AllReduce:
    """What SGLang asks of a custom all-reduce."""

    def __init__(self, served: Served, made: Any = None) -> None:
        self.served, self.made = served, made or self
        self.close_made = made.close if hasattr(made, "close") else lambda: None
        self.disabled = self.original_disabled = False

    def should_custom_ar(self, inp: Tensor) -> bool:
        return not self.made.disabled and self.served.reduces(inp)

    def custom_all_reduce(self, input: Tensor) -> Tensor | None:
        """Out of place; None: not now."""
        if not self.should_custom_ar(input):
            return None
        given = input.contiguous()
        output = given.new_empty(given.shape)
        self.served.all_reduce(given, output)
        return output

    @contextmanager
    def capture(self) -> Iterator[None]:
        """The kernels take any address, so no buffer of a graph is registered."""
        yield

    def close(self) -> None:
        self.served.close()
        self.close_made()
