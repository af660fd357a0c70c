# SPDX-License-Identifier: MIT
"""The cases of ../gpu.py, in the order in which they run."""

from case import CASES

import clients  # adds its cases
import collectives
import engines
import programs

__all__ = ["CASES", "clients", "collectives", "engines", "programs"]
