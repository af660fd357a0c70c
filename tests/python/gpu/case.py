# SPDX-License-Identifier: MIT
"""What a case of ../gpu.py is. Each function runs in the processes of all its ranks."""

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Callable

CASES = []
COUNTS = 5, 300_001


@dataclass
class Case:
    function: Callable
    name: str
    seconds: float
    ranks: int
    gpus: int
    needs_cuda: bool


def case(seconds=30, ranks=2, gpus=1, needs_cuda=False):
    def add(function):
        CASES.append(Case(function, function.__name__, seconds, ranks, gpus, needs_cuda))
        return function

    return add


@contextmanager
def raises(kind, pattern=""):
    try:
        yield
    except kind as error:
        assert re.search(pattern, str(error)), f"{error!r} does not say {pattern!r}"
    else:
        raise AssertionError(f"no {kind.__name__}")
