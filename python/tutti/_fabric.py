# SPDX-License-Identifier: MIT
"""Fabrics: engines between hosts."""

from __future__ import annotations

from typing import Any

from tutti._errors import c_text, check
from tutti._handle import Handle
from tutti._tutti import ffi, lib


class Fabric(Handle):
    """An engine that moves bytes between hosts, for communicators whose ranks run on several: `Communicator.from_env(fabric=fabric)`.

    url  "mpi:" is the MPI that the process has loaded, as mpi4py does, else the launcher's; "mpi:PATH" names one.
         "nccl:" is NVIDIA's NCCL, for CUDA communicators. tutti_fabric_open() describes the URLs

    Any number of communicators may use a fabric; close it after them. Raises InvalidError, DeclinedError (no such engine,
    or one that cannot work here; the message says why), NoMemoryError, SystemCallError.
    """

    _title, _exit_order = "fabric", 3

    def __init__(self, url: str = "mpi:") -> None:
        fabric = ffi.new("tutti_fabric_t **")
        check(lib.tutti_fabric_open(c_text(url), fabric))
        self._open(fabric[0])

    def _destroy(self, handle: Any) -> None:
        lib.tutti_fabric_close(handle)
