# SPDX-License-Identifier: MIT
"""dtypes, operations and algorithms by their names."""

from __future__ import annotations

from typing import Any

import numpy as np

from tutti._errors import InvalidError, check, text
from tutti._tutti import ffi, lib


# Value of enum tutti_dtype by name, and their sizes in bytes.
DTYPES = {text(lib.tutti_dtype_name(value)): value for value in range(lib.TUTTI_DTYPE_COUNT)}
SIZES = [lib.tutti_dtype_size(value) for value in range(lib.TUTTI_DTYPE_COUNT)]
QUANTS = {text(lib.tutti_quant_name(value)): value for value in range(lib.TUTTI_QUANT_INT8_TOKEN + 1)}
# The names of ml_dtypes. Its float8_e4m3 and the library's are different formats.
_EXTENDED = {"bfloat16": "bfloat16", "float8_e4m3": "float8_e4m3fn", "float8_e5m2": "float8_e5m2"}
_VALUES = {_EXTENDED.get(name, name): value for name, value in DTYPES.items()}
BY_NUMPY: dict[np.dtype[Any], int] = {}  # a cache


def is_known(dtype: np.dtype[Any]) -> bool:
    """Whether a numpy dtype, or one of ml_dtypes, is one of the library's."""
    return dtype.name in _VALUES and dtype.isnative


def dtype_value(dtype: np.dtype[Any]) -> int:
    """The value of enum tutti_dtype for a numpy dtype, also one of ml_dtypes."""
    value = _VALUES.get(dtype.name)
    if value is None or not dtype.isnative:
        raise InvalidError(f"dtype {dtype!r} is none of the library's: {', '.join(_VALUES)}, in native byte order")
    BY_NUMPY[dtype] = value
    return value


def numpy_dtype(value: int, extended: bool = True) -> np.dtype[Any]:
    """The numpy dtype for a value of enum tutti_dtype: of ml_dtypes if numpy lacks it; without ml_dtypes, or if not
    `extended`, an unsigned integer of its size."""
    name = next(name for name, found in DTYPES.items() if found == value)
    dtype: np.dtype[Any] = np.dtype(f"u{SIZES[value]}")
    if name not in _EXTENDED:
        dtype = np.dtype(name)
    elif extended:
        try:
            import ml_dtypes

            dtype = np.dtype(getattr(ml_dtypes, _EXTENDED[name]))
        except ImportError:
            pass
    return dtype


def named_dtype(dtype: Any) -> int:
    """The value of enum tutti_dtype for a name ("bfloat16") or for what numpy takes as a dtype."""
    value = DTYPES.get(dtype) if isinstance(dtype, str) else None
    return dtype_value(np.dtype(dtype)) if value is None else value


class Op:
    """A reduction. tutti.premul_sum() makes one; the others are the constants SUM, PROD, MIN, MAX, AVG, BAND, BOR, BXOR.

    An argument that is an operation may also be its name ("sum", "max", ...).
    """

    __slots__ = ("handle", "name", "_scalar")

    def __init__(self, handle: Any, name: str, scalar: float | None = None) -> None:
        self.handle, self.name, self._scalar = handle, name, scalar

    def __del__(self) -> None:
        if self._scalar is not None:
            lib.tutti_op_destroy(self.handle)

    def __reduce__(self) -> Any:
        """A copy is another operation, with its own handle."""
        return self.name.upper() if self._scalar is None else (premul_sum, (self._scalar,))

    def __repr__(self) -> str:
        return f"<tutti.Op {self.name}>"


SUM = Op(lib.TUTTI_SUM, "sum")
PROD = Op(lib.TUTTI_PROD, "prod")
MIN = Op(lib.TUTTI_MIN, "min")
MAX = Op(lib.TUTTI_MAX, "max")
AVG = Op(lib.TUTTI_AVG, "avg")
BAND = Op(lib.TUTTI_BAND, "band")
BOR = Op(lib.TUTTI_BOR, "bor")
BXOR = Op(lib.TUTTI_BXOR, "bxor")
HANDLES: dict[str | Op, Any] = {}
for _op in (SUM, PROD, MIN, MAX, AVG, BAND, BOR, BXOR):
    HANDLES[_op] = HANDLES[_op.name] = _op.handle


def op_handle(op: str | Op) -> Any:
    """The tutti_op_t of an operation or of its name."""
    handle = HANDLES.get(op)
    if handle is None:
        if not isinstance(op, Op):
            raise InvalidError(f"no operation {op!r}: the names are sum, prod, min, max, avg, band, bor, bxor")
        handle = op.handle
    return handle


def premul_sum(scalar: float) -> Op:
    """The operation that multiplies each input by `scalar`, equal on all ranks, and sums.

    For all dtypes except bool; integers take a whole number.
    """
    handle = ffi.new("tutti_op_t *")
    check(lib.tutti_op_create_premul_sum(scalar, handle))
    return Op(handle[0], f"premul_sum({scalar!r})", scalar)


ALGORITHMS: dict[str | None, int] = {None: lib.TUTTI_ALGO_NONE}
for _value in range(lib.TUTTI_ALGO_HOST_STAGED + 1):
    if (_name := text(lib.tutti_algo_name(_value))) != "unknown":
        ALGORITHMS[_name] = _value


def algorithm_value(name: str | None) -> int:
    """The value of enum tutti_algo; None and "none" leave the choice to the library."""
    value = ALGORITHMS.get(name)
    if value is None:
        raise InvalidError(f"no algorithm {name!r}: the names are {', '.join(filter(None, ALGORITHMS))}")
    return value
