# SPDX-License-Identifier: MIT
"""Runs each program of examples/python that PyTorch's launcher can start on 2 ranks, and the benchmark once."""

import os
import sys
from pathlib import Path

try:
    import torch.multiprocessing

    import tutti  # noqa: F401
except ImportError as error:
    print("skipped:", error)
    sys.exit(77)

import importlib.util
import runpy
import socket
import subprocess


BY_MPI = {"jax_mpi.py"}  # tests/python/engines/jax_mpi.py runs these
NEEDS = {"generate.py": ("transformers", "accelerate")}


def run(rank, path, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    runpy.run_path(str(path), run_name="__main__")


if __name__ == "__main__":
    os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    for path in sorted(Path(__file__).parents[3].glob("examples/python/*.py")):
        if path.name in BY_MPI:
            continue
        missing = [name for name in NEEDS.get(path.name, ()) if importlib.util.find_spec(name) is None]
        if missing:
            print(f"== {path.name}: skipped: needs {' and '.join(missing)}", flush=True)
            continue
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        print("==", path.name, flush=True)
        # Ranks that are forked need not import PyTorch again.
        torch.multiprocessing.start_processes(run, (path, port), nprocs=2, start_method="fork")
    print("== bench_torch", flush=True)
    subprocess.run([sys.executable, "-m", "tutti.bench_torch", "--rounds", "1"], check=True)
