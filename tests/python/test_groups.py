# SPDX-License-Identifier: MIT
"""Our process groups against PyTorch's Gloo on CPU tensors: the same inputs through both, and compared.

Integers, bool, and floats whose sums are exact are identical. Other floats: ours are rounded once, from
accumulation in float32 (float64 in float64); Gloo adds rank by rank and rounds to the dtype each time. So a sum of
n terms may differ by n roundings of the sum of their magnitudes, and a product by n roundings of itself. Of several
tensors a rank Gloo averages the first alone; we average all.

usage: test_groups.py LIBTUTTI [dense|layouts|sparse|tags|members|refusals]...
"""

import functools
import os
import random
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
here = sys.path.pop(0)  # its torch/ is not PyTorch
try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as processes
except ImportError as error:
    print("skipped:", error)
    sys.exit(77)
sys.path.append(here)

import tutti_pg

RANKS = 3
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]
OPS = {
    "sum": (dist.ReduceOp.SUM, tutti_pg.SUM), "prod": (dist.ReduceOp.PRODUCT, tutti_pg.PROD),
    "min": (dist.ReduceOp.MIN, tutti_pg.MIN), "max": (dist.ReduceOp.MAX, tutti_pg.MAX),
    "avg": (dist.ReduceOp.AVG, tutti_pg.AVG), "band": (dist.ReduceOp.BAND, tutti_pg.BAND),
    "bor": (dist.ReduceOp.BOR, tutti_pg.BOR), "bxor": (dist.ReduceOp.BXOR, tutti_pg.BXOR),
}


def filled(generator, dtype, shape, exact):
    if dtype.is_floating_point and not exact:
        return torch.randn(shape, generator=generator).to(dtype)
    low, high = (0, 5) if dtype == torch.uint8 else (-4, 5)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def tolerance(inputs, op):
    """What the two may differ by, element by element; inputs are of all ranks."""
    if op in ("min", "max") or not inputs[0].dtype.is_floating_point:
        return 0
    wide = torch.stack(inputs).double().abs()
    size = wide.prod(0) if op == "prod" else wide.sum(0)
    return size * (len(inputs) + 1) * torch.finfo(inputs[0].dtype).eps


def same(ours, theirs, bound):
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, (ours.shape, theirs.shape)
    if isinstance(bound, int):
        assert torch.equal(ours, theirs), (ours, theirs)
    else:
        assert ((ours.double() - theirs.double()).abs() <= bound).all(), (ours, theirs)


def gloo_reduce(tensors, op=dist.ReduceOp.SUM, group=None):
    options = dist.AllreduceOptions()
    options.reduceOp = op
    (group or dist.group.WORLD)._get_backend(torch.device("cpu")).allreduce(tensors, options).wait()


def generators(seed):
    return [torch.Generator().manual_seed(seed * RANKS + rank) for rank in range(RANKS)]


def dense_case(group, rank, seed, dtype, name, exact, count):
    """Whether Gloo has it."""
    inputs = [[filled(generator, dtype, (count,), exact) for _ in range(1 + seed % 2)]
              for generator in generators(seed)]
    if name == "prod" and not exact:  # products that stay clear of subnormals
        inputs = [[tensor.sigmoid() + 0.5 for tensor in own] for own in inputs]
    theirs = [tensor.clone() for tensor in inputs[rank]]
    ours = [tensor.clone() for tensor in inputs[rank]]
    group.all_reduce(ours, OPS[name][1]).wait()
    try:
        gloo_reduce(theirs, OPS[name][0])
    except (RuntimeError, ValueError):
        return False
    bound = 0 if exact and name != "avg" else tolerance([tensor for own in inputs for tensor in own], name)
    for mine, other in zip(ours, theirs):
        same(mine, theirs[0] if name == "avg" else other, bound)
    return True


def test_dense(group, rank):
    compared, seed = {name: 0 for name in OPS}, 0
    for dtype in FLOATS + INTEGERS:
        for name in OPS:
            bits = name.startswith("b")
            if dtype.is_floating_point and bits or not dtype.is_floating_point and name == "avg":
                continue
            for exact in [True, False] if dtype.is_floating_point else [True]:
                for count in (1, 1000, 70001):
                    seed += 1
                    compared[name] += dense_case(group, rank, seed, dtype, name, exact, count)
    assert all(compared[name] for name in ("sum", "prod", "min", "max")), compared
    return compared


