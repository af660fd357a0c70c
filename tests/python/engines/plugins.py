# SPDX-License-Identifier: MIT
"""The engines' plug-ins over stubs of the engines: on CPU tensors, and on CUDA tensors of the stand-in for libcuda.

usage: plugins.py LIBRARY
"""

import ctypes
import multiprocessing
import os
import sys
import tempfile
import traceback

here = os.path.dirname(os.path.abspath(__file__))
sys.path[0] = os.path.join(here, "../torch")  # first, for the stand-in's tensors
import standin  # noqa: E402  (it skips without PyTorch)

sys.path.append(here)
import calls  # noqa: E402
import graphs  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


class Rank:
    """As a rank of ../gpu/runner.py."""

    def __init__(self, rank):
        self.rank, self.device = rank, torch.device("cuda", rank)

    def tensor(self, count, seed, dtype=torch.float32):
        return (torch.arange(count) % 23 + seed).to(dtype)

    def late(self, values):
        return standin.put(values)

    def back(self, found):
        standin.current.synchronize()
        return found.as_subclass(torch.Tensor).clone()


# What is made of the stand-in's tensors lies in its memory, too, and is made behind the stream's work.

def new_empty(self, shape):
    return standin.empty(shape, self.dtype)


def contiguous(self):
    return self if self.is_contiguous() else new_empty(self, self.shape).copy_(self)


def reshape(self, shape):
    return contiguous(self).view(shape)


standin.Tensor.new_empty, standin.Tensor.contiguous, standin.Tensor.reshape = new_empty, contiguous, reshape


def capture(call):
    graph, replay = ctypes.c_void_p(), ctypes.c_void_p()
    with standin.on(standin.Stream()):
        standin.call("cuStreamBeginCapture_v2", standin.current.handle, 2)
        call()
        standin.call("cuStreamEndCapture", standin.current.handle, ctypes.byref(graph))
    standin.call("cuGraphInstantiateWithFlags", ctypes.byref(replay), graph, ctypes.c_uint64(0))
    return lambda: standin.call("cuGraphLaunch", replay, standin.current.handle)


def main(rank, folder, library):
    dist.init_process_group("gloo", init_method=f"file://{folder}/torch", rank=rank, world_size=2)
    group, r = dist.new_group([0, 1]), Rank(rank)
    calls.vllm_unused()
    calls.vllm_passes()
    graphs.check_all()

    def same(found, expected):
        assert torch.equal(found, expected), (found, expected)

    calls.vllm_cpu(r, group, same)
    standin.enter(rank, library)
    calls.vllm_cuda(r, group, standin.same, capture)
    calls.sglang(r, group, standin.same, capture)
    dist.destroy_process_group()


def child(*arguments):
    status = 1
    try:
        main(*arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="tutti-plugins-") as folder:
        fork = multiprocessing.get_context("fork")  # torch is imported once
        children = [fork.Process(name="MainProcess", target=child, args=(rank, folder, sys.argv[1])) for rank in range(2)]
        for process in children:
            process.start()
        for process in children:
            process.join()
        sys.exit(any(process.exitcode for process in children))
