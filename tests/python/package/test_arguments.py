# SPDX-License-Identifier: MIT
"""Arguments that are refused with a sentence, and dtypes that are only moved."""

import datetime
import importlib.util
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import tutti
from ranks import on_threads


def test_timeouts():
    with tutti.Store("memory:timeouts") as store:
        for wrong in ("3", float("nan"), [1], b"1"):
            with pytest.raises(tutti.InvalidError, match="expected seconds"):
                store.get("absent", timeout=wrong)
            with pytest.raises(tutti.InvalidError, match="expected seconds"):
                tutti.Communicator.from_store(store, 0, 1, timeout=wrong)
        with pytest.raises(tutti.TimeoutError):
            store.get("absent", timeout=datetime.timedelta(milliseconds=5))
        comm = tutti.Communicator.from_store(store, 0, 1)
        with tutti.ProcessGroup(comm) as group:
            for long in (datetime.timedelta(days=200_000), 1e300, np.float32(1e30), float("inf"), -1):
                group.barrier(timeout=long).wait(long)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch")
def test_a_long_wait_of_torch():
    program = """
import datetime, threading
from tutti.torch._work import Work
work = Work("title", [])
threading.Timer(0.05, work.finish).start()
print(work.wait(datetime.timedelta(days=200_000)))
"""
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True).stdout == "True\n"


def test_information():
    found = tutti.info()
    assert set(found) == {"enabled", "isa", "symm.backend", "cuda.device", "cuda.multicast", "calls"}
    assert all(value == tutti.info(key) for key, value in found.items())


def exported(array, module):
    """An object of a class of another package, which shows a numpy array by DLPack."""
    def dlpack(self, **options):
        if not array.dtype.hasobject:
            return array.__dlpack__(**options)
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")

    of = type("Array", (), {"__module__": module, "__dlpack__": dlpack, "__dlpack_device__": lambda self: (1, 0)})
    return type("Derived", (of,), {})()


@pytest.mark.parametrize("module", ["jaxlib._jax", "jax._src.array", "tensorflow.python.framework.ops"])
def test_immutable_arrays(module):
    def rank(comm):
        own, group = np.ones(2), tutti.ProcessGroup(comm.dup())
        array = exported(own, module)
        for call in (lambda: comm.all_reduce(array), lambda: comm.broadcast(array, root=0), lambda: comm.all_to_all(array),
                     lambda: comm.recv(array, 0), lambda: group.all_reduce(array), lambda: group.recv(array)):
            with pytest.raises(tutti.InvalidError, match="immutable"):
                call()
        assert own.tolist() == [1, 1]
        assert comm.all_reduce(array, np.empty(2)).tolist() == [2, 2]  # it may be sent
        group.close()

    on_threads(2, rank)


def test_a_tensor_that_is_not_exported():
    tensor = exported(np.empty(1, object), "torch")

    def rank(comm):
        with pytest.raises(tutti.InvalidError, match="does not give its memory: Can't export.*detach"):
            comm.all_reduce(tensor)

    on_threads(1, rank)


def test_a_dropped_work_releases_its_array():
    """Without another submission."""
    class Array(np.ndarray):
        pass

    def rank(comm):
        with tutti.ProcessGroup(comm) as group:
            array = np.zeros(1000).view(Array)
            released = threading.Event()
            weakref.finalize(array, released.set)
            if comm.rank == 0:
                group.recv(array, 1)
                del array
                assert not released.is_set()
                ready.set()
                assert released.wait(60)
            else:
                assert ready.wait(60)
                group.send(array, 0).wait()
            end.wait(60)

    ready, end = threading.Event(), threading.Barrier(2)
    on_threads(2, rank)


PAIR = np.dtype([("key", "i2"), ("value", "f8")])
MOVED = [np.array([1, 2, 65535], np.uint16), np.array(["2026-01-02", "NaT", "1970-01-01"], "M8[D]"),
         np.array([(1, 2.5), (3, 4.5), (5, np.inf)], PAIR), np.array(["a", "bcd", ""]), np.array([1, 2, 3], ">f4"),
         np.array([b"x", b"yz", b""]), np.array([1, 2, 3], np.longdouble)]


