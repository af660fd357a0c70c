# SPDX-License-Identifier: MIT
"""Information about the library and the machine, and the log."""

from __future__ import annotations

import atexit
from typing import Any, Callable, Sequence, overload

from tutti._errors import c_text, check, text
from tutti._tutti import ffi, lib

_LEVELS = {lib.TUTTI_LOG_WARN: "WARN", lib.TUTTI_LOG_INFO: "INFO", lib.TUTTI_LOG_TRACE: "TRACE"}
_log: Callable[[str, str], object] | None = None


KEYS = "enabled", "isa", "symm.backend", "cuda.device", "cuda.multicast", "calls"


@overload
def info(key: str) -> str: ...
@overload
def info(key: None = None) -> dict[str, str]: ...


def info(key: str | None = None) -> str | dict[str, str]:
    """The value of a key: enabled, isa, symm.backend, cuda.device, cuda.multicast, calls; tutti_info() describes them. All
    values by their keys without one."""
    if key is None:
        return {each: info(each) for each in KEYS}
    value = ffi.new("char[64]")
    check(lib.tutti_info(c_text(key), value, 64))
    return text(value)


def links(bus_ids: Sequence[str]) -> list[list[int]]:
    """The number of NVLinks from each device to each, by PCI bus ids. Raises DeclinedError without NVML."""
    count = len(bus_ids)
    names, found = [ffi.new("char[]", c_text(name)) for name in bus_ids], ffi.new("int[]", count * count)
    check(lib.tutti_info_links(ffi.new("char *[]", names), count, found))
    return [list(found[row * count:(row + 1) * count]) for row in range(count)]


def set_log(function: Callable[[str, str], object] | None) -> None:
    """Sends the library's log to function(level, line) instead of stderr; None restores stderr. Any thread may call the
    function, one at a time. It must not use this package. TUTTI_DEBUG sets the level: WARN unless set."""
    global _log
    if function is None:
        lib.tutti_log_set(ffi.NULL, ffi.NULL)
    _log = function
    if function is not None:
        lib.tutti_log_set(lib.tutti_python_log, ffi.NULL)


@ffi.def_extern(name="tutti_python_log")  # type: ignore[untyped-decorator]
def _write(_context: Any, level: int, line: Any) -> None:
    if _log is not None:
        _log(_LEVELS.get(level, ""), text(line))


@atexit.register
def _restore_log() -> None:
    set_log(None)
