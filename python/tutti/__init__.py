# SPDX-License-Identifier: MIT
"""Collective operations between the ranks of one node through symmetric memory.

    import numpy, tutti

    with tutti.Communicator.from_env() as comm:    # tutti run -n 2 python program.py
        print(comm.all_reduce(numpy.ones(4)))      # [2. 2. 2. 2.]

tutti._lib and tutti._ffi are the C interface by cffi: tutti._lib.tutti_all_reduce(...), tutti._ffi.new(...).
"""

from tutti._buffers import DeviceMemory
from tutti._comm import Communicator, Shrunk, unique_id
from tutti._dtypes import AVG, BAND, BOR, BXOR, MAX, MIN, PROD, SUM, Op, premul_sum
from tutti._errors import (
    AbortedError, ConcurrentError, CudaError, DeclinedError, Error, InvalidError, MismatchError, NoMemoryError,
    PeerDeadError, SystemCallError, TimeoutError, VersionError)
from tutti._fabric import Fabric
from tutti._groups import group
from tutti._info import info, links, set_log
from tutti._options import CallOptions, CommunicatorOptions
from tutti._pg import ProcessGroup, SparseTensor, SubmitOptions, Work, wait_all, wait_any
from tutti._store import Launcher, Store, launcher
from tutti._symm import SymmetricGroup, SymmetricMemory
from tutti._tutti import ffi as _ffi
from tutti._tutti import lib as _lib

__version__: str = _ffi.string(_lib.tutti_version_string()).decode()
__all__ = [
    "AVG", "BAND", "BOR", "BXOR", "MAX", "MIN", "PROD", "SUM", "Op", "premul_sum",
    "AbortedError", "ConcurrentError", "CudaError", "DeclinedError", "Error", "InvalidError", "MismatchError",
    "NoMemoryError", "PeerDeadError", "SystemCallError", "TimeoutError", "VersionError",
    "CallOptions", "Communicator", "CommunicatorOptions", "Shrunk", "group", "unique_id",
    "Fabric",
    "ProcessGroup", "SparseTensor", "SubmitOptions", "Work", "wait_all", "wait_any",
    "DeviceMemory", "SymmetricGroup", "SymmetricMemory",
    "Launcher", "Store", "info", "launcher", "links", "set_log",
]
