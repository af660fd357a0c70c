# SPDX-License-Identifier: MIT
"""Symmetric memory, stores of the caller's, recovery, dumps, information."""

import re
import threading

import numpy as np
import pytest

import tutti
from ranks import on_threads, start_processes


def test_symmetric_memory():
    def rank(comm):
        store = tutti.Store("memory:symm")
        with tutti.SymmetricGroup("group", comm.rank, comm.world_size, store) as group:
            memory = group.alloc((2, 3), "int32").rendezvous()
            memory.array[:] = comm.rank
            memory.barrier()
            assert [int(memory.peer(r)[1, 2]) for r in range(comm.world_size)] == [0, 1, 2]
            assert memory.peer(1, (2,), "int16", 4).tolist() == [1, 0]
            assert memory.signal_pad(comm.rank, 4).dtype == np.uint32
            memory.barrier(1)
            peer = (comm.rank + 1) % comm.world_size
            memory.peer(peer)[0, 0] = 70 + comm.rank
            memory.put_signal(peer)
            memory.wait_signal((comm.rank - 1) % comm.world_size, timeout=30)
            assert memory.array[0, 0] == 70 + (comm.rank - 1) % comm.world_size
            memory.status()
            array = memory.array
            del memory
            comm.all_reduce(array)  # the array has kept the memory
            with pytest.raises(tutti.InvalidError):
                group.alloc(4, "float128")
            with pytest.raises(tutti.InvalidError):
                group.alloc(4).peer(0)
        with pytest.raises(tutti.InvalidError, match="closed"):
            group.alloc(4)

    on_threads(3, rank)


def test_a_nul_in_a_name():
    store = tutti.Store("memory:nul")
    for call in (lambda: store.set("a\0b", b"1"), lambda: store.prefix("p\0"), lambda: tutti.Store("memory:\0"),
                 lambda: tutti.Communicator.from_store(store, 0, 1, name="a\0b")):
        with pytest.raises(tutti.InvalidError, match="NUL"):
            call()


def test_a_store_that_was_closed_too_early():
    with tutti.Store("memory:closed") as store:
        view = store.prefix("view")
        with tutti.SymmetricGroup("met", 0, 1, store) as met:
            met.alloc(4).rendezvous()
            group = tutti.SymmetricGroup("late", 0, 1, store)
            store.close()
            met.alloc(4).rendezvous()
    with pytest.raises(tutti.InvalidError, match="closed"):
        view.set("key", b"")
    with pytest.raises(tutti.InvalidError, match="closed"), group:
        group.alloc(4).rendezvous()


class Keys:
    """A store with the methods of torch.distributed.Store."""

    def __init__(self):
        self.keys, self.changed = {}, threading.Condition()

    def set(self, key, value):
        with self.changed:
            self.keys[key] = value if isinstance(value, bytes) else value.encode()
            self.changed.notify_all()

    def wait(self, keys, timeout):
        with self.changed:
            if not self.changed.wait_for(lambda: self.check(keys), timeout.total_seconds()):
                raise RuntimeError("wait timeout")

    def get(self, key):
        return self.keys[key]

    def check(self, keys):
        return all(key in self.keys for key in keys)

    def add(self, key, amount):
        with self.changed:
            total = int(self.keys.get(key, b"0")) + amount
            self.set_locked(key, str(total))
            return total

    def set_locked(self, key, value):
        self.keys[key] = value if isinstance(value, bytes) else value.encode()
        self.changed.notify_all()

    def compare_set(self, key, expected, desired):
        with self.changed:
            expected = expected if isinstance(expected, bytes) else expected.encode()
            if self.keys.get(key, b"") == expected:
                self.set_locked(key, desired)
            return self.keys.get(key, expected)

    def delete_key(self, key):
        return self.keys.pop(key, None) is not None

    def num_keys(self):
        return len(self.keys)


def test_wrapped_store():
    keys = Keys()
    with tutti.Store.wrap(keys) as store:
        store.set("a", b"x" * 5000)
        assert store.get("a") == b"x" * 5000 == keys.get("a")
        assert store.add("n", 2) == 2 and store.check(["a", "n"]) and not store.check(["b"])
        assert store.compare_set("c", "", "new") == b"new" and store.num_keys() == 3
        assert store.delete_key("c") and not store.delete_key("c")
        with pytest.raises(tutti.TimeoutError):
            store.wait(["b"], 0.01)

    def rank(number):
        with tutti.Store.wrap(keys) as store, tutti.Communicator.from_store(store, number, 2) as comm:
            results[number] = comm.all_reduce(np.ones(2)).tolist()

    results = {}
    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {0: [2, 2], 1: [2, 2]}


