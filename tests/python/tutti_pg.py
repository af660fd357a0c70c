# SPDX-License-Identifier: MIT
"""Process groups on PyTorch's tensors, as far as tests and benchmarks need them: ctypes on libtutti."""

import copy
import ctypes
import os
import subprocess

import torch

DTYPES = {
    torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3, torch.int8: 6,
    torch.uint8: 7, torch.int16: 8, torch.int32: 9, torch.int64: 10, torch.bool: 13, torch.complex64: 14, torch.complex128: 15,
}
SUM, PROD, MIN, MAX, AVG, BAND, BOR, BXOR = range(1, 9)
OK, TIMEOUT, PEER_DEAD, MISMATCH = 0, 3, 4, 5
CPU, CUDA = 0, 1


def commit_of(library):
    """The commit of a libtutti: of what scripts/gpu-pack packed, or of the tree in which it was built."""
    folder = os.path.dirname(os.path.abspath(library))
    packed = os.path.join(folder, "../commit")
    if os.path.exists(packed):
        with open(packed, encoding="utf-8") as file:
            return file.read().strip()
    return subprocess.run(["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=12"],
                          capture_output=True, text=True, check=False).stdout.strip()


class Tensor(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("data", ctypes.c_void_p), ("dtype", ctypes.c_int),
                ("device", ctypes.c_int), ("dims", ctypes.c_int),
                ("sizes", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("device_index", ctypes.c_int)]


class SparseTensor(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("dtype", ctypes.c_int), ("device", ctypes.c_int),
                ("sparse_dim", ctypes.c_int), ("dense_dim", ctypes.c_int),
                ("sizes", ctypes.POINTER(ctypes.c_int64)), ("nnz", ctypes.c_size_t),
                ("indices", ctypes.c_void_p), ("values", ctypes.c_void_p), ("device_index", ctypes.c_int)]


class CallOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("tag", ctypes.c_uint32), ("timeout_ms", ctypes.c_int64),
                ("callback", ctypes.c_void_p), ("context", ctypes.c_void_p), ("stream", ctypes.c_void_p)]


