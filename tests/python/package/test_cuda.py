# SPDX-License-Identifier: MIT
"""Ranks on two GPUs: PyTorch's CUDA tensors by DLPack, streams, symmetric memory. And on GPUs of the stand-in for libcuda,
whose memory the host can read."""

import os

import pytest

from ranks import start_processes

STANDIN = """
import ctypes, gc
from tutti import _buffers, _ffi as ffi
cuda, context, device = ctypes.CDLL(os.environ["TUTTI_CUDA_LIBRARY"]), ctypes.c_void_p(), rank + 3
assert tutti.info("cuda.device") == "-1"
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == cuda.cuCtxSetCurrent(context) == 0
assert tutti.info("cuda.device") == str(device)
comm = tutti.Communicator.from_store(store, rank, count, device="cuda")
with tutti.SymmetricGroup("symm", rank, count, store) as group:
    for dtype in "float32", "bfloat16", "float8_e4m3", "uint8", "bool", "complex64":
        memory = group.alloc((2, 8), dtype, "cuda").rendezvous()
        own, peer = memory.array, memory.peer(1 - rank, (8,), offset=8)
        assert peer.__dlpack_device__() == (2, device)
        address, value, number, kept = _buffers.operand(peer, True)
        assert (tutti._lib.tutti_dtype_name(value), number) == (tutti._lib.tutti_dtype_name(memory._dtype), 8)
        assert int(ffi.cast("intptr_t", address)) == peer.__cuda_array_interface__["data"][0]
        assert len(_buffers._lent) == 1
        del address, kept
        assert not _buffers._lent  # nobody took the capsule
    memory = group.alloc(8, "int32", "cuda").rendezvous()
    capsule = memory.peer(rank).__dlpack__(stream=1, max_version=(1, 0))
    # As a consumer does.
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    managed, name = ffi.cast("struct dl_managed *", get(capsule, b"dltensor")), ctypes.c_char_p(b"used_dltensor")
    ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), name)
    del capsule
    assert len(_buffers._lent) == 1 and managed.tensor.shape[0] == 8 and managed.tensor.device_id == device
    values = ffi.cast("int *", managed.tensor.data)
    values[0:8] = [rank + 1] * 8
    both = group.alloc((2, 8), "int32", "cuda").rendezvous()
    found = ffi.cast("int *", both.array.__cuda_array_interface__["data"][0])
    assert comm.all_gather(memory.array, both.array, copy_engine=True) is not None
    assert cuda.cuCtxSynchronize() == 0 and list(found[0:16]) == [1] * 8 + [2] * 8
    found[0:16] = [0] * 16
    assert (comm.gather(memory.array, both.array, 1, copy_engine=True) is None) == (rank == 0)
    assert cuda.cuCtxSynchronize() == 0 and list(found[0:16]) == ([1] * 8 + [2] * 8) * rank + [0] * 16 * (1 - rank)
    found[0:16] = [0] * 16
    assert comm.all_gather(memory.array, both.array, symmetric=True) is not None
    assert cuda.cuCtxSynchronize() == 0 and list(found[0:16]) == [1] * 8 + [2] * 8
    alone, floats = comm.split(rank), group.alloc(8, "float32", "cuda")
    assert alone.world_size == 1
    ffi.cast("float *", floats.array.__cuda_array_interface__["data"][0])[0:8] = [rank + 1] * 8
    alone.all_reduce(memory.array)
    alone.all_reduce(floats.array, op="avg")
    alone.finalize(30)
    assert list(ffi.cast("float *", floats.array.__cuda_array_interface__["data"][0])[0:8]) == [rank + 1] * 8
    comm.all_reduce(memory.array)
    comm.finalize(30)
    assert list(values[0:8]) == [3] * 8
    managed.deleter(managed)
    assert not _buffers._lent

    def address(view, type):
        return ffi.cast(type, view.__cuda_array_interface__["data"][0])

    indices, values = group.alloc((1, 2), "int64", "cuda"), group.alloc((2, 3), "float32", "cuda")
    address(indices.array, "int64_t *")[0:2] = [0, rank + 1]
    address(values.array, "float *")[0:6] = [rank + 1] * 6
    hosts = tutti.ProcessGroup(tutti.Communicator.from_store(store, rank, count, name="hosts"))
    work = hosts.all_reduce_sparse(tutti.SparseTensor(indices.array, values.array, (3, 3)))
    work.wait()
    found = work.sparse_result()
    assert found.indices.__dlpack_device__() == found.values.__dlpack_device__() == (2, device)
    assert list(address(found.indices, "int64_t *")[0:3]) == [0, 1, 2]
    assert list(address(found.values, "float *")[0:9]) == [3, 3, 3, 1, 1, 1, 2, 2, 2]
    hosts.close()
comm.close()
print("done")
"""

PROGRAM = """
import torch
torch.cuda.set_device(rank)
torch.zeros(1, device="cuda")
comm = tutti.Communicator.from_store(store, rank, count, device="cuda")
side = torch.cuda.Stream()
for stream in torch.cuda.current_stream(), side:
    with torch.cuda.stream(stream):
        for dtype in torch.float32, torch.bfloat16:
            tensor = torch.full((1 << 20,), rank + 1, device="cuda", dtype=dtype)
            tensor *= 2  # on the stream, just before the call
            comm.all_reduce(tensor, stream=stream)
            assert (tensor == 6).all(), (stream, dtype, tensor)
try: comm.all_reduce(numpy.ones(4))
except tutti.InvalidError: pass
else: raise SystemExit("memory of the host was taken")
with tutti.SymmetricGroup("symm", rank, count, store) as group:
    memory = group.alloc((4, 8), "float32", "cuda").rendezvous()
    own, peer = (torch.from_dlpack(memory.peer(r)) for r in (rank, 1 - rank))
    assert own.device == peer.device == torch.device("cuda", rank)
    peer.fill_(rank + 1)
    memory.barrier(stream=torch.cuda.current_stream())
    assert own.shape == (4, 8) and (own == 2 - rank).all(), own
    torch.cuda.synchronize()
    del own, peer
comm.finalize(30)
print("done")
"""


def run(program, **options):
    said = [process.communicate(timeout=200) for process in start_processes(2, program, **options)]
    if [out for out, _ in said] != ["done\n"] * 2:
        pytest.fail("\n".join(f"rank {rank}: {out}{err}" for rank, (out, err) in enumerate(said)))


def test_two_gpus():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs and a PyTorch with CUDA")
    run(PROGRAM)


def test_standin():
    standin = os.environ.get("TUTTI_TEST_STANDIN")
    if not standin:
        pytest.skip("TUTTI_TEST_STANDIN does not name the stand-in for libcuda")
    run(STANDIN, env={**os.environ, "TUTTI_CUDA_LIBRARY": standin})
