# SPDX-License-Identifier: MIT
"""Times torch.distributed with the backend tutti beside Gloo or NCCL, in the same processes, in turns.

usage: python -m tutti.bench_torch [-n RANKS] [--device cpu|cuda] [--rounds N] [--json FILE]

all_reduce: dist.all_reduce() of a float32 CPU tensor, by Gloo, by tutti, by the C call through cffi, and by a group in
Python that does nothing. step: one step of DistributedDataParallel with 4 MB of gradients. Medians in microseconds.

With --device cuda: dist.all_reduce() of a bfloat16 tensor, by NCCL, by tutti, and by the C call, a GPU for each rank. eager:
calls one after the other. captured: calls in one graph. The median of the rounds' means.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from datetime import datetime, timezone
from functools import partial
from typing import Any, Callable

SIZES = [4, 1 << 10, 64 << 10, 1 << 20, 16 << 20]
CUDA_SIZES = [1 << shift for shift in range(10, 27, 2)]


def _median_us(function: Callable[[], object], calls: int) -> float:
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def _write(path: str, size: int, rows: list[dict[str, object]]) -> None:
    """As `tutti bench --json` writes its results."""
    import torch

    with open("/proc/cpuinfo", encoding="ascii") as info:
        model = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), "CPU")
    commit = subprocess.run(["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"], capture_output=True, text=True)
    head = {"machine": f"{model}, {os.cpu_count()} cores, Linux {platform.release()}", "commit": commit.stdout.strip() or "unknown",
            "torch": torch.__version__, "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "command": " ".join(["python -m tutti.bench_torch", *sys.argv[1:]]), "unit": "us, median"}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    listed = ",\n  ".join(json.dumps({**row, "ranks": size}) for row in rows)
    with open(path, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(lines) + f',\n "rows": [\n  {listed}\n ]\n}}\n')


def _show(*cells: object) -> None:
    print("".join(f"{cell:>12}" if isinstance(cell, str) else f"{cell:12.4g}" for cell in cells), flush=True)


def _bench_cuda(rank: int, size: int, port: int, rounds: int, json_path: str | None) -> None:
    import torch
    import torch.distributed as dist

    from tutti._tutti import ffi, lib

    torch.cuda.set_device(rank)
    dist.init_process_group("tutti", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    groups: dict[str, Any] = {"nccl": dist.new_group(backend="nccl"), "tutti": dist.group.WORLD}
    for group in groups.values():
        dist.all_reduce(torch.zeros(1, device="cuda"), group=group)  # makes the communicators
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def mean_us(run: Callable[[], object], calls: int) -> float:
        torch.cuda.synchronize()
        dist.barrier()
        start.record()
        run()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop) * 1e3 / calls)

    rows: list[dict[str, object]] = []
    for bytes_ in CUDA_SIZES:
        tensor = torch.zeros(bytes_ // 2, dtype=torch.bfloat16, device="cuda")
        calls = max(10, min(100, (64 << 20) // bytes_))

        at, comm = ffi.cast("void *", tensor.data_ptr()), groups["tutti"]._cuda_comm.handle
        stream = ffi.cast("tutti_stream_t", torch.cuda.current_stream().cuda_stream)

        def by_torch(group: Any, tensor: Any = tensor, calls: int = calls) -> None:
            for _ in range(calls):
                dist.all_reduce(tensor, group=group)

        def by_c(at: Any = at, calls: int = calls) -> None:
            for _ in range(calls):
                lib.tutti_all_reduce(at, at, bytes_ // 2, lib.TUTTI_BFLOAT16, lib.TUTTI_SUM, comm, stream)

        ways: dict[str, Callable[[], None]] = {}
        graphs = {}
        for name, group in groups.items():
            ways[name] = partial(by_torch, group)
            graphs[name] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[name], capture_error_mode="thread_local"):
                by_torch(group)
            graphs[name].replay()
        ways["c_call"] = by_c
        found: dict[tuple[str, str], list[float]] = {}
        for _ in range(rounds):
            for name, way in ways.items():
                found.setdefault(("eager", name), []).append(mean_us(way, calls))
            for name, graph in graphs.items():
                found.setdefault(("captured", name), []).append(mean_us(graph.replay, calls))
        for how in "eager", "captured":
            rows.append({"what": how, "bytes": bytes_, **{name: round(statistics.median(times), 2)
                                                          for (which, name), times in found.items() if which == how}})
        del graphs
    if rank == 0:
        _show("", "bytes", "nccl", "tutti", "tutti/nccl", "C call")
        for row in sorted(rows, key=lambda row: str(row["what"]), reverse=True):
            _show(row["what"], f"{row['bytes']} B", row["nccl"], row["tutti"], row["tutti"] / row["nccl"],  # type: ignore[operator]
                  row.get("c_call", ""))
        if json_path:
            _write(json_path, size, rows)
    dist.destroy_process_group()


def _bench(rank: int, size: int, port: int, rounds: int, json_path: str | None) -> None:
    import torch
    import torch.distributed as dist

    from tutti._tutti import ffi, lib

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= size:
        os.sched_setaffinity(0, {cores[rank]})
    dist.init_process_group("tutti", rank=rank, world_size=size)
    world: Any = dist.group.WORLD
    gloo = dist.new_group(backend="gloo")

    nothing = type("Nothing", (dist.ProcessGroup,), {"allreduce": lambda self, tensors, opts: None})(rank, size)
    dist.distributed_c10d._world.pg_map[nothing] = ("nothing", None)

    def show(*cells: object) -> None:
        if rank == 0:
            _show(*cells)

    rows: list[dict[str, object]] = []
    show("all_reduce", "gloo", "tutti", "C call", "nothing", "tutti/gloo", "tutti/C", "tutti/no-op")
    for size_bytes in SIZES:
        tensor = torch.zeros(size_bytes // 4)
        at, count = ffi.cast("void *", tensor.data_ptr()), tensor.numel()

        def by_c() -> None:
            lib.tutti_all_reduce(at, at, count, lib.TUTTI_FLOAT32, lib.TUTTI_SUM, world._comm.handle, ffi.NULL)

        ways = (lambda: dist.all_reduce(tensor, group=gloo), lambda: dist.all_reduce(tensor), by_c,
                lambda: dist.all_reduce(tensor, group=nothing))
        calls = max(5, min(500, (4 << 20) // size_bytes))
        found: list[list[float]] = [[] for _ in ways]
        for _ in range(rounds):
            for times, way in zip(found, ways):
                dist.barrier()
                times.append(_median_us(way, calls))
        us = [statistics.median(times) for times in found]
        rows.append({"what": "all_reduce", "bytes": size_bytes,
                     **dict(zip(("gloo", "tutti", "c_call", "nothing"), (round(each, 4) for each in us)))})
        show(f"{size_bytes} B", *us, us[1] / us[0], us[1] / us[2], us[1] / us[3])

    show("step", "gloo", "tutti", "tutti/gloo")
    steps = []
    for group in gloo, world:
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))), process_group=group, bucket_cap_mb=1)
        batch = torch.ones(1, 512)

        def step(model: Any = model, batch: Any = batch) -> None:
            model.zero_grad()
            model(batch).sum().backward()

        steps.append(step)
    found = [[], []]
    for _ in range(rounds):
        for times, step in zip(found, steps):
            dist.barrier()
            times.append(_median_us(step, 10))
    us = [statistics.median(times) for times in found]
    rows.append({"what": "step", "bytes": 4 << 20, "gloo": round(us[0], 1), "tutti": round(us[1], 1)})
    show("4 MB", *us, us[1] / us[0])
    if rank == 0 and json_path:
        _write(json_path, size, rows)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tutti.bench_torch", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=2, metavar="RANKS", help="number of processes")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=5, help="rounds; the median of their medians counts")
    parser.add_argument("--json", metavar="FILE", help="write the medians to this file")
    given = parser.parse_args()

    import torch.multiprocessing

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    bench = _bench_cuda if given.device == "cuda" else _bench
    torch.multiprocessing.start_processes(bench, (given.n, port, given.rounds, given.json), nprocs=given.n,
                                          start_method="fork")


if __name__ == "__main__":
    main()