class CommOptions(ctypes.Structure):
    """The first fields: the others are 0."""
    _fields_ = [("struct_size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("device", ctypes.c_int)]


class GroupOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("timeout_ms", ctypes.c_int64), ("ranks", ctypes.c_void_p),
                ("rank_count", ctypes.c_int), ("store", ctypes.c_void_p)]


class DeviceMemory:
    """Of somebody else, as PyTorch takes it."""

    def __init__(self, address, shape, dtype):
        kinds = {torch.float32: "<f4", torch.float64: "<f8", torch.int64: "<i8"}
        self.__cuda_array_interface__ = {"shape": tuple(shape), "typestr": kinds[dtype], "data": (address or 0, False),
                                         "version": 3}


class Error(RuntimeError):
    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


def numbers(values):
    return (ctypes.c_int64 * max(len(values), 1))(*values)


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        self.c.tutti_last_error.restype = ctypes.c_char_p
        self.c.tutti_work_wait_host.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        for name in ("tutti_work_destroy", "tutti_pg_destroy", "tutti_comm_destroy", "tutti_store_close"):
            getattr(self.c, name).argtypes = [ctypes.c_void_p]
            getattr(self.c, name).restype = None

    def check(self, status):
        if status:
            raise Error(status, self.c.tutti_last_error().decode())


class Work:
    """Holds its tensors' memory while it lives."""

    def __init__(self, library, handle, kept):
        self.library, self.handle, self.kept = library, handle, kept

    def wait(self, timeout_ms=60000):
        self.library.check(self.library.c.tutti_work_wait_host(self.handle, timeout_ms))
        return self

    def sparse_result(self):
        """A copy."""
        found = SparseTensor(struct_size=ctypes.sizeof(SparseTensor))
        self.library.check(self.library.c.tutti_work_sparse_result(self.handle, ctypes.byref(found)))
        dtype = next(dtype for dtype, value in DTYPES.items() if value == found.dtype)
        sizes = found.sizes[:found.sparse_dim + found.dense_dim]
        shapes = [found.sparse_dim, found.nnz], [found.nnz] + sizes[found.sparse_dim:]
        if found.device:
            device = torch.device("cuda", found.device_index)
            indices, values = (
                torch.as_tensor(DeviceMemory(at, shape, kind), device=device).clone()
                for at, shape, kind in zip((found.indices, found.values), shapes, (torch.int64, dtype)))
        else:
            indices, values = torch.empty(shapes[0], dtype=torch.int64), torch.empty(shapes[1], dtype=dtype)
            for to, at in ((indices, found.indices), (values, found.values)):
                ctypes.memmove(to.data_ptr(), at, to.numel() * to.element_size())
        return torch.sparse_coo_tensor(indices, values, sizes, is_coalesced=True, check_invariants=False)

    def __del__(self):
        self.library.c.tutti_work_destroy(self.handle)


class Group:
    """Of all ranks of a communicator of its own; with a list of ranks that has room for more groups."""

    def __init__(self, library, url, rank, size, device=CPU, ranks=None):
        self.library, self.url = library, url
        self.store, self.comm = ctypes.c_void_p(), ctypes.c_void_p()
        c, check = library.c, library.check
        check(c.tutti_store_open(url.encode(), ctypes.c_int64(60000), ctypes.byref(self.store)))
        options = CommOptions(struct_size=ctypes.sizeof(CommOptions), device=device)
        check(c.tutti_comm_create(self.store, rank, size, ctypes.byref(options), ctypes.byref(self.comm)))
        self._create(ranks)

    def _create(self, ranks):
        self.pg = ctypes.c_void_p()
        options = GroupOptions(struct_size=ctypes.sizeof(GroupOptions), store=self.store)
        if ranks:
            options.ranks = ctypes.cast((ctypes.c_int * len(ranks))(*ranks), ctypes.c_void_p)
            options.rank_count = len(ranks)
        self.library.check(self.library.c.tutti_pg_create(self.comm, ctypes.byref(options), ctypes.byref(self.pg)))

    def members(self, ranks):
        """Another group of the communicator, which keeps that."""
        group = copy.copy(self)
        group._create(ranks)
        return group

    def leave(self):
        self.library.c.tutti_pg_destroy(self.pg)

    def close(self):
        self.leave()
        self.library.c.tutti_comm_destroy(self.comm)
        self.library.c.tutti_store_close(self.store)

    def _work(self, status, handle, kept):
        self.library.check(status)
        return Work(self.library, handle, kept)

    def _options(self, tag, timeout_ms, tensors=()):
        cuda = any(tensor.is_cuda for tensor in tensors)
        return CallOptions(struct_size=ctypes.sizeof(CallOptions), tag=tag, timeout_ms=timeout_ms,
                           stream=torch.cuda.current_stream().cuda_stream if cuda else None)

    def all_reduce(self, tensors, op=SUM, tag=0, timeout_ms=0):
        tensors = tensors if isinstance(tensors, list) else [tensors]
        array = (Tensor * len(tensors))(*(
            Tensor(struct_size=ctypes.sizeof(Tensor), data=tensor.data_ptr(), dtype=DTYPES[tensor.dtype],
                   dims=tensor.dim(), sizes=numbers(tensor.size()), strides=numbers(tensor.stride()))
            for tensor in tensors))
        handle = ctypes.c_void_p()
        status = self.library.c.tutti_pg_all_reduce(
            self.pg, array, len(tensors), ctypes.c_void_p(op), ctypes.byref(self._options(tag, timeout_ms)),
            ctypes.byref(handle))
        return self._work(status, handle, tensors)

    def all_reduce_sparse(self, tensors, tag=0, timeout_ms=0):
        tensors = tensors if isinstance(tensors, list) else [tensors]
        kept = [(tensor, tensor._indices().contiguous(), tensor._values().contiguous()) for tensor in tensors]
        array = (SparseTensor * len(tensors))(*(
            SparseTensor(struct_size=ctypes.sizeof(SparseTensor), dtype=DTYPES[tensor.dtype],
                         sparse_dim=tensor.sparse_dim(), dense_dim=tensor.dense_dim(),
                         sizes=numbers(tensor.size()), nnz=tensor._nnz(), indices=indices.data_ptr(),
                         values=values.data_ptr(), device=int(tensor.is_cuda),
                         device_index=tensor.device.index or 0)
            for tensor, indices, values in kept))
        handle = ctypes.c_void_p()
        status = self.library.c.tutti_pg_all_reduce_sparse(
            self.pg, array, len(tensors), ctypes.byref(self._options(tag, timeout_ms, tensors)),
            ctypes.byref(handle))
        return self._work(status, handle, kept)
