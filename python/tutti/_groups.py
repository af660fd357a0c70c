# SPDX-License-Identifier: MIT
"""Groups of calls."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any, Iterator

from tutti._errors import Error, check, make_error
from tutti._tutti import ffi, lib


class _Group(threading.local):
    """What the calls of a thread's group use until the group ends."""

    depth = 0

    def __init__(self) -> None:
        self.kept: list[tuple[Any, ...]] = []


_group = _Group()
_open_groups: list[None] = []  # an entry for each open group of any thread; empty: calls check nothing else


def _end_group() -> None:
    status = lib.tutti_group_end()
    _open_groups.pop()
    _group.depth -= 1
    if _group.depth:
        return
    kept, _group.kept = _group.kept, []
    if status:
        for comm in {call[0] for call in kept}:
            if comm._interrupt.exception or comm._handle and lib.tutti_comm_status(comm._handle, ffi.NULL) == status:
                comm._raise(status)
        raise make_error(status)


@contextmanager
def group() -> Iterator[None]:
    """A group of calls, which run at the same time when the block ends: `with tutti.group(): comm.send(...); comm.recv(...)`.

    So a rank may send to and receive from any number of peers without deadlock, and one thread may call several CPU
    communicators. The results are ready after the block, and the arrays of different calls must not overlap. Groups
    nest: the last end runs the calls. If the block raises an exception, no call runs.
    """
    check(lib.tutti_group_start())
    _open_groups.append(None)
    _group.depth += 1
    try:
        yield
    except BaseException:
        # A call that is refused cancels the others.
        lib.tutti_all_reduce(ffi.NULL, ffi.NULL, 0, lib.TUTTI_FLOAT32, lib.TUTTI_SUM, ffi.NULL, ffi.NULL)
        try:
            _end_group()
        except Error:
            pass
        raise
    _end_group()
