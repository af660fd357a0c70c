# SPDX-License-Identifier: MIT
"""PyTorch's own tests of torch.distributed on CPU, with a backend: those that Gloo passes, and those of all-to-all.

usage: distributed.py BACKEND RANKS [ARGUMENT OF UNITTEST]...
"""

import multiprocessing
import os
import sys
import tempfile
import unittest
from datetime import timedelta

try:
    import torch.distributed as dist
except ImportError as error:
    print("skipped:", error)
    sys.exit(77)
backend, ranks = sys.argv[1:3]
if not dist.is_backend_available(backend):
    print(f"skipped: PyTorch does not find the backend {backend}")
    sys.exit(77)
# The tests' decorators read BACKEND when the module is imported, and skip what Gloo alone is known to have.
os.environ.update(BACKEND="gloo", WORLD_SIZE=ranks, TEMP_DIR=tempfile.mkdtemp(), CUDA_VISIBLE_DEVICES="",
                  OMP_NUM_THREADS="1")

try:
    from torch.testing._internal.distributed import distributed_test
except ImportError as error:
    print("skipped:", error)
    sys.exit(77)

if int(ranks) > 2:
    os.environ["BACKEND"] = "mpi"  # or the tests of subgroups are skipped, for which three ranks are enough


class Name(str):
    """The backend's name, which the tests take for Gloo's where they compare it."""

    def __eq__(self, other):
        return other == "gloo" or str(self) == other

    def __ne__(self, other):
        return not self == other

    __hash__ = str.__hash__


distributed_test.BACKEND = Name(backend)
# Whose profiler events the tests check.
for listed in (distributed_test.PROFILING_SUPPORTED_BACKENDS, distributed_test.CUDA_PROFILING_SUPPORTED_BACKENDS,
               distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
    listed.append(backend)


class Test(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(multiprocessing.get_context("fork").Process)  # spawned ones would import PyTorch again


# PyTorch tests all-to-all of CPU tensors with MPI alone. Gloo fails the tests of lists.
for name in dir(Test):
    if name.startswith("test_all_to_all") and "cuda" not in name:
        getattr(Test, name).__unittest_skip__ = False

if backend != "gloo":
    def monitored_barrier(group=dist.group.WORLD, timeout=None, wait_all_ranks=False):
        """As dist.monitored_barrier(), which refuses a group whose backend is not named gloo."""
        if dist.get_rank(group) >= 0:
            timeout = timedelta(seconds=timeout) if isinstance(timeout, float) else timeout
            (group or dist.group.WORLD).monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    dist.monitored_barrier = monitored_barrier

if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
