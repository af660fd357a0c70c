# SPDX-License-Identifier: MIT
"""A decoder step of Llama 3 8B's shape, tensor parallel: milliseconds a token by each library's all-reduce.

    python decode.py --ranks 2                       # starts its ranks; or torchrun --nproc-per-node 2 decode.py
    tutti nccl -- python decode.py --ranks 2 --comm nccl

Each layer calls two all-reduces; a residual and an RMSNorm follow each. Weights are random. On GPUs a step is one CUDA graph.
On CPUs the model is small, and a step is a call. The columns take turns; the slowest rank's time counts, and the median of
the turns is shown. The columns:

none      no communication: what the rest of the step takes (its result is wrong)
gloo      dist.all_reduce() by Gloo, on CPUs
nccl      dist.all_reduce() by NCCL, or by the library that the program finds in its place
one-shot  torch.ops.symm_mem.one_shot_all_reduce, on GPUs
two-shot  torch.ops.symm_mem.two_shot_all_reduce_, on GPUs
tutti     dist.all_reduce() by Tutti
fused     torch.ops.tutti.all_reduce_rms_norm: the all-reduce, the residual and the RMSNorm in one kernel

Each column's result is compared with that of the same step whose sums are made in float64 and rounded once.
"""

import argparse
import functools
import json
import os
import socket
import statistics
import sys
import time
from datetime import datetime, timezone

# NVLink multicast stays off in every column.
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402

HEAD = 128  # elements of an attention head
EPSILON = 1e-5
COLUMNS = "none", "gloo", "nccl", "one-shot", "two-shot", "tutti", "fused"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, help="start so many ranks, without a launcher")
    parser.add_argument("--comm", nargs="+", choices=COLUMNS, help="columns; all that the device has")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, nargs="+", help="tokens a step: 1 8 32 128, on CPUs 1 8")
    parser.add_argument("--layers", type=int, help="32, on CPUs 2")
    parser.add_argument("--hidden", type=int, help="a multiple of 512; 4096, on CPUs 512")
    parser.add_argument("--context", type=int, default=128, help="tokens in the key-value cache: 128")
    parser.add_argument("--rounds", type=int, help="turns of each column: 7, on CPUs 3")
    parser.add_argument("--steps", type=int, help="steps a turn: 20, on CPUs 5")
    parser.add_argument("--json", help="a file for the results")
    parser.add_argument("--commit", default="unknown", help="the commit that the results name")
    given = parser.parse_args()
    if not given.ranks and "RANK" not in os.environ:
        parser.error("this process is no rank: give --ranks, or start it by torchrun")
    is_cuda = given.device == "cuda"
    given.comm = given.comm or [name for name in COLUMNS if name not in (["gloo"] if is_cuda else COLUMNS[2:5])]
    given.batch = given.batch or ([1, 8, 32, 128] if is_cuda else [1, 8])
    given.rounds = given.rounds or (7 if is_cuda else 3)
    given.layers = given.layers or (32 if is_cuda else 2)
    given.hidden = given.hidden or (4096 if is_cuda else 512)
    given.steps = given.steps or (20 if is_cuda else 5)
    given.dtype = torch.bfloat16 if is_cuda else torch.float32
    return given


# ---- the model

