# SPDX-License-Identifier: MIT
"""torch.ops.tutti: collectives as operators of PyTorch, which torch.compile keeps in its graphs. They run on the group's
communicator, CUDA tensors on the current stream, and return once the result may be used there. `group` is a group's name,
"" the default group; `op` is "sum", "avg", "product", "min" or "max". Gradients flow through sums, averages and copies.

Out of place: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, all_reduce_rms_norm, all_reduce_rms_norm_quant. In place:
all_reduce_, broadcast_, all_reduce_rms_norm_. Into a tensor of the caller: all_gather_single, reduce_scatter_single,
all_to_all_single. The definitions, at the end, have their arguments."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.distributed.distributed_c10d import _resolve_process_group

from tutti._errors import InvalidError
from tutti._tutti import lib
from tutti.torch import _norm
from tutti.torch._group import ProcessGroup
from tutti.torch._operands import Operand

LIBRARY = torch.library.Library("tutti", "DEF")


def _group(name: str, device: torch.device) -> ProcessGroup:
    found: Any = _resolve_process_group(name) if name else dist.group.WORLD
    if found is None:
        raise InvalidError("tutti: no default process group: call torch.distributed.init_process_group(\"tutti\")")
    backend = found._get_backend(device)
    group = getattr(backend, "_group", backend)
    if not isinstance(group, ProcessGroup):
        raise InvalidError(f"torch.ops.tutti: group \"{name}\" has no backend tutti for {device}, but {backend}")
    return group


def _size(name: str) -> int:
    return int((_resolve_process_group(name) if name else dist.group.WORLD).size())


def _options(kind: Any, **values: Any) -> Any:
    options = kind()
    options.asyncOp = False
    for name, value in values.items():
        setattr(options, name, value)
    return options


def _reduction(op: str) -> Any:
    kind = getattr(dist.ReduceOp, op.upper(), None)
    if kind is None or op == "premul_sum":
        raise InvalidError(f"torch.ops.tutti: op \"{op}\": expected sum, avg, product, min, max, band, bor or bxor")
    return kind


_GATHER, _EXCHANGE = _options(c10d.AllgatherOptions), _options(c10d.AllToAllOptions)
_NORM = _options(c10d.AllreduceOptions)


def _rows(tensor: Tensor, dim: int) -> Tensor:
    """With dimension `dim` first, contiguous."""
    return tensor.movedim(dim, 0).contiguous()


def _check_split(name: str, tensor: Tensor, dim: int, ranks: int) -> None:
    if tensor.size(dim) % ranks:
        raise InvalidError(f"torch.ops.tutti.{name}: dimension {dim} of shape {tuple(tensor.shape)} does not divide among "
                           f"{ranks} ranks")


# ---- the operators

def _all_reduce(tensor: Tensor, op: str = "sum", group: str = "") -> Tensor:
    given = tensor.contiguous()
    output = torch.empty_like(given)
    _group(group, tensor.device).all_reduce_into(
        output, given, _options(c10d.AllreduceOptions, reduceOp=_reduction(op)))
    return output


def _all_reduce_in_place(tensor: Tensor, op: str = "sum", group: str = "") -> None:
    _group(group, tensor.device).allreduce([tensor], _options(c10d.AllreduceOptions, reduceOp=_reduction(op)))


def _all_gather(tensor: Tensor, dim: int = 0, group: str = "") -> Tensor:
    found, given = _group(group, tensor.device), _rows(tensor, dim)
    output = given.new_empty((found.size() * given.size(0), *given.shape[1:]))
    found.all_gather_single(output, given, _GATHER)
    return output if dim == 0 else output.movedim(0, dim).contiguous()


def _reduce_scatter(tensor: Tensor, op: str = "sum", dim: int = 0, group: str = "") -> Tensor:
    found, given = _group(group, tensor.device), _rows(tensor, dim)
    _check_split("reduce_scatter", tensor, dim, found.size())
    output = given.new_empty((given.size(0) // found.size(), *given.shape[1:]))
    found.reduce_scatter_single(output, given, _options(c10d.ReduceScatterOptions, reduceOp=_reduction(op)))
    return output if dim == 0 else output.movedim(0, dim).contiguous()


def _all_to_all(tensor: Tensor, output_splits: Sequence[int] | None = None,
                input_splits: Sequence[int] | None = None, group: str = "") -> Tensor:
    found, given = _group(group, tensor.device), tensor.contiguous()
    output = given.new_empty((sum(output_splits) if output_splits else given.size(0), *given.shape[1:]))
    found.all_to_all_single(output, given, output_splits or [], input_splits or [], _EXCHANGE)
    return output


def _all_gather_into(output: Tensor, tensor: Tensor, group: str = "") -> None:
    _group(group, tensor.device).all_gather_single(output, tensor, _GATHER)


def _reduce_scatter_into(output: Tensor, tensor: Tensor, op: str = "sum", group: str = "") -> None:
    _group(group, tensor.device).reduce_scatter_single(
        output, tensor, _options(c10d.ReduceScatterOptions, reduceOp=_reduction(op)))


def _all_to_all_into(output: Tensor, tensor: Tensor, output_splits: Sequence[int] | None = None,
                     input_splits: Sequence[int] | None = None, group: str = "") -> None:
    _group(group, tensor.device).all_to_all_single(output, tensor, output_splits or [], input_splits or [], _EXCHANGE)


def _broadcast(tensor: Tensor, root: int, group: str = "") -> Tensor:
    output = _like(tensor).copy_(tensor)
    _broadcast_in_place(output, root, group)
    return output


def _broadcast_in_place(tensor: Tensor, root: int, group: str = "") -> None:
    _group(group, tensor.device).broadcast([tensor], _options(c10d.BroadcastOptions, rootRank=root))


# ---- with RMSNorm (_norm.py)

def _runner(name: str, device: torch.device) -> _norm.Run:
    found = _group(name, device)

    def run(norm: Any, operands: Sequence[Tensor], outputs: Sequence[Tensor], changed: Sequence[Operand]) -> None:
        found._collective("all_reduce_rms_norm", found._device("all_reduce_rms_norm", operands),
                          [(lib.tutti_all_reduce_rms_norm_with, norm)], changed, operands[:1], list(outputs), _NORM,
                          (norm, operands))

    return run


def _all_reduce_rms_norm(tensor: Tensor, weight: Tensor, residual: Tensor | None = None, epsilon: float = 1e-6,
                         weight_bias: float = 0.0, group: str = "") -> tuple[Tensor, Tensor]:
    return _norm.normed(_runner(group, tensor.device), tensor, weight, residual, epsilon, weight_bias)


def _all_reduce_rms_norm_in_place(tensor: Tensor, weight: Tensor, residual: Tensor | None = None, epsilon: float = 1e-6,
                                  weight_bias: float = 0.0, group: str = "") -> None:
    _norm.normed_in_place(_runner(group, tensor.device), tensor, weight, residual, epsilon, weight_bias)


def _all_reduce_rms_norm_quant(
        tensor: Tensor, weight: Tensor, quant: str, residual: Tensor | None = None, scale: Tensor | None = None,
        epsilon: float = 1e-6, weight_bias: float = 0.0, with_norm: bool = False, scale_alignment: int = 0,
        group: str = "") -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _norm.normed_quantised(_runner(group, tensor.device), tensor, weight, quant, residual, scale, epsilon, weight_bias,
                                  with_norm, scale_alignment)


# ---- their shapes, for torch.compile

def _like(tensor: Tensor, op: str = "sum", group: str = "") -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _scaled(tensor: Tensor, dim: int, factor: int, divisor: int) -> Tensor:
    shape = list(tensor.shape)
    shape[dim] = shape[dim] * factor // divisor
    return tensor.new_empty(shape)


def _gathered(tensor: Tensor, dim: int = 0, group: str = "") -> Tensor:
    return _scaled(tensor, dim, _size(group), 1)


def _scattered(tensor: Tensor, op: str = "sum", dim: int = 0, group: str = "") -> Tensor:
    return _scaled(tensor, dim, 1, _size(group))


def _exchanged(tensor: Tensor, output_splits: Sequence[int] | None = None,
               input_splits: Sequence[int] | None = None, group: str = "") -> Tensor:
    return tensor.new_empty((sum(output_splits) if output_splits else tensor.size(0), *tensor.shape[1:]))


def _sent(tensor: Tensor, root: int, group: str = "") -> Tensor:
    return _like(tensor)


def _normed(tensor: Tensor, weight: Tensor, residual: Tensor | None = None, epsilon: float = 1e-6, weight_bias: float = 0.0,
            group: str = "") -> tuple[Tensor, Tensor]:
    return _norm.outputs(tensor)


def _quantised(tensor: Tensor, weight: Tensor, quant: str, residual: Tensor | None = None, scale: Tensor | None = None,
               epsilon: float = 1e-6, weight_bias: float = 0.0, with_norm: bool = False, scale_alignment: int = 0,
               group: str = "") -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _norm.quantised_outputs(tensor, quant, scale, with_norm, scale_alignment)


# ---- gradients

def _remember(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.arguments = inputs[1:]


def _check_linear(op: str) -> None:
    if op not in ("sum", "avg"):
        raise InvalidError(f"torch.ops.tutti: op \"{op}\" has no gradient: use sum or avg, or detach()")


def _all_reduce_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    op, group = ctx.arguments
    _check_linear(op)
    return torch.ops.tutti.all_reduce(grad, op, group), None, None


def _all_gather_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    dim, group = ctx.arguments
    return torch.ops.tutti.reduce_scatter(grad, "sum", dim, group), None, None


def _reduce_scatter_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    op, dim, group = ctx.arguments
    _check_linear(op)
    found = torch.ops.tutti.all_gather(grad, dim, group)
    return found if op == "sum" else found / _size(group), None, None, None


def _all_to_all_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    output_splits, input_splits, group = ctx.arguments
    return torch.ops.tutti.all_to_all(grad, input_splits, output_splits, group), None, None, None


def _norm_backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    raise InvalidError("torch.ops.tutti.all_reduce_rms_norm has no gradient: call it under torch.no_grad()")


def _define(schema: str, run: Callable[..., Any], fake: Callable[..., Any],
            backward: Callable[..., Any] | None = None) -> None:
    name = f"tutti::{schema.partition('(')[0]}"
    LIBRARY.define(schema)
    for device in ("CPU", "CUDA"):
        LIBRARY.impl(schema.partition("(")[0], run, device)
    torch.library.register_fake(name, fake, lib=LIBRARY)
    if backward:
        torch.library.register_autograd(name, backward, setup_context=_remember, lib=LIBRARY)


def _nothing(*arguments: Any) -> None:
    pass


_define("all_reduce(Tensor tensor, str op=\"sum\", str group=\"\") -> Tensor", _all_reduce, _like, _all_reduce_backward)
_define("all_reduce_(Tensor(a!) tensor, str op=\"sum\", str group=\"\") -> ()", _all_reduce_in_place, _nothing)
_define("all_gather(Tensor tensor, int dim=0, str group=\"\") -> Tensor", _all_gather, _gathered, _all_gather_backward)
_define("reduce_scatter(Tensor tensor, str op=\"sum\", int dim=0, str group=\"\") -> Tensor", _reduce_scatter, _scattered,
        _reduce_scatter_backward)
_define("all_to_all(Tensor tensor, SymInt[]? output_splits=None, SymInt[]? input_splits=None, str group=\"\") -> Tensor",
        _all_to_all, _exchanged, _all_to_all_backward)
# As those of torch.distributed: into a tensor of the caller.
_define("all_gather_single(Tensor(a!) output, Tensor tensor, str group=\"\") -> ()", _all_gather_into, _nothing)
_define("reduce_scatter_single(Tensor(a!) output, Tensor tensor, str op=\"sum\", str group=\"\") -> ()", _reduce_scatter_into,
        _nothing)
_define("all_to_all_single(Tensor(a!) output, Tensor tensor, SymInt[]? output_splits=None, SymInt[]? input_splits=None, "
        "str group=\"\") -> ()", _all_to_all_into, _nothing)
_define("broadcast(Tensor tensor, int root, str group=\"\") -> Tensor", _broadcast, _sent)
_define("broadcast_(Tensor(a!) tensor, int root, str group=\"\") -> ()", _broadcast_in_place, _nothing)
# Returns the norm, and the sum with the residual.
_define("all_reduce_rms_norm(Tensor tensor, Tensor weight, Tensor? residual=None, float epsilon=1e-6, float weight_bias=0., "
        "str group=\"\") -> (Tensor, Tensor)", _all_reduce_rms_norm, _normed, _norm_backward)
# The tensor becomes the norm, and the residual the sum.
_define("all_reduce_rms_norm_(Tensor(a!) tensor, Tensor weight, Tensor(b!)? residual=None, float epsilon=1e-6, "
        "float weight_bias=0., str group=\"\") -> ()", _all_reduce_rms_norm_in_place, _nothing)
# Returns the values, their scales (none of fp8_tensor, which is given one), the sum, and the norm if it is wanted.
_define("all_reduce_rms_norm_quant(Tensor tensor, Tensor weight, str quant, Tensor? residual=None, Tensor? scale=None, "
        "float epsilon=1e-6, float weight_bias=0., bool with_norm=False, int scale_alignment=0, str group=\"\") "
        "-> (Tensor, Tensor, Tensor, Tensor)", _all_reduce_rms_norm_quant, _quantised, _norm_backward)
