# SPDX-License-Identifier: MIT
"""Graphs of vLLM's operators, which are stubs here, and what the plug-in's pass makes of them. vllm_fusion.py has vLLM's own."""

import operator
import types

import torch
from torch._higher_order_ops.auto_functionalize import auto_functionalized
from torch._subclasses import FakeTensorMode

HIDDEN, GROUP = 256, "tp:0"
FLOAT8 = torch.float8_e4m3fn
_SCHEMAS = {
    "vllm": ["all_reduce(Tensor tensor, str group_name) -> Tensor"],
    "vllm_ir": ["rms_norm(Tensor x, Tensor? weight, float epsilon, SymInt? variance_size=None) -> Tensor",
                "fused_add_rms_norm(Tensor x, Tensor x_residual, Tensor? weight, float epsilon, SymInt? variance_size=None) "
                "-> (Tensor, Tensor)"],
    "_C": ["static_scaled_fp8_quant(Tensor(a!) result, Tensor input, Tensor scale, int[]? group_shape=None) -> ()",
           "dynamic_per_token_scaled_fp8_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale, Tensor? scale_ub) -> ()",
           "dynamic_scaled_int8_quant(Tensor(a!) out, Tensor input, Tensor(b!) scale, Tensor(c!)? azp) -> ()",
           "per_token_group_fp8_quant(Tensor input, Tensor(a!) output_q, Tensor(b!) output_s, int group_size, float eps, "
           "float fp8_min, float fp8_max, bool scale_ue8m0, bool dummy_is_scale_transposed, bool dummy_is_tma_aligned) -> ()"]}
_libraries = []


def define():
    if not _libraries:
        for name, schemas in _SCHEMAS.items():
            _libraries.append(torch.library.Library(name, "FRAGMENT"))
            for schema in schemas:
                _libraries[-1].define(schema)


class Builder:
    """A graph of 3 tokens, with the values that a compiler knows."""

    def __init__(self):
        self.graph, self.mode = torch.fx.Graph(), FakeTensorMode()

    def _valued(self, node, value):
        node.meta["val"] = value
        return node

    def empty(self, *shape, dtype=torch.bfloat16):
        with self.mode:
            return torch.empty(shape, dtype=dtype)

    def input(self, *shape, dtype=torch.bfloat16):
        return self._valued(self.graph.placeholder("input"), self.empty(*shape, dtype=dtype))

    def call(self, target, *arguments, value=None, **named):
        return self._valued(self.graph.call_function(target, arguments, named), value)

    def norm(self, adds=True, weight=None, epsilon=1e-6):
        """The norm and the sum of an all-reduce."""
        rows = [self.input(3, HIDDEN), self.input(3, HIDDEN)]
        weight = weight or self.input(HIDDEN)
        whole = self.call(torch.ops.vllm.all_reduce.default, rows[0], group_name=GROUP, value=self.empty(3, HIDDEN))
        if not adds:
            return self.call(torch.ops.vllm_ir.rms_norm.default, whole, weight, epsilon, value=self.empty(3, HIDDEN)), whole
        found = self.call(torch.ops.vllm_ir.fused_add_rms_norm.default, whole, rows[1], weight, epsilon)
        return [self.call(operator.getitem, found, i, value=self.empty(3, HIDDEN)) for i in range(2)]

    def quantise(self, name, norm, dtype=FLOAT8, scales=(3, 1), **named):
        """The values and scales of one of vLLM's operators."""
        memory = self.call(torch.ops.aten.empty.memory_format, [3, HIDDEN], value=self.empty(3, HIDDEN, dtype=dtype))
        room = self.call(torch.ops.aten.empty.memory_format, scales, value=self.empty(*scales, dtype=torch.float32))
        target = getattr(torch.ops._C, name).default
        names = [each.name for each in target._schema.arguments if each.is_write][:2]
        found = self.call(auto_functionalized, target, **{"input": norm, **dict(zip(names, (memory, room))), **named})
        return [self.call(operator.getitem, found, i + 1, value=node.meta["val"]) for i, node in enumerate((memory, room)) if i < len(names)]

    def fuse(self, *results, served=(GROUP,)):
        """The plug-in's operators in the graph after the pass."""
        from tutti.integrations.vllm_fusion import fuse

        self.graph.output(results)
        fuse(self.graph, dict.fromkeys(served))
        self.graph.lint()
        for node in self.graph.nodes:
            assert node.op != "call_function" or "val" in node.meta, node
        return [node for node in self.graph.nodes if "tutti_vllm" in str(node.target)]


