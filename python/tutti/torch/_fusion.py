# SPDX-License-Identifier: MIT
"""A pass for torch.compile: torch.ops.tutti.all_reduce_rms_norm in place of an all-reduce, an addition and an RMSNorm."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from tutti._errors import InvalidError
from tutti.torch._norm import FLOATS, is_served
from tutti.torch._operators import _group

_aten, _functional = torch.ops.aten, torch.ops._c10d_functional
_ADDS = _aten.add.Tensor, _aten.add.Scalar
_CASTS = torch.ops.prims.convert_element_type.default, _aten._to_copy.default
_VIEWS = _aten.view.default, _aten.reshape.default, _aten._unsafe_view.default


class _Found(NamedTuple):
    tensor: Node
    group: str
    chain: list[Node]  # from the all-reduce to its result
    total: Node  # the result, or that with the residual
    residual: Node | None
    weight: Node
    bias: float
    epsilon: float
    output: Node


def _is(node: Any, *targets: Any) -> bool:
    return isinstance(node, Node) and node.op == "call_function" and node.target in targets


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, Node) else None


def _uncast(node: Any) -> Any:
    return node.args[0] if _is(node, *_CASTS) else node


def _plus_number(node: Any) -> tuple[Any, float] | None:
    """What a node adds a number to, and the number."""
    if _is(node, *_ADDS) and not node.kwargs and isinstance(node.args[1], (int, float)):
        return node.args[0], float(node.args[1])
    return None


def _other_factor(product: Node, factor: Node) -> Any:
    return product.args[1] if product.args[0] is factor else product.args[0]


def _only_user(node: Node, *targets: Any) -> Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 and _is(users[0], *targets) else None


def _is_like(one: Any, other: Any) -> bool:
    """Whether two values have the same dtype and shape."""
    return (one is not None and other is not None and one.dtype == other.dtype and one.dim() == other.dim()
            and all(statically_known_true(a == b) for a, b in zip(one.shape, other.shape)))


def _is_served(name: str, device: torch.device) -> bool:
    """Whether a group is of this backend."""
    try:
        _group(name, device)
    except (InvalidError, RuntimeError, ValueError, AttributeError):
        return False
    return True


def _argument(node: Node, index: int, name: str, default: Any) -> Any:
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def _reduced(node: Any) -> tuple[Node, str, list[Node]] | None:
    """The input, the group and the nodes of an all-reduce whose result, before this node, nothing else uses."""
    chain = [node]
    if _is(node, *_VIEWS):
        chain.insert(0, node.args[0])
    if _is(chain[0], _aten.copy.default) and _is_like(*map(_value, chain[0].args)):  # dist.all_reduce()
        chain.insert(0, chain[0].args[1])
    if _is(chain[0], _functional.wait_tensor.default):
        chain.insert(0, chain[0].args[0])
        wanted, default = _functional.all_reduce.default, None
    else:
        wanted, default = torch.ops.tutti.all_reduce.default, ""
    if not _is(chain[0], wanted) or any(len(each.users) != 1 for each in chain[:-1]):
        return None
    group = _argument(chain[0], 2, "group", default)
    if _argument(chain[0], 1, "op", "sum") != "sum" or not isinstance(group, str):
        return None
    return chain[0].args[0], group, chain


def _square(node: Any) -> Any:
    if _is(node, _aten.pow.Tensor_Scalar) and node.args[1] == 2:
        return node.args[0]
    return node.args[0] if _is(node, _aten.mul.Tensor) and node.args[0] is node.args[1] else None


def _normed(rsqrt: Node) -> tuple[Node, float, Node] | None:
    """What is divided by the root of the mean of its squares, the number added to the mean, and the quotient."""
    inner = _plus_number(rsqrt.args[0])
    if inner is None or not _is(inner[0], _aten.mean.dim):
        return None
    mean, epsilon = inner
    wide = _square(mean.args[0])
    value = _value(wide)
    if value is None or value.dtype != torch.float32 or _argument(mean, 2, "keepdim", False) is not True or mean.kwargs.get("dtype"):
        return None
    quotient = _only_user(rsqrt, _aten.mul.Tensor)
    if list(mean.args[1]) not in ([-1], [value.dim() - 1]) or quotient is None or _other_factor(quotient, rsqrt) is not wide:
        return None
    return wide, epsilon, quotient


def _weighted(quotient: Node, dtype: torch.dtype) -> tuple[Node, Any] | None:
    """The product with the weight, in the dtype of the rows, and the weight."""
    rounded = _only_user(quotient, *_CASTS) or quotient
    product = _only_user(rounded, _aten.mul.Tensor)
    if product is None:
        return None
    output = product if _value(product).dtype == dtype else _only_user(product, *_CASTS)
    if output is None or _value(output).dtype != dtype:
        return None
    return output, _other_factor(product, rounded)


def _find(rsqrt: Node, order: dict[Node, int]) -> _Found | None:
    found = _normed(rsqrt)
    if found is None:
        return None
    wide, epsilon, quotient = found
    total = _uncast(wide)
    value = _value(total)
    weighted = _weighted(quotient, value.dtype)
    if weighted is None or value.dtype not in FLOATS:
        return None
    output, weight = weighted
    weight, bias = _plus_number(_uncast(weight)) or (weight, 0.0)
    weight, hidden = _uncast(weight), value.shape[-1]
    expected = _value(weight)
    if (expected is None or expected.dim() != 1 or expected.dtype not in FLOATS or not is_served(hidden)
            or expected.shape[0] != hidden or order.get(weight, len(order)) > order[total]):
        return None
    sides: list[tuple[Any, Any]] = [(total, None)]
    if _is(total, _aten.add.Tensor) and not total.kwargs:
        sides = [total.args, total.args[::-1]]
    for side, residual in sides:
        reduced = _reduced(side)
        if (reduced is None or not _is_served(reduced[1], value.device)
                or (residual is not None and len(side.users) != 1)):
            continue
        if residual is None or (_is_like(_value(residual), value) and _is_like(_value(side), value)):
            return _Found(*reduced, total, residual, weight, bias, epsilon, output)
    return None


def _replace(graph: Graph, found: _Found) -> None:
    total, output, tensor = found.total, found.output, found.tensor
    with graph.inserting_before(total):
        for view in found.chain:
            if _is(view, *_VIEWS):
                tensor = graph.call_function(view.target, (tensor, *view.args[1:]))
                tensor.meta.update(view.meta)
        fused = graph.call_function(torch.ops.tutti.all_reduce_rms_norm.default, (
            tensor, found.weight, found.residual, found.epsilon, found.bias, found.group))
        fused.meta["val"] = _value(output), _value(total)
        outputs = [graph.call_function(operator.getitem, (fused, i)) for i in range(2)]
    for old, new in zip((output, total), outputs):
        new.meta.update(old.meta)
        old.replace_all_uses_with(new)
    for node in reversed([*found.chain, total] if found.residual is not None else found.chain):
        if not node.users:
            graph.erase_node(node)


def fuse_rms_norm(graph: Graph) -> int:
    """Replaces each sum of all ranks, addition of a residual and RMSNorm in a functional graph of ATen's operators by the one
    operator, if the sum's group is of this backend. Returns how many it has replaced."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    count = 0
    for node in list(graph.nodes):
        found = _find(node, order) if _is(node, _aten.rsqrt.default) else None
        if found:
            _replace(graph, found)
            count += 1
    if count:
        graph.eliminate_dead_code()
    return count


class RmsNormPass(CustomGraphPass):
    """fuse_rms_norm() for torch.compile:

        torch.compile(model, options={"post_grad_custom_pre_pass": tutti.torch.RmsNormPass()})
    """

    def __call__(self, graph: Graph) -> None:
        fuse_rms_norm(graph)

    def uuid(self) -> Any:
        groups = sorted(map(str, dist.distributed_c10d._world.pg_backend_config.values()))
        return get_hash_for_files((__file__,), repr(groups))
