# SPDX-License-Identifier: MIT
"""Cases of ../gpu.py: the calls of inference engines, without the engines."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from case import case
from runner import same

sys.path.append(str(Path(__file__).resolve().parents[1] / "engines"))
import calls


def _capture(call):
    """As engines capture: warmed up, on a stream of its own."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def _group(r):
    """The group of processes of an engine."""
    r.start("gloo")
    return dist.new_group([0, 1], backend="gloo")


@case(60, gpus=2, needs_cuda=True)
def vllm(r):
    calls.vllm_unused()
    calls.vllm_cuda(r, _group(r), same, _capture)


@case(60, gpus=2, needs_cuda=True)
def sglang(r):
    calls.sglang(r, _group(r), same, _capture)


@case(60)
def vllm_cpu(r):
    calls.vllm_cpu(r, _group(r), same)


@case(60, gpus=2, needs_cuda=True)
def vllm_decode(r):
    """A decoder's all-reduces in one graph of vLLM's calls: the bits of a row do not depend on the batch."""
    platform, group = calls.install_vllm("cuda"), _group(r)
    communicator = calls.join(platform, group, r.device)
    random = torch.Generator().manual_seed(r.rank)
    rows = torch.randn(256, 4096, generator=random).to(r.device, torch.bfloat16)
    whole = communicator.all_reduce(rows)
    for tokens in 1, 2, 7, 32, 128, 256:
        given, results = rows[:tokens].clone(), []
        with calls.graph_capture(communicator):
            replay = _capture(lambda: [results.append(communicator.all_reduce(given)) for _ in range(64)])
        replay()
        for found in results:
            assert torch.equal(found, whole[:tokens]), tokens
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(20):
            replay()
        end.record()
        r.synchronize()
        print(f"{tokens} tokens of 4096 bfloat16: {begin.elapsed_time(end) / 20 / 64 * 1000:.2f} us an all-reduce")
    communicator.destroy()
