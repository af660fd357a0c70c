# SPDX-License-Identifier: MIT
"""tutti_all_reduce_rms_norm() on tensors: what the operators and the engines' plug-ins share."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
from torch import Tensor

from tutti._dtypes import QUANTS
from tutti._errors import DeclinedError, InvalidError
from tutti._tutti import ffi, lib
from tutti.torch._operands import VALUES, Operand

FLOATS = torch.float32, torch.float16, torch.bfloat16  # that can be normed
_ALIGNMENT, _HIDDEN_STEP, _HIDDEN_MAX = 16, 8, int(lib.TUTTI_NORM_HIDDEN_MAX)
_GROUPS = {"fp8_group": lib.TUTTI_NORM_GROUP, "fp8_group_ue8m0": 4 * lib.TUTTI_NORM_GROUP}  # elements of a scale, or word
_NAME = "torch.ops.tutti.all_reduce_rms_norm"


# Runs the operation of a struct tutti_rms_norm *. The others are its input, weight and residual, its outputs, and those operands
# that it changes.
Run = Callable[[Any, Sequence[Tensor], Sequence[Tensor], "Sequence[Aligned]"], None]


def is_served(hidden: Any) -> bool:
    """Whether rows of this length can be normed."""
    return isinstance(hidden, int) and 0 < hidden <= _HIDDEN_MAX and hidden % _HIDDEN_STEP == 0


class Aligned(Operand):
    """An operand as the library takes it."""

    __slots__ = ()

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor)
        if self.memory.data_ptr() % _ALIGNMENT:
            self.memory = self.memory.clone()


def _check(tensor: Tensor, weight: Tensor, residual: Tensor | None) -> None:
    """What the library cannot check, which has no shapes."""
    if weight.dim() != 1 or tensor.dim() < 1 or tensor.size(-1) != weight.size(0):
        raise InvalidError(f"{_NAME}: rows of shape {tuple(tensor.shape)} and a weight of shape {tuple(weight.shape)}")
    for name, dtype in (("tensor", tensor.dtype), ("weight", weight.dtype)):
        if dtype not in FLOATS:
            raise InvalidError(f"{_NAME}: a {name} of {dtype}: expected float32, float16 or bfloat16")
    if residual is not None and (residual.shape != tensor.shape or residual.dtype != tensor.dtype):
        raise InvalidError(f"{_NAME}: a residual of {residual.dtype}, {tuple(residual.shape)}, for a tensor of {tensor.dtype}, "
                           f"{tuple(tensor.shape)}")


def _check_quant(quant: str, scale: Tensor | None) -> None:
    if quant not in QUANTS or quant == "none":
        raise InvalidError(f"{_NAME}_quant: quant \"{quant}\": expected {', '.join(name for name in QUANTS if name != 'none')}")
    if (scale is not None) != (quant == "fp8_tensor"):
        raise InvalidError(f"{_NAME}_quant: {quant} {'needs a' if scale is None else 'takes no'} scale")
    if scale is not None and (scale.dtype != torch.float32 or scale.numel() != 1):
        raise InvalidError(f"{_NAME}_quant: a scale of {scale.numel()} {scale.dtype}: expected one float32")


def _like(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Such an output."""
    return torch.empty(tensor.shape, dtype=dtype or tensor.dtype, device=tensor.device)