def test_layouts(group, rank):
    base = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5) * (rank + 1)
    layouts = [base, base.permute(3, 0, 2, 1), base.to(memory_format=torch.channels_last), base[0, 0, 0, 0],
               base[:0], base[:, :1, :, :].contiguous()]
    for tensor in layouts:
        # A clone keeps the strides of what is dense.
        ours, theirs = tensor.clone(), tensor.clone()
        assert ours.stride() == theirs.stride()
        group.all_reduce(ours).wait()
        gloo_reduce([theirs])
        same(ours, theirs, 0)
        assert ours.stride() == theirs.stride()
    return len(layouts)


def sparse_make(generator, chooser, shape, sparse_dim, dtype, exact, nnz):
    room = 1
    for size in shape[:sparse_dim]:
        room *= size
    nnz = nnz if room else 0
    indices = torch.stack([torch.randint(0, max(size, 1), (nnz,), generator=generator)
                           for size in shape[:sparse_dim]])
    values = filled(generator, dtype, [nnz] + shape[sparse_dim:], exact)
    tensor = torch.sparse_coo_tensor(indices, values, shape)
    return tensor.coalesce() if chooser.random() < 0.3 else tensor


def sparse_same(ours, theirs, inputs, exact):
    theirs = theirs.coalesce()
    assert torch.equal(ours.indices(), theirs.indices())
    assert ours.values().dtype == theirs.values().dtype and ours.values().shape == theirs.values().shape
    bound = 0
    if not exact:
        # Of each entry, the magnitudes of all its terms; coalescing and union round once each.
        sizes = [torch.sparse_coo_tensor(t._indices(), t._values().double().abs(), t.shape) for t in inputs]
        size = functools.reduce(torch.add, sizes)
        terms = sum(t._nnz() for t in inputs) + 1
        bound = size.coalesce().values() * terms * torch.finfo(theirs.dtype).eps
    same(ours.values(), theirs.values(), bound)


def sparse_shapes(chooser):
    for _ in range(30):
        sparse = [chooser.choice([1, 2, 5, 30]) for _ in range(chooser.randint(1, 4))]
        yield sparse, [chooser.choice([1, 2, 3, 7]) for _ in range(chooser.randint(0, 4))]
    yield [1000000], [64]


def test_sparse(group, rank):
    chooser = random.Random(3)
    seed = 1000
    for sparse, dense in sparse_shapes(chooser):
        seed += 1
        dtype = chooser.choice([torch.float32, torch.float64, torch.int32, torch.int64])
        exact = chooser.random() < 0.5 or not dtype.is_floating_point
        counts = [chooser.choice([0, 1, 20, 50]) * (chooser.random() < 0.8) for _ in range(RANKS)]
        if sparse == [1000000]:  # larger than what stays in the caches
            counts = [6000] * RANKS
        several = 1 + chooser.randint(0, 1)
        inputs = [[sparse_make(generator, chooser, sparse + dense, len(sparse), dtype, exact, counts[r])
                   for _ in range(several)] for r, generator in enumerate(generators(seed))]
        theirs = [tensor.clone() for tensor in inputs[rank]]
        work = group.all_reduce_sparse(inputs[rank]).wait()
        gloo_reduce(theirs)
        for other in theirs:
            sparse_same(work.sparse_result(), other, [t for own in inputs for t in own], exact)
    beyond_gloo(group, rank)
    return seed - 1000


def beyond_gloo(group, rank):
    """More than four dimensions, and sizes of zero, where Gloo's metadata end: against PyTorch's own sums."""
    chooser = random.Random(4)
    for seed, (sparse, dense) in enumerate([([2, 3, 2, 3, 2, 2], [2]), ([3], [2, 1, 2, 1, 2]), ([4, 0, 3], [2]),
                                            ([5], [0, 2])]):
        inputs = [sparse_make(generator, chooser, sparse + dense, len(sparse), torch.int64, True, 9)
                  for generator in generators(2000 + seed)]
        ours = group.all_reduce_sparse(inputs[rank]).wait().sparse_result()
        assert torch.equal(ours.to_dense(), sum(tensor.to_dense() for tensor in inputs))


