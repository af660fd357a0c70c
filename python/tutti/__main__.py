# SPDX-License-Identifier: MIT
"""`python -m tutti` is the program tutti: run, bench, info, mpi, nccl, dump, diagnose."""

import os
import sys
from pathlib import Path


def main() -> None:
    program = Path(__file__).parent / "tutti"
    if not program.exists():
        sys.exit("tutti: this package was built without the program tutti, which needs jansson and hwloc")
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
