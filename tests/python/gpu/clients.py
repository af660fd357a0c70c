# SPDX-License-Identifier: MIT
"""Cases of ../gpu.py: programs that call NCCL. `tutti nccl -- gpu.py nccl_` runs them on Tutti's libnccl.so.2."""

import torch
import torch.distributed as dist
from case import case, raises
from runner import Skip, same


@case(60, gpus=2, needs_cuda=True)
def nccl_split(r):
    """Groups made from one communicator, eagerly and lazily, and one inside another."""
    dist.init_process_group("nccl", init_method=f"file://{r.folder}/torch", rank=r.rank, world_size=2, device_id=r.device)
    tensor = r.late(r.tensor(1000, r.rank))
    dist.all_reduce(tensor)
    same(tensor, r.tensor(1000, 0) * 2 + 1)
    both = dist.split_group(split_ranks=[[0, 1]])
    apart = dist.split_group(split_ranks=[[0], [1]])
    for i in range(10):
        tensor = r.late(r.tensor(1000, r.rank + i))
        dist.all_reduce(tensor, group=both)
        same(tensor, r.tensor(1000, i) + r.tensor(1000, i + 1))
        dist.all_reduce(tensor, group=apart)
        same(tensor, r.tensor(1000, i) + r.tensor(1000, i + 1))
    lazy = dist.new_group([0, 1])
    dist.broadcast(tensor.fill_(r.rank), 1, group=lazy)
    same(tensor, torch.ones(1000))


@case(60, gpus=2, needs_cuda=True)
def nccl_abort(r):
    """One rank does not come; the other one aborts what waits, and a new group works."""
    dist.init_process_group("nccl", init_method=f"file://{r.folder}/torch", rank=r.rank, world_size=2, device_id=r.device)
    tensor = torch.ones(1 << 20, device=r.device)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    store = r.store()
    if r.rank == 0:
        dist.all_reduce(tensor)  # rank 1 does not call this
        store.set("called", "")
    else:
        store.wait(["called"], 20)
    dist.distributed_c10d._abort_process_group()
    dist.init_process_group("nccl", init_method=f"file://{r.folder}/again", rank=r.rank, world_size=2, device_id=r.device)
    tensor = r.late(r.tensor(1000, r.rank))
    dist.all_reduce(tensor)
    same(tensor, r.tensor(1000, 0) * 2 + 1)


@case(60, ranks=4, gpus=4, needs_cuda=True)
def nccl_shrink(r):
    """Rank 3 leaves; the others go on by PyTorch's shrink_group()."""
    if not hasattr(dist, "shrink_group"):
        raise Skip("no torch.distributed.shrink_group")
    dist.init_process_group("nccl", init_method=f"file://{r.folder}/torch", rank=r.rank, world_size=4, device_id=r.device)
    tensor = torch.full((1000,), r.rank + 1.0, device=r.device)
    dist.all_reduce(tensor)
    same(tensor, torch.full((1000,), 10.0))
    if r.rank == 3:
        return
    left = dist.shrink_group([3])
    tensor.fill_(r.rank + 1)
    dist.all_reduce(tensor, group=left)
    same(tensor, torch.full((1000,), 6.0))


def _cupy_check(cupy, nccl, comm, r):
    stream = cupy.cuda.Stream(non_blocking=True)
    count, total = 1000, 3
    mine = cupy.full(count, r.rank + 1, cupy.float32)
    found, whole = cupy.zeros(count, cupy.float32), cupy.zeros(2 * count, cupy.float32)
    cupy.cuda.Device().synchronize()
    comm.allReduce(mine.data.ptr, found.data.ptr, count, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr)
    comm.allGather(mine.data.ptr, whole.data.ptr, count, nccl.NCCL_FLOAT32, stream.ptr)
    stream.synchronize()
    assert (found == total).all() and (whole[:count] == 1).all() and (whole[count:] == 2).all()
    comm.reduceScatter(whole.data.ptr, found.data.ptr, count, nccl.NCCL_FLOAT32, nccl.NCCL_MAX, stream.ptr)
    stream.synchronize()
    assert (found == r.rank + 1).all()
    comm.bcast(found.data.ptr, count, nccl.NCCL_FLOAT32, 1, stream.ptr)
    stream.synchronize()
    assert (found == 2).all()
    comm.broadcast(mine.data.ptr, found.data.ptr, count, nccl.NCCL_FLOAT32, 0, stream.ptr)
    comm.reduce(mine.data.ptr, whole.data.ptr, count, nccl.NCCL_FLOAT32, nccl.NCCL_PROD, 1, stream.ptr)
    stream.synchronize()
    assert (found == 1).all() and (r.rank == 0 or (whole[:count] == 2).all())
    nccl.groupStart()
    comm.send(mine.data.ptr, count, nccl.NCCL_FLOAT32, 1 - r.rank, stream.ptr)
    comm.recv(found.data.ptr, count, nccl.NCCL_FLOAT32, 1 - r.rank, stream.ptr)
    nccl.groupEnd()
    stream.synchronize()
    assert (found == 2 - r.rank).all()
    comm.check_async_error()


