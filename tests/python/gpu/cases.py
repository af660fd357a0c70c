# SPDX-License-Identifier: MIT
"""The cases of ../gpu.py, in the order in which they run."""

from case import CASES

import collectives  # adds its cases
import engines
import programs

__all__ = ["CASES", "collectives", "engines", "programs"]
