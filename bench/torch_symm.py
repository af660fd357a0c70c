#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch's symmetric-memory operations as rivals: one_shot_all_reduce and two_shot_all_reduce_; for an all-gather
_low_contention_all_gather, for a reduce-scatter _low_contention_reduce_scatter and reduce_scatter_out.

One process a GPU; for each size a CUDA graph of 50 operations (10 from 64 MiB on) is replayed. The ranks
begin each replay together, the slowest one's time counts, and the median of the replays is reported, as
`tutti bench --graph` does. Every result is checked. An operation that PyTorch refuses is left out.

Bytes are those of a rank's larger buffer.

usage: torch_symm.py --ranks N --json FILE [--min BYTES] [--max BYTES] [--factor F] [--dtype NAME]...
                     [--collective all_reduce|all_gather|reduce_scatter]...
"""
import argparse
import itertools
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
    parser.add_argument("--collective", action="append", choices=OPERATIONS)
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


def low_contention(result):
    """The result of an operation on a stream of PyTorch's own, ready on the current stream."""
    return torch.ops._c10d_functional.wait_tensor(result)


# The operations by collective. Each takes the symmetric buffer, an ordinary one for the result, and the group's name; and
# returns the result.
OPERATIONS = {
    "all_reduce": {
        "torch_one_shot": lambda buffer, out, group: torch.ops.symm_mem.one_shot_all_reduce(buffer, "sum", group),
        "torch_two_shot": lambda buffer, out, group: torch.ops.symm_mem.two_shot_all_reduce_(buffer, "sum", group),
    },
    "all_gather": {
        "torch_low_contention": lambda buffer, out, group: low_contention(
            torch.ops.symm_mem._low_contention_all_gather(buffer, group)),
    },
    "reduce_scatter": {
        "torch_low_contention": lambda buffer, out, group: low_contention(
            torch.ops.symm_mem._low_contention_reduce_scatter(buffer, "sum", group)),
        "torch_reduce_scatter": lambda buffer, out, group: torch.ops.symm_mem.reduce_scatter_out(
            buffer, group, False, out),
    },
}


def check(collective, result, ranks, what):
    """The inputs are rank + 1 in every element: small whole numbers, whose sum is exact."""
    if collective == "all_gather":
        right = all(bool((block == rank + 1).all()) for rank, block in enumerate(result.chunk(ranks)))
    else:
        right = bool((result == ranks * (ranks + 1) // 2).all())
    if not right:
        raise SystemExit(f"torch_symm: {what}: a wrong result")


def measure(collective, name, buffer, source, stream, group, ranks, batch, rounds):
    """The median of one operation on a symmetric buffer, None if PyTorch refuses it, or its capture."""
    out = torch.empty(buffer.numel() // ranks, dtype=buffer.dtype, device=buffer.device)

    def operation():
        return OPERATIONS[collective][name](buffer, out, group)

    def renew():
        return buffer.copy_(source)

    refused, result, graph = 0, None, None
    try:
        with torch.cuda.stream(stream):
            renew()
            stream.synchronize()
            Hosts.meet()
            result = operation()
        stream.synchronize()
    except RuntimeError:
        refused = 1
    if Hosts.slowest(refused):
        return None
    check(collective, result, ranks, f"{name} of {buffer.numel()}")
    try:
        graph = capture(stream, operation, batch)
    except RuntimeError:
        refused = 1
    if Hosts.slowest(refused):
        return None
    return statistics.median(replays(stream, graph, renew, batch, rounds))


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
        for collective, size in itertools.product(options.collective or ["all_reduce"], sizes(options)):
            blocks = 1 if collective == "all_reduce" else options.ranks
            block = size // dtype.itemsize // blocks
            count = block if collective == "all_gather" else block * blocks  # of the input
            if not block:
                continue
            buffer = whole[:count]
            source = torch.full((count,), rank + 1, dtype=dtype, device=f"cuda:{rank}")
            batch, rounds = (50, 40) if size < LARGE else (10, 10)
            row = {"collective": collective, "dtype": dtype_name, "ranks": options.ranks,
                   "bytes": block * blocks * dtype.itemsize}
            for name in OPERATIONS[collective]:
                if name == "torch_one_shot" and size > ONE_SHOT_MOST:
                    continue
                us = measure(collective, name, buffer, source, stream, group, options.ranks, batch, rounds)
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