@case(60, gpus=2, needs_cuda=True)
def nccl_cupy(r):
    """CuPy's module of NCCL: ranks that are processes, and communicators of all devices in one process."""
    try:
        import cupy
        from cupy.cuda import nccl
    except ImportError as error:
        raise Skip(f"no CuPy with NCCL: {error}") from None
    cupy.cuda.Device(r.rank).use()
    store = r.store()
    if r.rank == 0:
        store.set("id", bytes(nccl.get_unique_id()))  # bytes from CuPy 14 on
    comm = nccl.NcclCommunicator(2, bytes(store.get("id", 20)), r.rank)
    assert comm.rank_id() == r.rank and comm.size() == 2 and comm.device_id() == r.rank
    _cupy_check(cupy, nccl, comm, r)
    comm.destroy()
    if r.rank:
        return
    comms = nccl.NcclCommunicator.initAll(2)
    arrays, streams = [], []
    for device in range(2):
        with cupy.cuda.Device(device):
            arrays.append(cupy.full(1000, device + 1, cupy.float64))
            streams.append(cupy.cuda.Stream(non_blocking=True))
            cupy.cuda.Device().synchronize()
    nccl.groupStart()
    for device, (comm, array, stream) in enumerate(zip(comms, arrays, streams)):
        with cupy.cuda.Device(device):
            comm.allReduce(array.data.ptr, array.data.ptr, 1000, nccl.NCCL_FLOAT64, nccl.NCCL_SUM, stream.ptr)
    nccl.groupEnd()
    for device, (array, stream) in enumerate(zip(arrays, streams)):
        with cupy.cuda.Device(device):
            stream.synchronize()
            assert (array == 3).all()
    with raises(nccl.NcclError):
        comms[0].allReduce(0, 0, 1000, 99, nccl.NCCL_SUM, streams[0].ptr)
    for comm in comms:
        comm.destroy()


@case(100, ranks=1, gpus=2, needs_cuda=True)
def nccl_jax(r):
    """XLA's collectives between the devices of one process."""
    try:
        import os

        os.environ.update(XLA_PYTHON_CLIENT_PREALLOCATE="false")
        import jax
        import numpy
        from jax.sharding import Mesh, NamedSharding, PartitionSpec
    except ImportError as error:
        raise Skip(f"no JAX: {error}") from None
    devices = jax.devices()
    if devices[0].platform not in ("gpu", "cuda") or len(devices) < 2:
        raise Skip(f"JAX has devices {devices}")
    mesh = Mesh(numpy.array(devices[:2]), "x")
    values = numpy.arange(2 * 4096, dtype=numpy.float32).reshape(2, 4096)
    given = jax.device_put(values, NamedSharding(mesh, PartitionSpec("x")))

    def run(function, out):
        mapped = jax.shard_map(function, mesh=mesh, in_specs=PartitionSpec("x"), out_specs=out, check_vma=False)
        return numpy.asarray(jax.jit(mapped)(given))

    for _ in range(3):
        assert (run(lambda x: jax.lax.psum(x, "x"), PartitionSpec()) == values.sum(0)).all()
        assert (run(lambda x: jax.lax.all_gather(x, "x", tiled=True), PartitionSpec()) == values).all()
        assert (run(lambda x: jax.lax.pmax(x, "x"), PartitionSpec()) == values.max(0)).all()
        swapped = run(lambda x: jax.lax.ppermute(x, "x", [(0, 1), (1, 0)]), PartitionSpec("x"))
        assert (swapped == values[::-1]).all()
        parts = run(lambda x: jax.lax.psum_scatter(x[0], "x", tiled=True), PartitionSpec("x"))
        assert (parts == values.sum(0)).all()
        blocks = run(lambda x: jax.lax.all_to_all(x.reshape(2, 2048), "x", 0, 0, tiled=True), PartitionSpec("x"))
        assert (blocks.reshape(2, 2, 2048) == values.reshape(2, 2, 2048).swapaxes(0, 1)).all()