def test_tags(group, rank):
    """Dense and sparse in flight on several tags, which each rank submits in another order."""
    tags, each = 4, 12
    generator = torch.Generator().manual_seed(rank)
    chooser = random.Random(rank)
    dense = [[filled(generator, torch.int32, (100 + tag,), True) for _ in range(each)] for tag in range(tags)]
    sparse = [[sparse_make(generator, chooser, [50, 3], 1, torch.float32, True, 10) for _ in range(each)]
              for _ in range(tags)]
    ours = [[tensor.clone() for tensor in row] for row in dense]
    works = {}
    for turn in range(tags):
        tag = (turn + rank) % tags
        for k in range(each):
            works[tag, k, "dense"] = group.all_reduce(ours[tag][k], tag=tag)
            works[tag, k, "sparse"] = group.all_reduce_sparse(sparse[tag][k], tag=tag)
    for tag in range(tags):
        for k in range(each):
            gloo_reduce([dense[tag][k]])
            theirs = sparse[tag][k].clone()
            gloo_reduce([theirs])
            works[tag, k, "dense"].wait()
            same(ours[tag][k], dense[tag][k], 0)
            sparse_same(works[tag, k, "sparse"].wait().sparse_result(), theirs, [], True)
    return len(works)


def test_members(group, rank):
    """Groups of some ranks, all of one communicator and at once, against those of new_group()."""
    lists = [[0, 2], [1, 2], [0, 1, 2], [1]]
    first = tutti_pg.Group(group.library, group.url, rank, RANKS, ranks=list(range(RANKS)))
    theirs = [dist.new_group(members) for members in lists]
    ours = [first.members(members) if rank in members else None for members in lists]
    for seed, members in enumerate(lists):
        if rank not in members:
            continue
        chooser, mine = random.Random(seed), generators(3000 + seed)
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            inputs = [filled(generator, dtype, (1001,), False) for generator in mine]
            here, there = inputs[rank].clone(), inputs[rank].clone()
            ours[seed].all_reduce(here).wait()
            gloo_reduce([there], group=theirs[seed])
            same(here, there, tolerance([inputs[member] for member in members], "sum"))
        sparse = [sparse_make(generator, chooser, [40, 3], 1, torch.int32, True, 20) for generator in mine]
        there = sparse[rank].clone()
        gloo_reduce([there], group=theirs[seed])
        sparse_same(ours[seed].all_reduce_sparse(sparse[rank]).wait().sparse_result(), there, [], True)
    for one in ours:
        if one:
            one.leave()
    first.close()
    return len(lists)


def refused(status, call):
    try:
        call()
    except tutti_pg.Error as error:
        assert error.status == status, error
        return str(error)
    raise AssertionError("was not refused")


def test_refusals(group, rank):
    """What Gloo refuses, so do we, with both ranks' names; and what it finds out too late, or never."""
    odd = rank == RANKS - 1
    tensor = torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (4 + odd,))
    try:
        gloo_reduce([tensor.clone()])
        raise AssertionError("Gloo added tensors of different sizes")
    except RuntimeError as error:
        assert "do not match" in str(error), error
    text = refused(tutti_pg.MISMATCH, lambda: group.all_reduce_sparse(tensor).wait())
    assert "sizes [4]" in text and "sizes [5]" in text and f"rank {RANKS - 1}" in text, text

    split = torch.sparse_coo_tensor(torch.zeros(2 - odd, 0, dtype=torch.int64),
                                    torch.zeros([0] + [3] * odd), (4, 3))
    text = refused(tutti_pg.MISMATCH, lambda: group.all_reduce_sparse(split).wait())
    assert "sparse sizes [4, 3]" in text and "sparse sizes [4], dense sizes [3]" in text, text
    other = torch.sparse_coo_tensor([[0]], [1.0], (4,), dtype=torch.float64 if odd else torch.float32)
    text = refused(tutti_pg.MISMATCH, lambda: group.all_reduce_sparse(other).wait())
    assert "float64" in text and "float32" in text, text

    # A rank that comes too late: its tag goes on.
    late = torch.ones(3)
    if not odd:
        work = group.all_reduce(late, tag=5, timeout_ms=50)
        refused(tutti_pg.TIMEOUT, work.wait)
    dist.barrier()
    if odd:
        refused(tutti_pg.TIMEOUT, lambda: group.all_reduce(late, tag=5).wait())
    again = torch.ones(3)
    group.all_reduce(again, tag=5).wait()
    same(again, torch.full((3,), float(RANKS)), 0)
    return 4


def be_rank(rank, library, cases, folder):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=RANKS)
    group = tutti_pg.Group(tutti_pg.Library(library), f"file:{folder}/tutti", rank, RANKS)
    for case in cases:
        found = globals()[f"test_{case}"](group, rank)
        dist.barrier()
        if rank == 0:
            print("ok", case, found, "with PyTorch", torch.__version__)
    group.close()
    dist.destroy_process_group()


def main():
    library, cases = sys.argv[1], sys.argv[2:] or ["dense", "layouts", "sparse", "tags", "members", "refusals"]
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(be_rank, args=(library, cases, folder), nprocs=RANKS)


if __name__ == "__main__":
    main()
