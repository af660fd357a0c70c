# SPDX-License-Identifier: MIT
"""Communicators: sums, errors, interrupts."""

import signal
import subprocess
import threading
import time

import numpy as np
import pytest

import tutti
from ranks import on_threads, start_processes


def test_all_reduce_in_place_and_out():
    def rank(comm):
        array = np.arange(5, dtype=np.float32) + comm.rank
        other = np.empty_like(array)
        assert comm.all_reduce(array, other) is other
        assert comm.all_reduce(array, op="max") is array
        return other, array

    for other, array in on_threads(3, rank):
        assert np.array_equal(other, 3 * np.arange(5) + 3)
        assert np.array_equal(array, np.arange(5) + 2)


def test_refused_operands():
    def rank(comm):
        for wrong in (np.ones((4, 4))[:, 1], np.ones(2, ">f4"), np.array(["text"]), [1, 2], None):
            with pytest.raises(tutti.InvalidError):
                comm.all_reduce(wrong)
        frozen = np.ones(2)
        frozen.flags.writeable = False
        with pytest.raises(tutti.InvalidError):
            comm.all_reduce(frozen)
        with pytest.raises(tutti.InvalidError, match="do not fit"):
            comm.all_reduce(np.ones(2), np.ones(3))
        with pytest.raises(tutti.InvalidError, match="no operation"):
            comm.all_reduce(np.ones(2), op="total")
        assert np.array_equal(comm.all_reduce(frozen, np.empty(2)), [2, 2])

    on_threads(2, rank)


def test_mismatch_names_the_ranks():
    def rank(comm):
        with pytest.raises(tutti.MismatchError) as caught:
            comm.all_reduce(np.ones(2 + comm.rank))
        return caught.value

    for error in on_threads(2, rank):
        assert error.status == tutti._lib.TUTTI_ERR_MISMATCH
        assert {error.rank, error.peer} == {0, 1} and error.sequence == 1


def test_dead_peer():
    program = """
comm = tutti.Communicator.from_store(store, rank, count)
comm.all_reduce(numpy.ones(1))
if rank == 1: os._exit(0)
try: comm.all_reduce(numpy.ones(1))
except tutti.PeerDeadError as error: print(error.peer, error.rank, error.sequence, isinstance(error, tutti.Error), error.remedy)
"""
    processes = start_processes(2, program)
    out, said = processes[0].communicate(timeout=60)
    processes[1].wait()
    assert out == "1 0 2 True look at rank 1's log; go on without it by Communicator.shrink()\n", (out, said)


def test_closed():
    def rank(comm):
        comm.close()
        comm.close()
        with pytest.raises(tutti.InvalidError):
            comm.all_reduce(np.ones(1))

    on_threads(1, rank)


@pytest.mark.parametrize("how", ["call", "status"])
def test_interrupt_ends_a_wait(how):
    """On the interrupted rank, and in the peer's next call that waits for that rank, or its status() at once."""
    program = f"how = {how!r}" + """
comm = tutti.Communicator.from_store(store, rank, count)
try:
    if rank: print("waiting", flush=True); comm.all_reduce(numpy.ones(1))
    else: input()
except KeyboardInterrupt as error: print("interrupted", flush=True)
try:
    if not rank: print(comm.all_reduce(numpy.ones(1)), flush=True) # the other rank has done its part in it
    (comm.status if how == "status" else lambda: comm.all_reduce(numpy.ones(1)))()
except tutti.AbortedError as error: print("aborted", flush=True)
if rank: input()
"""
    first, second = start_processes(2, program, stdin=subprocess.PIPE)
    assert second.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    second.send_signal(signal.SIGINT)
    assert second.stdout.readline() == "interrupted\n"
    assert second.stdout.readline() == "aborted\n"
    out, said = first.communicate("\n", timeout=60)
    assert out == "[2.]\naborted\n", said
    second.communicate("\n", timeout=60)


@pytest.mark.parametrize("call", [
    "tutti.Communicator.from_store(store, rank, 2)", "tutti.Communicator.from_id(tutti.unique_id(), 0, 2)", "store.get('absent')",
    "tutti.Store('tcp://127.0.0.1:1', 60)"])
def test_interrupt_ends_other_waits(call):
    program = f"""
try: print("waiting", flush=True); {call}
except KeyboardInterrupt: print("interrupted", flush=True)
"""
    process, = start_processes(1, program)
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert out == "interrupted\n" and process.returncode == 0, said


def test_split_and_dup():
    def rank(comm):
        half = comm.split(comm.rank % 2, -comm.rank, timeout=20)
        assert (half.rank, half.world_size) == ((1 - comm.rank // 2, 2) if comm.rank != 1 else (0, 1))
        assert half.all_reduce(np.full(1, comm.rank)).tolist() == [2 if comm.rank != 1 else 1]
        alone = comm.split(None if comm.rank else 0)
        assert alone is None if comm.rank else alone.world_size == 1
        with comm.dup(name="twin") as twin:
            assert twin.describe()["name"] == "twin" and twin.rank == comm.rank
            twin.all_reduce(np.ones(1))
        with pytest.raises(tutti.InvalidError):
            comm.dup(leaf_order=[0])
        with pytest.raises(tutti.InvalidError):
            comm.split(0, leaf_order=[0, 1])

    on_threads(3, rank)


def test_from_id():
    made = tutti.unique_id()
    assert len(made) == 128

    def rank(number):
        with tutti.Communicator.from_id(made, number, 2, timeout=60) as comm:
            totals.append(comm.all_reduce(np.ones(1)).tolist())

    totals = []
    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals == [[2], [2]]
    for wrong in (b"short", bytes(128)):
        with pytest.raises(tutti.InvalidError):
            tutti.Communicator.from_id(wrong, 0, 2)


def test_memory_store():
    with tutti.Store("memory:keys") as store:
        store.set("a", b"x" * 10000)
        assert store.get("a") == b"x" * 10000
        assert store.add("n", 3) + store.add("n", -1) == 5
        store.wait(["a", "n"])
        assert store.check(["a", "n"]) and not store.check(["a", "b"])
        assert store.compare_set("c", "", "new") == b"new"
        assert store.compare_set("c", "old", "newer") == b"new"
        with store.prefix("p") as view:
            view.set("a", "text")
            assert view.get("a") == b"text"
        assert store.num_keys() == 4
        assert store.delete_key("a") and not store.delete_key("a")
        with pytest.raises(tutti.TimeoutError) as caught:
            store.get("a", timeout=0.01)
        assert isinstance(caught.value, TimeoutError)
    with pytest.raises(tutti.InvalidError):
        store.set("a", "")