class Model:
    """A rank's part: its heads, and its columns and rows of the matrices."""

    def __init__(self, given, device, rank, ranks):
        hidden, inner, heads = given.hidden, given.hidden * 7 // 2, given.hidden // HEAD
        self.hidden, self.heads, self.kv = hidden, heads // ranks, max(heads // 4, ranks) // ranks
        self.like = {"dtype": given.dtype, "device": device}
        own, common = torch.Generator(device).manual_seed(1 + rank), torch.Generator(device).manual_seed(0)

        def matrix(rows, columns, summed):
            """summed: the terms of an element of the product, on all ranks."""
            return torch.empty(rows, columns, **self.like).normal_(0, summed ** -0.5, generator=own).t()

        def vector():
            return torch.empty(hidden, **self.like).uniform_(0.9, 1.1, generator=common)

        self.input = torch.empty(max(given.batch), hidden, **self.like).normal_(generator=common)
        self.first = vector()
        self.layers = [{
            "qkv": matrix((self.heads + 2 * self.kv) * HEAD, hidden, hidden),
            "output": matrix(hidden, self.heads * HEAD, hidden),
            "gate_up": matrix(2 * inner // ranks, hidden, hidden),
            "down": matrix(hidden, inner // ranks, inner),
            "norms": (vector(), vector()),
            "cache": torch.empty(2, max(given.batch), self.kv, given.context, HEAD, **self.like).normal_(generator=own),
        } for _ in range(given.layers)]
        angles = (given.context - 1) * 5e5 ** (-torch.arange(0, HEAD, 2, dtype=torch.float64) / HEAD)
        self.cos = angles.cos().repeat(2).to(**self.like)
        self.sin = torch.cat((-angles.sin(), angles.sin())).to(**self.like)

    def attention(self, qkv, cache):
        """Of one token a sequence, whose key and value become the cache's last ones."""
        batch = qkv.size(0)
        qkv = qkv.view(batch, -1, HEAD)
        turning = qkv[:, :self.heads + self.kv]
        turned = torch.addcmul(turning * self.cos, turning.roll(HEAD // 2, -1), self.sin)
        keys, values = cache[:, :batch]
        keys[:, :, -1].copy_(turned[:, self.heads:])
        values[:, :, -1].copy_(qkv[:, self.heads + self.kv:])
        query = turned[:, :self.heads].unsqueeze(2)
        return F.scaled_dot_product_attention(query, keys, values, enable_gqa=True).reshape(batch, -1)

    def step(self, batch, column):
        """The hidden states after the last layer."""
        residual, part = self.input[:batch], column.part[:batch]
        normed = F.rms_norm(residual, (self.hidden,), self.first, EPSILON)
        for layer in self.layers:
            attended = self.attention(normed @ layer["qkv"], layer["cache"])
            torch.mm(attended, layer["output"], out=part)
            normed, residual = column.reduce_norm(part, residual, layer["norms"][0])
            gate, up = (normed @ layer["gate_up"]).chunk(2, -1)
            torch.mm(F.silu(gate) * up, layer["down"], out=part)
            normed, residual = column.reduce_norm(part, residual, layer["norms"][1])
        return normed


# ---- the columns

class Column:
    """An all-reduce of `part`, in place."""

    def __init__(self, model, batch, group=None):
        self.group, self.part = group, self.allocate(batch, model.hidden, **model.like)

    allocate = staticmethod(torch.empty)

    def all_reduce(self, part):
        dist.all_reduce(part, group=self.group)
        return part

    def reduce_norm(self, part, residual, weight):
        residual = residual + self.all_reduce(part)
        return F.rms_norm(residual, weight.shape, weight, EPSILON), residual


class Silent(Column):
    def all_reduce(self, part):
        return part


class Fused(Column):
    def __init__(self, model, batch, group):
        import tutti.torch  # noqa: F401  (defines the operator)

        super().__init__(model, batch, group)

    def reduce_norm(self, part, residual, weight):
        return torch.ops.tutti.all_reduce_rms_norm(part, weight, residual, EPSILON, group=self.group.group_name)


class Exact(Column):
    """Sums in float64 by the hosts."""

    def all_reduce(self, part):
        return torch.stack(gathered(part)).double().sum(0).to(part)


class Symmetric(Column):
    """`part` is in PyTorch's symmetric memory."""

    def __init__(self, model, batch, group):
        super().__init__(model, batch)
        self.name = dist.group.WORLD.group_name
        torch.distributed._symmetric_memory.rendezvous(self.part, self.name)

    @staticmethod
    def allocate(*size, **like):
        import torch.distributed._symmetric_memory as symm
        return symm.empty(*size, **like)


class OneShot(Symmetric):
    def all_reduce(self, part):
        return torch.ops.symm_mem.one_shot_all_reduce(part, "sum", self.name)


class TwoShot(Symmetric):
    def all_reduce(self, part):
        return torch.ops.symm_mem.two_shot_all_reduce_(part, "sum", self.name)


KINDS = {"none": Silent, "one-shot": OneShot, "two-shot": TwoShot, "fused": Fused}
BACKENDS = {"gloo": "gloo", "nccl": "nccl", "tutti": "tutti", "fused": "tutti"}


def column_of(name, model, given):
    """None: this PyTorch has no symmetric memory on this machine."""
    group = dist.new_group(backend=BACKENDS[name]) if name in BACKENDS else None
    refusal = None
    try:
        column = KINDS.get(name, Column)(model, max(given.batch), group)
        column.all_reduce(column.part.zero_())
    except RuntimeError as error:
        if name not in ("one-shot", "two-shot"):
            raise
        refusal = error
        print(f"{name} is left out: {error}", flush=True)
    return None if any(gathered(torch.tensor(float(refusal is not None)))) else column


# ---- the measurement

def gathered(tensor):
    """The tensors of all ranks, through the hosts."""
    own = tensor.detach().float().cpu()
    tensors = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(tensors, own)
    return tensors


def capture(step, stream):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        step()
    return graph.replay


def turn(step, steps, stream):
    """Milliseconds of a step on the slowest rank."""
    gathered(torch.zeros(1))  # the ranks begin together
    if stream:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            begin.record()
            for _ in range(steps):
                step()
            end.record()
        end.synchronize()
        took = begin.elapsed_time(end)
    else:
        start = time.perf_counter()
        for _ in range(steps):
            step()
        took = (time.perf_counter() - start) * 1e3
    return max(float(each) for each in gathered(torch.tensor(took / steps)))


def compare(found, exact):
    """The greatest difference from the exact step, as a part of its greatest element; and whether the ranks have the same bits."""
    found = gathered(found)
    difference = float((found[0] - exact).abs().max() / exact.abs().max())
    return float(f"{difference:.2g}"), all(torch.equal(found[0], other) for other in found)


def measure(batch, model, columns, given, stream):
    """A row: the batch, milliseconds by the column's name, and what compare() finds of each."""
    steps, differs, unequal = {}, {}, []
    with torch.cuda.stream(stream):
        exact = gathered(model.step(batch, Exact(model, batch)))[0]
        for name, column in columns.items():
            step = functools.partial(model.step, batch, column)
            found = step()
            if name != "none":
                differs[name], is_equal = compare(found, exact)
                if not is_equal:
                    unequal.append(name)
            steps[name] = capture(step, stream) if stream else step
    assert not {"tutti", "fused"} & set(unequal), f"batch {batch}: the results of the ranks by Tutti differ"
    assert all(difference < 0.25 for difference in differs.values()), f"batch {batch}: wrong sums: {differs}"
    times = {name: [] for name in columns}
    for i in range(given.rounds + 1):
        for name, step in steps.items():
            took = turn(step, given.steps, stream)
            if i:  # the first turn warms up
                times[name].append(took)
    medians = {name: round(statistics.median(values), 4) for name, values in times.items()}
    return {"batch": batch, **medians, "differs": differs, "ranks_unequal": unequal}


def show(row, columns):
    cells = "".join(f"{row[name]:>10.3f}" for name in columns)
    apart = ", ".join(f"{name} {value:g}" for name, value in row["differs"].items())
    unequal = f"; not the same on all ranks: {', '.join(row['ranks_unequal'])}" if row["ranks_unequal"] else ""
    print(f"{row['batch']:>6}{cells}   {apart}{unequal}", flush=True)


def machine(device, ranks):
    if device.type == "cuda":
        return f"{ranks} {torch.cuda.get_device_name(device)}"
    return f"{ranks} ranks on {os.cpu_count()} CPU cores"


def main(given):
    rank, ranks, is_cuda = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), given.device == "cuda"
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank))) if is_cuda else torch.device("cpu")
    if is_cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, os.cpu_count() // ranks))
    dist.init_process_group("cpu:gloo,cuda:nccl" if is_cuda and dist.is_nccl_available() else "gloo")
    model = Model(given, device, rank, ranks)
    stream = torch.cuda.Stream() if is_cuda else None
    if stream:
        stream.wait_stream(torch.cuda.current_stream())
    with torch.inference_mode(), torch.cuda.stream(stream):
        made = {name: column_of(name, model, given) for name in given.comm}
    columns = {name: column for name, column in made.items() if column}
    about = {"machine": machine(device, ranks), "commit": given.commit,
             "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "torch": torch.__version__,
             "nccl": ".".join(map(str, torch.cuda.nccl.version())) if "nccl" in columns else None,
             "layers": given.layers, "hidden": given.hidden, "context": given.context, "unit": "ms a step, median"}
    if rank == 0:
        print(", ".join(f"{key} {value}" for key, value in about.items() if value))
        print(f" batch{''.join(f'{name:>10}' for name in columns)}   difference from exact sums", flush=True)
    rows = []
    with torch.inference_mode():
        for batch in given.batch:
            rows.append(measure(batch, model, columns, given, stream))
            if rank == 0:
                show(rows[-1], columns)
    if rank == 0 and given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump({**about, "rows": rows}, file, indent=1)
            file.write("\n")
    gathered(torch.zeros(1))
    if any(isinstance(column, Symmetric) for column in columns.values()):  # PyTorch has crashed at exit then
        sys.stdout.flush()
        os._exit(0)
    dist.destroy_process_group()


def spawned(rank, given, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(given.ranks), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port))
    main(given)


if __name__ == "__main__":
    options = arguments()
    if options.ranks:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        torch.multiprocessing.spawn(spawned, (options, port), nprocs=options.ranks)
    else:
        main(options)
