# SPDX-License-Identifier: MIT
"""Options of communicators and of their calls, and what they are for the library."""

from __future__ import annotations

import threading
from typing import Any, Sequence, TypedDict

from tutti._dtypes import algorithm_value
from tutti._errors import InvalidError, Timeout, c_text, check, milliseconds
from tutti._fabric import Fabric
from tutti._signals import Interrupt
from tutti._tutti import ffi, lib

_MOST_RANKS = 256  # of several hosts

DEVICES = {"cpu": lib.TUTTI_DEVICE_CPU, "cuda": lib.TUTTI_DEVICE_CUDA}


class CommunicatorOptions(TypedDict, total=False):
    """Options of a communicator; struct tutti_comm_options describes them. An absent one has the library's default."""

    name: str
    """Only ranks with the same name meet."""
    device: str
    """"cpu" or "cuda"."""
    timeout: Timeout
    """Seconds, for the meeting and for each operation."""
    buffer_size: int
    strict: bool
    algorithm: str | None
    leaf_order: Sequence[int]
    programmatic_launch: bool
    arena_bytes: int
    direct: bool
    """Whether the kernel copies long blocks between the memories of the ranks' processes, on CPU; absent: where that is quicker."""
    max_blocks: int
    """The most blocks of each CUDA kernel, and so the most multiprocessors that run it."""
    threads: int
    """Of a CPU rank: so many threads of the OpenMP library in this process (PyTorch's, if it is loaded) share the work of a
    long operation. The same bits for every number, which may differ between ranks. 1: the calling thread alone."""
    fabric: Fabric | None
    """An engine between hosts, for CPU ranks that run on several. Then the store outlives the communicator."""


class CallOptions(TypedDict, total=False):
    """Options of a collective.

    timeout    seconds from the operation's first wait; None: the communicator's
    algorithm  of an all-reduce, equal on all ranks: "one_shot", "two_shot", ...; None: the communicator's choice
    zero_copy  False: copy, even if the operands are symmetric memory
    symmetric  True, on all ranks of a CUDA communicator: a kernel writes the blocks of all_gather, all_to_all, broadcast,
               gather or scatter straight into the peers' recv. recv is then symmetric memory at the same offset on all
               ranks, in a gather too
    copy_engine True: the same by copy engines
    max_blocks of a CUDA communicator: the most blocks of the kernel, within the communicator's limit; 0: that one
    max_count  of all_to_all_v, all_gather_v and reduce_scatter_v, equal on all ranks: the most elements of a block. Then
               counts and displacements are arrays, all of int32 or all of 64-bit integers, on CUDA in memory of the
               device, which the kernel reads when it runs, in a graph at each replay (TUTTI_CALL_DEVICE_COUNTS). No block
               ends behind its array
    stream     of a CUDA communicator: an address, or a stream of PyTorch, CuPy, Numba or cuda.core. The call returns after
               the operation is enqueued. None: the legacy default stream
    """

    timeout: Timeout
    algorithm: str | None
    zero_copy: bool
    symmetric: bool
    copy_engine: bool
    max_blocks: int
    max_count: int
    stream: Any


def comm_options(given: CommunicatorOptions, world_size: int | None) -> tuple[Any, Interrupt, list[Any]]:
    """A struct tutti_comm_options *, the place for exceptions of signal handlers, and what must live with it."""
    options = ffi.new("struct tutti_comm_options *", {"struct_size": ffi.sizeof("struct tutti_comm_options")})
    kept: list[Any] = []
    unknown = given.keys() - CommunicatorOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
    if "name" in given:
        kept.append(ffi.new("char[]", c_text(given["name"])))
        options.name = kept[-1]
    device = given.get("device", "cpu")
    if device not in DEVICES:
        raise InvalidError(f"no device {device!r}: cpu or cuda")
    options.device = DEVICES[device]
    options.timeout_ms = milliseconds(given.get("timeout"))
    options.buffer_size = given.get("buffer_size", 0)
    options.arena_bytes = given.get("arena_bytes", 0)
    options.max_blocks = given.get("max_blocks", 0)
    if given.get("threads", 1) != 1:
        parallel = ffi.new("tutti_parallel_t *")
        check(lib.tutti_parallel_find(parallel))
        options.parallel = parallel[0]
        options.threads = given["threads"]
    options.algo = algorithm_value(given.get("algorithm"))
    fabric = given.get("fabric")
    if fabric is not None:
        kept.append(fabric)
        options.fabric = fabric.handle
    if "strict" in given:
        options.strict = lib.TUTTI_STRICT_ON if given["strict"] else lib.TUTTI_STRICT_OFF
    if "programmatic_launch" in given:
        options.programmatic_launch = (
            lib.TUTTI_PROGRAMMATIC_ON if given["programmatic_launch"] else lib.TUTTI_PROGRAMMATIC_OFF)
    if "direct" in given:
        options.direct = lib.TUTTI_DIRECT_ON if given["direct"] else lib.TUTTI_DIRECT_OFF
    if "leaf_order" in given:
        order = list(given["leaf_order"])
        if world_size is not None and len(order) != world_size:
            raise InvalidError(f"leaf_order has {len(order)} ranks, the communicator {world_size}")
        # Where the size is not known yet, the library finds the -1.
        kept.append(ffi.new("int[]", order + [-1] * max(0, _MOST_RANKS - len(order))))
        options.leaf_order = kept[-1]
    interrupt = Interrupt()
    if options.device == lib.TUTTI_DEVICE_CPU:
        handle = ffi.new_handle(interrupt)
        progress = ffi.new("struct tutti_python_progress *", {
            "interrupt": handle, "thread": threading.main_thread().native_id or 0})
        kept += handle, progress
        options.progress = ffi.addressof(lib, "tutti_python_progress")
        options.progress_context = progress
    return options, interrupt, kept
