# SPDX-License-Identifier: MIT
"""vLLM's plug-in: Tutti serves the tensor-parallel group.

vLLM asks platform() for the class of its platform. That is vLLM's own class of CUDA or of the CPU, which here names other
communicators: subclasses of vLLM's, which stay as they are where Tutti cannot serve the group. The classes are made when vLLM
asks for them by name, since their bases exist only then.

CUDA: all_reduce, all_gather and reduce_scatter, out of place, on the current stream, eager or captured. What vLLM does for
batch invariance is below these calls (one kernel of its own, NCCL's tree of one channel), so Tutti keeps its fast path in that
mode: its sums have one order for every size. In compiled graphs an all-reduce and the RMSNorm behind it are one operation
(vllm_fusion.py), whose bits do not depend on the batch either.

CPU: all_reduce in place, all_gather and gather, in vLLM's threads. torch.compile keeps them as operators.
"""

from __future__ import annotations

import functools
import importlib
import os
from importlib.metadata import entry_points
from typing import Any

import torch
from torch import Tensor

from tutti._errors import DeclinedError
from tutti.integrations._served import Served, fuses, joined, missing, serve

# The platforms that Tutti extends: their modules, and the communicators that they get.
_PLATFORMS = {"CudaPlatform": ("vllm.platforms.cuda", "CudaCommunicator"),
              "CpuPlatform": ("vllm.platforms.cpu", "CpuCommunicator"),
              "ZenCpuPlatform": ("vllm.platforms.zen_cpu", "CpuCommunicator")}
_COMMUNICATORS = "vllm.distributed.device_communicators"
_BASES = {"CudaCommunicator": f"{_COMMUNICATORS}.cuda_communicator", "CpuCommunicator": f"{_COMMUNICATORS}.cpu_communicator"}
_GROUP = "tp"  # of vLLM's groups
_MANAGER = "vllm.compilation.passes.pass_manager.PostGradPassManager"
# In vLLM's additional_config, which its workers and its cache of graphs see: whether to fuse all-reduces with norms.
FUSES = "tutti_fuse_allreduce_rms"
_served: dict[str, Served] = {}  # by the names of the groups: for the operators


def platform() -> str | None:
    """The class that vLLM is to take as its platform; None: Tutti has nothing for it."""
    if other := _other_plugin():
        raise DeclinedError(f"vLLM takes one plug-in for its platform, which is {other}")
    from vllm.platforms import builtin_platform_plugins

    for kind in "cuda", "cpu":
        path = builtin_platform_plugins[kind]()
        name = path.rpartition(".")[2] if path else ""
        if name in _PLATFORMS:
            __getattr__(name)  # what is not as expected is found here, before vLLM relies on it
            return f"{__name__}.{name}"
    return None


def _log() -> Any:
    from vllm.logger import init_logger

    return init_logger("vllm.tutti")  # vLLM shows the log of its own names


def _other_plugin() -> str:
    """The name of another plug-in that has a platform: vLLM refuses to start with two."""
    allowed = os.environ.get("VLLM_PLUGINS")
    for plugin in entry_points(group="vllm.platform_plugins"):
        if plugin.name != "tutti" and (allowed is None or plugin.name in allowed.split(",")):
            try:
                if plugin.load()():
                    return plugin.name
            except Exception:
                pass  # vLLM ignores it, too
    return ""


def __getattr__(name: str) -> Any:
    """Makes a class at its first use: CudaPlatform, CpuPlatform, ZenCpuPlatform, CudaCommunicator, CpuCommunicator, PassManager."""
    if name in _PLATFORMS:
        made = _platform(name)
    elif name == "CudaCommunicator":
        made = _cuda_communicator()
    elif name == "CpuCommunicator":
        made = _cpu_communicator()
    elif name == "PassManager":
        made = _pass_manager()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made.__name__ = made.__qualname__ = name
    globals()[name] = made
    return made


