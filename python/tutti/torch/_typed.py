# SPDX-License-Identifier: MIT
"""Futures whose value is a list of tensors in C++ too. Python's own futures have a Python object there. PyTorch makes the
former only in TorchScript."""

from typing import Any, List, Sequence

import torch


@torch.jit.script  # type: ignore[untyped-decorator]
def _wait(before: torch.jit.Future[int], tensors: List[torch.Tensor]) -> List[torch.Tensor]:
    torch.jit.wait(before)
    return tensors


@torch.jit.script  # type: ignore[untyped-decorator]
def _start(before: torch.jit.Future[int], tensors: List[torch.Tensor]) -> torch.jit.Future[List[torch.Tensor]]:
    return torch.jit.fork(_wait, before, tensors)


def tensor_list_after(before: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """A future that has the tensors, or the error of the future `before`, once that is done."""
    return _start(before, list(tensors))
