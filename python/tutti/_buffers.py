# SPDX-License-Identifier: MIT
"""Operands: numpy arrays, objects with __dlpack__, and other objects with a buffer."""

from __future__ import annotations

import math
from typing import Any, Tuple

import numpy as np

from tutti._dtypes import BY_NUMPY, DTYPES, SIZES, dtype_value, is_known, numpy_dtype
from tutti._errors import InvalidError
from tutti._tutti import ffi, lib

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # of DLPack
_BYTES = ffi.typeof("char[]")
_from_buffer, _ndarray, _known = ffi.from_buffer, np.ndarray, BY_NUMPY.get
_TENSOR_SIZE = ffi.sizeof("struct tutti_tensor")
_READ_ONLY = 1
_IMMUTABLE = {"jax", "jaxlib", "tensorflow"}  # their DLPack capsules need not say that the arrays are read-only


Array = Any  # a numpy array, an object with __dlpack__, or one with a buffer
# Address, value of enum tutti_dtype, number of elements, and an object whose life keeps the memory.
Operand = Tuple[Any, int, int, Any]


def operand(array: Any, writable: bool, stream: int = 0) -> Operand:
    """The memory of an array, which is C-contiguous. stream: the stream that uses it, for device memory."""
    if isinstance(array, _ndarray):  # first, to make small sums fast
        try:
            address = _from_buffer(_BYTES, array, writable)
        except (ValueError, BufferError) as error:
            raise InvalidError(f"an array of shape {array.shape}: {error}") from None
        dtype = _known(array.dtype)
        return address, dtype_value(array.dtype) if dtype is None else dtype, array.size, address
    if not hasattr(array, "__dlpack__"):
        return operand(_viewed(array), writable)
    tensor, owner = _exported(array, writable, stream)
    return _address(tensor), _dlpack_dtype(tensor.dtype), check_row_major(tensor, tensor.shape), owner


_BYTE = DTYPES["uint8"]


def moved(array: Any, writable: bool, stream: int = 0) -> tuple[Any, int, int, Any, int]:
    """As operand(), for an operation that does not reduce. Elements of other dtypes than the library's are bytes to it: the
    last value is the number of bytes of such an element, else 1."""
    if not isinstance(array, _ndarray) and hasattr(array, "__dlpack__"):
        tensor, owner = _exported(array, writable, stream)
        dtype, width = _moved_dtype(tensor.dtype)
        return _address(tensor), dtype, check_row_major(tensor, tensor.shape) * width, owner, width
    array = array if isinstance(array, _ndarray) else _viewed(array)
    if array.dtype in BY_NUMPY or is_known(array.dtype):
        return *operand(array, writable), 1
    _check_movable(array.dtype)
    if not array.flags.c_contiguous:
        raise InvalidError(f"an array of shape {array.shape} is not C-contiguous")
    return *operand(array.reshape(-1).view(np.uint8), writable), array.itemsize


def _check_movable(dtype: np.dtype[Any]) -> None:
    if dtype.hasobject or not dtype.itemsize:
        raise InvalidError(f"dtype {dtype!r} has {'references to objects' if dtype.hasobject else 'no bytes'}: the methods for "
                           "objects, such as broadcast_object(), move any values")


def _moved_dtype(dtype: Any) -> tuple[int, int]:
    bits = dtype.bits * dtype.lanes
    if (dtype.code, dtype.bits) in _BY_DLPACK and dtype.lanes == 1 or bits % 8:
        return _dlpack_dtype(dtype), 1
    return _BYTE, bits // 8


def check_row_major(tensor: Any, sizes: Any) -> int:
    """The number of elements of a struct dl_tensor or tutti_tensor."""
    count = 1
    for i in reversed(range(tensor.dims)):
        if tensor.strides and sizes[i] > 1 and tensor.strides[i] != count:
            raise InvalidError(f"an array of shape {tuple(sizes[0:tensor.dims])} is not C-contiguous")
        count *= sizes[i]
    return count


