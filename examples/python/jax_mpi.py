# SPDX-License-Identifier: MIT
"""JAX on CPUs: the processes of one host sum, gather and scatter by MPI, whose collectives Tutti serves.

JAX reaches an MPI by a wrapper of its own, which is compiled once (https://github.com/eschnett/MPIwrapper). The wrapper asks
the libraries that it was linked with before a preloaded one. So it is linked with Tutti's library first:

    library=$(tutti mpi --path)
    cmake -S MPIwrapper -B wrapper -DCMAKE_MODULE_LINKER_FLAGS="-Wl,--no-as-needed $library"
    cmake --build wrapper
    export MPITRAMPOLINE_LIB=$PWD/wrapper/libmpiwrapper.so
    mpirun -n 2 python3 jax_mpi.py [NUMBER OF ELEMENTS]
"""

import atexit
import os
import sys
import time

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

RANK = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
SIZE = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
PORT = int(os.environ.get("JAX_PORT", "34567"))
ROUNDS = 50


def of_launcher(names):
    found = [int(os.environ[name]) for name in names if name in os.environ]
    if not found:
        sys.exit("jax_mpi.py: start it by mpirun or mpiexec")
    return found[0]



def leave():
    """XLA frees its communicators behind MPI_Finalize(), for which an MPI ends the process with status 1. So the process ends
    here, unless a report is wanted, which is written later."""
    if "TUTTI_MPI_REPORT" not in os.environ:
        os._exit(0)


atexit.register(leave)  # what is registered first is called last
rank, size = of_launcher(RANK), of_launcher(SIZE)
count = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 16
count = count // size * size
jax.config.update("jax_cpu_collectives_implementation", "mpi")
jax.config.update("jax_cpu_enable_async_dispatch", False)  # MPI's calls come from the thread that has initialised it
jax.distributed.initialize(f"127.0.0.1:{PORT}", size, rank)
mesh = Mesh(np.array(jax.devices()), ("rank",))
by_rank = PartitionSpec("rank")


def on_ranks(function, out):
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=by_rank, out_specs=out, check_vma=False))


values = [np.arange(count, dtype=np.float32) % 64 + r for r in range(size)]
total = sum(values)
x = jax.make_array_from_process_local_data(NamedSharding(mesh, by_rank), values[rank])
steps = {
    "psum": (on_ranks(lambda block: jax.lax.psum(block, "rank"), PartitionSpec()), total),
    "all_gather": (on_ranks(lambda block: jax.lax.all_gather(block, "rank", tiled=True), PartitionSpec()),
                   np.concatenate(values)),
    "psum_scatter": (on_ranks(lambda block: jax.lax.psum_scatter(block, "rank", tiled=True), by_rank),
                     np.split(total, size)[rank]),
}
for name, (step, expected) in steps.items():
    y = step(x)
    np.testing.assert_array_equal(np.asarray(y.addressable_shards[0].data), expected)
    start = time.perf_counter()
    for _ in range(ROUNDS):
        step(x).block_until_ready()
    if rank == 0:
        print(f"{name} of {x.dtype}, {count * 4} bytes a rank: {(time.perf_counter() - start) / ROUNDS * 1e6:.1f} us", flush=True)
