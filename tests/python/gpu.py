#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the Python package and its backend of torch.distributed on GPUs. Prints a line for each case.

usage: gpu.py [--wheels FOLDER] [--device cuda|cpu] [--backend NAME] [--seconds N] [--json FILE] [TEXT]...

--wheels   unpacks the wheels of this folder in front of PYTHONPATH: tutti's, and those of cffi and pytest
--device   cpu: the cases on CPU tensors, to test this program; those that need CUDA are skipped
--backend  of the group in cases that test no other: tutti. `tutti nccl -- gpu.py --backend nccl TEXT...` tests Tutti's
           libnccl.so.2 under PyTorch; cases that expect an exception of tutti's fail then
--seconds  limit of the run: 400. A case that is not reached in time counts as failed
--json     the benchmark's results
TEXT       only cases whose names contain a TEXT

Each case runs in a process group of its own, one process for each rank. Two ranks use two GPUs, or share one. The exit status is 1
if a case failed.
"""

import argparse
import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def unpack(wheels):
    """Starts this program again with the wheels on PYTHONPATH."""
    import zipfile

    folder = tempfile.mkdtemp(prefix="tutti-gpu-")
    for wheel in sorted(Path(wheels).glob("*.whl")):
        with zipfile.ZipFile(wheel) as file:
            file.extractall(folder)
    for file in Path(folder, "tutti").iterdir():
        if file.suffix == "":
            file.chmod(0o755)  # the program
    found = os.environ.get("PYTHONPATH")
    os.environ.update(PYTHONPATH=folder + (f":{found}" if found else ""), TUTTI_GPU_UNPACKED=folder)
    status = subprocess.run([sys.executable, *sys.argv]).returncode
    import shutil

    shutil.rmtree(folder)
    sys.exit(status)


def inventory(device):
    """The number of GPUs. Prints what this machine has and lacks."""
    program = """import torch
print(torch.cuda.device_count())
if torch.cuda.is_available(): print(torch.cuda.get_device_name(0), "CUDA", torch.version.cuda, "NCCL", torch.cuda.nccl.version())"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    lines = said.stdout.splitlines() or ["0", said.stderr.strip()[-300:]]
    print(f"GPUs: {' x '.join(lines)}")
    for name in "tutti", "cffi", "numpy", "torch", "pytest", "cupy", "jax":
        if importlib.util.find_spec(name) is None:
            print(f"{name}: missing")
        elif name in ("tutti", "torch"):
            module = importlib.import_module(name)
            print(f"{name}: {getattr(module, '__version__', '')} {module.__file__}")
    sys.stdout.flush()
    return int(lines[0]) if device == "cuda" else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--backend", default="tutti")
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--json")
    parser.add_argument("texts", nargs="*")
    given = parser.parse_args()
    begin = time.monotonic()
    if given.wheels and "TUTTI_GPU_UNPACKED" not in os.environ:
        unpack(given.wheels)
    del sys.path[0]  # this folder, whose torch/ is not PyTorch
    os.environ.update(OMP_NUM_THREADS="1", CUBLAS_WORKSPACE_CONFIG=":4096:8", PYTHONWARNINGS="ignore")
    gpus = inventory(given.device)
    if given.device == "cuda" and gpus == 0:
        print("skipped: no GPU")
        sys.exit(77)
    if importlib.util.find_spec("tutti") is None or importlib.util.find_spec("torch") is None:
        print("skipped: needs tutti and torch")
        sys.exit(77)
    sys.path.insert(0, str(HERE / "gpu"))
    import cases
    import runner

    sys.exit(runner.run_all(cases.CASES, given, gpus, begin + given.seconds))


if __name__ == "__main__":
    main()
