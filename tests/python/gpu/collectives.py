# SPDX-License-Identifier: MIT
"""Cases of ../gpu.py: the package, all collectives, beside compute."""

import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from case import COUNTS, case, raises
from runner import Skip, same

import tutti

# ---- the package

@case(60, ranks=1, gpus=2, needs_cuda=True)
def package(r):
    """tests/python/package/test_cuda.py"""
    here = Path(__file__).resolve().parents[1]
    found = subprocess.run([sys.executable, str(here / "package.py"), "-rs", str(here / "package/test_cuda.py::test_two_gpus")],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if found.returncode == 77 or " skipped" in found.stdout:
        raise Skip(found.stdout.strip().splitlines()[-1])
    assert found.returncode == 0, found.stdout


@case(needs_cuda=True)
def arrays(r):
    """A communicator with arrays of PyTorch and CuPy, on streams."""
    torch.zeros(1, device=r.device)
    with tutti.Communicator.from_store(r.store(), r.rank, r.size, device="cuda", timeout=20) as comm:
        for _, context in r.ways():
            with context:
                tensor = r.late(r.tensor(1000, r.rank))
                comm.all_reduce(tensor, stream=torch.cuda.current_stream())
                same(tensor, r.tensor(1000, 0) * 2 + 1)
        with raises(tutti.InvalidError):
            comm.all_reduce(torch.ones(4))
        try:
            import cupy
        except ImportError:
            print("no CuPy")
        else:
            stream = cupy.cuda.Stream(non_blocking=True)
            with cupy.cuda.Device(r.device.index), stream:
                array = cupy.arange(1000, dtype="float32") + r.rank
                comm.all_reduce(array, stream=stream)
                assert (array == cupy.arange(1000, dtype="float32") * 2 + 1).all()
            stream.synchronize()
        comm.finalize(20)


# ---- sums on the device

@case(60)
def all_reduce(r):
    r.start()
    for count in 1, 2, 3, 7, 64, 1000, 4099, 1 << 16, 1 << 20, 1 << 24:
        for dtype in torch.float32, torch.bfloat16:
            for asynchronous, context in r.ways():
                with context:
                    tensor = r.late(r.tensor(count, r.rank, dtype))
                    work = dist.all_reduce(tensor, async_op=asynchronous)
                    if asynchronous:
                        work.wait()
                    assert torch.equal(tensor, (r.tensor(count, 0, dtype) * 2 + 1).to(r.device)), (count, dtype)


@case(ranks=1)
def one_rank(r):
    """A group of one rank: sums through the host, a captured sum of integers."""
    r.start()
    for dtype in torch.float32, torch.int32, torch.bool:
        tensor = r.late(r.tensor(1000, 3, dtype))
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
        dist.barrier()
        same(tensor, r.tensor(1000, 3, dtype))
    if r.cuda:
        tensor, graph = r.late(r.tensor(1000, 3, torch.int32)), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            dist.all_reduce(tensor)
        graph.replay()
        same(tensor, r.tensor(1000, 3, torch.int32))


@case()
def all_reduce_kinds(r):
    """Operations, dtypes and layouts."""
    r.start()
    op = dist.ReduceOp
    for kind, expected in ((op.SUM, [1, 3]), (op.AVG, [0.5, 1.5]), (op.MAX, [1, 2]), (op.MIN, [0, 1]), (op.PRODUCT, [0, 2]),
                           (dist._make_nccl_premul_sum(2.0), [2, 6])):
        tensor = r.late(torch.tensor([0., 1.]) + r.rank)
        dist.all_reduce(tensor, kind)
        same(tensor, torch.tensor(expected, dtype=torch.float32))
    for dtype in torch.float64, torch.float16, torch.int8, torch.uint8, torch.int32, torch.int64, torch.complex64:
        tensor = r.late(r.tensor(100, r.rank, dtype))
        dist.all_reduce(tensor)
        same(tensor, r.tensor(100, 0, dtype) * 2 + 1)
    tensor = r.late(torch.tensor([r.rank == 0, False]))
    dist.all_reduce(tensor)
    same(tensor, torch.tensor([True, False]))
    if r.is_tutti:
        holes = r.late(torch.zeros(8, 2))[:, 0]
        holes += r.rank + 1
        dist.all_reduce(holes)
        same(holes, torch.full((8,), 3.))
    dist.all_reduce(torch.empty(0, device=r.device))


@case()
def all_reduce_coalesced(r):
    r.start()
    for _, context in r.ways():
        with context:
            tensors = [r.late(r.tensor(count, r.rank)) for count in (3, 1000, 300_000)]
            with dist._coalescing_manager(device=r.device, async_ops=True) as manager:
                for tensor in tensors:
                    dist.all_reduce(tensor)
            manager.wait()
            for tensor in tensors:
                same(tensor, r.tensor(tensor.numel(), 0) * 2 + 1)


@case()
def barrier(r):
    world, store = r.start(), r.store()
    for i in range(3):
        if r.rank == 0:
            time.sleep(0.1)
            store.set(f"here{i}", "")
        dist.barrier(**({"device_ids": [r.device.index]} if r.cuda else {}))
        assert store.check([f"here{i}"])
    dist.barrier()
    work = dist.barrier(async_op=True)
    work.wait()
    assert work.is_completed() and world.size() == 2


@case(60)
def profiled(r):
    r.start()
    tensor = torch.ones(4, device=r.device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(tensor)
        dist.barrier(**({"device_ids": [r.device.index]} if r.cuda else {}))
        dist.broadcast(tensor, 0)
    names = {event.name for event in profile.events()}
    assert {"tutti:all_reduce", "tutti:barrier", "tutti:broadcast"} <= names, names
    same(tensor, torch.full((4,), 2.))


@case(60, gpus=2, needs_cuda=True)
def captured(r):
    """Sums, a broadcast, gathers and a barrier in a graph that is replayed with other input."""
    r.start()
    for count, dtype in (5, torch.float32), (300_001, torch.bfloat16), (4 << 20, torch.float32):
        source, tensor = torch.zeros(count, dtype=dtype, device=r.device), torch.zeros(count, dtype=dtype, device=r.device)
        other, own = torch.zeros(7, device=r.device), torch.full((3,), float(r.rank), device=r.device)
        gathered, turned = torch.zeros(6, device=r.device), torch.zeros(6, device=r.device)
        dist.all_reduce(tensor)  # makes the communicator
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tensor.copy_(source)
            dist.all_reduce(tensor)
            work = dist.all_reduce(tensor, async_op=True)
            work.wait()
            dist.barrier(device_ids=[r.device.index])
            other.copy_(tensor[0].float().expand(7))
            with dist._coalescing_manager(device=r.device):
                dist.all_reduce(tensor)
                dist.all_reduce(other)
            dist.broadcast(own, 1)
            dist.all_gather_into_tensor(gathered, own)
            dist.all_to_all_single(turned, gathered)
        for i in range(100):
            first = torch.arange(count, device=r.device) % 7 + i % 5
            source.copy_(first + r.rank)
            own.fill_(r.rank + i)
            graph.replay()
            assert torch.equal(turned, torch.full((6,), 1. + i, device=r.device)), i
            wrong = (tensor != ((first * 2 + 1) * 4).to(dtype)).sum() + (other != (first[0] * 2 + 1) * 4).sum()
            assert wrong.item() == 0, (count, dtype, i, wrong.item())
    dist.barrier(device_ids=[r.device.index])


@case(gpus=2, needs_cuda=True)
def device_counts(r):
    """An all-to-all of counts and one of the blocks that these say, in a graph that is replayed with other counts."""
    import tutti.torch

    r.start()
    most, width = 128, 7168
    for dtype in torch.int32, torch.int64:
        sent, got = (torch.zeros(r.size, dtype=dtype, device=r.device) for _ in range(2))
        send = torch.full((r.size * most * width,), 1. + r.rank, dtype=torch.bfloat16, device=r.device)
        recv = torch.zeros_like(send)
        dist.all_to_all_single(got, sent)
        comm, graph = tutti.torch.communicator(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            dist.all_to_all_single(got, sent)
            comm.all_to_all_v(send, recv, sent, got, max_count=most * width, stream=torch.cuda.current_stream())
        for i in range(20):
            counts = [[(37 * i + 11 * a + 5 * b) % (most + 1) * width for b in range(r.size)] for a in range(r.size)]
            sent.copy_(torch.tensor(counts[r.rank], dtype=dtype))
            recv.zero_()
            graph.replay()
            blocks = [torch.full((counts[peer][r.rank],), 1. + peer) for peer in range(r.size)]
            expected = torch.cat([*blocks, torch.zeros(len(recv) - sum(map(len, blocks)))])
            assert torch.equal(recv.float().cpu(), expected), (dtype, i)


@case(needs_cuda=True)
def captured_declined(r):
    """Processes that share a GPU cannot capture: a host thread runs their operations."""
    if r.gpus >= r.size:
        raise Skip("each rank has a GPU")
    r.start()
    tensor = torch.ones(4, device=r.device)
    dist.all_reduce(tensor)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with raises(tutti.DeclinedError, "share"):
            dist.all_reduce(tensor)
        tensor.add_(1)
    graph.replay()
    dist.all_reduce(tensor)
    same(tensor, torch.full((4,), 6.))


@case(gpus=2, needs_cuda=True)
def captured_refused(r):
    """What goes through the host is refused in a capture, by name; the capture goes on."""
    r.start()
    tensor = torch.zeros(4, device=r.device)
    sparse = torch.sparse_coo_tensor(torch.tensor([[0]], device=r.device), torch.ones(1, device=r.device), (4,))
    dist.all_reduce(tensor)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for name, call in (("send", lambda: dist.isend(tensor, 1 - r.rank)),
                           ("all_reduce of sparse", lambda: dist.all_reduce(sparse))):
            with raises(tutti.InvalidError, f"{name}.*captured"):
                call()
        tensor.fill_(r.rank + 1)
        dist.all_reduce(tensor)
    graph.replay()
    same(tensor, torch.full((4,), 3.))


# ---- all collectives

def collective(function):
    """A case of one collective: function(rank, tensor of a rank, wait, async_op), for each way and number of elements."""
    def run(r):
        r.start()
        for asynchronous, context in r.ways():
            for count in COUNTS:
                with context:
                    def finish(work):
                        if asynchronous:
                            work.wait()

                    function(r, lambda seed: r.tensor(count, seed), finish, asynchronous)

    run.__name__ = function.__name__
    return case()(run)


@collective
def broadcast(r, of, finish, a):
    tensor = r.late(of(r.rank))
    finish(dist.broadcast(tensor, 1, async_op=a))
    same(tensor, of(1))


@collective
def reduce(r, of, finish, a):
    tensor = r.late(of(r.rank))
    finish(dist.reduce(tensor, 1, async_op=a))
    same(tensor, of(0) * 2 + 1 if r.rank == 1 else of(0))


@collective
def all_gather(r, of, finish, a):
    found = [torch.zeros_like(of(0), device=r.device) for _ in range(2)]
    finish(dist.all_gather(found, r.late(of(r.rank)), async_op=a))
    for rank in range(2):
        same(found[rank], of(rank))


@collective
def all_gather_into_tensor(r, of, finish, a):
    whole = torch.zeros(2 * of(0).numel(), device=r.device)
    finish(dist.all_gather_into_tensor(whole, r.late(of(r.rank)), async_op=a))
    same(whole, torch.cat([of(0), of(1)]))


@collective
def all_gather_coalesced(r, of, finish, a):
    wholes = [torch.zeros(2 * of(0).numel(), device=r.device) for _ in range(2)]
    with dist._coalescing_manager(device=r.device, async_ops=True) as manager:
        for i, whole in enumerate(wholes):
            dist.all_gather_into_tensor(whole, r.late(of(r.rank + i)))
    manager.wait()
    for i, whole in enumerate(wholes):
        same(whole, torch.cat([of(i), of(1 + i)]))


@collective
def reduce_scatter(r, of, finish, a):
    tensor = torch.zeros_like(of(0), device=r.device)
    finish(dist.reduce_scatter(tensor, [r.late(of(r.rank)), r.late(of(r.rank + 3))], async_op=a))
    same(tensor, of(3 * r.rank) * 2 + 1)


@collective
def reduce_scatter_tensor(r, of, finish, a):
    tensor = torch.zeros_like(of(0), device=r.device)
    finish(dist.reduce_scatter_tensor(tensor, r.late(torch.cat([of(r.rank), of(r.rank + 3)])), async_op=a))
    same(tensor, of(3 * r.rank) * 2 + 1)


@collective
def all_to_all(r, of, finish, a):
    found = [torch.zeros_like(of(0), device=r.device) for _ in range(2)]
    finish(dist.all_to_all(found, [r.late(of(r.rank)), r.late(of(r.rank + 5))], async_op=a))
    for rank in range(2):
        same(found[rank], of(rank + 5 * r.rank))


@collective
def all_to_all_single(r, of, finish, a):
    """Rank 0 sends 1 and 2 blocks, rank 1 sends 3 and 0."""
    sent = [[1, 2], [3, 0]]
    given = torch.stack([of(3 * r.rank + i) for i in range(3)])
    received = [sent[rank][r.rank] for rank in range(2)]
    found = torch.zeros(sum(received), given.size(1), device=r.device)
    finish(dist.all_to_all_single(found, r.late(given), received, sent[r.rank], async_op=a))
    same(found, torch.stack([of(i) for i in ((0, 3, 4, 5) if r.rank == 0 else (1, 2))]))


@collective
def gather(r, of, finish, a):
    found = [torch.zeros_like(of(0), device=r.device) for _ in range(2)] if r.rank == 1 else None
    finish(dist.gather(r.late(of(r.rank)), found, 1, async_op=a))
    for rank in range(2) if found else ():
        same(found[rank], of(rank))


@collective
def scatter(r, of, finish, a):
    tensor = torch.zeros_like(of(0), device=r.device)
    finish(dist.scatter(tensor, [r.late(of(4)), r.late(of(5))] if r.rank == 1 else None, 1, async_op=a))
    same(tensor, of(4 + r.rank))


@collective
def send_recv(r, of, finish, a):
    given, found = r.late(of(r.rank)), torch.zeros_like(of(0), device=r.device)
    for source in 0, 1:
        if r.rank == source:
            dist.isend(given, 1 - source, tag=3).wait() if a else dist.send(given, 1 - source, tag=3)
        else:
            sender = source if a or not r.is_tutti else None  # from any rank
            dist.irecv(found, sender, tag=3).wait() if a else dist.recv(found, sender, tag=3)
            same(found, of(source))


@collective
def batch_isend_irecv(r, of, finish, a):
    given, found = r.late(of(r.rank)), torch.zeros_like(of(0), device=r.device)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, given, 1 - r.rank), dist.P2POp(dist.irecv, found, 1 - r.rank)]):
        work.wait()
    same(found, of(1 - r.rank))


