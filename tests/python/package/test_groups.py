# SPDX-License-Identifier: MIT
"""Process groups: works, tags, callbacks, sparse sums."""

import gc
import threading
import time
import types
import weakref
from concurrent.futures import Future, wait

import numpy as np
import pytest

import tutti
import tutti._pg
from ranks import on_threads, start_processes
from tutti import _lib as lib


def on_groups(count, function):
    def rank(comm):
        with tutti.ProcessGroup(comm) as group:
            return function(group)

    return on_threads(count, rank)


def test_all_reduce():
    def rank(group):
        array, pair = np.ones((2, 3), np.float32), [np.ones(4), np.ones(4)]
        work = group.all_reduce(array.T)
        assert work.title.startswith("all_reduce of") and (work.tag, work.sequence) == (0, 1)
        others = group.all_reduce(pair, "max", tag=7)
        others.wait()
        work.wait(30)
        assert work.test() and work.test()
        return array, pair

    for array, pair in on_groups(3, rank):
        assert (array == 3).all() and (pair[1] == 1).all()


def test_end_after_slice(monkeypatch):
    """An operation may end between the end of a slice of Work.wait() and the look at the work."""
    late = types.SimpleNamespace(**{name: getattr(lib, name) for name in dir(lib)})

    def wait_too_short(handle, timeout_ms):
        lib.tutti_work_wait_host(handle, -1)
        return lib.TUTTI_ERR_TIMEOUT

    late.tutti_work_wait_host = wait_too_short

    def rank(group):
        work = group.all_reduce(np.ones(1))
        monkeypatch.setattr(tutti._pg, "lib", late)
        work.wait()

    on_groups(2, rank)


def test_other_collectives():
    def rank(group):
        me, count = group.rank, group.world_size
        rows, lists = np.zeros((count, 2)), [np.zeros(2) for _ in range(count)]
        sums, swapped, copy, place = np.zeros(2), np.zeros((count, 2)), np.zeros(3), np.full(3, float(me))
        total, gathered, scattered = np.zeros(2), np.zeros((count, 2)), np.zeros(2)
        ragged = [np.zeros(1 + r) for r in range(count)]
        pairs = [np.zeros((count, 1)), np.zeros((count, 4))]
        own = np.full(2, float(me))
        works = [
            group.all_gather(own, rows), group.all_gather(own, lists, tag=1),
            group.all_gather([own[:1], np.full(4, float(me))], pairs),
            group.reduce_scatter(np.full((count, 2), float(me)), sums, "max"),
            group.all_to_all(np.arange(count * 2.0) + 10 * me, swapped),
            group.all_to_all([np.full(1 + me, float(me)) for _ in range(count)], ragged),
            group.broadcast(np.full(3, 7.0) if me == 1 else None, copy, 1), group.broadcast(place, root=2),
            group.reduce(own, total if me == 0 else None), group.gather(own, gathered if me == 1 else None, 1),
            group.scatter(np.arange(count * 2.0) if me == 2 else None, scattered, 2), group.barrier(tag=4),
        ]
        for work in works:
            work.wait()
        every = [[float(r)] * 2 for r in range(count)]
        assert rows.tolist() == every and [array.tolist() for array in lists] == every
        assert [pair[:, 0].tolist() for pair in pairs] == [[0, 1, 2]] * 2
        assert sums.tolist() == [count - 1] * 2
        assert swapped.tolist() == [[10 * r + 2 * me, 10 * r + 2 * me + 1] for r in range(count)]
        assert [array.tolist() for array in ragged] == [[r] * (1 + r) for r in range(count)]
        assert copy.tolist() == [7] * 3 and place.tolist() == [2] * 3
        assert me != 0 or total.tolist() == [3, 3]
        assert me != 1 or gathered.tolist() == every
        assert scattered.tolist() == [2 * me, 2 * me + 1]

    on_groups(3, rank)


def test_messages():
    def rank(group):
        me, count = group.rank, group.world_size
        arrays, fixed = [np.zeros(3) for _ in range(count - 1)], np.zeros((2, 2))
        works = [group.recv(array, tag=1) for array in arrays]
        works.append(group.recv(fixed, (me + 1) % count, tag=2))
        for peer in range(count):
            if peer != me:
                works.append(group.send(np.full(3, float(me)), peer, tag=1))
        works.append(group.send(np.full((2, 2), 10.0 + me), (me - 1) % count, tag=2))
        for work in works:
            work.wait()
        sources = [work.source for work in works[:count - 1]]
        assert sorted(sources) == [r for r in range(count) if r != me] and works[-1].source is None
        assert [array[0] for array in arrays] == sources and fixed[1, 1] == 10 + (me + 1) % count
        group.send(np.ones(3), me).wait()
        group.recv(arrays[0], me).wait()
        assert arrays[0].tolist() == [1] * 3
        with pytest.raises(tutti.InvalidError):
            group.send(np.ones(1), count)

    on_groups(3, rank)


def test_callbacks_and_futures():
    def rank(group):
        threads, future = [], Future()
        work = group.all_reduce(np.ones(2), callback=lambda error: threads.append((threading.current_thread(), error)))
        group.all_reduce(np.ones(2), callback=future)
        assert future.result(30) is None
        work.wait()
        assert len(threads) == 1 and threads[0][1] is None

    on_groups(2, rank)


def test_a_cancelled_future():
    def rank(group):
        future = Future()
        future.cancel()
        group.barrier(callback=future).wait()
        assert wait([future], timeout=0).done == {future}

    on_groups(1, rank)