def _quantised(tensor: Tensor, quant: str, scale_alignment: int) -> tuple[Tensor, Tensor]:
    """The quantised output of rows, and its scales: [..., 1] of each token, [..., groups], or no elements if the caller gives
    the scale. scale_alignment: 0: rows lie one behind the other; n: columns do, with a multiple of n tokens each."""
    values = _like(tensor, torch.int8 if quant == "int8_token" else torch.float8_e4m3fn)
    dtype = torch.int32 if quant == "fp8_group_ue8m0" else torch.float32
    shape = list(tensor.shape)
    shape[-1] = 1 if quant.endswith("_token") else -(-shape[-1] // _GROUPS[quant]) if quant in _GROUPS else 0
    if not scale_alignment or quant not in _GROUPS:
        return values, torch.empty(shape if shape[-1] else [0], dtype=dtype, device=tensor.device)
    if len(shape) != 2:
        raise InvalidError(f"{_NAME}_quant: scales in columns are those of rows of two dimensions, not {tuple(tensor.shape)}")
    tokens, groups = shape
    columns = torch.empty([groups, -(-tokens // scale_alignment) * scale_alignment], dtype=dtype, device=tensor.device)
    return values, columns.t()[:tokens]


def _struct(tensor: Tensor, weight: Tensor, epsilon: float, weight_bias: float, quant: str = "none",
             **more: Tensor | None) -> Any:
    """A struct tutti_rms_norm *. The tensors are contiguous and aligned, and live as long as it does. more: its other operands,
    by their names."""
    hidden = weight.size(0)
    norm = ffi.new("struct tutti_rms_norm *", {
        "struct_size": ffi.sizeof("struct tutti_rms_norm"), "tokens": tensor.numel() // hidden if hidden else 0,
        "hidden": hidden, "dtype": VALUES[tensor.dtype], "weight_dtype": VALUES[weight.dtype], "weight_bias": weight_bias,
        "epsilon": epsilon, "quant": QUANTS[quant]})
    for name, operand in {"input": tensor, "weight": weight, **more}.items():
        if operand is not None:
            # Of no rows the address is 0, which the library takes for no operand.
            setattr(norm, name, ffi.cast("void *", operand.data_ptr() or weight.data_ptr()))
    scales = more.get("scales")
    if scales is not None and quant in _GROUPS and not scales.is_contiguous():
        norm.scale_token_stride, norm.scale_group_stride = scales.stride()
    return norm


def _call(run: Run, operands: Sequence[Aligned | None], outputs: Sequence[Tensor], epsilon: float, weight_bias: float,
          quant: str = "none", changed: Sequence[Aligned] = (), **more: Tensor | None) -> None:
    tensor, weight, residual = (None if each is None else each.memory for each in operands)
    assert tensor is not None and weight is not None
    norm = _struct(tensor, weight, epsilon, weight_bias, quant, residual_in=residual, **more)
    run(norm, [each for each in (tensor, weight, residual) if each is not None], outputs, changed)


def _operands(tensor: Tensor, weight: Tensor, residual: Tensor | None) -> tuple[Aligned, Aligned, Aligned | None]:
    _check(tensor, weight, residual)
    return Aligned(tensor), Aligned(weight), None if residual is None else Aligned(residual)


def outputs(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The norm, and the sum with the residual."""
    return _like(tensor), _like(tensor)


def normed(run: Run, tensor: Tensor, weight: Tensor, residual: Tensor | None, epsilon: float,
           weight_bias: float) -> tuple[Tensor, Tensor]:
    operands, found = _operands(tensor, weight, residual), outputs(tensor)
    _call(run, operands, found, epsilon, weight_bias, norm_out=found[0], residual_out=found[1])
    return found


def normed_in_place(run: Run, tensor: Tensor, weight: Tensor, residual: Tensor | None, epsilon: float,
                    weight_bias: float) -> None:
    """tensor becomes the norm, and residual the sum."""
    given, _, added = operands = _operands(tensor, weight, residual)
    _call(run, operands, [tensor], epsilon, weight_bias, changed=[given] if added is None else [given, added],
          norm_out=given.memory, residual_out=None if added is None else added.memory)


def quantised_outputs(tensor: Tensor, quant: str, scale: Tensor | None, with_norm: bool,
                      scale_alignment: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Values, scales, the sum, and the norm, which has no elements if it is not wanted."""
    _check_quant(quant, scale)
    norm = _like(tensor) if with_norm else torch.empty([0], dtype=tensor.dtype, device=tensor.device)
    return *_quantised(tensor, quant, scale_alignment), _like(tensor), norm


def normed_quantised(run: Run, tensor: Tensor, weight: Tensor, quant: str, residual: Tensor | None, scale: Tensor | None,
                     epsilon: float, weight_bias: float, with_norm: bool,
                     scale_alignment: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    operands = _operands(tensor, weight, residual)
    values, scales, total, norm = found = quantised_outputs(tensor, quant, scale, with_norm, scale_alignment)

    def call(norm: Tensor | None) -> None:
        _call(run, operands, found, epsilon, weight_bias, quant, norm_out=norm, residual_out=total, quant_out=values,
              scales=scales if scale is None else scale)

    try:
        call(norm if with_norm else None)
    except DeclinedError:
        if with_norm:
            raise
        call(_like(tensor))  # where devices do not reach each other, the sum has to lie somewhere
    return found
