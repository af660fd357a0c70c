#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Process groups beside PyTorch's Gloo in one run: on CPU tensors, sparse ones on CUDA devices as well.

Each rank is a process that has both: a group of libtutti and torch.distributed with Gloo on loopback. They take
turns, round by round: the ranks meet, then do some operations one after the other, each submitted and waited for;
the slowest rank's time for one counts, and the median of the rounds is reported. The results of the first rounds and
the last one are compared. Sums of float32: 5 dense ones in place a round; one sparse one of ROWS x WIDTH with NNZ
random entries a rank, not sorted. What they begin with is made outside the time. On CUDA devices (which ranks share where there are fewer)
an operation is over when its result is on the device. On the CPU then bench/group, what the same costs a program in C,
for as many ranks.

usage: torch_gloo.py [--library PATH] [--group PATH] [--json FILE] [--rounds N] dense [--ranks 2]
       torch_gloo.py [...] sparse [--ranks 4] [--rows 1000000] [--width 64] [--nnz 10000] [--device cuda]
"""
import argparse
import datetime
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../tests/python"))
import tutti_pg  # noqa: E402
from rows import write as write_rows  # noqa: E402

BATCH = 5  # dense operations a round: their sums stay exact
DENSE_BYTES = [4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("what", choices=["dense", "sparse"])
    parser.add_argument("--library", default=os.path.join(HERE, "../build/gcc/src/libtutti.so"))
    parser.add_argument("--group", default=os.path.join(HERE, "../build/gcc/bench/group"))
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--rows", type=int, default=1000000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--nnz", type=int, default=10000)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    if options.what == "dense" and options.device != "cpu":
        parser.error("dense tensors of CUDA devices: see torch_group.py")
    if options.device == "cpu" and not os.access(options.group, os.X_OK):
        parser.error(f"--group: {options.group} cannot be run: build it, or name another one")
    options.ranks = options.ranks or {"dense": 2, "sparse": 4}[options.what]
    return options


def timed(operation):
    """One rank's microseconds, begun together, and what the operation returned."""
    dist.barrier()
    begun = time.perf_counter()
    result = operation()
    return (time.perf_counter() - begun) * 1e6, result


def slowest(times):
    tensor = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return statistics.median(tensor.tolist())


class Dense:
    batch = BATCH

    def __init__(self, count, rank):
        self.start = torch.arange(count, dtype=torch.float32) % 100 + rank
        self.theirs, self.ours = self.start.clone(), self.start.clone()

    def again(self):
        self.theirs.copy_(self.start)
        self.ours.copy_(self.start)

    def gloo(self):
        for _ in range(BATCH):
            dist.all_reduce(self.theirs)

    def tutti(self, group):
        for _ in range(BATCH):
            group.all_reduce(self.ours).wait()

    def check(self, _):
        assert torch.equal(self.theirs, self.ours)


class Sparse:
    batch = 1

    def __init__(self, options, rank):
        generator = torch.Generator().manual_seed(rank)
        indices = torch.randperm(options.rows, generator=generator)[:options.nnz].unsqueeze(0)
        values = torch.randint(-99, 99, (options.nnz, options.width), generator=generator).float()
        self.cuda = options.device == "cuda"
        self.tensor = torch.sparse_coo_tensor(indices, values, (options.rows, options.width))
        if self.cuda:
            self.tensor = self.tensor.cuda()

    def again(self):
        self.theirs = self.tensor.clone()
        self.end()

    def end(self):
        if self.cuda:
            torch.cuda.synchronize()

    def gloo(self):
        dist.all_reduce(self.theirs)
        self.end()

    def tutti(self, group):
        return group.all_reduce_sparse(self.tensor).wait()

    def check(self, work):
        ours, theirs = work.sparse_result(), self.theirs.coalesce()
        assert torch.equal(ours.indices(), theirs.indices()) and torch.equal(ours.values(), theirs.values())


def measure(group, problem, rounds):
    """Median microseconds of both."""
    times = {"gloo": [], "tutti": []}
    for turn in range(-3, rounds):
        problem.again()
        if turn % 2:  # nobody always finds the other's caches
            gloo, _ = timed(problem.gloo)
        tutti, work = timed(lambda: problem.tutti(group))
        if turn % 2 == 0:
            gloo, _ = timed(problem.gloo)
        if turn < 0 or turn == rounds - 1:
            problem.check(work)
        del work
        if turn >= 0:
            times["gloo"].append(gloo / problem.batch)
            times["tutti"].append(tutti / problem.batch)
    return {name: round(slowest(us), 1) for name, us in times.items()}


def be_rank(rank, options, folder, rows):
    torch.set_num_threads(1)
    if options.device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    os.environ.update(GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=options.ranks)
    group = tutti_pg.Group(tutti_pg.Library(options.library), f"file:{folder}/tutti", rank, options.ranks)
    if options.what == "dense":
        for size in DENSE_BYTES:
            found = measure(group, Dense(size // 4, rank), options.rounds)
            rows.append({"collective": "all_reduce", "bytes": size, **found}) if rank == 0 else None
    else:
        found = measure(group, Sparse(options, rank), options.rounds)
        shape = {"device": options.device, "rows": options.rows, "width": options.width, "nnz": options.nnz}
        rows.append({"collective": "all_reduce_sparse", **shape, **found}) if rank == 0 else None
    dist.barrier()
    group.close()
    dist.destroy_process_group()


def machine(options):
    if options.device == "cuda":
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}, {os.cpu_count()} cores"
    with open("/proc/cpuinfo", encoding="ascii") as info:
        model = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), "CPU")
    return f"{model}, {os.cpu_count()} cores, Linux {platform.release()}"


def in_c(options):
    """What bench/group prints: microseconds by name."""
    printed = subprocess.run([options.group, str(options.ranks)], capture_output=True, text=True, check=True).stdout
    print(printed, end="")
    return {what: float(us) for what, us in re.findall(r"^(.*?) +([0-9.]+) us$", printed, re.MULTILINE)}


def main():
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="tutti-gloo-") as folder, processes.Manager() as manager:
        rows = manager.list()
        processes.spawn(be_rank, args=(options, folder, rows), nprocs=options.ranks)
        rows = [{**row, "dtype": "float32", "op": "sum", "ranks": options.ranks} for row in rows]
    for row in rows:
        what = f"{row['bytes']} bytes" if "bytes" in row else f"{row['nnz']} of {row['rows']} x {row['width']}"
        print(f"{row['collective']:18} {row['ranks']} ranks, {what:22} gloo {row['gloo']:10.1f} us  "
              f"tutti {row['tutti']:9.1f} us  {row['gloo'] / row['tutti']:6.1f} times faster")
    group = in_c(options) if options.device == "cpu" else {}
    if options.json:
        scheduler = {os.SCHED_OTHER: "other", os.SCHED_FIFO: "fifo", os.SCHED_RR: "rr"}
        record = {
            "machine": machine(options), "scheduler": scheduler.get(os.sched_getscheduler(0), "unknown"), "commit": tutti_pg.commit_of(options.library), "torch": torch.__version__,
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "command": "bench/torch_gloo.py " + " ".join(sys.argv[1:]), "unit": "us, median", "rows": rows,
            "group": group,
        }
        write_rows(options.json, record)


if __name__ == "__main__":
    main()
