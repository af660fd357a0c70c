# SPDX-License-Identifier: MIT
"""Tensors and reductions in the library's types."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch.distributed import ReduceOp

from tutti._dtypes import AVG, BAND, BOR, BXOR, DTYPES, MAX, MIN, PROD, SUM, premul_sum
from tutti._errors import InvalidError
from tutti._tutti import ffi

_NAMES = {"float8_e4m3": "float8_e4m3fn"}
VALUES: dict[torch.dtype, int] = {
    getattr(torch, _NAMES.get(name, name)): value for name, value in DTYPES.items()
    if hasattr(torch, _NAMES.get(name, name))}
BYTE = VALUES[torch.uint8]

_OPS: dict[int, Any] = {int(kind): op for kind, op in (
    (ReduceOp.RedOpType.SUM, SUM), (ReduceOp.RedOpType.PRODUCT, PROD), (ReduceOp.RedOpType.MIN, MIN),
    (ReduceOp.RedOpType.MAX, MAX), (ReduceOp.RedOpType.AVG, AVG), (ReduceOp.RedOpType.BAND, BAND),
    (ReduceOp.RedOpType.BOR, BOR), (ReduceOp.RedOpType.BXOR, BXOR))}
HANDLES = {kind: op.handle for kind, op in _OPS.items()}


def reduction(op: Any) -> tuple[Any, Any]:
    """The tutti_op_t of a ReduceOp, and an object whose life keeps it."""
    kind = getattr(op, "op", op)
    handle = HANDLES.get(int(kind))
    if handle is not None:
        return handle, None
    factor = op.__getstate__()[1]
    made = premul_sum(float(factor))  # a tensor of one element, or a number
    return made.handle, made


def reduced_dtype(tensor: torch.Tensor) -> int:
    value = VALUES.get(tensor.dtype)
    if value is None:
        raise InvalidError(f"tutti reduces no tensors of {tensor.dtype}")
    return value


def moved(tensor: torch.Tensor) -> tuple[int, int]:
    """The dtype and the number of elements of a tensor that is only moved: unknown dtypes are bytes."""
    value = VALUES.get(tensor.dtype)
    return (value, tensor.numel()) if value is not None else (BYTE, tensor.numel() * tensor.element_size())


def _resolved(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor if its memory holds its elements in order, or such a copy. The memory of a tensor that PyTorch has
    conjugated or negated lazily holds other values; that of a ZeroTensor does not exist."""
    if tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()):
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(tensor.detach())


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether two elements have one address."""
    if tensor.is_contiguous() or tensor.numel() == 0:
        return False
    dims = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1)
    reach = 0
    for stride, size in dims:
        if stride <= reach:
            break
        reach += stride * (size - 1)
    else:
        return False
    places = torch.zeros((), dtype=torch.int64)
    for stride, size in dims:
        places = places.unsqueeze(-1) + torch.arange(size) * stride
    return bool(places.unique().numel() != places.numel())


def check_receiving(title: str, tensors: Sequence[torch.Tensor]) -> None:
    """Refuses tensors that cannot receive a value for each element."""
    for tensor in tensors:
        if tensor._is_zerotensor():
            raise InvalidError(f"tutti: {title} cannot write to a ZeroTensor: pass its clone()")
        if _overlaps(tensor):
            raise InvalidError(f"tutti: {title} cannot write to a tensor whose elements share memory, of shape "
                               f"{tuple(tensor.shape)} and strides {tensor.stride()}: pass its clone()")


def address(tensor: torch.Tensor) -> Any:
    at = tensor.data_ptr()
    if not at and tensor.numel():
        raise InvalidError(f"tutti: a {type(tensor).__name__} of shape {tuple(tensor.shape)} has no memory of its own: "
                           f"pass a tensor that has")
    return ffi.cast("void *", at)


class Operand:
    """A tensor's elements in memory: the tensor itself, or a copy, which done() writes back."""

    __slots__ = ("tensor", "memory")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.memory = tensor, _resolved(tensor)

    @property
    def address(self) -> Any:
        return address(self.memory)

    @property
    def receivers(self) -> Sequence[torch.Tensor]:
        return [self.tensor]

    def done(self) -> None:
        if self.memory is not self.tensor:
            self.tensor.detach().copy_(self.memory)


class Blocks:
    """A list of tensors of one size in one contiguous tensor, a block for each; done() copies the blocks to the list."""

    __slots__ = ("tensors", "memory")

    def __init__(self, tensors: Sequence[torch.Tensor], like: torch.Tensor, filled: bool) -> None:
        for tensor in tensors:
            if tensor.numel() != like.numel() or tensor.dtype != like.dtype:
                raise InvalidError(f"tutti: the tensors of a list differ from the other operand: {tuple(tensor.shape)} "
                                   f"{tensor.dtype}, and {tuple(like.shape)} {like.dtype}")
        self.tensors = tensors
        self.memory = torch.empty((len(tensors), like.numel()), dtype=like.dtype, device=like.device)
        if filled:
            for block, tensor in zip(self.memory, tensors):
                block.copy_(tensor.detach().reshape(-1))

    @property
    def address(self) -> Any:
        return address(self.memory)

    @property
    def receivers(self) -> Sequence[torch.Tensor]:
        return self.tensors

    def done(self) -> None:
        for block, tensor in zip(self.memory, self.tensors):
            tensor.detach().copy_(block.view(tensor.shape))
