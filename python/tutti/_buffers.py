# SPDX-License-Identifier: MIT
"""Operands: numpy arrays, objects with __dlpack__, and other objects with a buffer."""

from __future__ import annotations

from typing import Any, Tuple

import numpy as np

from tutti._dtypes import DTYPES, dtype_value
from tutti._errors import InvalidError
from tutti._tutti import ffi

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # of DLPack
_BYTES = ffi.typeof("char[]")
_from_buffer = ffi.from_buffer
_READ_ONLY = 1


# Address, value of enum tutti_dtype, number of elements, and an object whose life keeps the memory.
Operand = Tuple[Any, int, int, Any]


def operand(array: Any, writable: bool, stream: int = 0) -> Operand:
    """The memory of an array, which is C-contiguous. stream: where it is used, if it is memory of a device."""
    if isinstance(array, np.ndarray):
        try:
            address = _from_buffer(_BYTES, array, writable)
        except (ValueError, BufferError) as error:
            raise InvalidError(f"an array of shape {array.shape}: {error}") from None
        return address, dtype_value(array.dtype), array.size, address
    if hasattr(array, "__dlpack__"):
        return _from_dlpack(array, writable, stream)
    try:
        view = memoryview(array)
    except TypeError:
        raise InvalidError(f"{type(array).__name__} is no array: it has neither __dlpack__ nor a buffer") from None
    return operand(np.asarray(view), writable)


def stream_value(stream: Any) -> int:
    """A CUDA stream as an integer: an address, or a stream of PyTorch, CuPy, Numba or cuda.core; None is the default."""
    if stream is None:
        return 0
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        found = stream.__cuda_stream__
        return int((found() if callable(found) else found)[1])
    for name in ("cuda_stream", "ptr", "handle"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    raise InvalidError(f"{type(stream).__name__} is no CUDA stream")


# By the code and the bits of a DLDataType.
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 10: "float8_e4m3", 12: "float8_e5m2"}


def _dlpack_dtype(dtype: Any) -> int:
    kind = _KINDS.get(dtype.code, "")
    name = "bool" if dtype.code == 6 else kind if "_" in kind else f"{kind}{dtype.bits}"
    value = DTYPES.get(name)
    if value is None or dtype.lanes != 1:
        raise InvalidError(f"DLPack's dtype {dtype.code} of {dtype.bits} bits x {dtype.lanes} is none of the library's")
    return value


def _capsule(array: Any, stream: int) -> tuple[Any, bool]:
    """The array's DLPack capsule, and whether it has a version. The producer makes `stream` wait for the array."""
    options = {}
    if array.__dlpack_device__()[0] in (CUDA, CUDA_MANAGED):
        options["stream"] = stream or 1  # 1 is the legacy default stream
    try:
        capsule = array.__dlpack__(max_version=(1, 0), **options)
    except TypeError:  # from a producer before DLPack 1.0
        capsule = array.__dlpack__(**options)
    return capsule, '"dltensor_versioned"' in repr(capsule)


def _from_dlpack(array: Any, writable: bool, stream: int) -> Operand:
    import ctypes

    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule, versioned = _capsule(array, stream)
    address = get(capsule, b"dltensor_versioned" if versioned else b"dltensor")
    managed = ffi.cast("struct dl_managed_versioned *" if versioned else "struct dl_managed *", address)
    if versioned and writable and managed.flags & _READ_ONLY:
        raise InvalidError(f"{type(array).__name__} is read-only")
    tensor = managed.tensor
    count = 1
    for i in reversed(range(tensor.dims)):
        if tensor.strides and tensor.shape[i] > 1 and tensor.strides[i] != count:
            raise InvalidError(f"an array of shape {tuple(tensor.shape[0:tensor.dims])} is not C-contiguous")
        count *= tensor.shape[i]
    address = ffi.cast("char *", tensor.data) + tensor.byte_offset
    return address, _dlpack_dtype(tensor.dtype), count, (capsule, array)
