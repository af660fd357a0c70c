#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch's Gloo all-reduce of CUDA tensors, which goes through the host, as the rival of host_staged.

One process a GPU, eager calls. The ranks begin each call together; a call's time ends when its stream has,
the slowest rank's counts, and the median of the calls is reported. Every result is checked.

usage: torch_staged.py --ranks N --json FILE [--min BYTES] [--max BYTES] [--factor F]
"""
import argparse
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from rows import write as write_rows

LARGE = 4 << 20


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--min", type=int, default=4 << 10)
    parser.add_argument("--max", type=int, default=64 << 20)
    parser.add_argument("--factor", type=int, default=4)
    return parser.parse_args()


def measure(tensor, rank, ranks, calls):
    """Microseconds of a call, of the slowest rank, the median of so many."""
    times = []
    for call in range(calls + 3):
        tensor.fill_(rank + 1)
        torch.cuda.synchronize()
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        us = torch.tensor([(time.perf_counter() - start) * 1e6], dtype=torch.float64)
        dist.all_reduce(us, op=dist.ReduceOp.MAX)
        if call >= 3:
            times.append(us.item())
        if not bool((tensor == ranks * (ranks + 1) // 2).all()):
            raise SystemExit("torch_staged: a wrong result")
    return statistics.median(times)


def run(rank, options, store):
    torch.cuda.set_device(rank)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.ranks)
    rows = []
    size = options.min
    while size <= options.max:
        tensor = torch.empty(size // 4, dtype=torch.float32, device="cuda")
        us = measure(tensor, rank, options.ranks, 20 if size < LARGE else 5)
        rows.append({"dtype": "float32", "ranks": options.ranks, "bytes": size, "torch_gloo": us})
        size *= options.factor
    if rank == 0:
        write_rows(options.json, {"torch": torch.__version__, "rows": rows})
    dist.destroy_process_group()


def main():
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(run, args=(options, os.path.join(folder, "store")), nprocs=options.ranks)


if __name__ == "__main__":
    main()
