# SPDX-License-Identifier: MIT
"""The cases of ../gpu.py. Each function runs in the processes of all its ranks."""

import ctypes
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Callable

import torch
import torch.distributed as dist
from runner import Skip, same

import tutti

CASES = []
COUNTS = 5, 300_001


@dataclass
class Case:
    function: Callable
    name: str
    seconds: float
    ranks: int
    gpus: int
    needs_cuda: bool


def case(seconds=30, ranks=2, gpus=1, needs_cuda=False):
    def add(function):
        CASES.append(Case(function, function.__name__, seconds, ranks, gpus, needs_cuda))
        return function

    return add


@contextmanager
def raises(kind, pattern=""):
    try:
        yield
    except kind as error:
        assert re.search(pattern, str(error)), f"{error!r} does not say {pattern!r}"
    else:
        raise AssertionError(f"no {kind.__name__}")


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
    tensor, whole = torch.zeros(4, device=r.device), torch.zeros(8, device=r.device)
    sparse = torch.sparse_coo_tensor(torch.tensor([[0]], device=r.device), torch.ones(1, device=r.device), (4,))
    dist.all_reduce(tensor)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for name, call in (("send", lambda: dist.isend(tensor, 1 - r.rank)),
                           ("all_reduce of sparse", lambda: dist.all_reduce(sparse))):
            with raises(tutti.InvalidError, f"{name}.*captured"):
                call()
        with raises(tutti.DeclinedError, "replay"):
            dist.all_to_all_single(whole, whole.clone(), [4, 4], [4, 4])
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
            dist.irecv(found, source, tag=3).wait() if a else dist.recv(found, tag=3)  # from any rank
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


# ---- training

def _model(r, seed=0):
    torch.manual_seed(seed)
    layers = torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)
    return torch.nn.Sequential(*layers).to(r.device)


def _batch(r, step, rank):
    return torch.randn(16, 64, generator=torch.Generator().manual_seed(10 * step + rank)).to(r.device)


def _gradients(model, batch):
    model.zero_grad(set_to_none=False)
    model(batch).square().mean().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def _check_gradients(r, found, whole, step):
    """The mean of the gradients that one process has for the ranks' batches."""
    of_ranks = [_gradients(whole, _batch(r, step, rank)) for rank in range(2)]
    for mine, first, second in zip(found, *of_ranks):
        same(mine, (first / 2 + second / 2).cpu())


@case(60)
def data_parallel(r):
    r.start()
    torch.backends.cuda.matmul.allow_tf32 = False
    whole = _model(r)
    for bucket_mb in 25, 0.05:
        model = torch.nn.parallel.DistributedDataParallel(_model(r), bucket_cap_mb=bucket_mb)
        for step in range(4):
            _check_gradients(r, _gradients(model, _batch(r, step, r.rank)), whole, step)


@case(60, gpus=2, needs_cuda=True)
def data_parallel_captured(r):
    r.start()
    torch.backends.cuda.matmul.allow_tf32 = False
    whole, batch, stream = _model(r), _batch(r, 0, r.rank), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        model = torch.nn.parallel.DistributedDataParallel(_model(r), bucket_cap_mb=0.05)
        for _ in range(11):  # as PyTorch's notes on graphs demand
            _gradients(model, batch)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = _gradients(model, batch)
    for step in range(100):
        batch.copy_(_batch(r, step, r.rank))
        graph.replay()
        _check_gradients(r, found, whole, step)


@case(60)
def fully_sharded(r):
    from torch.distributed.fsdp import fully_shard

    r.start()
    whole, model = _model(r), _model(r)
    fully_shard(model[2])
    fully_shard(model)
    for step in range(3):
        model.zero_grad()
        model(_batch(r, step, r.rank)).square().mean().backward()
        of_ranks = [_gradients(whole, _batch(r, step, rank)) for rank in range(2)]
        for mine, first, second in zip(model.parameters(), *of_ranks):
            found = mine.grad.full_tensor()
            assert torch.allclose(found, (first + second) / 2, atol=1e-6), (found - (first + second) / 2).abs().max()


