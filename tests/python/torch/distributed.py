# SPDX-License-Identifier: MIT
"""PyTorch's own tests of torch.distributed on CPU, with a backend: those that Gloo passes.

usage: distributed.py BACKEND RANKS [ARGUMENT OF UNITTEST]...
"""

import multiprocessing
import os
import sys
import tempfile
import unittest

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


class Name(str):
    """The backend's name, which the tests take for Gloo's where they compare it."""

    def __eq__(self, other):
        return other == "gloo" or str(self) == other

    def __ne__(self, other):
        return not self == other

    __hash__ = str.__hash__


distributed_test.BACKEND = Name(backend)


class Test(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(multiprocessing.get_context("fork").Process)  # spawned ones would import PyTorch again


# dist.monitored_barrier() refuses every backend that is not named gloo.
for name in [name for name in dir(Test) if "monitored_barrier" in name and backend != "gloo"]:
    setattr(Test, name, unittest.skip("for Gloo by name")(getattr(Test, name)))

if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