@collective
def sparse(r, of, finish, a):
    values = torch.stack([of(r.rank), of(r.rank + 1)])
    indices = r.late(torch.tensor([[0, r.rank + 1]]))
    tensor = torch.sparse_coo_tensor(indices, r.late(values), (3, values.size(1)), device=r.device)
    finish(dist.all_reduce(tensor, async_op=a))
    same(tensor.to_dense(), torch.stack([of(0) * 2 + 1, of(1), of(2)]))


# ---- beside compute

@case(60)
def overlap(r):
    """A long sum beside matrix products and sums of a second group, in one order on all ranks."""
    r.start()
    count = 16 << 20 if r.cuda else 1 << 16
    second, size = dist.new_group([0, 1]), 2048 if r.cuda else 64
    left = torch.randn(size, size, generator=torch.Generator().manual_seed(1)).to(r.device)
    expected = left @ left
    for asynchronous, context in r.ways():
        with context:
            for i in range(4):
                tensor, small = r.late(r.tensor(count, r.rank + i)), r.late(r.tensor(1 << 18, r.rank))
                third = r.late(r.tensor(1 << 18, r.rank + 5))
                works = [dist.all_reduce(tensor, async_op=asynchronous)]
                product = left @ left
                for _ in range(3):
                    works.append(dist.all_reduce(small, async_op=not asynchronous, group=second))
                    product = left @ left
                works.append(dist.broadcast(third, 1, async_op=asynchronous))
                for work in works:
                    if work is not None:
                        work.wait()
                same(small, (r.tensor(1 << 18, 0) * 2 + 1) * 4)
                same(tensor, (r.tensor(count, 0) + i) * 2 + 1)
                same(third, r.tensor(1 << 18, 6))
                assert torch.equal(product, expected)


