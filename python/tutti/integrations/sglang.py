# SPDX-License-Identifier: MIT
"""SGLang's plug-in: Tutti does the custom all-reduce of CUDA groups.

SGLang asks dispatch_custom_allreduce() for the class of a group's custom all-reduce. The hook returns a function in its place.
It makes SGLang's own object, which models with fused kernels of their own look for, and puts Tutti's all-reduce in front. Where
SGLang has no object for the group (three ranks, say), Tutti's stands alone. SGLang calls NCCL for all-gathers and reduce-scatters,
and its own kernel for CPU tensors, and has no seam there.

All-reduce, residual and RMSNorm run as one operation where SGLang would call FlashInfer's: a hook of its function, and one of the
question whether a batch takes it. SGLang's fused quantisation is for AMD alone.
"""

from __future__ import annotations

import functools
import logging
from contextlib import contextmanager
from typing import Any, Callable, Iterator

import torch
from torch import Tensor

from tutti.integrations._served import Served, fuses, missing, serve
from tutti.torch import _norm

_TARGET = "sglang.srt.distributed.device_communicators.custom_all_reduce.dispatch_custom_allreduce"
_FUSION = "sglang.srt.layers.flashinfer_comm_fusion"
_FUSED = f"{_FUSION}.flashinfer_allreduce_residual_rmsnorm"
_SEAMS = f"{_FUSION}.resolve_fusion_group", f"{_FUSION}.uses_cutedsl_ar_fusion", "sglang.srt.layers.dp_attention.is_dp_attention_enabled"
_APPLIES = "sglang.srt.layers.layer_boundary.residual.add_norm.flashinfer_ar_fusion_applies"
_log = logging.getLogger("sglang.srt.tutti")
_served: dict[str, Served] = {}  # by the names of the groups of processes: for the operator


def register() -> None:
    """Registers the hooks."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_TARGET, _dispatch, HookType.AROUND)
    if not fuses():
        return
    if lacking := missing(_FUSED, _APPLIES, *_SEAMS):
        _log.warning("Tutti does not run all-reduces together with RMSNorm: this version has no %s.", lacking)
        return
    _operators()
    HookRegistry.register(_FUSED, _fused, HookType.AROUND)
    HookRegistry.register(_APPLIES, _applies, HookType.AROUND)


def _dispatch(original: Callable[..., Any], group: Any, device: torch.device) -> Callable[..., Any]:
    own = original(group=group, device=device)
    return own if torch.version.hip else lambda group, device: _all_reduce(own, group, device)


def _all_reduce(own: Callable[..., Any], group: Any, device: torch.device) -> Any:
    """The custom all-reduce of a group. own: makes SGLang's."""
    made = own(group=group, device=device)
    served = serve(group, torch.device(device), getattr(group, "group_desc", "") or "of SGLang", "all-reduce", "SGLang", _log.info)
    if served is None:
        return made
    _served[group.group_name] = served
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
        for name in [name for name, served in _served.items() if served is self.served]:
            del _served[name]
        self.served.close()
        self.close_made()


# ---- all-reduce and RMSNorm

@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _group(use_attn_tp_group: bool) -> str:
    """The name of the group over which SGLang reduces; "": Tutti does not serve it, or SGLang has switched its all-reduce off."""
    from sglang.srt.layers.dp_attention import is_dp_attention_enabled
    from sglang.srt.layers.flashinfer_comm_fusion import resolve_fusion_group, uses_cutedsl_ar_fusion

    if uses_cutedsl_ar_fusion() or is_dp_attention_enabled():
        return ""
    size, _, coordinator = resolve_fusion_group(use_attn_tp_group=use_attn_tp_group)
    if size <= 1:
        return ""
    name, custom = str(coordinator.cpu_group.group_name), getattr(coordinator, "ca_comm", None)
    return name if name in _served and custom is not None and not custom.disabled else ""


def _applies(original: Callable[..., bool], batch_size: int) -> bool:
    """Whether a batch is left to the fused call. FlashInfer's has a limit; Tutti's has none."""
    return original(batch_size) or bool(_group(True) and _group(False) and batch_size > 0)


def _fused(original: Callable[..., Any], input_tensor: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6, *more: Any,
           use_attn_tp_group: bool = True, **others: Any) -> Any:
    """The norm and the sum with the residual; (None, None), as by SGLang's function: not now."""
    group = _group(use_attn_tp_group)
    if (group and _norm.is_served(input_tensor.shape[-1]) and residual.dtype == input_tensor.dtype
            and input_tensor.dtype in _norm.FLOATS and weight.dtype in _norm.FLOATS):
        return torch.ops.tutti_sglang.all_reduce_rms_norm(input_tensor, residual, weight, eps, group)
    return original(input_tensor, residual, weight, eps, *more, use_attn_tp_group=use_attn_tp_group, **others)


def _run(input: Tensor, residual: Tensor, weight: Tensor, epsilon: float, group: str) -> tuple[Tensor, Tensor]:
    return _norm.normed(_served[group].run_norm, input, weight, residual, epsilon, 0.0)


@functools.cache
def _operators() -> Any:
    """torch.compile keeps it whole."""
    library = torch.library.Library("tutti_sglang", "DEF")
    library.define("all_reduce_rms_norm(Tensor input, Tensor residual, Tensor weight, float epsilon, str group) -> (Tensor, Tensor)")
    for device in "CPU", "CUDA":
        library.impl("all_reduce_rms_norm", _run, device)
    torch.library.register_fake("tutti_sglang::all_reduce_rms_norm", lambda input, *_: _norm.outputs(input), lib=library)
    return library
