# SPDX-License-Identifier: MIT
"""vLLM's all-reduces together with the residual, the RMSNorm and the quantisation behind them, in compiled graphs.

A pass, which the plug-in's pass manager runs before vLLM's own fusions, replaces

    torch.ops.vllm.all_reduce, torch.ops.vllm_ir.fused_add_rms_norm (or rms_norm), and one of vLLM's operators that quantise

by torch.ops.tutti_vllm.all_reduce_rms_norm or all_reduce_rms_norm_quant. It leaves what Tutti does not serve. vLLM keeps compiled
graphs in a cache, so an operator may come to a process whose group Tutti does not serve: it then runs vLLM's operators one by one.
"""

from __future__ import annotations

import operator
from typing import Any, Callable, Mapping, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node

from tutti.integrations._served import Served
from tutti.torch import _norm
from tutti.torch._fusion import _is, _is_like, _plus_number, _uncast, _value

_LIMITS = {"int8_token": 127.0}  # of others 448


# ---- the operators

def _unfused(tensor: Tensor, weight: Tensor, residual: Tensor | None, epsilon: float, weight_bias: float,
             group: str) -> tuple[Tensor, Tensor]:
    if weight_bias:
        weight = weight.float() + weight_bias
    total = torch.ops.vllm.all_reduce(tensor, group)
    if residual is None:
        return torch.ops.vllm_ir.rms_norm(total, weight, epsilon), total
    normed, total = torch.ops.vllm_ir.fused_add_rms_norm(total, residual, weight, epsilon)
    return normed, total


def _quantise(normed: Tensor, quant: str, scale: Tensor | None, values: Tensor, scales: Tensor) -> None:
    wide, limit = normed.float(), _LIMITS.get(quant, 448.0)
    if quant == "fp8_group":
        wide = wide.unflatten(-1, (scales.size(-1), -1))
    if scale is None:
        scale = (wide.abs().amax(-1, keepdim=True) / limit).clamp(min=torch.finfo(torch.float32).tiny)
        scales.copy_(scale.view(scales.shape))
    wide = (wide / scale).clamp(-limit, limit).view(normed.shape)
    values.copy_(wide.round() if values.dtype == torch.int8 else wide)