@case(60)
def freed(r):
    """Tensors that the program drops while an operation uses them: the allocator must not give their memory to the current stream."""
    r.start()
    count, wholes = 1 << 20, []
    for i in range(20):
        given, whole = r.late(r.tensor(count, r.rank + i)), torch.zeros(2 * count, device=r.device)
        work = dist.all_gather_into_tensor(whole, given, async_op=True)
        wholes.append(whole)
        if i % 2:
            future = work.get_future()
            del given, work
            future.wait() if i % 4 == 1 else None
        else:
            del given
            work.wait() if i % 4 == 0 else None
            del work
        torch.full((count,), -1.0, device=r.device)  # takes the memory of `given`, if that is free
    dist.all_reduce(torch.zeros(1, device=r.device))  # behind all of them
    for i, whole in enumerate(wholes):
        same(whole, torch.cat([r.tensor(count, i), r.tensor(count, i + 1)]))


@case(60)
def works(r):
    """What a work of an operation says before and after its end, and callbacks of its future."""
    r.start()
    store, tensor = r.store(), r.late(r.tensor(1000, r.rank))
    dist.all_reduce(torch.zeros(1, device=r.device))
    r.synchronize()
    if r.rank == 1:
        store.wait(["asked"], 20)
    work = dist.all_reduce(tensor, async_op=True)
    if r.rank == 0:
        r.synchronize_current()
        assert not work.is_completed()
        if r.is_tutti:  # PyTorch's group of NCCL ends after a time-out
            with raises(tutti.TimeoutError):
                work.wait(timedelta(milliseconds=20))
        store.set("asked", "")
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    same(doubled.wait(), (r.tensor(1000, 0) * 2 + 1) * 2)
    work.synchronize()
    same(tensor, r.tensor(1000, 0) * 2 + 1)
    r.synchronize()
    assert work.is_completed() and work.is_success() and work.exception() is None
    same(work.result()[0], tensor.cpu())


