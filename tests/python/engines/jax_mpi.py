# SPDX-License-Identifier: MIT
"""examples/python/jax_mpi.py by MPICH: the collectives of JAX on CPUs are right, and Tutti serves them.

Needs the packages of JAX in this Python, mpirun.mpich, and MPITRAMPOLINE_LIB: an MPIwrapper for that MPI, linked with
libtutti-mpi.so first (the example says how)."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/python/jax_mpi.py"

try:
    import jax  # noqa: F401
except ImportError:
    print("skipped: no JAX")
    sys.exit(77)
if "MPITRAMPOLINE_LIB" not in os.environ or not shutil.which("mpirun.mpich"):
    print("skipped: no mpirun.mpich, or MPITRAMPOLINE_LIB is not set")
    sys.exit(77)


def run(**variables):
    done = subprocess.run(["mpirun.mpich", "-n", "2", sys.executable, EXAMPLE], env={**os.environ, **variables}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=200)
    assert len(re.findall("^(?:psum|all_gather|psum_scatter) of ", done.stdout, re.M)) == 3, done.stdout
    return done


done = run()
assert done.returncode == 0, done.stdout
report = run(TUTTI_MPI_REPORT="1").stdout
for name in "MPI_Allreduce", "MPI_Allgather", "MPI_Reduce_scatter":
    assert len(re.findall(rf"^{name} +tutti +5[01] ", report, re.M)) == 2, report
