# SPDX-License-Identifier: MIT
"""torch.ops.tutti.all_reduce_rms_norm on 2 ranks: the bits of the C call, and the pass that puts it into compiled graphs."""

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
    with torch.no_grad():
        check_fused(rank)
        check_left(gloo)
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
