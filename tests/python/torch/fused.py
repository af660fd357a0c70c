# SPDX-License-Identifier: MIT
"""torch.ops.tutti on 2 ranks: opcheck and compiled graphs of each; all_reduce_rms_norm: the bits of the C call, its other forms, and
the pass that puts it into compiled graphs."""

import os
import sys
import tempfile
from datetime import timedelta

try:
    import torch.multiprocessing

    import tutti.torch  # defines the operators
except ImportError as error:
    print("skipped:", error)
    sys.exit(77)

import torch.distributed as dist
import torch.nn.functional as F

RANKS, HIDDEN, EPSILON = 2, 72, 1e-5
FLOATS = torch.float32, torch.float16, torch.bfloat16


def unfused(tensor, weight, residual, epsilon, bias):
    """The norm in float64, and the sum with the residual."""
    total = torch.ops.tutti.all_reduce(tensor)
    if residual is not None:
        total = total + residual
    wide = total.double()
    return wide * (wide.square().mean(-1, keepdim=True) + epsilon).rsqrt() * (weight.double() + bias), total


def check_operator(rank):
    fused, comm = torch.ops.tutti.all_reduce_rms_norm, tutti.torch.communicator("cpu")
    for dtype in FLOATS:
        for weight_dtype in FLOATS:
            weight = torch.rand(HIDDEN).to(weight_dtype)
            for shape in ((1, HIDDEN), (2, 5, HIDDEN), (0, HIDDEN)):
                for with_residual, bias in (False, 0.0), (True, 0.0), (True, 1.0):
                    part = torch.randn(shape, generator=torch.Generator().manual_seed(rank)).to(dtype)
                    residual = torch.randn(shape, generator=torch.Generator().manual_seed(9)).to(dtype) if with_residual else None
                    given = part.clone(), None if residual is None else residual.clone()
                    normed, total = fused(part, weight, residual, EPSILON, bias)
                    assert normed.dtype == total.dtype == dtype and normed.shape == total.shape == part.shape
                    assert torch.equal(part, given[0]) and (residual is None or torch.equal(residual, given[1]))
                    if not part.numel():
                        continue
                    called, summed = torch.empty_like(part), torch.empty_like(part)
                    comm.all_reduce_rms_norm(part, weight, epsilon=EPSILON, weight_bias=bias, residual=residual,
                                             residual_out=summed, norm_out=called)
                    assert torch.equal(normed, called) and torch.equal(total, summed), (dtype, weight_dtype, shape)
                    expected, whole = unfused(part, weight, residual, EPSILON, bias)
                    assert torch.equal(total, whole), (dtype, shape)
                    torch.testing.assert_close(normed.double(), expected, rtol=4 * torch.finfo(dtype).eps, atol=1e-6)


def check_layouts():
    """Operands with gaps, in other orders, and of other alignment."""
    fused, weight = torch.ops.tutti.all_reduce_rms_norm, torch.rand(HIDDEN)
    part, residual = torch.rand(6, HIDDEN), torch.rand(6, HIDDEN)
    expected = fused(part, weight, residual)
    turned = part.t().contiguous().t()
    shifted = torch.cat((torch.zeros(1), residual.flatten()))[1:].view(6, HIDDEN)
    spread = weight.repeat_interleave(2)[::2]
    for found, right in zip(fused(turned, spread, shifted), expected):
        assert torch.equal(found, right) and found.is_contiguous()
    for wrong, text in (((part, weight[:-8], residual), "a weight of shape"), ((part, weight, residual[:3]), "a residual of"),
                        ((part, weight, residual.double()), "a residual of"), ((part.double(), weight), "expected float32"),
                        ((part[:, :12], weight[:12]), "hidden 12")):
        try:
            fused(*wrong)
        except tutti.InvalidError as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"no error that says {text}")


def copies(*tensors):
    return [None if tensor is None else tensor.clone() for tensor in tensors]


