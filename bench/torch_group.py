#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Process groups on CUDA tensors beside PyTorch's Gloo, in one run.

One process a GPU that has both: a group of libtutti, and torch.distributed with Gloo. The group is of a CPU
communicator, so that tensors go through pinned memory and the hosts reduce them, or, with --direct, of a CUDA one,
whose algorithms are TUTTI_ALGO's: host_staged has the devices reduce by way of the host's memory. They take turns, block
by block of calls: a call's time begins when the last rank makes it, and ends when the last host knows that the result is
on its device; the median of the calls is reported. tutti_work_wait_host() tells so; Gloo's wait does not, so the host
synchronises behind it. Every result is checked. Then how long a submission keeps the caller.

usage: torch_group.py --ranks N [--direct] [--json FILE] [--library PATH] [--min BYTES] [--max BYTES] [--factor F]
"""
import argparse
import ctypes
import datetime
import os
import platform
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../tests/python"), HERE]
import tutti_pg  # noqa: E402
from rows import write as write_rows  # noqa: E402

BLOCKS, CALLS = 3, 20
FLOAT32, SUM = 0, 1


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--json")
    parser.add_argument("--library", default=os.path.join(HERE, "../build/gcc/src/libtutti.so"))
    parser.add_argument("--direct", action="store_true", help="the group is of a CUDA communicator")
    parser.add_argument("--min", type=int, default=4 << 10)
    parser.add_argument("--max", type=int, default=64 << 20)
    parser.add_argument("--factor", type=int, default=4)
    return parser.parse_args()


class CudaSum:
    """Sums of one tensor over and over: what a call needs is made once."""

    def __init__(self, group, tensor):
        self.c, self.check, self.kept = group.library.c, group.library.check, tensor
        self.pg, self.stream = group.pg, torch.cuda.current_stream().cuda_stream
        self.sizes = tutti_pg.numbers([tensor.numel()])
        self.tensor = tutti_pg.Tensor(struct_size=ctypes.sizeof(tutti_pg.Tensor), data=tensor.data_ptr(),
                                      dtype=FLOAT32, device=tutti_pg.CUDA, dims=1, sizes=self.sizes,
                                      device_index=tensor.get_device())
        self.options = tutti_pg.CallOptions(struct_size=ctypes.sizeof(tutti_pg.CallOptions), stream=self.stream)

    def submit(self):
        work = ctypes.c_void_p()
        self.check(self.c.tutti_pg_all_reduce(self.pg, ctypes.byref(self.tensor), 1, ctypes.c_void_p(SUM),
                                              ctypes.byref(self.options), ctypes.byref(work)))
        return work

    def __call__(self):
        work = self.submit()
        self.check(self.c.tutti_work_wait_host(work, 60000))
        self.c.tutti_work_destroy(work)


def block(tensor, rank, ranks, call):
    """Microseconds of calls in a row, from the last rank's start to the last rank's end: perf_counter() is the same
    clock for all."""
    starts, ends, wrong = [], [], torch.zeros((), dtype=torch.int64, device="cuda")
    dist.barrier()
    for _ in range(CALLS):
        tensor.fill_(rank + 1)
        torch.cuda.synchronize()
        starts.append(time.perf_counter())
        call()
        ends.append(time.perf_counter())
        wrong += (tensor != ranks * (ranks + 1) // 2).sum()
    last = torch.tensor([starts, ends], dtype=torch.float64)
    dist.all_reduce(last, op=dist.ReduceOp.MAX)
    if wrong.item():
        raise SystemExit("torch_group: a wrong result")
    return ((last[1] - last[0]) * 1e6).tolist()


def measure(group, tensor, rank, ranks):
    """The medians of both."""
    def all_reduce():
        dist.all_reduce(tensor)
        torch.cuda.synchronize()

    ours, theirs = [], []
    own = CudaSum(group, tensor)
    for turn in range(BLOCKS + 1):
        gloo = block(tensor, rank, ranks, all_reduce)
        tutti = block(tensor, rank, ranks, own)
        if turn:
            theirs += gloo
            ours += tutti
    return statistics.median(ours), statistics.median(theirs)


def submit_us(group):
    """What submitting keeps the caller, with ctypes around it."""
    own, times, works = CudaSum(group, torch.zeros(1024, device="cuda")), [], []
    for _ in range(500):
        start = time.perf_counter()
        works.append(own.submit())
        times.append((time.perf_counter() - start) * 1e6)
    for work in works:
        group.library.check(group.library.c.tutti_work_wait_host(work, 60000))
        group.library.c.tutti_work_destroy(work)
    return statistics.median(times)


def run(rank, options, folder):
    torch.cuda.set_device(rank)
    dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=options.ranks)
    library = tutti_pg.Library(options.library)
    group = tutti_pg.Group(library, f"file:{folder}/tutti", rank, options.ranks,
                           tutti_pg.CUDA if options.direct else tutti_pg.CPU)
    rows, size = [], options.min
    while size <= options.max:
        tensor = torch.empty(size // 4, dtype=torch.float32, device="cuda")
        tutti, gloo = measure(group, tensor, rank, options.ranks)
        rows.append({"collective": "all_reduce", "bytes": size, "gloo": round(gloo, 1), "tutti": round(tutti, 1),
                     "ratio": round(gloo / tutti, 1), "dtype": "float32", "op": "sum", "ranks": options.ranks})
        if rank == 0:
            print(f"{size:>10} bytes  tutti {tutti:9.1f} us  gloo {gloo:9.1f} us  {gloo / tutti:5.1f} times",
                  flush=True)
        size *= options.factor
    us = submit_us(group)
    if rank == 0:
        print(f"submit: {us:.1f} us", flush=True)
        if options.json:
            write(options, rows, us)
    dist.barrier()
    group.close()
    dist.destroy_process_group()


def write(options, rows, us):
    report = {"machine": f"{torch.cuda.device_count()} {torch.cuda.get_device_name()}, {platform.platform()}",
              "commit": tutti_pg.commit_of(options.library), "torch": torch.__version__,
              "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
              "command": f"bench/torch_group.py --ranks {options.ranks}" + " --direct" * options.direct,
              "TUTTI_ALGO": os.environ.get("TUTTI_ALGO", ""), "unit": "us, median", "rows": rows,
              "submit": round(us, 1)}
    write_rows(options.json, report)


def main():
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(run, args=(options, folder), nprocs=options.ranks)


if __name__ == "__main__":
    main()