@pytest.mark.parametrize("kind", ["HashStore", "TCPStore", "FileStore"])
def test_wrapped_torch_store(kind, tmp_path):
    dist = pytest.importorskip("torch.distributed")
    one = dist.HashStore() if kind == "HashStore" else dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) \
        if kind == "TCPStore" else None

    def rank(number):
        own = one or dist.FileStore(str(tmp_path / "store"), 2)
        with tutti.Store.wrap(dist.PrefixStore("group", own)) as store:
            key = f"binary{number}"
            assert store.compare_set(key, b"", b"\xff\0") == b"\xff\0"
            assert store.compare_set(key, b"\xff\0", b"\xfe") == b"\xfe"
            with tutti.Communicator.from_store(store, number, 2) as comm:
                results[number] = comm.all_reduce(np.ones(2)).tolist()

    results = {}
    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {0: [2, 2], 1: [2, 2]}


def test_a_key_that_a_peer_deletes_during_a_look_up_ends_no_wait_late():
    class Deleted(Keys):
        def check(self, keys):
            found = super().check(keys)
            for key in keys:
                self.keys.pop(key, None)
            return found

        def get(self, key):
            raise AssertionError("PyTorch's get() would wait here as long as the store likes")

    keys = Deleted()
    keys.set("a", b"1")
    with tutti.Store.wrap(keys) as store, pytest.raises(tutti.TimeoutError):
        store.get("a", 0.1)


def test_an_exception_of_a_wrapped_store_is_the_cause():
    class Broken(Keys):
        def add(self, key, amount):
            raise ValueError("broken")

        set = compare_set = wait = get = check = add

    with tutti.Store.wrap(Broken()) as store, pytest.raises(tutti.SystemCallError) as caught:
        tutti.Communicator.from_store(store, 0, 2)
    assert "broken" in str(caught.value.__cause__)


def test_shrink():
    program = """
comm = tutti.Communicator.from_store(store, rank, count)
comm.all_reduce(numpy.ones(1))
if rank == 1: os._exit(0)
try:
    comm.all_reduce(numpy.ones(1))
except tutti.PeerDeadError:
    shrunk = comm.shrink(store)
    comm.close()
    print(shrunk.comm.rank, shrunk.new_ranks, shrunk.completed_by_all, shrunk.comm.all_reduce(numpy.ones(1)))
"""
    said = [process.communicate(timeout=60) for process in start_processes(3, program)]
    assert said[0][0] == "0 [0, -1, 1] 1 [2.]\n", said
    assert said[2][0] == "1 [0, -1, 1] 1 [2.]\n", said


def test_dump(tmp_path):
    def rank(comm):
        comm.all_reduce(np.ones(1))
        comm.dump(str(tmp_path))

    on_threads(2, rank)
    assert len(list(tmp_path.iterdir())) == 2


def test_info():
    before = int(tutti.info("calls"))
    on_threads(1, lambda comm: comm.all_reduce(np.ones(1)))
    assert int(tutti.info("calls")) == before + 1
    assert tutti.info("isa") in ("baseline", "avx2", "avx512", "neon")
    with pytest.raises(tutti.InvalidError):
        tutti.info("colour")
    with pytest.raises((tutti.DeclinedError, tutti.InvalidError)):
        tutti.links(["0000:ff:1f.7"])


def test_log():
    lines = []
    tutti.set_log(lambda level, line: lines.append((level, line)))
    try:
        with pytest.raises(tutti.MismatchError):
            on_threads(2, lambda comm: comm.all_reduce(np.ones(1 + comm.rank)))
    finally:
        tutti.set_log(None)
    assert any(level == "WARN" and re.search("all_reduce", line) for level, line in lines), lines


def test_launcher(monkeypatch):
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "3"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "3")):
        monkeypatch.setenv(name, value)
    assert tutti.launcher() == ("torchrun", 1, 3, 1, 3)