def _platform(name: str) -> Any:
    module, communicator = _PLATFORMS[name]
    base = getattr(importlib.import_module(module), name)

    class Platform(base):  # type: ignore[valid-type,misc]
        @classmethod
        def get_device_communicator_cls(cls) -> str:
            own = str(super().get_device_communicator_cls())
            return f"{__name__}.{communicator}" if own == f"{_BASES[communicator]}.{communicator}" else own

        @classmethod
        def apply_config_platform_defaults(cls, vllm_config: Any) -> None:
            """Unless the user has said something of it, Tutti's all-reduce with the norm is on, and FlashInfer's off: that goes
            round communicators."""
            super().apply_config_platform_defaults(vllm_config)
            passes, parallel = vllm_config.compilation_config.pass_config, vllm_config.parallel_config
            is_served = parallel.tensor_parallel_size > 1 and getattr(parallel, "nnodes", 1) == 1
            if is_served and getattr(passes, "fuse_allreduce_rms", True) is None:
                passes.fuse_allreduce_rms = False
                more = vllm_config.additional_config
                if communicator == "CudaCommunicator" and isinstance(more, dict):
                    more.setdefault(FUSES, _can_fuse(base))

        @classmethod
        def get_pass_manager_cls(cls) -> str:
            own = str(super().get_pass_manager_cls())
            return f"{__name__}.PassManager" if own == _MANAGER else own

        @classmethod
        def check_and_update_config(cls, vllm_config: Any) -> None:
            super().check_and_update_config(vllm_config)
            if vllm_config.parallel_config.tensor_parallel_size == 1:
                _log().info_once("Tutti has nothing to serve: the tensor-parallel size is 1.")

    return Platform


def _can_fuse(platform: Any) -> bool:
    """Whether the seams for the pass are there; the log says which is missing."""
    if not fuses():
        return False
    lacking = missing(_MANAGER, "vllm.ir.ops.layernorm.rms_norm", "vllm.ir.ops.layernorm.fused_add_rms_norm")
    if not lacking and not hasattr(platform, "get_pass_manager_cls"):
        lacking = "Platform.get_pass_manager_cls"
    if lacking:
        _log().info_once("Tutti does not run all-reduces together with RMSNorm: this version has no %s.", lacking)
    return not lacking


def _pass_manager() -> Any:
    from vllm.compilation.passes.pass_manager import PostGradPassManager as Base

    from tutti.integrations.vllm_fusion import make_pass

    class PassManager(Base):
        def configure(self, config: Any) -> None:
            """Tutti's pass runs behind those that only tidy, and before vLLM's fusions of norms."""
            super().configure(config)
            more = config.additional_config
            if isinstance(more, dict) and more.get(FUSES):
                names = [type(each).__name__ for each in self.passes]
                place = sum(name in ("NoOpEliminationPass", "AddRMSNormFusionPass") for name in names[:2])
                self.passes.insert(place, make_pass(_served, _log()))

    return PassManager


def _serve(communicator: Any, what: str) -> Served | None:
    """Tutti's communicator for one of vLLM's groups."""
    name = communicator.unique_name
    if name.split(":")[0] != _GROUP:
        return None
    found = serve(communicator.cpu_group, communicator.device, name, what, "vLLM", _log().info)
    if found:
        _served[name] = found
    return found


def _close(communicator: Any) -> None:
    if communicator.tutti:
        _served.pop(communicator.unique_name, None)
        communicator.tutti.close()
        communicator.tutti = None