def check_in_place():
    """As the other form, also of operands that have to be copied."""
    ops, weight = torch.ops.tutti, torch.rand(HIDDEN)
    for dtype in FLOATS:
        part, residual = torch.rand(6, HIDDEN).to(dtype), torch.rand(6, HIDDEN).to(dtype)
        for given in residual, None:
            normed, total = ops.all_reduce_rms_norm(part, weight, given, EPSILON, 1.0)
            shifted = torch.zeros(part.numel() + 1, dtype=dtype)[1:].view(part.shape).copy_(part)
            for tensor in part.clone(), part.t().contiguous().t(), shifted:
                changed, = copies(given)
                assert ops.all_reduce_rms_norm_(tensor, weight, changed, EPSILON, 1.0) is None
                assert torch.equal(tensor, normed) and (given is None or torch.equal(changed, total))
    try:
        ops.all_reduce_rms_norm_(torch.rand(1, HIDDEN).expand(3, HIDDEN), weight)
    except tutti.InvalidError as error:
        assert "share memory" in str(error), error
    else:
        raise AssertionError("rows that are one")


def dequantised(values, scales, quant):
    """The norm that values and scales stand for."""
    if quant == "fp8_group_ue8m0":
        exponents = scales.unsqueeze(-1).view(torch.uint8).flatten(-2)[..., :values.size(-1) // 128]
        scales = torch.ldexp(torch.ones(exponents.shape), exponents.int() - 127)
    return values.float() * scales.repeat_interleave(values.size(-1) // max(1, scales.size(-1)), -1)


def check_quantised():
    """The bits of the C call, which tests/agree checks, for each kind; and what the operator says about shapes."""
    fused, comm, hidden = torch.ops.tutti.all_reduce_rms_norm_quant, tutti.torch.communicator("cpu"), 384
    weight, given_scale = torch.rand(hidden), torch.tensor([0.03])
    part, residual = torch.randn(2, 5, hidden), torch.randn(2, 5, hidden)
    normed, whole = torch.ops.tutti.all_reduce_rms_norm(part, weight, residual, EPSILON)
    for quant, groups, dtype in (("fp8_tensor", 0, torch.float32), ("fp8_token", 1, torch.float32), ("int8_token", 1, torch.float32),
                                 ("fp8_group", 3, torch.float32), ("fp8_group_ue8m0", 1, torch.int32)):
        scale = None if groups else given_scale
        values, scales, total, norm = fused(part, weight, quant, residual, scale, EPSILON, 0.0, True)
        assert torch.equal(norm, normed) and torch.equal(total, whole), quant
        assert scales.dtype == dtype and scales.shape == ((2, 5, groups) if groups else (0,)), (quant, scales.shape)
        found = torch.empty_like(values), torch.empty_like(scales) if groups else given_scale
        comm.all_reduce_rms_norm(part, weight, epsilon=EPSILON, residual=residual, residual_out=torch.empty_like(part), quant=quant,
                                 quant_out=found[0].view(torch.uint8), scales=found[1])
        assert torch.equal(values.view(torch.uint8), found[0].view(torch.uint8)) and (not groups or torch.equal(scales, found[1]))
        near = dequantised(values, scales if groups else given_scale.view(1, 1, 1), quant)
        torch.testing.assert_close(near, normed, rtol=.07, atol=.05)
        shorter = fused(part, weight, quant, residual, scale, EPSILON)
        assert torch.equal(shorter[0].view(torch.uint8), values.view(torch.uint8)) and not shorter[3].numel()
        assert [each.shape for each in fused(part[:, :0], weight, quant, residual[:, :0], scale)[:3]] == [
            (2, 0, hidden), (2, 0, groups) if groups else (0,), (2, 0, hidden)]
        for alignment in 1, 4:
            columns = fused(part[0], weight, quant, residual[0], scale, EPSILON, 0.0, False, alignment)[1]
            assert torch.equal(columns, scales[0] if groups else scales), (quant, alignment)
            if quant.startswith("fp8_group"):
                assert columns.stride() == (1, 5 if alignment == 1 else 8), columns.stride()
    taken = []

    def declining(norm, *_):
        """As where devices do not reach each other: the norm has to lie somewhere."""
        taken.append(bool(norm.norm_out))
        if not taken[-1]:
            raise tutti.DeclinedError("without norm_out")

    tutti.torch._norm.normed_quantised(declining, part, weight, "fp8_token", residual, None, EPSILON, 0.0, False, 0)
    assert taken == [False, True], taken
    for wrong, text in ((("fp8",), "expected fp8_tensor"), (("fp8_tensor",), "needs a scale"), (("none",), "expected fp8_tensor"),
                        (("fp8_token", None, given_scale), "takes no scale"), (("fp8_tensor", None, weight), "a scale of 384"),
                        (("fp8_group", None, None, EPSILON, 0.0, False, 4), "two dimensions")):
        try:
            fused(part, weight, *wrong)
        except tutti.InvalidError as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"no error that says {text}")


def operator_calls(rank):
    """Every operator with operands, some several times."""
    ops, weight = torch.ops.tutti, torch.rand(128)
    part, residual, square = torch.rand(3, 128), torch.rand(3, 128), torch.rand(2 * RANKS, 4) + rank
    calls = [(ops.all_reduce, square), (ops.all_reduce_, square), (ops.all_gather, square, 1), (ops.reduce_scatter, square, "avg", 0),
             (ops.all_to_all, square), (ops.all_to_all, square[:3], [1 + rank] * 2, [1, 2]),
             (ops.all_gather_single, torch.zeros(2 * RANKS * RANKS, 4), square),
             (ops.reduce_scatter_single, torch.zeros(2, 4), square, "max"), (ops.all_to_all_single, torch.zeros(2 * RANKS, 4), square),
             (ops.broadcast, square, 1), (ops.broadcast_, square, 1), (ops.all_reduce_rms_norm, part, weight, residual),
             (ops.all_reduce_rms_norm, part, weight), (ops.all_reduce_rms_norm_, part, weight, residual, 1e-5, 1.0),
             (ops.all_reduce_rms_norm_, part, weight),
             (ops.all_reduce_rms_norm_quant, part, weight, "fp8_tensor", residual, torch.ones(1)),
             (ops.all_reduce_rms_norm_quant, part, weight, "int8_token", None, None, 1e-5, 0.0, True),
             (ops.all_reduce_rms_norm_quant, part, weight, "fp8_group", residual, None, 1e-5, 0.0, False, 4)]
    return calls


def check_operators(rank):
    """PyTorch's checks of each operator, and each in a whole graph."""
    calls = operator_calls(rank)
    defined = {name.partition("::")[2].partition(".")[0] for name in torch._C._dispatch_get_all_op_names() if name.startswith("tutti::")}
    last = {call.__name__: (call, *arguments) for call, *arguments in calls}
    assert last.keys() == defined, defined
    for call, *arguments in last.values():
        torch.library.opcheck(call.default, tuple(arguments))

    def every(calls):
        results = []
        for call, *arguments in calls:
            found = call(*arguments)
            results.append([each for each in arguments if isinstance(each, torch.Tensor)] if found is None else found)
        return results

    whole, _ = compiled(every)
    both = []
    for run in every, whole:
        both.append(run([[call, *(each.clone() if isinstance(each, torch.Tensor) else each for each in arguments)]
                         for call, *arguments in calls]))
    torch.testing.assert_close(*both, rtol=0, atol=0)


# ---- the pass

def by_operator(tensor):
    return torch.ops.tutti.all_reduce(tensor)


def functional(tensor):
    import torch.distributed._functional_collectives as collectives

    return collectives.all_reduce(tensor, "sum", dist.group.WORLD)


def in_place(tensor):
    tensor = tensor.clone()
    dist.all_reduce(tensor)
    return tensor


def viewed(tensor):
    return torch.ops.tutti.all_reduce(tensor.view(2, -1, HIDDEN)).view(tensor.shape)


def norm(total, weight):
    return F.rms_norm(total, weight.shape, weight, EPSILON)


def norm_of_cuda(total, weight):
    """What norm() becomes for CUDA tensors."""
    return torch.ops.aten._fused_rms_norm(total, weight.shape, weight, EPSILON)[0]


def llama(total, weight):
    wide = total.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON)
    return weight * wide.to(total.dtype)


