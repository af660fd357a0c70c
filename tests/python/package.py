# SPDX-License-Identifier: MIT
"""Runs the tests of the package tutti, in package/, with the package that Python finds.

usage: package.py [ARGUMENT OF PYTEST]...
"""

import os
import sys
import tempfile

del sys.path[0]  # this folder, whose torch/ is not PyTorch
try:
    import pytest

    import tutti
except ImportError as error:
    print("skipped:", error)
    sys.exit(77)

print("testing", os.path.dirname(tutti.__file__))
folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "package")
with tempfile.TemporaryDirectory(prefix="tutti-python-") as own:
    os.environ["TMPDIR"] = tempfile.tempdir = own  # nothing stays behind
    status = pytest.main(["-q", "-p", "no:cacheprovider", *(sys.argv[1:] or [folder])])
sys.exit(status)
