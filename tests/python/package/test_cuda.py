# SPDX-License-Identifier: MIT
"""Ranks on two GPUs: PyTorch's CUDA tensors by DLPack, streams, symmetric memory."""

import pytest

from ranks import start_processes

torch = pytest.importorskip("torch")
if not torch.cuda.is_available() or torch.cuda.device_count() < 2:
    pytest.skip("needs two GPUs and a PyTorch with CUDA", allow_module_level=True)

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
    own, peer = (torch.as_tensor(memory.peer(r), device="cuda") for r in (rank, 1 - rank))
    peer.fill_(rank + 1)
    memory.barrier(stream=torch.cuda.current_stream())
    assert own.shape == (4, 8) and (own == 2 - rank).all(), own
    torch.cuda.synchronize()
    del own, peer
comm.finalize(30)
print("done")
"""


def test_two_gpus():
    said = [process.communicate(timeout=200) for process in start_processes(2, PROGRAM)]
    assert [out for out, _ in said] == ["done\n"] * 2, said