def gemma(total, weight):
    wide = total.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON) * (1.0 + weight.float())).type_as(total)


def compiled(function):
    """A compiled function, and a list to which its compilation appends how many norms have been fused. Inductor runs the pass on
    such a graph; here the graph itself runs."""
    counts = []

    def compiler(module, _):
        counts.append(tutti.torch._fusion.fuse_rms_norm(module.graph))
        module.graph.lint()
        module.recompile()
        return module.forward

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=compiler, decompositions=select_decomp_table())
    return torch.compile(function, backend=backend, fullgraph=True), counts


VARIANTS = ((by_operator, norm, torch.bfloat16), (by_operator, norm_of_cuda, torch.float32), (functional, llama, torch.float32),
            (in_place, gemma, torch.float16), (viewed, llama, torch.bfloat16))


def layers(reduce, normalise, tensor, weight, residual):
    """Two norms with a residual, and one without."""
    total = reduce(tensor) + residual
    total = total + reduce(normalise(total, weight))
    return normalise(total, weight), normalise(reduce(tensor), weight), total


def check_fused(rank):
    """All variants in one graph, which takes less time than several."""
    own, equal = (torch.Generator().manual_seed(seed) for seed in (rank + 1, 0))
    operands = [[torch.randn(shape, generator=numbers).to(dtype) for shape, numbers in (
        ((4, HIDDEN), own), ((HIDDEN,), equal), ((4, HIDDEN), equal))] for _, _, dtype in VARIANTS]

    def run(operands):
        return [layers(reduce, normalise, *given) for (reduce, normalise, _), given in zip(VARIANTS, operands)]

    whole, counts = compiled(run)
    found = whole(operands)
    assert counts == [3 * len(VARIANTS)], counts
    fused = torch.ops.tutti.all_reduce_rms_norm
    for (reduce, normalise, dtype), (tensor, weight, residual), results in zip(VARIANTS, operands, found):
        bias = float(normalise is gemma)
        normed, total = fused(tensor, weight, residual, EPSILON, bias)
        normed, total = fused(normed, weight, total, EPSILON, bias)
        plain = layers(reduce, normalise, tensor, weight, residual)
        for value, right, near in zip(results, (normed, fused(tensor, weight, None, EPSILON, bias)[0], total), plain):
            assert torch.equal(value, right), (reduce, normalise, dtype)
            torch.testing.assert_close(value, near, rtol=8 * torch.finfo(dtype).eps, atol=16 * torch.finfo(dtype).eps)