class Operators:
    """torch.ops.tutti_vllm.all_reduce_rms_norm and all_reduce_rms_norm_quant. served: the communicators by the groups' names."""

    def __init__(self, served: Mapping[str, Served], library: Any) -> None:
        self._served = served
        inputs, more = "Tensor tensor, Tensor weight", "float epsilon, float weight_bias"
        for schema, run, fake in (
                (f"all_reduce_rms_norm({inputs}, Tensor? residual, {more}, str group) -> (Tensor, Tensor)",
                 self.normed, lambda tensor, *_: _norm.outputs(tensor)),
                (f"all_reduce_rms_norm_quant({inputs}, str quant, Tensor? residual, Tensor? scale, {more}, bool with_norm, "
                 "int scale_alignment, str group) -> (Tensor, Tensor, Tensor, Tensor)", self.quantised, self._quantised_like)):
            name = schema.partition("(")[0]
            library.define(schema)
            for device in "CPU", "CUDA":
                library.impl(name, run, device)
            torch.library.register_fake(f"tutti_vllm::{name}", fake, lib=library)

    @staticmethod
    def _quantised_like(tensor: Tensor, weight: Tensor, quant: str, residual: Tensor | None, scale: Tensor | None,
                        epsilon: float, weight_bias: float, with_norm: bool, scale_alignment: int, group: str) -> Any:
        return _norm.quantised_outputs(tensor, quant, scale, with_norm, scale_alignment)

    def normed(self, tensor: Tensor, weight: Tensor, residual: Tensor | None, epsilon: float, weight_bias: float,
               group: str) -> tuple[Tensor, Tensor]:
        served = self._served.get(group)
        if served is None:
            return _unfused(tensor, weight, residual, epsilon, weight_bias, group)
        return _norm.normed(served.run_norm, tensor, weight, residual, epsilon, weight_bias)

    def quantised(self, tensor: Tensor, weight: Tensor, quant: str, residual: Tensor | None, scale: Tensor | None,
                  epsilon: float, weight_bias: float, with_norm: bool, scale_alignment: int,
                  group: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        served = self._served.get(group)
        if served is None:
            normed, total = _unfused(tensor, weight, residual, epsilon, weight_bias, group)
            values, scales, _, empty = _norm.quantised_outputs(tensor, quant, scale, False, scale_alignment)
            _quantise(normed, quant, scale, values, scales)
            return values, scales, total, normed if with_norm else empty
        return _norm.normed_quantised(served.run_norm, tensor, weight, quant, residual, scale, epsilon, weight_bias, with_norm,
                                      scale_alignment)


# ---- vLLM's operators that quantise: what each is of ours, or None

class _Quant(NamedTuple):
    name: str
    scale: Node | None = None  # that is given
    scale_alignment: int = 0


def _static(arguments: Mapping[str, Any]) -> _Quant | None:
    scale = _value(arguments["scale"])
    is_one = scale is not None and scale.numel() == 1 and scale.dtype == torch.float32
    return _Quant("fp8_tensor", arguments["scale"]) if is_one else None


def _per_token(arguments: Mapping[str, Any]) -> _Quant | None:
    return _Quant("fp8_token") if arguments.get("scale_ub") is None else None


def _per_group(arguments: Mapping[str, Any]) -> _Quant | None:
    if arguments["group_size"] != 128 or arguments["scale_ue8m0"] or arguments["fp8_max"] != 448.0:
        return None
    if not arguments["dummy_is_scale_transposed"]:
        return _Quant("fp8_group")
    return _Quant("fp8_group", None, 4 if arguments["dummy_is_tma_aligned"] else 1)


def _int8(arguments: Mapping[str, Any]) -> _Quant | None:
    return _Quant("int8_token") if arguments.get("azp") is None else None


_QUANTS: dict[str, Callable[[Mapping[str, Any]], _Quant | None]] = {
    "_C::static_scaled_fp8_quant": _static, "_C::dynamic_per_token_scaled_fp8_quant": _per_token,
    "_C::per_token_group_fp8_quant": _per_group, "_C::dynamic_scaled_int8_quant": _int8}


def _quant_of(node: Node, normed: Node) -> _Quant | None:
    """Of a node that uses the norm."""
    if not _is(node, torch.ops.higher_order.auto_functionalized) or node.kwargs.get("input") is not normed:
        return None
    wanted = _QUANTS.get(node.args[0]._schema.name)
    found = wanted(node.kwargs) if wanted else None
    value, results = _value(normed), [_value(user) for user in node.users if user.args[1] == 1]
    expected = torch.int8 if found and found.name == "int8_token" else torch.float8_e4m3fn
    is_served = (all(result is not None and result.dtype == expected for result in results) and value.dim() == 2
                 and (not found or found.name != "fp8_group" or value.shape[-1] % 128 == 0))
    return found if is_served else None


# ---- the pass

class _Found(NamedTuple):
    reduced: Node
    norm: Node
    tensor: Node
    group: str
    residual: Node | None
    weight: Node
    bias: float
    epsilon: float


def _gathered(node: Node) -> tuple[Node, str]:
    """The input and the group of an all-reduce."""
    names = "tensor", "group_name"
    tensor, group = (node.args[i] if len(node.args) > i else node.kwargs[names[i]] for i in range(2))
    return tensor, group


def _source(node: Any) -> Any:
    while _is(node, torch.ops.aten.detach.default, torch.ops.aten.alias.default):
        node = node.args[0]
    return node


def _weight_of(node: Any) -> tuple[Any, float]:
    """A weight, and the number that Gemma adds to it, in float32 as Tutti does."""
    value, (inner, bias) = _value(node), _plus_number(node) or (node, 0.0)
    if value is not None and value.dtype == torch.float32:
        return _source(_uncast(_source(inner))), bias
    return _source(node), 0.0


def _find(norm: Node, order: Mapping[Node, int], served: Mapping[str, Served]) -> _Found | None:
    adds = norm.target is torch.ops.vllm_ir.fused_add_rms_norm.default
    reduced, residual, weight, epsilon, *size = norm.args if adds else (norm.args[0], None, *norm.args[1:])
    if norm.kwargs or size not in ([], [None]) or not _is(reduced, torch.ops.vllm.all_reduce.default):
        return None
    (tensor, group), (weight, bias) = _gathered(reduced), _weight_of(weight)
    value, width = _value(reduced), _value(weight)
    if (group not in served or value is None or width is None or value.dtype not in _norm.FLOATS
            or width.dtype not in _norm.FLOATS or width.dim() != 1 or value.dim() < 2 or not _norm.is_served(value.shape[-1])
            or width.shape[0] != value.shape[-1]):
        return None
    # With a residual nobody else sees the plain sum. Without one the sum comes from where the all-reduce was.
    if len(reduced.users) > 1 or not _is_like(_value(residual), value) if adds else order[weight] > order[reduced]:
        return None
    return _Found(reduced, norm, tensor, group, residual, weight, bias, epsilon)


def _replace(graph: Graph, found: _Found, order: Mapping[Node, int]) -> None:
    adds, place = found.residual is not None, found.norm if found.residual is not None else found.reduced
    normed = [user for user in found.norm.users if user.args[1] == 0] if adds else [found.norm]
    quants = [(user, quant) for node in normed for user in node.users if (quant := _quant_of(user, node))
              and (quant.scale is None or order[quant.scale] < order[place])]
    common = found.epsilon, found.bias
    quantised, quant = quants[0] if len(quants) == 1 else (None, _Quant("none"))
    with graph.inserting_before(place):
        if quantised is None:
            fused = graph.call_function(torch.ops.tutti_vllm.all_reduce_rms_norm.default, (
                found.tensor, found.weight, found.residual, *common, found.group))
            new: dict[Any, Node] = {i: graph.call_function(operator.getitem, (fused, i)) for i in range(2)}
        else:
            # Nodes from whose shape the memory of vLLM's operator is made are no users.
            with_norm = any(user is not quantised and (user not in quantised.kwargs.values() or len(user.users) > 1)
                            for node in normed for user in node.users)
            fused = graph.call_function(torch.ops.tutti_vllm.all_reduce_rms_norm_quant.default, (
                found.tensor, found.weight, quant.name, found.residual, quant.scale, *common, with_norm, quant.scale_alignment,
                found.group))
            values, scales, total, norm = (graph.call_function(operator.getitem, (fused, i)) for i in range(4))
            new = {0: norm, 1: total}
    _fill(fused)
    if quantised is not None:
        for user in list(quantised.users):
            user.replace_all_uses_with(values if user.args[1] == 1 else scales)
            graph.erase_node(user)
        graph.erase_node(quantised)
    if adds:
        for user in list(found.norm.users):
            user.replace_all_uses_with(new[user.args[1]])
            graph.erase_node(user)
    else:
        found.norm.replace_all_uses_with(new[0])
    graph.erase_node(found.norm)
    found.reduced.replace_all_uses_with(new[1])
    graph.erase_node(found.reduced)


def _fill(fused: Node) -> None:
    """The values of new nodes for the passes that follow."""
    given = torch.fx.map_arg(fused.args, lambda node: node.meta["val"])
    with torch._guards.detect_fake_mode(given) or torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        fused.meta["val"] = fused.target(*given)
    for user in fused.users:
        user.meta["val"] = fused.meta["val"][user.args[1]]


def fuse(graph: Graph, served: Mapping[str, Served]) -> int:
    """Replaces what Tutti serves, and returns how often."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    norms, count = torch.ops.vllm_ir, 0
    for node in list(graph.nodes):
        if _is(node, norms.fused_add_rms_norm.default, norms.rms_norm.default) and (found := _find(node, order, served)):
            _replace(graph, found, order)
            count += 1
    if count:
        graph.eliminate_dead_code()
    return count


def make_pass(served: Mapping[str, Served], log: Any) -> Any:
    """The pass for vLLM's pass manager."""
    from torch._inductor.custom_graph_pass import get_hash_for_files
    from vllm.compilation.passes.inductor_pass import InductorPass

    class RmsNormPass(InductorPass):
        def __call__(self, graph: Graph) -> None:
            if fuse(graph, served) and all(each.comm.rank == 0 for each in served.values()):
                log.info_once("Tutti runs all-reduces together with the RMSNorm behind them.")

        def uuid(self) -> str:
            return str(get_hash_for_files((__file__,), repr(sorted(served))).hex())

    return RmsNormPass()
