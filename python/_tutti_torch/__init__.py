# SPDX-License-Identifier: MIT
"""PyTorch's entry point of the backend "tutti".

`import torch` runs it. So it imports the package tutti only when a process group is created: `import torch` takes no
longer, and works although an installation of tutti does not.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["register"]


def register() -> None:
    """Registers the backend. To call it again is harmless."""
    import torch.distributed as dist

    if dist.is_available() and "TUTTI" not in dist.Backend._plugins:
        dist.Backend.register_backend("tutti", _create, extended_api=True, devices=["cpu", "cuda"])
        # From PyTorch 2.15 on: its flight recorder has no access to a process group in Python. The library has its own.
        recorded: set[str] = getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
        recorded.add("tutti")


def _create(options: Any, backend_options: Any) -> Any:
    from tutti.torch import _create as create

    # Only this variable of the caller tells whether other devices have other backends.
    return create(options, sys._getframe(1).f_locals.get("backend_config"))
