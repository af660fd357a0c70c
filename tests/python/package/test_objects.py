# SPDX-License-Identifier: MIT
"""Picklable objects, several works, logical reductions."""

import threading

import numpy as np
import pytest

import tutti
from ranks import on_threads


def value_of(rank):
    return {"rank": rank, "list": [None, "x" * 10_000 * rank, b"\0"], "array": np.arange(rank)}


def check(value, rank):
    assert value["rank"] == rank and value["list"] == [None, "x" * 10_000 * rank, b"\0"]
    assert value["array"].tolist() == list(range(rank))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_objects(count):
    def rank(comm):
        for root in range(count):
            check(comm.broadcast_object(value_of(root) if comm.rank == root else "ignored", root), root)
            check(comm.broadcast_object(*[value_of(root)] if comm.rank == root else [], root=root), root)
            gathered = comm.gather_object(value_of(comm.rank), root, timeout=30)
            assert (gathered is None) == (comm.rank != root)
            for number, value in enumerate(gathered or []):
                check(value, number)
            values = [value_of(number) for number in range(count)]
            check(comm.scatter_object(values if comm.rank == root else None, root), comm.rank)
        for number, value in enumerate(comm.all_gather_object(value_of(comm.rank))):
            check(value, number)
        if comm.rank == 0:
            for peer in range(1, count):
                comm.send_object(value_of(peer), peer)
                check(comm.recv_object(peer), 7)
        else:
            check(comm.recv_object(0), comm.rank)
            comm.send_object(value_of(7), 0)

    on_threads(count, rank)


def test_refused_objects():
    def rank(comm):
        for wrong in (None, [1, 2]):
            with pytest.raises(tutti.InvalidError, match="an object for each rank"):
                comm.scatter_object(wrong)
        with pytest.raises(tutti.InvalidError, match="in a group"), tutti.group():
            comm.broadcast_object(1)
        with pytest.raises(Exception, match="pickle"):
            comm.broadcast_object(lambda: 0)
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            comm.all_gather_object([comm])
        assert comm.broadcast_object(1) == 1

    on_threads(1, rank)


def test_several_works():
    ready, end = threading.Event(), threading.Event()

    def rank(comm):
        with tutti.ProcessGroup(comm) as group:
            arrays = [np.ones(3) for _ in range(3)]
            if comm.rank == 0:
                works = [group.recv(array, 1, tag=tag) for tag, array in enumerate(arrays)]
                with pytest.raises(tutti.TimeoutError, match="none of 3 works"):
                    tutti.wait_any(works, 0.01)
                with pytest.raises(tutti.TimeoutError):
                    tutti.wait_all(works, 0.01)
                ready.set()
                assert tutti.wait_any(works) == 2
                group.send(arrays[2], 1).wait()
                tutti.wait_all(works, 60)
                assert [array[0] for array in arrays] == [10, 11, 12]
                assert tutti.wait_any(works) == 0
                failing = [group.recv(arrays[0], 1, tag=9, timeout=0.01), group.barrier()]
                with pytest.raises(tutti.TimeoutError):
                    tutti.wait_all(failing)
                assert failing[1].test()
                end.set()
            else:
                assert ready.wait(60)
                group.send(arrays[2] + 11, 0, tag=2).wait()
                group.recv(arrays[0], 0).wait()
                tutti.wait_all([group.send(arrays[tag] * 0 + 10 + tag, 0, tag=tag) for tag in (0, 1)])
                group.barrier().wait()
                assert end.wait(60)
        with pytest.raises(tutti.InvalidError):
            tutti.wait_any([])
        tutti.wait_all([])

    on_threads(2, rank)


def test_logical_reductions():
    """As docs/python.md has them: by bool arrays."""
    table = np.array([[0, 0, 0], [0, 0, 0.5], [7, 7, 0], [1, 2, 3]])

    def rank(comm):
        truth = table[:, comm.rank] != 0
        return [comm.all_reduce(truth, np.empty_like(truth), op).tolist() for op in ("band", "bor", "bxor")]

    wanted = [[False, False, False, True], [False, True, True, True], [False, True, False, True]]
    assert on_threads(3, rank) == [wanted] * 3
