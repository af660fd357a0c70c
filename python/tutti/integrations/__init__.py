# SPDX-License-Identifier: MIT
"""Plug-ins of inference engines, one file each. The engines find them by the entry points of this package (_tutti_engines)."""
