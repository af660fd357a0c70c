# SPDX-License-Identifier: MIT
"""What vLLM (0.32) and SGLang (0.5.23) call of Tutti's plug-ins, in their order, over stubs of their interfaces. The stand-in
(plugins.py) and GPUs (../gpu/engines.py) run the same calls."""

import contextlib
import importlib
import logging
import multiprocessing
import os
import sys
import types
from unittest import mock

import graphs
import torch

logged = []  # what the engines' logs have


class Log:
    def info(self, text, *values):
        logged.append(text % values)

    info_once = warning = info


def _module(name, **values):
    for i, part in enumerate(name.split(".")):
        parent = ".".join(name.split(".")[:i + 1])
        if parent not in sys.modules:
            sys.modules[parent] = types.ModuleType(parent)
    for key, value in values.items():
        setattr(sys.modules[name], key, value)


# ---- vLLM

class Platform:
    @classmethod
    def get_pass_manager_cls(cls):
        return "vllm.compilation.passes.pass_manager.PostGradPassManager"

    @classmethod
    def get_device_communicator_cls(cls):
        return cls.own

    @classmethod
    def apply_config_platform_defaults(cls, config):
        pass

    @classmethod
    def check_and_update_config(cls, config):
        pass


class CudaPlatform(Platform):
    _enum, own = "CUDA", "vllm.distributed.device_communicators.cuda_communicator.CudaCommunicator"


class CpuPlatform(Platform):
    _enum, own = "CPU", "vllm.distributed.device_communicators.cpu_communicator.CpuCommunicator"


class Communicator:
    """vLLM's DeviceCommunicatorBase; its collectives return their names."""

    def __init__(self, cpu_group, device=None, device_group=None, unique_name="", use_all2all=False):
        self.cpu_group, self.device, self.device_group, self.unique_name = cpu_group, device, device_group, unique_name
        self.rank_in_group, self.world_size = torch.distributed.get_rank(cpu_group), torch.distributed.get_world_size(cpu_group)
        self.is_destroyed = False

    def all_reduce(self, input_):
        return "own all_reduce"

    def all_gather(self, input_, dim=-1):
        return "own all_gather"

    def gather(self, input_, dst=0, dim=-1):
        return "own gather"

    def destroy(self):
        self.is_destroyed = True


class CudaCommunicator(Communicator):
    ca_comm = fi_pcie_ipc_ar_comm = None

    def reduce_scatter(self, input_, dim=-1):
        return "own reduce_scatter"

    def custom_all_gather(self, input_):
        return "own custom_all_gather"

    def custom_reduce_scatter(self, input_):
        return "own custom_reduce_scatter"


class CpuCommunicator(Communicator):
    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.shares_memory = self.unique_name.startswith(("tp", "pp")) and self._all_group_ranks_share_shm_group_name()

    def _all_group_ranks_share_shm_group_name(self):
        return True


class PostGradPassManager:
    def __init__(self):
        self.passes = []

    def configure(self, config):
        self.passes = [type(name, (), {})() for name in config.names]


def install_vllm(kind):
    """Stubs of vLLM for "cuda" or "cpu"; returns the class of the platform that the plug-in chooses, None: vLLM's own."""
    plugins = {"cuda": lambda: "vllm.platforms.cuda.CudaPlatform" if kind == "cuda" else None,
               "cpu": lambda: "vllm.platforms.cpu.CpuPlatform" if kind == "cpu" else None}
    _module("vllm.logger", init_logger=lambda name: Log())
    _module("vllm.platforms", builtin_platform_plugins=plugins)
    _module("vllm.platforms.cuda", CudaPlatform=CudaPlatform)
    _module("vllm.platforms.cpu", CpuPlatform=CpuPlatform)
    _module("vllm.distributed.device_communicators.cuda_communicator", CudaCommunicator=CudaCommunicator)
    _module("vllm.distributed.device_communicators.cpu_communicator", CpuCommunicator=CpuCommunicator)
    _module("vllm.compilation.passes.pass_manager", PostGradPassManager=PostGradPassManager)
    _module("vllm.compilation.passes.inductor_pass", InductorPass=type("InductorPass", (), {}))
    _module("vllm.ir.ops.layernorm", rms_norm=None, fused_add_rms_norm=None)
    import _tutti_engines

    path = _tutti_engines.vllm()
    return path and resolve(path)