@pytest.mark.parametrize("values", MOVED, ids=lambda values: values.dtype.name)
def test_other_dtypes_are_moved(values):
    """As bytes: by all that does not reduce."""
    other = values[::-1].copy()

    def rank(comm):
        own, peer = (values, other) if comm.rank == 0 else (other, values)
        both = np.empty(6, values.dtype)
        both[:3], both[3:] = values, other
        root = comm.rank == 0
        got = np.empty_like(both)
        comm.all_gather(own, got)
        assert (got.tobytes(), got.dtype) == (both.tobytes(), both.dtype)
        half = np.empty_like(own)
        assert comm.broadcast(own if root else None, half).tobytes() == values.tobytes()
        assert comm.scatter(both if root else None, half).tobytes() == own.tobytes()
        assert comm.gather(own, got if root else None) is None or got.tobytes() == both.tobytes()
        assert comm.all_to_all(own[:2].copy()).tobytes() == both[[comm.rank, comm.rank + 3]].tobytes()
        with tutti.group():
            comm.send(own, 1 - comm.rank)
            comm.recv(half, 1 - comm.rank)
        assert half.tobytes() == peer.tobytes()
        assert comm.send_recv(own, 1 - comm.rank, half, 1 - comm.rank).tobytes() == peer.tobytes()
        # v-forms: 1 element of rank 0, 2 of rank 1
        sent = own[:comm.rank + 1]
        got = np.empty_like(own)
        assert comm.all_gather_v(sent, got, [1, 2]).tobytes() == values[:1].tobytes() + other[:2].tobytes()
        got[:] = own
        comm.all_gather_v(sent, got, [1, 2], [2, 0])
        assert got.tobytes() == other[:2].tobytes() + values[:1].tobytes()
        assert comm.all_to_all_v(own, half, [1, 2] if root else [2, 1], [1, 2] if root else [2, 1]).tobytes() == (
            own[:1].tobytes() + peer[:2].tobytes() if root else peer[1:].tobytes() + own[2:].tobytes())
        for wrong in (lambda: comm.all_reduce(own.copy()), lambda: comm.reduce(own.copy()), lambda: comm.reduce_scatter(both, half),
                      lambda: comm.reduce_scatter_v(both, half, [3, 3])):
            with pytest.raises(tutti.InvalidError, match="none of the library's"):
                wrong()
        with tutti.ProcessGroup(comm.dup()) as group:
            got = [np.empty_like(own), np.empty_like(own)]
            group.all_gather(own, got).wait()
            assert got[0].tobytes() + got[1].tobytes() == both.tobytes()
            table = np.empty((2, 3), own.dtype)
            table[:] = own
            wide = np.empty((3, 2), own.dtype)
            works = [group.send(table.T, 1 - comm.rank), group.recv(wide, 1 - comm.rank)]
            for work in works:
                work.wait()
            assert wide.tobytes() == peer.tobytes() * 2  # the order is that of the memory
            group.broadcast(half if comm.rank else own, half, 0).wait()
            assert half.tobytes() == values.tobytes()
            with pytest.raises(tutti.InvalidError, match="none of the library's"):
                group.all_reduce(own.copy())
            with pytest.raises(tutti.InvalidError, match="none of the library's"):
                group.reduce(own.copy())

    on_threads(2, rank)


def test_other_dtypes_by_dlpack():
    def rank(comm):
        own = np.array([comm.rank, 7], np.uint16)
        got = np.empty(4, np.uint16)
        comm.all_gather(exported(own, "torch"), exported(got, "torch"))
        assert got.tolist() == [0, 7, 1, 7]
        comm.all_gather_v(exported(own[:1], "torch"), exported(got, "torch"), [1, 1], [3, 1])
        assert got.tolist() == [0, 1, 1, 0]
        with tutti.ProcessGroup(comm) as group:
            group.broadcast(exported(own, "torch"), exported(got[:2], "torch"), 1).wait()
            assert got.tolist() == [1, 7, 1, 0]
            group.broadcast(exported(got.reshape(2, 2).T, "torch"), root=0).wait()
            with pytest.raises(tutti.InvalidError):
                group.all_reduce(exported(own, "torch"))

    on_threads(2, rank)


@pytest.mark.parametrize("wrong", [np.array([None]), np.array([(1, None)], [("a", "i4"), ("b", "O")]), np.empty(3, np.dtype([]))])
def test_dtypes_that_are_not_moved(wrong):
    def rank(comm):
        with pytest.raises(tutti.InvalidError, match="objects"):
            comm.broadcast(wrong)
        with pytest.raises(tutti.InvalidError, match="C-contiguous"):
            comm.broadcast(np.ones((2, 2), np.uint16).T)
        frozen = np.ones(2, np.uint16)
        frozen.flags.writeable = False
        with pytest.raises(tutti.InvalidError, match="read-only"):
            comm.broadcast(frozen)
        with tutti.ProcessGroup(comm) as group, pytest.raises(tutti.InvalidError, match="objects"):
            group.broadcast(wrong)

    on_threads(1, rank)
