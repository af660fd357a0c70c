# SPDX-License-Identifier: MIT
"""The backend "tutti" of torch.distributed, for the ranks of one node.

    import torch.distributed as dist

    dist.init_process_group("tutti")    # torchrun --nproc-per-node 2 program.py
    dist.all_reduce(tensor)

PyTorch finds the backend by the entry points of this package; no import is needed. Needs PyTorch 2.11 or newer.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["empty", "register"]


def register() -> None:
    """Registers the backend. PyTorch's entry point; to call it again is harmless."""
    import torch.distributed as dist

    if dist.is_available() and "TUTTI" not in dist.Backend._plugins:
        dist.Backend.register_backend("tutti", _create, extended_api=True, devices=["cpu", "cuda"])
        # From PyTorch 2.15 on: its flight recorder has no access to a process group in Python. The library has its own.
        recorded: set[str] = getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
        recorded.add("tutti")


def _create(options: Any, backend_options: Any) -> Any:
    import torch

    from tutti._errors import InvalidError
    from tutti.torch._group import ProcessGroup

    # Only this variable of the caller tells whether other devices have other backends.
    config = sys._getframe(1).f_locals.get("backend_config")
    several = config is not None and len(set(config.get_device_backend_map().values())) > 1
    if several and torch.__version__ < (2, 14):
        raise InvalidError(f"tutti: {config} needs PyTorch 2.14 or newer; call dist.new_group(backend=\"tutti\")")
    group = ProcessGroup(options.store, options.group_rank, options.group_size, options.timeout, options.group_id)
    if not several:
        return group
    from tutti.torch._backend import Backend

    return Backend(group)


def empty(*size: Any, dtype: Any = None, group: Any = None) -> Any:
    """A CPU tensor in symmetric memory, zeroed: the group's collectives read and write it without copies.

    Collective: all ranks of the group call it with the same size and dtype, in the same order. The memory lives until
    the tensor and its views are gone. group: a process group of this backend; None: the default one.
    """
    import torch
    import torch.distributed as dist

    found: Any = group or dist.group.WORLD
    backend = found._get_backend(torch.device("cpu"))
    if not hasattr(backend, "symmetric"):
        raise ValueError(f"tutti.torch.empty: {found!r} is no process group of the backend tutti")
    shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
    return backend.symmetric(shape, dtype or torch.get_default_dtype())
