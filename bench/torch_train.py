#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times steps of training by the backend tutti of torch.distributed and by NCCL's (on CPU Gloo's) in turns, one process a GPU.

ddp: DistributedDataParallel of a transformer; fsdp: FSDP2 of the same; fsdp_symmetric: also with tutti.torch.AllGather; tp: DTensor,
column- and row-wise linear layers. A step is forward, backward and optimizer; the slowest rank's time counts, and the median of the
rounds is reported, in milliseconds.
sync, async: microseconds of the host for an all-reduce of 4 bytes; async with its wait.

Both backends train equal models. Their losses after the last step must agree within 2 %.

usage: torch_train.py [--ranks N] [--device cuda|cpu] [--rounds N] [--steps N] [--json FILE] [--what ddp|fsdp|fsdp_symmetric|tp|call]...
"""
import argparse
import os
import statistics
import tempfile
import time
from functools import partial

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tutti.torch
from rows import write

KINDS = "ddp", "fsdp", "fsdp_symmetric", "tp", "call"
CALLS = 200


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json")
    parser.add_argument("--what", action="append", choices=KINDS)
    return parser.parse_args()


def transformer(given, layers=8):
    width = 1024 if given.device == "cuda" else 64
    blocks = (nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True) for _ in range(layers))
    return nn.Sequential(*blocks), (8, 256, width)


def feed_forward(given, layers=8):
    width = 2048 if given.device == "cuda" else 64
    blocks = (nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(layers))
    return nn.Sequential(*blocks), (4, 128, width)


def trainer(kind, given, device, group, rank):
    """A function that makes a step and returns the loss."""
    torch.manual_seed(1)
    model, shape = (feed_forward if kind == "tp" else transformer)(given)
    model = model.to(device, torch.bfloat16)
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
    else:
        mesh = DeviceMesh.from_group(group, given.device)
        for layer in model:
            if kind != "tp":
                fully_shard(layer, mesh=mesh)
            else:
                parallelize_module(layer, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        if kind != "tp":
            fully_shard(model, mesh=mesh)
        if kind == "fsdp_symmetric" and dist.get_backend(group) == "tutti":
            gather = tutti.torch.AllGather(group)
            for module in model, *model:
                module.set_custom_all_gather(gather)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    numbers = torch.Generator().manual_seed(0 if kind == "tp" else rank)
    batch = torch.randn(shape, generator=numbers).to(device, torch.bfloat16)

    def step():
        loss = (model(batch).float() - 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def time_of(run, calls, synchronize, waits):
    """Seconds of a call on the slowest rank, and what the last one returned. waits: until the device has ended it."""
    synchronize()
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        found = run()
    if waits:
        synchronize()
    took = torch.tensor([(time.perf_counter() - begin) / calls], dtype=torch.float64)
    synchronize()
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item(), found


def rows_of(kind, given, device, groups, rank, synchronize):
    if kind == "call":
        tensor = torch.zeros(1, device=device)
        ways = {"sync": lambda group: dist.all_reduce(tensor, group=group),
                "async": lambda group: dist.all_reduce(tensor, group=group, async_op=True).wait()}
        runs = {(way, name): partial(run, group) for way, run in ways.items() for name, group in groups.items()}
    else:
        runs = {(kind, name): trainer(kind, given, device, group, rank) for name, group in groups.items()}
    times, last = {key: [] for key in runs}, {}
    for i in range(given.rounds + 1):
        for key, run in runs.items():
            took, last[key] = time_of(run, CALLS if kind == "call" else given.steps, synchronize, kind != "call")
            if i:  # the first round warms up
                times[key].append(took)
    for what in dict.fromkeys(what for what, _ in runs):
        scale = 1e6 if kind == "call" else 1e3
        row = {"what": what, "unit": "us" if kind == "call" else "ms", "ranks": given.ranks}
        row.update({name: round(statistics.median(times[what, name]) * scale, 3) for name in groups})
        if kind != "call":
            losses = [float(last[what, name]) for name in groups]
            assert abs(losses[0] - losses[1]) <= 0.02 * abs(losses[0]), f"{what}: losses {losses}"
        yield row


def main(rank, given, folder):
    is_cuda = given.device == "cuda"
    device, rival = (torch.device("cuda", rank), "nccl") if is_cuda else (torch.device("cpu"), "gloo")
    if is_cuda:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    synchronize = torch.cuda.synchronize if is_cuda else lambda: None
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=given.ranks)
    groups = {name: dist.new_group(backend=name) for name in (rival, "tutti")}
    rows = []
    for row in (row for kind in given.what or KINDS for row in rows_of(kind, given, device, groups, rank, synchronize)):
        rows.append({**row, "ratio": round(row["tutti"] / row[rival], 3)})
        if rank == 0:
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if rank == 0 and given.json:
        write(given.json, {"device": torch.cuda.get_device_name() if is_cuda else "CPU", "torch": torch.__version__,
                           "max_blocks": os.environ.get("TUTTI_MAX_BLOCKS", ""), "rows": rows})
    dist.destroy_process_group()


if __name__ == "__main__":
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="tutti-train-") as store:
        processes.spawn(main, (options, store), nprocs=options.ranks)
