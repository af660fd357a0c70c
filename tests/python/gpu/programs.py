# SPDX-License-Identifier: MIT
"""Cases of ../gpu.py: training, faults, several backends, memory, the benchmark."""

import ctypes
import os
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from case import case, raises
from runner import same

import tutti

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


def _check_sharded(r, prepare):
    """FSDP2's gradients are the mean of those that one process has for the ranks' batches. `prepare` is called for each module."""
    from torch.distributed.fsdp import fully_shard

    whole, model = _model(r), _model(r)
    for module in model[2], model:
        prepare(fully_shard(module))
    for step in range(3):
        model.zero_grad()
        model(_batch(r, step, r.rank)).square().mean().backward()
        of_ranks = [_gradients(whole, _batch(r, step, rank)) for rank in range(2)]
        for mine, first, second in zip(model.parameters(), *of_ranks):
            found = mine.grad.full_tensor()
            assert torch.allclose(found, (first + second) / 2, atol=1e-6), (found - (first + second) / 2).abs().max()


@case(60)
def fully_sharded(r):
    r.start()
    _check_sharded(r, lambda module: None)
    if r.is_tutti:
        _check_sharded(r, lambda module: module.set_custom_all_gather(tutti.torch.AllGather()))


class _SymmetricAllGather:
    """An all-gather into symmetric memory, whose windows NCCL registers: what set_symm_mem_for_comm() of PyTorch 2.13 does."""

    def allocate(self, size, *, dtype, device):
        return symm_mem.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        symm_mem.rendezvous(output_tensor, group=group.group_name)
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)


@case(100, gpus=2, needs_cuda=True)
def nccl_fully_sharded(r):
    """FSDP2 in buffers of NCCL's allocator, and in symmetric memory."""
    dist.init_process_group("nccl", init_method=f"file://{r.folder}/torch", rank=r.rank, world_size=2, device_id=r.device)
    torch.backends.cuda.matmul.allow_tf32 = False
    _check_sharded(r, lambda module: module.set_allocate_memory_from_process_group_for_comm(True))
    print("by the group's allocator", flush=True)
    symm_mem.set_backend("NCCL")
    _check_sharded(r, lambda module: module.set_custom_all_gather(_SymmetricAllGather()))


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
                part = tensor.clone()  # Gloo's asynchronous operations run side by side
                works = [dist.all_reduce(tensor, group=own, async_op=asynchronous),
                         dist.all_gather_into_tensor(whole, part, group=own, async_op=asynchronous)]
                for work in works if asynchronous else ():
                    work.wait()
                same(tensor, r.tensor(1000, 0) * 2 + 1)
                same(whole, torch.cat([r.tensor(1000, 0), r.tensor(1000, 1)]))
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