def _cuda_communicator() -> Any:
    from vllm.distributed.device_communicators.cuda_communicator import CudaCommunicator as Base

    _operators()

    class CudaCommunicator(Base):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            self.tutti = _serve(self, "all-reduce, all-gather and reduce-scatter")

        def all_reduce(self, input_: Tensor) -> Tensor:
            if not self.tutti or not self.tutti.reduces(input_):
                return super().all_reduce(input_)
            given = input_.contiguous()
            output = given.new_empty(given.shape)
            self.tutti.all_reduce(given, output)
            return output

        def all_gather(self, input_: Tensor, dim: int = -1) -> Tensor:
            if not self.tutti:
                return super().all_gather(input_, dim)
            given = input_.contiguous()
            blocks = given.new_empty((self.tutti.size, *given.shape))
            self.tutti.all_gather(given, blocks)
            return joined(blocks, dim % input_.dim())

        def reduce_scatter(self, input_: Tensor, dim: int = -1) -> Tensor:
            if not self.tutti or not self.tutti.reduces(input_):
                return super().reduce_scatter(input_, dim)
            given = input_.movedim(dim, 0).contiguous()
            assert given.shape[0] % self.tutti.size == 0
            output = given.new_empty((given.shape[0] // self.tutti.size, *given.shape[1:]))
            self.tutti.reduce_scatter(given, output)
            return output.movedim(0, dim).contiguous()

        def custom_all_gather(self, input_: Tensor) -> Tensor | None:
            """None: models with sequence parallelism go on with all_gather(), and so from custom_reduce_scatter()."""
            return None if self.tutti else super().custom_all_gather(input_)

        def custom_reduce_scatter(self, input_: Tensor) -> Tensor | None:
            return None if self.tutti else super().custom_reduce_scatter(input_)

        def destroy(self) -> None:
            _close(self)
            super().destroy()

    return CudaCommunicator


# ---- the operators, which torch.compile keeps whole. They find the communicator by the group's name.

def _all_reduce(tensor: Tensor, group: str) -> None:
    if tensor.is_contiguous():
        _served[group].all_reduce(tensor, tensor)
    else:
        whole = tensor.contiguous()
        _served[group].all_reduce(whole, whole)
        tensor.copy_(whole)


def _all_gather(tensor: Tensor, size: int, group: str) -> Tensor:
    given = tensor.contiguous()
    blocks = given.new_empty((size, *given.shape))
    _served[group].all_gather(given, blocks)
    return blocks


@functools.cache
def _operators() -> Any:
    from tutti.integrations.vllm_fusion import Operators

    library = torch.library.Library("tutti_vllm", "DEF")
    library.define("all_reduce(Tensor(a!) tensor, str group) -> ()")
    library.define("all_gather(Tensor tensor, int size, str group) -> Tensor")
    Operators(_served, library)
    library.impl("all_reduce", _all_reduce, "CPU")
    library.impl("all_gather", _all_gather, "CPU")
    torch.library.register_fake("tutti_vllm::all_reduce", lambda tensor, group: None, lib=library)
    torch.library.register_fake("tutti_vllm::all_gather", lambda tensor, size, group: tensor.new_empty((size, *tensor.shape)),
                                lib=library)
    return library


def _cpu_communicator() -> Any:
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator as Base

    _operators()

    class CpuCommunicator(Base):
        tutti: Served | None = None

        def __init__(self, *arguments: Any, **more: Any) -> None:
            self.is_asked = False
            super().__init__(*arguments, **more)
            self._ask()

        def _ask(self) -> None:
            if not self.is_asked:
                self.is_asked = True
                self.tutti = _serve(self, "all-reduce, all-gather and gather")

        def _all_group_ranks_share_shm_group_name(self) -> bool:
            """vLLM makes its shared memory only if this is true."""
            self._ask()
            return self.tutti is None and super()._all_group_ranks_share_shm_group_name()

        def all_reduce(self, input_: Tensor) -> Tensor:
            if not self.tutti or not self.tutti.reduces(input_):
                return super().all_reduce(input_)
            if torch.compiler.is_compiling():
                torch.ops.tutti_vllm.all_reduce(input_, self.unique_name)
            else:
                _all_reduce(input_, self.unique_name)
            return input_

        def all_gather(self, input_: Tensor, dim: int = -1) -> Tensor:
            if not self.tutti:
                return super().all_gather(input_, dim)
            run = torch.ops.tutti_vllm.all_gather if torch.compiler.is_compiling() else _all_gather
            return joined(run(input_, self.tutti.size, self.unique_name), dim % input_.dim())

        def gather(self, input_: Tensor, dst: int = 0, dim: int = -1) -> Tensor | None:
            if not self.tutti:
                return super().gather(input_, dst, dim)
            given, is_root = input_.contiguous(), self.rank_in_group == dst
            blocks = given.new_empty((self.tutti.size, *given.shape)) if is_root else given
            self.tutti.gather(given, blocks, dst)
            return joined(blocks, dim % input_.dim()) if is_root else None

        def destroy(self) -> None:
            _close(self)
            super().destroy()

    return CpuCommunicator