@case(gpus=2, needs_cuda=True)
def captured_works(r):
    """Asynchronous operations in a capture: one that nobody waits for, and one that another stream waits for."""
    r.start()
    tensor, other = r.late(r.tensor(1000, r.rank)), torch.cuda.Stream()
    found, eager = torch.zeros_like(tensor), tensor.clone()
    dist.all_reduce(eager, async_op=True).wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.broadcast(tensor, 1, async_op=True)
        work = dist.all_reduce(tensor, async_op=True)
        with torch.cuda.stream(other):
            work.wait()
            found.copy_(tensor)
        torch.cuda.current_stream().wait_stream(other)
    for i in range(3):
        tensor.fill_(r.rank + i)
        graph.replay()
        same(found, torch.full((1000,), 2. * (i + 1)))
        dist.all_reduce(eager, async_op=True).wait()
    same(eager, (r.tensor(1000, 0) * 2 + 1) * 8)


@case(120)  # the compiler's import takes long
def functional(r):
    """Functional collectives, as they are and in a compiled function."""
    import torch.distributed._functional_collectives as functional

    world = r.start()

    def run(tensor):
        whole = functional.all_gather_tensor(functional.all_reduce(tensor, "sum", world) + 1, 0, world)
        return functional.reduce_scatter_tensor(functional.broadcast(whole * 2, 1, world), "sum", 0, world)

    expected = (r.tensor(1000, 0) * 2 + 2) * 4
    for _, context in r.ways():
        with context:
            same(run(r.late(r.tensor(1000, r.rank))), expected)
            same(torch.compile(run, backend="aot_eager")(r.late(r.tensor(1000, r.rank))), expected)