@case(60)
def tensor_parallel(r):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    r.start()
    torch.backends.cuda.matmul.allow_tf32 = False
    whole, mesh = _model(r), init_device_mesh(r.device.type, (2,))
    model = parallelize_module(_model(r), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for step in range(3):
        batch = _batch(r, step, 0)
        expected = _gradients(whole, batch)
        for mine, gradient in zip(_gradients(model, batch), expected):
            found = mine.full_tensor() if hasattr(mine, "full_tensor") else mine
            assert torch.allclose(found, gradient, atol=1e-6), (found - gradient).abs().max()


# ---- faults

@case()
def mismatch(r):
    r.start()
    tensor = r.late(torch.ones(100))
    dist.all_reduce(tensor)
    r.until_raised(tutti.MismatchError, lambda: dist.all_reduce(tensor[:10 + r.rank]))


@case()
def mismatch_roots(r):
    r.start()
    tensor = r.late(torch.ones(100))
    dist.broadcast(tensor, 0)
    r.until_raised(tutti.MismatchError, lambda: dist.broadcast(tensor, r.rank))


@case()
def timeout_broadcast(r):
    r.start(timeout=3)
    store = r.store()
    tensor = r.late(torch.ones(100))
    dist.broadcast(tensor, 1)
    if r.rank == 0:
        r.until_raised(tutti.TimeoutError, lambda: dist.broadcast(tensor, 1))
        store.set("done", "")
    else:
        store.wait(["done"], 25)


@case()
def abort(r):
    world, store = r.start(timeout=60), r.store()
    tensor = r.late(torch.ones(100))
    dist.all_reduce(tensor)
    r.synchronize()
    if r.rank == 1:
        store.wait(["called"], 20)
        world.abort()
    else:
        store.set("called", "")
    r.until_raised(tutti.AbortedError, lambda: dist.all_reduce(tensor))


@case(60, ranks=3)
def shrink(r):
    """A rank dies; the others go on without it."""
    if r.cuda:
        torch.zeros(1, device=r.device)
    store = r.store()
    with tutti.Communicator.from_store(store, r.rank, 3, device=r.device.type, timeout=20) as comm:
        def sum_of(comm):
            tensor = torch.full((1000,), float(r.rank + 1), device=r.device)
            comm.all_reduce(tensor, **({"stream": torch.cuda.current_stream()} if r.cuda else {}))
            return tensor

        same(sum_of(comm), torch.full((1000,), 6.))
        if r.rank == 2:
            os._exit(0)
        error = r.until_raised(tutti.PeerDeadError, lambda: sum_of(comm))
        assert error.peer == 2, error
        with comm.shrink(store, timeout=20).comm as left:
            same(sum_of(left), torch.full((1000,), 3.))
            r.synchronize()


# ---- several backends

def _composite(name):
    """Each device's tensors by its backend in one group; before PyTorch 2.14 by a group of tutti beside one of the other backend."""
    def run(r):
        other = name.replace("tutti", "").strip("cpuda:,")[:4]
        ours = torch.device("cpu") if "cpu:tutti" in name else r.device
        group = None
        if torch.__version__ < (2, 14):
            with raises(ValueError, "2.14"):
                r.start(name)
            dist.init_process_group(other, init_method=f"file://{r.folder}/{other}", rank=r.rank, world_size=2)
            group = dist.new_group(backend="tutti")
        else:
            r.start(name)
        for device in {torch.device("cpu"), r.device}:
            own = group if device == ours else None
            for asynchronous in False, True:
                tensor, whole = r.tensor(1000, r.rank).to(device), torch.zeros(2000, device=device)
                works = [dist.all_reduce(tensor, group=own, async_op=asynchronous),
                         dist.all_gather_into_tensor(whole, tensor, group=own, async_op=asynchronous)]
                for work in works if asynchronous else ():
                    work.wait()
                same(tensor, r.tensor(1000, 0) * 2 + 1)
                same(whole, torch.cat([r.tensor(1000, 0) * 2 + 1] * 2))
                dist.broadcast(tensor.fill_(r.rank), 1, group=own)
                same(tensor, torch.ones(1000))

    return run


@case(60)
def composite(r):
    _composite("cpu:gloo,cuda:tutti" if r.cuda else "cpu:tutti,cuda:gloo")(r)


@case(60, gpus=2, needs_cuda=True)
def composite_nccl(r):
    _composite("cpu:tutti,cuda:nccl")(r)


# ---- memory

def _memory(r):
    """Bytes in use on the device and of this process, and its mappings and descriptors."""
    r.synchronize()
    if r.cuda:
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
    resident = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmRSS"))
    return {"device": total - free if r.cuda else 0, "resident": resident,
            "mappings": sum(1 for _ in open("/proc/self/maps")), "descriptors": len(os.listdir("/proc/self/fd"))}


def _check_growth(before, after, mib):
    for name, limit in ("device", mib << 20), ("resident", mib << 20), ("mappings", 64), ("descriptors", 16):
        assert after[name] - before[name] <= limit, f"{name} grew from {before[name]} to {after[name]}"
    print(", ".join(f"{name} {before[name]} -> {after[name]}" for name in before))


@case(100)
def thousand_groups(r):
    """Process groups one after the other: pinned memory and the device's do not grow."""
    store = r.store()
    with tutti.Communicator.from_store(store, r.rank, 2, timeout=20) as comm:
        tensor = torch.ones(1 << 20, device=r.device)
        options = {"stream": torch.cuda.current_stream()} if r.cuda else {}
        for i in range(1000):
            with comm.dup() as own:
                group = tutti.ProcessGroup(own)
                work = group.all_reduce(tensor.fill_(r.rank), **options)
                other = group.broadcast(torch.ones(1000, device=r.device), root=i % 2, **options)
                work.wait()
                other.wait()
                if r.cuda:
                    work.wait_stream(torch.cuda.current_stream())
                assert i % 100 or (tensor == 1).all()
                r.synchronize()
                group.close()
                comm.barrier()  # both ranks measure between two groups
                if i == 99:
                    before = _memory(r)
                comm.barrier()
        _check_growth(before, _memory(r), 16)


@case(60)
def torch_groups(r):
    r.start()
    for i in range(40):
        group = dist.new_group([0, 1])
        tensor = r.late(r.tensor(1 << 18, r.rank))
        dist.all_reduce(tensor, group=group)
        dist.broadcast(tensor, 0, group=group)
        same(tensor, r.tensor(1 << 18, 0) * 2 + 1)
        dist.destroy_process_group(group)
        dist.barrier()
        if i == 9:
            before = _memory(r)
        dist.barrier()
    _check_growth(before, _memory(r), 32)


@case(60, needs_cuda=True)
def device_reset(r):
    """cudaDeviceReset() between two process groups."""
    from tutti.torch._background import _describe

    runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")  # PyTorch has loaded it

    def call(name, *arguments):
        status = getattr(runtime, name)(*arguments)
        assert status == 0, (name, status)

    count, store = 1 << 20, r.store()
    host = (ctypes.c_float * count)()
    for i in range(4):
        call("cudaSetDevice", r.device.index)
        at = ctypes.c_void_p()
        call("cudaMalloc", ctypes.byref(at), ctypes.c_size_t(4 * count))
        host[:] = [float(r.rank + i)] * count
        call("cudaMemcpy", at, host, ctypes.c_size_t(4 * count), 1)
        with tutti.Communicator.from_store(store, r.rank, 2, name=f"round{i}", timeout=20) as comm:
            group = tutti.ProcessGroup(comm)
            tensors, _kept = _describe([(tutti._ffi.cast("void *", at.value), count, tutti._lib.TUTTI_FLOAT32)], r.device)
            group._submit(tutti._lib.tutti_pg_all_reduce, (tensors, 1), None, [tutti._lib.TUTTI_SUM], {}).wait()
            call("cudaDeviceSynchronize")
            call("cudaMemcpy", host, at, ctypes.c_size_t(4 * count), 2)
            assert host[0] == host[count - 1] == 2 * i + 1, (i, host[0], host[count - 1])
            group.close()
        call("cudaDeviceReset")


# ---- the benchmark

@case(100, ranks=1, gpus=2)
def bench(r):
    command = [sys.executable, "-m", "tutti.bench_torch", "--device", r.given.device, "--rounds", "1" if not r.cuda else "5"]
    if r.given.json:
        command += ["--json", r.given.json]
    sys.stdout.flush()
    subprocess.run(command, check=True)
