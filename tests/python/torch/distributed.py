# SPDX-License-Identifier: MIT
"""PyTorch's own tests of torch.distributed on CPU, with a backend.

usage: distributed.py BACKEND RANKS [ARGUMENT OF UNITTEST]...
"""

import multiprocessing
import os
import sys
import tempfile
import unittest

backend, ranks = sys.argv[1:3]
os.environ.update(BACKEND=backend, WORLD_SIZE=ranks, TEMP_DIR=tempfile.mkdtemp(), CUDA_VISIBLE_DEVICES="",
                  OMP_NUM_THREADS="1")

from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402

for feature in "gpu", "cuda", "ddp", "subgroup", "plugin":
    DistTestCases.backend_feature[feature].add(backend)

from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend  # noqa: E402


class Test(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(multiprocessing.get_context("fork").Process)  # spawned ones would import PyTorch again


del TestDistBackend
if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
