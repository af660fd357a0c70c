# SPDX-License-Identifier: MIT
"""The backend "tutti" of torch.distributed, for the ranks of one node.

    import torch.distributed as dist

    dist.init_process_group("tutti")    # torchrun --nproc-per-node 2 program.py
    dist.all_reduce(tensor)

PyTorch finds the backend by the entry points of this package; no import is needed. Needs PyTorch 2.11 or newer.
`import tutti.torch` defines the operators torch.ops.tutti (_operators.py). RmsNormPass: a pass for torch.compile (_fusion.py).
"""

from __future__ import annotations

from typing import Any

from _tutti_torch import register

__all__ = ["AllGather", "RmsNormPass", "communicator", "empty", "register"]


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


def _backend(caller: str, group: Any, device: Any) -> Any:
    import torch.distributed as dist

    found: Any = group or dist.group.WORLD
    backend = found._get_backend(device)
    if not hasattr(backend, "symmetric"):
        raise ValueError(f"tutti.torch.{caller}: {found!r} is no process group of the backend tutti")
    return backend


def communicator(device: Any = "cuda", group: Any = None) -> Any:
    """The tutti.Communicator of a group for tensors of a device, for calls that torch.distributed does not have: counts on
    the device, groups of calls, copy engines.

    Its collectives are in the order of the group's: all ranks call both kinds in the same order. On CUDA the group's first
    call is collective. Operations of other groups on that device are ordered with the calls that follow on the current
    stream, so ask anew where other groups were used meanwhile, and pass stream=torch.cuda.current_stream(). The tensors live
    until the stream has passed the operation. On CPU no asynchronous operation of the group may be under way. The group
    closes the communicator. group: a process group of this backend; None: the default one.

    A graph whose replays send as many elements as the tensors of counts then say:

        comm, graph = tutti.torch.communicator(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            route(tokens, send, send_counts)  # the program's: counts of elements for each rank, int32 or int64
            dist.all_to_all_single(recv_counts, send_counts)
            comm.all_to_all_v(send, recv, send_counts, recv_counts, max_count=most, stream=torch.cuda.current_stream())
    """
    import torch

    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return _backend("communicator", group, device).communicator(device)


def empty(*size: Any, dtype: Any = None, group: Any = None) -> Any:
    """A CPU tensor in symmetric memory, zeroed: the group's collectives read and write it without copies.

    Collective: all ranks of the group call it with the same size and dtype, in the same order. The memory lives until
    the tensor and its views are gone. group: a process group of this backend; None: the default one.
    """
    import torch

    backend = _backend("empty", group, torch.device("cpu"))
    shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
    return backend.symmetric(shape, dtype or torch.get_default_dtype())


def __getattr__(name: str) -> Any:
    """RmsNormPass: its import takes as long as that of torch.compile()."""
    if name != "RmsNormPass":
        raise AttributeError(f"module 'tutti.torch' has no attribute '{name}'")
    from tutti.torch._fusion import RmsNormPass

    return RmsNormPass


from tutti.torch import _operators as _operators  # noqa: E402  (they need the package)
from tutti.torch._fsdp import AllGather  # noqa: E402