@case(180)
def rms_norm(r):
    """torch.ops.tutti.all_reduce_rms_norm has the bits of the CPU, eager and in a graph; torch.compile() by its pass, too."""
    import tutti.torch

    r.start()
    fused = torch.ops.tutti.all_reduce_rms_norm
    for tokens, hidden, dtype, weight_dtype in ((1, 4096, torch.bfloat16, torch.bfloat16), (33, 2880, torch.float16, torch.float32),
                                                (128, 8192, torch.bfloat16, torch.float32), (700, 4096, torch.bfloat16, torch.bfloat16),
                                                (5, 72, torch.float32, torch.bfloat16), (0, 64, torch.bfloat16, torch.bfloat16)):
        part = torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(r.rank)).to(dtype)
        equal = torch.Generator().manual_seed(9)
        residual = torch.randn(tokens, hidden, generator=equal).to(dtype)
        weight = torch.rand(hidden, generator=equal).to(weight_dtype)
        for given in residual, None:
            expected = fused(part, weight, given)
            for _, context in r.ways():
                with context:
                    found = fused(r.late(part), r.late(weight), None if given is None else r.late(given))
                    for value, right in zip(found, expected):
                        same(value, right)
                    tensor, total = r.late(part), None if given is None else r.late(given)
                    torch.ops.tutti.all_reduce_rms_norm_(tensor, r.late(weight), total)
                    same(tensor, expected[0])
                    if total is not None:
                        same(total, expected[1])
        for quant in ("fp8_token", "int8_token", "fp8_group", "fp8_group_ue8m0") if hidden % 128 == 0 else ("fp8_token",):
            # Ranks that share a GPU need the norm, too.
            arguments = quant, residual, None, 1e-6, 0.0, True, 4
            expected = torch.ops.tutti.all_reduce_rms_norm_quant(part, weight, *arguments)
            found = torch.ops.tutti.all_reduce_rms_norm_quant(r.late(part), r.late(weight), quant, r.late(residual), *arguments[2:])
            for value, right in zip(found, expected):
                same(value.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8))

    def layer(part, weight, residual):
        total = torch.ops.tutti.all_reduce(part) + residual
        return torch.nn.functional.rms_norm(total, weight.shape, weight, 1e-6), total

    part, weight, residual = (torch.randn(4, 1024).to(r.device, torch.bfloat16) for _ in range(3))
    weight, expected = weight[0], fused(part, weight[0], residual)
    if not r.cuda:
        return
    with torch.no_grad():
        compiled = torch.compile(layer, fullgraph=True, options={"post_grad_custom_pre_pass": tutti.torch.RmsNormPass()})
        found = compiled(part, weight, residual)
    for value, right in zip(found, expected):
        same(value, right.cpu())
    if r.gpus < r.size:
        return
    graph, source = torch.cuda.CUDAGraph(), torch.zeros_like(part)
    with torch.cuda.graph(graph):
        found = fused(source, weight, residual)
    for _ in range(3):
        source.copy_(part)
        graph.replay()
        for value, right in zip(found, expected):
            same(value, right.cpu())


@case(120)
def operators(r):
    """torch.ops.tutti, as they are, in a compiled function, and in a graph if each rank has a GPU."""
    import tutti.torch  # noqa: F401

    ops, _ = torch.ops.tutti, r.start()

    def run(tensor):
        whole = ops.all_gather(ops.all_reduce(tensor) + 1)
        ops.broadcast_(whole, 1)
        return ops.reduce_scatter(ops.all_to_all(whole) * 2)

    expected = (r.tensor(1000, 0) * 2 + 2) * 4
    for _, context in r.ways():
        with context:
            same(run(r.late(r.tensor(1000, r.rank))), expected)
            same(torch.compile(run, backend="aot_eager", fullgraph=True)(r.late(r.tensor(1000, r.rank))), expected)
    if r.gpus < r.size:
        return
    graph, source = torch.cuda.CUDAGraph(), torch.zeros(1000, device=r.device)
    with torch.cuda.graph(graph):
        found = run(source)
    for _ in range(3):
        source.copy_(r.tensor(1000, r.rank))
        graph.replay()
        same(found, expected)