def check_norms():
    for adds in True, False:
        for gemma in False, True:
            b = Builder()
            weight = plain = b.input(HIDDEN)
            if gemma:
                wide = b.call(torch.ops.prims.convert_element_type.default, plain, torch.float32, value=b.empty(HIDDEN, dtype=torch.float32))
                weight = b.call(torch.ops.aten.add.Tensor, wide, 1.0, value=wide.meta["val"])
            found, = b.fuse(*b.norm(adds, weight))
            assert found.target is torch.ops.tutti_vllm.all_reduce_rms_norm.default
            assert found.args[1] is plain and (found.args[2] is not None) == adds
            assert found.args[3:] == (1e-6, float(gemma), GROUP), found.args
            assert not any("vllm.all_reduce" == str(node.target)[:15] for node in b.graph.nodes)
    b = Builder()
    assert not b.fuse(*b.norm(), served=())
    b = Builder()
    assert not b.fuse(*b.norm(weight=b.input(HIDDEN, dtype=torch.float64)))


def check_quants():
    group = {"group_size": 128, "eps": 1e-10, "fp8_min": -448.0, "fp8_max": 448.0, "scale_ue8m0": False,
             "dummy_is_scale_transposed": False, "dummy_is_tma_aligned": False}
    columns = {**group, "dummy_is_scale_transposed": True}
    for name, named, expected in (
            ("dynamic_per_token_scaled_fp8_quant", {"scale_ub": None}, ("fp8_token", 0)),
            ("dynamic_scaled_int8_quant", {"azp": None, "dtype": torch.int8}, ("int8_token", 0)),
            ("per_token_group_fp8_quant", group, ("fp8_group", 0)), ("per_token_group_fp8_quant", columns, ("fp8_group", 1)),
            ("per_token_group_fp8_quant", {**columns, "dummy_is_tma_aligned": True}, ("fp8_group", 4)),
            ("per_token_group_fp8_quant", {**group, "group_size": 64}, None),
            ("per_token_group_fp8_quant", {**group, "scale_ue8m0": True}, None),
            ("dynamic_per_token_scaled_fp8_quant", {"scale_ub": None, "dtype": torch.float8_e4m3fnuz}, None)):
        for adds in True, False:
            for with_norm in True, False:
                b = Builder()
                norm, total = b.norm(adds)
                scales = (3, HIDDEN // 128) if "group" in name else (3, 1)
                found, = b.fuse(*b.quantise(name, norm, scales=scales, **named), total, *[norm] * with_norm)
                if expected is None:
                    assert found.target is torch.ops.tutti_vllm.all_reduce_rms_norm.default, name
                    continue
                assert (found.args[2], found.args[8]) == expected and found.args[7] == with_norm, found.args
                assert not any(node.target in (auto_functionalized, torch.ops.aten.empty.memory_format) for node in b.graph.nodes)
    for size, is_late, is_served in (1, False, True), (2, False, False), (1, True, False):
        b = Builder()
        scale = None if is_late else b.input(size, dtype=torch.float32)
        norm, total = b.norm()
        if is_late:
            scale = b.call(torch.ops.aten.full.default, [1], 1.0, value=b.empty(1, dtype=torch.float32))
        values, *_ = b.quantise("static_scaled_fp8_quant", norm, scale=scale)
        found, = b.fuse(values, total)
        assert (found.args[2] == "fp8_tensor" and found.args[4] is scale) == is_served, found.args


def check_all():
    define()
    import tutti.integrations.vllm as plugin

    plugin._operators()
    check_norms()
    check_quants()


def check_operators(r, communicator, same, capture):
    """The operators' implementations on a communicator's tensors: the sum's bits, eager and captured."""
    from tutti.integrations.vllm_fusion import Operators

    group = types.SimpleNamespace(_served={GROUP: communicator.tutti})
    part, weight = (r.tensor(4 * HIDDEN, r.rank) / 8).view(4, HIDDEN), r.tensor(HIDDEN, 1) / 16
    residual, results = part * 0 + 2, []
    total = (r.tensor(4 * HIDDEN, 0) + r.tensor(4 * HIDDEN, 1)).view(4, HIDDEN) / 8 + residual
    normed = total * (total.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight
    given = [r.late(each) for each in (part, weight, residual)]

    def call():
        results.append(Operators.normed(group, *given, 1e-5, 0.0, GROUP))
        results.append(Operators.quantised(group, *given[:2], "int8_token", given[2], None, 1e-5, 0.0, True, 0, GROUP))

    call()
    capture(call)()
    (norm, _), (values, scales, _, _) = [[r.back(each) for each in found] for found in results[:2]]
    torch.testing.assert_close(norm, normed, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(values * scales, normed, rtol=0.02, atol=scales.max().item())
    for found in results:
        same(found[-1], norm if found[0].dtype == torch.int8 else total)
        same(found[-2], total if found[0].dtype == torch.int8 else norm)
    for found, again in zip(results[1], results[3]):
        same(again, r.back(found))