def resolve(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def join(platform, group, device, name="tp:0"):
    """As GroupCoordinator.__init__()."""
    return resolve(platform.get_device_communicator_cls())(
        cpu_group=group, device=device, device_group=group, unique_name=name, use_all2all=False)


@contextlib.contextmanager
def graph_capture(communicator):
    """As GroupCoordinator.graph_capture() checks it."""
    assert isinstance(communicator, CudaCommunicator)
    assert communicator.ca_comm is None and communicator.fi_pcie_ipc_ar_comm is None
    yield


def configured(platform, asked=None, size=2, nodes=1, **more):
    """What a config says after VllmConfig.__post_init__()."""
    config = types.SimpleNamespace(
        compilation_config=types.SimpleNamespace(pass_config=types.SimpleNamespace(fuse_allreduce_rms=asked)),
        parallel_config=types.SimpleNamespace(tensor_parallel_size=size, nnodes=nodes), additional_config=more)
    platform.apply_config_platform_defaults(config)
    return config


def check_platform(platform, base):
    assert issubclass(platform, base) and platform is not base and platform._enum == base._enum
    for size, nodes, asked, expected in (2, 1, None, False), (2, 1, True, True), (1, 1, None, None), (2, 2, None, None):
        config = configured(platform, asked, size, nodes)
        assert config.compilation_config.pass_config.fuse_allreduce_rms is expected
        fuses = {"tutti_fuse_allreduce_rms": True} if asked is None and expected is False and base is CudaPlatform else {}
        assert config.additional_config == fuses, config
    with mock.patch.object(base, "own", "another.Communicator"):  # of a version that Tutti does not know
        assert platform.get_device_communicator_cls() == base.own
    logged.clear()
    platform.check_and_update_config(types.SimpleNamespace(parallel_config=types.SimpleNamespace(tensor_parallel_size=1)))
    assert logged == ["Tutti has nothing to serve: the tensor-parallel size is 1."]


def check_log(rank, text):
    """One rank logs one line."""
    assert len(logged) == (rank == 0) and all(text in line for line in logged), logged
    logged.clear()


def vllm_cuda(r, group, same, capture):
    """r: a rank of ../gpu/runner.py. capture(call) returns a function that replays the call."""
    platform = install_vllm("cuda")
    check_platform(platform, CudaPlatform)
    logged.clear()
    other = join(platform, group, r.device, "ep:0")
    assert not logged and other.all_reduce(r.late(r.tensor(4, 0))) == "own all_reduce"
    communicator = join(platform, group, r.device)
    check_log(r.rank, "serves group tp:0: all-reduce, all-gather and reduce-scatter of 2 ranks on cuda")
    for count in 5, 8192, 70_001:
        for dtype in torch.bfloat16, torch.float32:
            given = r.late(r.tensor(count, r.rank, dtype))
            found = communicator.all_reduce(given)
            same(found, r.tensor(count, 0, dtype) * 2 + 1)
            same(given, r.tensor(count, r.rank, dtype))  # out of place
    rows = r.tensor(24, 0).view(2, 3, 4)
    for dim in 0, 1, 2, -1:
        same(communicator.all_gather(r.late(rows + r.rank), dim), torch.cat([rows, rows + 1], dim))
        parts = torch.cat([rows, rows + 5], dim)
        same(communicator.reduce_scatter(r.late(parts + r.rank), dim), 2 * (rows + 5 * r.rank) + 1)
    same(communicator.all_reduce(r.late(rows + r.rank).movedim(0, 2)), (2 * rows + 1).movedim(0, 2))
    same(communicator.all_reduce(r.late(rows[:0])), rows[:0])
    # Models with sequence parallelism ask for vLLM's own kernels first; None leads them to the calls above.
    assert communicator.custom_all_gather(rows) is None and communicator.custom_reduce_scatter(rows) is None
    assert other.custom_all_gather(rows) == "own custom_all_gather"
    assert other.custom_reduce_scatter(rows) == "own custom_reduce_scatter"
    short = r.late((rows + r.rank).to(torch.uint16))  # which the library only moves
    for call in communicator.all_reduce, communicator.reduce_scatter:
        assert call(short) == f"own {call.__name__}"
    same(communicator.all_gather(short, 1), torch.cat([rows, rows + 1], 1).to(torch.uint16))
    given, results = r.late(r.tensor(8192, r.rank)), []
    with graph_capture(communicator):
        replay = capture(lambda: results.append(communicator.all_gather(communicator.all_reduce(given), 0)))
    for step in 1, 2:
        given.copy_(r.late(r.tensor(8192, r.rank + step)))
        replay()
        same(results[0], torch.cat([r.tensor(8192, step) * 2 + 1] * 2))
    graphs.check_operators(r, communicator, same, capture)
    communicator.destroy()
    assert communicator.is_destroyed and communicator.all_reduce(given) == "own all_reduce"
    _refusals(r, platform, group)


def _refusals(r, platform, group):
    """vLLM's own communicators stay, and the log says why."""
    from tutti.integrations import _served

    def check(text):
        communicator = join(platform, group, r.device)
        check_log(r.rank, text)
        assert communicator.all_reduce(r.late(r.tensor(4, 0))) == "own all_reduce"
        communicator.destroy()

    with mock.patch.dict(os.environ, {"TUTTI_DISABLE": "1"}):
        check("TUTTI_DISABLE is set")
    with mock.patch.object(_served, "_host", lambda: f"host {r.rank}"):
        check("does not serve group tp:0: its ranks are on several hosts. vLLM's own communicator does.")
    with mock.patch.object(_served, "_host", mock.Mock(side_effect=OSError("no /proc") if r.rank else None, return_value="")):
        check("rank 1: OSError: no /proc")
    failing = mock.patch.object(_served.tutti.Communicator, "from_id", side_effect=ValueError("no"))
    with mock.patch.object(_served, "_MEETING_S", 1.), failing if r.rank else contextlib.nullcontext():
        check("rank 0: TimeoutError")


def vllm_cpu(r, group, same):
    platform = install_vllm("cpu")
    check_platform(platform, CpuPlatform)
    logged.clear()
    device = torch.device("cpu")
    pipeline = join(platform, group, device, "pp:0")
    assert not logged and pipeline.shares_memory
    communicator = join(platform, group, device)
    check_log(r.rank, "serves group tp:0: all-reduce, all-gather and gather of 2 ranks on cpu")
    assert not communicator.shares_memory  # vLLM has not made its own
    rows = r.tensor(24, 0).view(2, 3, 4)

    def check(all_reduce, all_gather):
        given = rows + r.rank
        assert all_reduce(given) is given
        same(given, 2 * rows + 1)
        columns = (rows + r.rank).movedim(0, 2)
        same(all_reduce(columns), (2 * rows + 1).movedim(0, 2))
        for dim in 0, 1, -1:
            same(all_gather(rows + r.rank, dim), torch.cat([rows, rows + 1], dim))

    check(communicator.all_reduce, communicator.all_gather)
    with mock.patch("torch.compiler.is_compiling", lambda: True):  # the operators, which torch.compile would see
        check(communicator.all_reduce, communicator.all_gather)
        shape = torch.empty(2, 3, device="meta")  # as torch.compile traces them
        assert communicator.all_reduce(shape).shape == (2, 3) and communicator.all_gather(shape, 1).shape == (2, 6)
    for dst in 0, 1:
        found = communicator.gather(rows + r.rank, dst, 1)
        if r.rank == dst:
            same(found, torch.cat([rows, rows + 1], 1))
        else:
            assert found is None
    communicator.destroy()
    with mock.patch.dict(os.environ, {"TUTTI_DISABLE": "1"}):
        communicator = join(platform, group, device)
        check_log(r.rank, "TUTTI_DISABLE is set")
    assert communicator.shares_memory and communicator.gather(rows) == "own gather"


def vllm_passes():
    """The pass is there if the config says so, and the config does if nobody switches it off and the seams are there."""
    platform = install_vllm("cuda")
    logged.clear()
    for environment, given, expected in (("1", {}, True), ("0", {}, False), ("off", {}, False),
                                         ("1", {"tutti_fuse_allreduce_rms": False}, False)):
        with mock.patch.dict(os.environ, {"TUTTI_FUSE": environment}):
            assert configured(platform, **given).additional_config == {"tutti_fuse_allreduce_rms": expected}
    assert not logged
    for module, name in ("vllm.compilation.passes.pass_manager", "PostGradPassManager"), ("vllm.ir.ops.layernorm", "rms_norm"):
        with mock.patch.object(sys.modules[module], name):
            delattr(sys.modules[module], name)
            assert configured(platform).additional_config == {"tutti_fuse_allreduce_rms": False}
            assert f"this version has no {module}.{name}" in logged.pop(), logged
    for names, place in (("NoOpEliminationPass", "AddRMSNormFusionPass", "RMSNormQuantFusionPass"), 2), (("RMSNormQuantFusionPass",), 0):
        for fuses in True, False:
            manager = resolve(platform.get_pass_manager_cls())()
            manager.configure(types.SimpleNamespace(names=names, additional_config={"tutti_fuse_allreduce_rms": fuses}))
            found = [type(each).__name__ for each in manager.passes]
            assert found == [*names[:place], *["RmsNormPass"] * fuses, *names[place:]], found
    assert len(manager.passes) == 1 and isinstance(resolve(platform.get_pass_manager_cls()), type)


def vllm_unused():
    """The engine's own platform stays, and the log says why."""
    for name in "1", "on", "True":
        with mock.patch.dict(os.environ, {"TUTTI_DISABLE": name}):
            assert install_vllm("cuda") is None and "TUTTI_DISABLE is set. vLLM keeps" in logged.pop()
            with mock.patch.object(multiprocessing.current_process(), "_name", "worker"):  # only the first process says it
                assert install_vllm("cuda") is None and not logged
    with mock.patch.dict(sys.modules, {"tutti.integrations.vllm": None}):  # as with a library that cannot be loaded
        assert install_vllm("cuda") is None and "Tutti is not used: ModuleNotFoundError" in logged.pop()
    entry = types.SimpleNamespace(name="other", load=lambda: lambda: "other.Platform")
    with mock.patch("tutti.integrations.vllm.entry_points", lambda group: [entry]):
        assert install_vllm("cuda") is None and "one plug-in for its platform, which is other" in logged.pop()
        entry.load = lambda: lambda: None
        assert install_vllm("cuda") is not None
    assert install_vllm("rocm") is None and not logged


# ---- SGLang

class CustomAllReduceV2:
    """SGLang's object."""

    is_off = False

    def __init__(self, group, device):
        self.disabled = self.original_disabled = self.is_off
        self.is_closed = False

    def should_custom_ar(self, inp):
        return not self.disabled

    def custom_all_reduce(self, input):
        return "own all_reduce"

    @contextlib.contextmanager
    def capture(self):
        yield

    def close(self):
        self.is_closed = True


def _sglang_fusion():
    """What the hooks of the fused call read."""
    layers = "sglang.srt.layers"
    _module(f"{layers}.flashinfer_comm_fusion", flashinfer_allreduce_residual_rmsnorm=None, uses_cutedsl_ar_fusion=lambda: False,
            resolve_fusion_group=None)
    _module(f"{layers}.dp_attention", is_dp_attention_enabled=lambda: False)
    _module(f"{layers}.layer_boundary.residual.add_norm", flashinfer_ar_fusion_applies=None)


def _sglang_fused(r, group, comm, fused, applies, same, capture):
    """As _forward_with_allreduce_fusion(), and the question that comes before."""
    module = sys.modules["sglang.srt.layers.flashinfer_comm_fusion"]
    coordinator = types.SimpleNamespace(cpu_group=group, ca_comm=comm)
    module.resolve_fusion_group = lambda use_attn_tp_group: (2, r.rank, coordinator)
    hidden, results = 256, []
    part, residual = (r.tensor(3 * hidden, r.rank) / 8).view(3, hidden), torch.full((3, hidden), 2.)
    total = (r.tensor(3 * hidden, 0) * 2 + 1).view(3, hidden) / 8 + residual
    given = [r.late(each) for each in (part, residual, torch.ones(hidden))]

    def call(**more):
        return fused(lambda *_, **__: "own", input_tensor=more.pop("input", given[0]), residual=given[1], weight=given[2], eps=1e-5,
                     max_token_num=2048, use_attn_tp_group=True, **more)

    assert applies(lambda size: False, 4096) and applies(lambda size: True, 4) and not applies(lambda size: False, 0)
    results.append(call())
    capture(lambda: results.append(call()))()
    for norm, found in results:
        same(found, total)
        torch.testing.assert_close(r.back(norm), total * (total.square().mean(-1, keepdim=True) + 1e-5).rsqrt())
    same(given[1], residual)  # SGLang counts on a residual of its own
    assert call(input=r.late(part[:, :12])) == "own"  # rows that Tutti does not norm
    for target, name, value in ((module, "uses_cutedsl_ar_fusion", lambda: True), (coordinator, "ca_comm", None),
                                (module, "resolve_fusion_group", lambda use_attn_tp_group: (1, 0, None)),
                                (sys.modules["sglang.srt.layers.dp_attention"], "is_dp_attention_enabled", lambda: True)):
        with mock.patch.object(target, name, value):
            assert not applies(lambda size: False, 4) and applies(lambda size: True, 4) and call() == "own", name


def sglang(r, group, same, capture):
    hooks = {}
    registry = types.SimpleNamespace(register=lambda target, hook, kind: hooks.update({target: (hook, kind)}))
    _module("sglang.srt.plugins.hook_registry", HookRegistry=registry, HookType=types.SimpleNamespace(AROUND="around"))
    _sglang_fusion()
    import _tutti_engines

    _tutti_engines.sglang()
    targets = sorted(hooks)
    assert [target.rpartition(".")[2] for target in targets] == [
        "dispatch_custom_allreduce", "flashinfer_allreduce_residual_rmsnorm", "flashinfer_ar_fusion_applies"]
    assert all(kind == "around" for _, kind in hooks.values())
    hook, fused, applies = (hooks[target][0] for target in targets)

    def make():
        """As GroupCoordinator.__init__()."""
        found = hook(lambda group, device: CustomAllReduceV2, group=group, device=r.device)
        return found(group=group, device=r.device)

    for CustomAllReduceV2.is_off in False, True:
        with mock.patch("tutti.integrations.sglang._log", Log()):
            logged.clear()
            comm = make()
            check_log(r.rank, "all-reduce of 2 ranks on cuda")
        assert isinstance(comm, CustomAllReduceV2) != CustomAllReduceV2.is_off  # models look for the class
        given, results = r.late(r.tensor(4099, r.rank)), []
        assert not comm.disabled and comm.should_custom_ar(given)
        same(comm.custom_all_reduce(given), r.tensor(4099, 0) * 2 + 1)
        same(given, r.tensor(4099, r.rank))
        with comm.capture():
            replay = capture(lambda: results.append(comm.custom_all_reduce(given)))
        replay()
        same(results[0], r.tensor(4099, 0) * 2 + 1)
        _sglang_fused(r, group, comm, fused, applies, same, capture)
        comm.disabled = True
        assert not comm.should_custom_ar(given) and comm.custom_all_reduce(given) is None
        assert not applies(lambda size: False, 4)
        comm.close()
        comm.disabled = False
        assert not applies(lambda size: False, 4)
        assert getattr(comm, "is_closed", True)
    CustomAllReduceV2.is_off = False
    with mock.patch.dict(os.environ, {"TUTTI_DISABLE": "1"}), mock.patch("tutti.integrations.sglang._log", Log()):
        comm = make()
        check_log(r.rank, "TUTTI_DISABLE is set")
        assert comm.custom_all_reduce(given) == "own all_reduce"
        for environment, module, count in ({"TUTTI_FUSE": "0"}, None, 0), ({}, "dp_attention", 1):
            hooks.clear()
            parent = sys.modules["sglang.srt.layers.dp_attention"].__dict__ if module else {}
            with mock.patch.dict(os.environ, {"TUTTI_DISABLE": "0", **environment}), mock.patch.dict(parent, clear=True):
                _tutti_engines.sglang()
            assert len(hooks) == 1 and len(logged) == count, (hooks, logged)
        assert "has no sglang.srt.layers.dp_attention.is_dp_attention_enabled" in logged.pop()
        hooks.clear()
        with mock.patch.object(logging.getLogger("sglang.srt.tutti"), "warning", Log().warning):
            _tutti_engines.sglang()
        assert not hooks and "TUTTI_DISABLE is set. SGLang keeps" in logged.pop()
