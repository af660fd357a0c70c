#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch's symmetric-memory all-reduces as rivals: one_shot_all_reduce and two_shot_all_reduce_.

One process a GPU; for each size a CUDA graph of 50 operations (10 from 64 MiB on) is replayed. The ranks
begin each replay together, the slowest one's time counts, and the median of the replays is reported, as
`tutti bench --graph` does. Every result is checked. An operation that PyTorch refuses is left out.

usage: torch_symm.py --ranks N --json FILE [--min BYTES] [--max BYTES] [--factor F] [--dtype NAME]...
"""
import argparse
import os
import statistics
import tempfile

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm
import torch.multiprocessing as processes

from rows import write as write_rows

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}
LARGE = 64 << 20
ONE_SHOT_MOST = 16 << 20  # beyond, one hop takes many times as long as two


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--min", type=int, default=8)
    parser.add_argument("--max", type=int, default=1 << 30)
    parser.add_argument("--factor", type=int, default=2)
    parser.add_argument("--dtype", action="append", choices=DTYPES)
    return parser.parse_args()


class Hosts:
    """The ranks' meetings, through the hosts alone."""

    group = None

    @classmethod
    def meet(cls):
        dist.barrier(group=cls.group)

    @classmethod
    def slowest(cls, us):
        """The greatest of all ranks' times."""
        time = torch.tensor([us], dtype=torch.float64)
        dist.all_reduce(time, op=dist.ReduceOp.MAX, group=cls.group)
        return time.item()


def capture(stream, work, batch):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(batch):
            work()
    return graph


def replays(stream, graph, renew, batch, rounds):
    """Microseconds of an operation in each replay, of the slowest rank."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(rounds + 3):
        with torch.cuda.stream(stream):
            renew()
        stream.synchronize()
        Hosts.meet()
        begin.record(stream)
        with torch.cuda.stream(stream):
            graph.replay()
        end.record(stream)
        stream.synchronize()
        times.append(Hosts.slowest(begin.elapsed_time(end) * 1e3 / batch))
    return times[3:]


def check(result, ranks, what):
    """The inputs are rank + 1 in every element: small whole numbers, whose sum is exact."""
    expected = ranks * (ranks + 1) // 2
    if not bool((result == expected).all()):
        raise SystemExit(f"torch_symm: {what}: a wrong result")


def measure(name, buffer, source, stream, group, ranks, batch, rounds):
    """The median of one operation on a symmetric buffer, None if PyTorch refuses it."""
    operation = {
        "torch_one_shot": lambda: torch.ops.symm_mem.one_shot_all_reduce(buffer, "sum", group),
        "torch_two_shot": lambda: torch.ops.symm_mem.two_shot_all_reduce_(buffer, "sum", group),
    }[name]
    refused = 0
    try:
        with torch.cuda.stream(stream):
            buffer.copy_(source)
            stream.synchronize()
            Hosts.meet()
            result = operation()
        stream.synchronize()
    except RuntimeError:
        refused = 1
    if Hosts.slowest(refused):
        return None
    check(result, ranks, f"{name} of {buffer.numel()}")
    graph = capture(stream, operation, batch)
    return statistics.median(
        replays(stream, graph, lambda: buffer.copy_(source), batch, rounds))


def sizes(options):
    size = options.min
    while size <= options.max:
        yield size
        size *= options.factor


def run(rank, options, store):
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{store}", rank=rank,
                            world_size=options.ranks, device_id=torch.device("cuda", rank))
    Hosts.group = dist.new_group(backend="gloo")
    group = dist.group.WORLD.group_name
    stream = torch.cuda.Stream()
    rows = []
    for dtype_name in options.dtype or ["bfloat16"]:
        dtype = DTYPES[dtype_name]
        most = options.max // dtype.itemsize
        whole = symm.empty(most, dtype=dtype, device=f"cuda:{rank}")
        symm.rendezvous(whole, group)
        for size in sizes(options):
            count = size // dtype.itemsize
            buffer = whole[:count]
            source = torch.full((count,), rank + 1, dtype=dtype, device=f"cuda:{rank}")
            batch, rounds = (50, 40) if size < LARGE else (10, 10)
            row = {"dtype": dtype_name, "ranks": options.ranks, "bytes": count * dtype.itemsize}
            for name in ("torch_one_shot", "torch_two_shot"):
                if name == "torch_one_shot" and size > ONE_SHOT_MOST:
                    continue
                us = measure(name, buffer, source, stream, group, options.ranks, batch, rounds)
                if us is not None:
                    row[name] = us
            rows.append(row)
            del source
        del whole
    if rank == 0:
        write_rows(options.json, {"torch": torch.__version__, "rows": rows})
    Hosts.meet()
    # Symmetric memory and process groups have crashed at exit: all is written.
    os._exit(0)


def main():
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(run, args=(options, os.path.join(folder, "store")), nprocs=options.ranks)


if __name__ == "__main__":
    main()