def _viewed(array: Any) -> np.ndarray[Any, Any]:
    """An object with a buffer, such as a bytearray, as a numpy array."""
    try:
        return np.asarray(memoryview(array))
    except TypeError:
        raise InvalidError(f"{type(array).__name__} is no array: it has neither __dlpack__ nor a buffer") from None


def fill_tensor(tensor: Any, array: Any, writable: bool, stream: int = 0, moves: bool = False) -> Any:
    """Describes a dense array, its dimensions in any order, in a struct tutti_tensor. Returns an object whose life keeps the
    memory and the description. moves: for an operation that does not reduce, as for moved()."""
    tensor.struct_size = _TENSOR_SIZE
    if not isinstance(array, np.ndarray):
        if hasattr(array, "__dlpack__"):
            exported, owner = _exported(array, writable, stream)
            dtype, width = _moved_dtype(exported.dtype) if moves else (_dlpack_dtype(exported.dtype), 1)
            tensor.data, tensor.dtype = _address(exported), dtype
            tensor.dims, tensor.sizes, tensor.strides = exported.dims, exported.shape, exported.strides
            if width > 1:
                strides = exported.strides and exported.strides[0:exported.dims]
                owner = owner, _fill_bytes(tensor, exported.shape[0:exported.dims], strides, width)
            if exported.device_type in (CUDA, CUDA_MANAGED):
                tensor.device, tensor.device_index = lib.TUTTI_DEVICE_CUDA, exported.device_id
            return owner
        array = _viewed(array)
    if writable and not array.flags.writeable:
        raise InvalidError(f"an array of shape {array.shape} is read-only")
    as_bytes = moves and not is_known(array.dtype)
    if as_bytes:
        _check_movable(array.dtype)
    tensor.dtype = _BYTE if as_bytes else dtype_value(array.dtype)  # first: of others the size may be 0
    if any(stride % array.itemsize for stride in array.strides):
        raise InvalidError(f"an array of shape {array.shape} has strides that are no multiples of its elements")
    tensor.data = ffi.cast("void *", array.__array_interface__["data"][0])
    strides = [stride // array.itemsize for stride in array.strides]
    if as_bytes:
        return array, _fill_bytes(tensor, array.shape, strides, array.itemsize)
    c_sizes, c_strides = ffi.new("int64_t[]", array.shape), ffi.new("int64_t[]", strides)
    tensor.dims, tensor.sizes, tensor.strides = array.ndim, c_sizes, c_strides
    return array, c_sizes, c_strides


def _fill_bytes(tensor: Any, sizes: Any, strides: Any, width: int) -> Any:
    """The dimensions of elements of `width` bytes, as bytes: one more."""
    c_sizes = ffi.new("int64_t[]", [*sizes, width])
    c_strides = ffi.new("int64_t[]", [stride * width for stride in strides] + [1]) if strides else ffi.NULL
    tensor.dims, tensor.sizes, tensor.strides = len(c_sizes), c_sizes, c_strides
    return c_sizes, c_strides


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


_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6, "float8_e4m3": 10, "float8_e5m2": 12}
# The code and the bits of a DLDataType, by value of enum tutti_dtype.
_DLPACK = {value: (_CODES[name if "_" in name else name.rstrip("0123456789")], 8 * SIZES[value])
           for name, value in DTYPES.items()}
_BY_DLPACK = {found: value for value, found in _DLPACK.items()}


def _dlpack_dtype(dtype: Any) -> int:
    value = _BY_DLPACK.get((dtype.code, dtype.bits))
    if value is None or dtype.lanes != 1:
        raise InvalidError(f"DLPack's dtype {dtype.code} of {dtype.bits} bits x {dtype.lanes} is none of the library's")
    return value


