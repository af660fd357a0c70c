# SPDX-License-Identifier: MIT
"""The backend "tutti" of torch.distributed, for the ranks of one node.

    import torch.distributed as dist

    dist.init_process_group("tutti")    # torchrun --nproc-per-node 2 program.py
    dist.all_reduce(tensor)

PyTorch finds the backend by the entry points of this package; no import is needed. Needs PyTorch 2.11 or newer.
`import tutti.torch` defines the operators torch.ops.tutti (_operators.py).
"""

from __future__ import annotations

from typing import Any

from _tutti_torch import register

__all__ = ["empty", "register"]


def _create(options: Any, config: Any) -> Any:
    """A process group. config: PyTorch's, which backend each device has; None: unknown."""
    import torch

    from tutti._errors import InvalidError
    from tutti.torch._group import ProcessGroup

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


from tutti.torch import _operators as _operators  # noqa: E402  (it needs the package)