def check_left(gloo):
    """What has to stay as it is."""
    import torch.distributed._functional_collectives as collectives

    weight, ops = torch.rand(HIDDEN), torch.ops.tutti

    def used_twice(tensor, residual):
        whole = ops.all_reduce(tensor)
        return norm(whole + residual, weight), whole

    cases = (
        lambda tensor, residual: norm(ops.all_reduce(tensor, "max") + residual, weight),
        lambda tensor, residual: norm(collectives.all_reduce(tensor, "sum", gloo) + residual, weight),
        used_twice,
        lambda tensor, residual: norm(ops.all_reduce(tensor[:, :12]) + residual[:, :12], weight[:12]),
        lambda tensor, residual: norm(ops.all_reduce(tensor) + residual[0], weight),
        lambda tensor, residual: norm(torch.add(ops.all_reduce(tensor), residual, alpha=2), weight),
        # The mean over the rows, and that of other values.
        lambda tensor, residual: residual * torch.rsqrt(ops.all_reduce(tensor).pow(2).mean(0, keepdim=True) + EPSILON) * weight,
        lambda tensor, residual: residual * torch.rsqrt(ops.all_reduce(tensor).pow(2).mean(-1, keepdim=True) + EPSILON) * weight,
    )

    def every(tensor, residual):
        return [case(tensor, residual) for case in cases]

    tensor, residual = torch.rand(4, HIDDEN), torch.rand(4, HIDDEN)
    whole, counts = compiled(every)
    found = whole(tensor, residual)
    assert counts == [0], counts
    torch.testing.assert_close(found, every(tensor, residual))


def run(rank, folder):
    dist.init_process_group("tutti", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS,
                            timeout=timedelta(seconds=60))
    torch.set_num_threads(1)
    torch.manual_seed(0)  # equal weights
    gloo = dist.new_group(backend="gloo")
    with torch.inference_mode():
        check_operator(rank)
        check_layouts()
        check_in_place()
        check_quantised()
    with torch.no_grad():
        check_fused(rank)
        check_left(gloo)
        check_operators(rank)
    try:
        torch.ops.tutti.all_reduce_rms_norm(torch.rand(2, HIDDEN, requires_grad=True), torch.rand(HIDDEN))[0].sum().backward()
    except tutti.InvalidError as error:
        assert "has no gradient" in str(error)
    else:
        raise AssertionError("a gradient")
    assert tutti.torch.RmsNormPass().uuid()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    # These take seconds, so once and not in each rank.
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    import tutti.torch._fusion

    with tempfile.TemporaryDirectory() as place:
        torch.multiprocessing.start_processes(run, (place,), nprocs=RANKS, start_method="fork")