def _exported(array: Any, writable: bool, stream: int) -> tuple[Any, Any]:
    """The struct dl_tensor of an array, and an object whose life keeps it. If the array is in device memory, its
    producer makes `stream` wait for it."""
    import ctypes

    options = {}
    if writable and any(kind.__module__.partition(".")[0] in _IMMUTABLE for kind in type(array).__mro__):
        raise InvalidError(f"{type(array).__name__} is immutable, and others may see its memory: receive into another array, "
                           "such as one of numpy")
    if array.__dlpack_device__()[0] in (CUDA, CUDA_MANAGED):
        options["stream"] = stream or 1  # 1 is the legacy default stream
    try:
        try:
            capsule = array.__dlpack__(max_version=(1, 0), **options)
        except TypeError:  # from a producer before DLPack 1.0
            capsule = array.__dlpack__(**options)
    except (BufferError, RuntimeError) as error:  # such as a tensor that requires grad
        raise InvalidError(f"{type(array).__name__} does not give its memory: {error}") from error
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    owner = capsule, array
    if '"dltensor_versioned"' not in repr(capsule):
        return ffi.cast("struct dl_managed *", get(capsule, b"dltensor")).tensor, owner
    managed = ffi.cast("struct dl_managed_versioned *", get(capsule, b"dltensor_versioned"))
    if writable and managed.flags & _READ_ONLY:
        raise InvalidError(f"{type(array).__name__} is read-only")
    return managed.tensor, owner


def _address(tensor: Any) -> Any:
    return ffi.cast("char *", tensor.data) + tensor.byte_offset


class DeviceMemory:
    """CUDA device memory, as DLPack (torch.from_dlpack, cupy.from_dlpack) and as __cuda_array_interface__, in which
    bfloat16 and float8 appear as unsigned integers of their size.

    A peer's memory needs DLPack: with __cuda_array_interface__, PyTorch and CuPy ask the driver for the device of the
    address. The driver names the peer's device, but the address is mapped on this rank's device alone.
    """

    def __init__(self, address: Any, shape: tuple[int, ...], dtype: int, owner: Any, device: int) -> None:
        self.shape, self._dtype, self._device, self._owner = shape, dtype, device, owner
        self.__cuda_array_interface__ = {
            "version": 3, "shape": shape, "typestr": numpy_dtype(dtype, extended=False).str,
            "data": (int(ffi.cast("intptr_t", address)), False)}

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self._device

    def __dlpack__(self, *, stream: Any = None, **_options: Any) -> Any:
        """A capsule of the memory as it is: the caller orders the streams that use it."""
        import ctypes

        managed, sizes = ffi.new("struct dl_managed *"), ffi.new("int64_t[]", self.shape)
        tensor = managed.tensor
        tensor.data = ffi.cast("void *", self.__cuda_array_interface__["data"][0])
        tensor.device_type, tensor.device_id = self.__dlpack_device__()
        tensor.dims, tensor.shape = len(self.shape), sizes
        (tensor.dtype.code, tensor.dtype.bits), tensor.dtype.lanes = _DLPACK[self._dtype], 1
        managed.deleter = lib.tutti_python_released
        _lent[managed] = sizes, self._owner
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(int(ffi.cast("intptr_t", managed)), _DLTENSOR, int(ffi.cast("intptr_t", _CAPSULE_END)))


_DLTENSOR = b"dltensor"  # a capsule keeps this address
_CAPSULE_END = ffi.addressof(lib, "tutti_python_capsule_end")
_lent: dict[Any, Any] = {}  # what the capsules of device memory keep


@ffi.def_extern(name="tutti_python_released")  # type: ignore[untyped-decorator]
def _release(managed: Any) -> None:
    del _lent[managed]


def host_array(address: Any, shape: tuple[int, ...], dtype: int, owner: Any) -> np.ndarray[Any, Any]:
    """Memory of the host as an array that keeps its owner alive."""
    of = numpy_dtype(dtype)
    size = of.itemsize * math.prod(shape)
    kept = ffi.gc(ffi.cast("char *", address), lambda _: owner)
    return np.frombuffer(ffi.buffer(kept, size), of).reshape(shape)