def test_callbacks_do_not_close_their_group():
    def submit(comm, threads):
        group, dropped = tutti.ProcessGroup(comm), threading.Event()
        comm.group = weakref.ref(group)

        def call_back(error, group=group):
            threads.append(threading.current_thread())
            with pytest.raises(tutti.InvalidError, match="callback"):
                group.close()
            assert dropped.wait(30)

        group.all_reduce(np.ones(2), callback=call_back)
        return dropped

    def rank(comm):
        threads = []
        dropped = submit(comm, threads)
        gc.collect()
        dropped.set()  # now the callback alone refers to the group
        while comm.group() is not None or any(thread.name.endswith("(close)") for thread in threading.enumerate()):
            time.sleep(0.001)
        assert len(threads) == 1

    on_threads(1, rank)


def test_groups_and_communicators_in_cycles():
    def rank(comm):
        for _ in range(20):
            own = comm.dup()
            group = tutti.ProcessGroup(own)
            group.barrier().wait()
            own.cycle = group.cycle = [own, group]
            del own, group
            gc.collect()

    on_threads(1, rank)


def test_a_failure_reaches_works_and_callbacks():
    def rank(group):
        future = Future()
        work = group.all_reduce(np.ones(2 + group.rank), callback=future)
        with pytest.raises(tutti.MismatchError) as caught:
            work.wait()
        assert {caught.value.rank, caught.value.peer} == {0, 1} and caught.value.sequence == 1
        error = future.exception(30)
        assert isinstance(error, tutti.MismatchError) and str(error) == str(caught.value) and error.sequence == 1
        with pytest.raises(tutti.InvalidError):
            group.all_reduce(np.ones((4, 4))[:, 1])
        with pytest.raises(tutti.InvalidError):
            group.all_reduce(np.zeros(3, "V0"))
        with pytest.raises(tutti.InvalidError):
            group.all_reduce(np.ones(2), "band", callback=Future())

    on_groups(2, rank)


def test_waits_expire_and_operations_go_on():
    ready = threading.Event()

    def rank(group):
        if group.rank:
            ready.wait(30)
        array = np.ones(2)
        work = group.all_reduce(array)
        if not group.rank:
            with pytest.raises(tutti.TimeoutError):
                work.wait(0.01)
            assert not work.test()
            ready.set()
        work.wait()
        return array

    for array in on_groups(2, rank):
        assert (array == 2).all()


def test_a_dropped_work_keeps_its_array():
    ready = threading.Event()

    def rank(group):
        if group.rank:
            ready.wait(30)
        future = Future()
        group.all_reduce(np.ones(1 << 16), callback=future)
        gc.collect()
        ready.set()
        future.result(30)
        group.all_reduce(np.ones(1)).wait()

    on_groups(2, rank)
    gc.collect()


def test_members():
    def rank(comm):
        store = tutti.Store("memory:members")
        if comm.rank == 1:
            return None
        with tutti.ProcessGroup(comm, [2, 0], store) as group:
            array = np.full(2, comm.rank)
            group.all_reduce(array).wait()
            return group.rank, group.world_size, array.tolist()

    assert on_threads(3, rank) == [(1, 2, [2, 2]), None, (0, 2, [2, 2])]


def test_closing_the_communicator_closes_its_group():
    def rank(comm):
        group = tutti.ProcessGroup(comm)
        group.all_reduce(np.ones(1)).wait()
        comm.close()
        with pytest.raises(tutti.InvalidError, match="closed"):
            group.all_reduce(np.ones(1))

    on_threads(2, rank)


def test_sparse_sum():
    def rank(group):
        tensor = tutti.SparseTensor(np.array([[1, 0], [2, 2]]), np.array([[1.0, 2], [3, 4]]) * (group.rank + 1), (4, 5, 2))
        work = group.all_reduce_sparse(tensor)
        work.wait()
        found = work.sparse_result()
        del work
        gc.collect()
        with pytest.raises(tutti.InvalidError):
            group.all_reduce_sparse(tensor._replace(shape=(4, 5)))
        return found

    for indices, values, shape in on_groups(2, rank):
        assert indices.tolist() == [[0, 1], [2, 2]] and values.tolist() == [[9, 12], [3, 6]] and shape == (4, 5, 2)


def test_interrupt_ends_a_wait():
    program = """
with tutti.Communicator.from_store(store, rank, count) as comm, tutti.ProcessGroup(comm) as group:
    if rank: input()
    work = group.all_reduce(numpy.ones(1))
    try: print("waiting", flush=True); work.wait()
    except KeyboardInterrupt: print("interrupted", flush=True)
    work.wait()
    group.all_reduce(numpy.ones(1)).wait()
    print("done", flush=True)
"""
    import signal
    import subprocess
    import time

    first, second = start_processes(2, program, stdin=subprocess.PIPE)
    assert first.stdout.readline() == "waiting\n"
    time.sleep(0.2)
    first.send_signal(signal.SIGINT)
    assert first.stdout.readline() == "interrupted\n"
    assert second.communicate("\n", timeout=60)[0] == "waiting\ndone\n"
    assert first.communicate(timeout=60)[0] == "done\n"


def test_exit_without_close():
    program = """
comm = tutti.Communicator.from_store(store, rank, count)
group = tutti.ProcessGroup(comm)
group.all_reduce(numpy.ones(1), callback=print).wait()
work = group.all_reduce(numpy.ones(1), tag=rank, callback=lambda error: print(type(error).__name__, flush=True))
"""
    for process in start_processes(2, program):
        out, said = process.communicate(timeout=60)
        assert process.returncode == 0 and out in ("None\nAbortedError\n", "None\nPeerDeadError\n"), said
