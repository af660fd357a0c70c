# SPDX-License-Identifier: MIT
"""Arguments that are refused with a sentence, and dtypes that are only moved."""

import datetime
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
