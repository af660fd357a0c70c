# SPDX-License-Identifier: MIT
"""close() beside calls of other threads, and copies of handles: never a crash. Each case is a process of its own."""

import importlib.util
import subprocess
import sys

import pytest

HEAD = """
import copy, os, pickle, signal, sys, threading, time
import numpy as np
import tutti, tutti._handle

def pair(url="memory:pair"):
    "The stores and the communicators of two ranks, which are threads."
    made = [None, None]
    def rank(number):
        store = tutti.Store(url)
        made[number] = store, tutti.Communicator.from_store(store, number, 2, timeout=60)
    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return made

class Caller(threading.Thread):
    "A thread that makes a call, which passes `handle`. said: its result, or its exception's class."
    def __init__(self, call, handle=None):
        super().__init__(daemon=True)
        self.call, self.said = call, "nothing"
        self.start()
        while handle and self.is_alive() and not tutti._lib.tutti_python_callers(handle): time.sleep(0.001)
    def run(self):
        try: self.said = self.call()
        except BaseException as error: self.said = type(error).__name__
    def end(self):
        self.join(60)
        return self.said

(store, comm), (other_store, other) = pair()
one, two = np.ones(1), np.ones(2)
"""


def run(program, **options):
    ended = subprocess.run([sys.executable, "-c", HEAD + program], capture_output=True, text=True, timeout=120, **options)
    assert ended.returncode == 0, (ended.returncode, ended.stdout, ended.stderr)
    return ended.stdout


@pytest.mark.parametrize("call", [
    "comm.all_reduce(one)", "comm.recv(one, 1)", "comm.barrier()", "comm.split(0)", "comm.dup()", "comm.gather(one, two)",
    "tutti.ProcessGroup(comm, [0, 1], store)", "tutti._lib.tutti_barrier(comm.handle, tutti._ffi.NULL, 0, tutti._ffi.NULL) == 7"])
@pytest.mark.parametrize("end", ["comm.close()", "with comm: raise KeyError"])
def test_a_communicator_ends_calls(call, end):
    said = run(f"""
call = Caller(lambda: {call}, comm.handle)
try: exec("{end}")
except KeyError: print("raised", end=" ")
print(call.end())
try: comm.all_reduce(one)
except tutti.InvalidError as error: print(error)
""")
    assert said.removeprefix("raised ") in ("AbortedError\nthe communicator is closed\n", "True\nthe communicator is closed\n")


def test_a_communicator_ends_a_group_of_calls():
    assert run("""
def group():
    with tutti.group(): comm.all_reduce(one); begun.set(); time.sleep(0.1)
begun = threading.Event()
call = Caller(group)
begun.wait()
comm.close()
print(call.end())
""") == "AbortedError\n"


@pytest.mark.parametrize("call", ["store.get('absent')", "store.wait(['absent'])", "store.prefix('p').get('absent')",
                                  "view.get('absent', 30)"])
@pytest.mark.parametrize("url", ["memory:keys", "tcp://127.0.0.1:0?server=1", "wrapped"])
def test_a_store_ends_waits(call, url):
    assert run(f"""
wrapped = tutti.Store("memory:keys")
class Foreign:
    def wait(self, keys, timeout): wrapped.wait(keys, timeout.total_seconds())
    def __getattr__(self, name): return getattr(wrapped, name)
store = tutti.Store.wrap(Foreign()) if "{url}" == "wrapped" else tutti.Store("{url}")
store.set("present", "1")
view = store.prefix("view")
def get():
    begun.set()
    return {call}
begun = threading.Event()
call = Caller(get)
begun.wait()
time.sleep(0.02)
store.close()
print(call.end())
""") == "InvalidError\n"


def test_a_store_in_a_meeting_is_not_closed():
    assert run("""
tutti._handle._WAIT_S = 0.2
alone = tutti.Store("memory:alone")
meeting = Caller(lambda: tutti.Communicator.from_store(alone, 0, 2, timeout=1))
while not alone._users: time.sleep(0.001)
try: alone.close()
except tutti.ConcurrentError as error: print(error)
print(meeting.end(), alone.check(["absent"]))
alone.close()
""") == "a call of another thread has used the store for 0.2 s since close(): end that call, then close again\n" \
        "TimeoutError False\n"


def test_memory_in_use_is_not_freed():
    assert run("""
tutti._handle._WAIT_S = 0.2
groups = [tutti.SymmetricGroup("memory", number, 2, each) for number, each in enumerate((store, other_store))]
memory, peers = [group.alloc(4) for group in groups]
threads = [threading.Thread(target=each.rendezvous) for each in (memory, peers)]
for thread in threads: thread.start()
for thread in threads: thread.join()
call = Caller(lambda: memory.wait_signal(1, timeout=60), memory.handle)
for refused in (memory.free, groups[0].close):
    try: refused()
    except tutti.ConcurrentError: print("in use")
peers.put_signal(0)
print(call.end())
memory.free()
groups[0].close()
""") == "in use\nin use\nNone\n"


def test_process_groups():
    run("""
for number in range(30):
    (store, comm), (other_store, other) = pair(f"memory:{number}")
    group = tutti.ProcessGroup(comm)
    def submit():
        while True:
            works = [group.all_reduce(np.ones(10)) for _ in range(20)]
            for work in works: work.wait()
    call = Caller(submit)
    time.sleep(0.002 * (number % 5))
    (group if number % 2 else comm).close()
    assert call.end() in ("AbortedError", "InvalidError"), call.said
""")


def test_storm():
    """Calls begin and end while another thread closes."""
    run("""
for number in range(60):
    (store, comm), (other_store, other) = pair(f"memory:{number}")
    def calls(comm):
        while True: comm.all_reduce(one); comm.status(); store.check(["a"])
    callers = [Caller(lambda each=each: calls(each)) for each in (comm, comm, other)]
    time.sleep(0.001 * (number % 4))
    closers = [Caller(each.close) for each in (comm, comm, store, other)]
    assert {closer.end() for closer in closers} == {None}
    said = {caller.end() for caller in callers}
    assert said <= {"AbortedError", "InvalidError", "PeerDeadError", "ConcurrentError"}, said
    assert not comm._handle and not store._handle
""")


@pytest.mark.parametrize("call", ["comm.all_reduce(one)", "store.get('absent')", "group.all_reduce(one).wait()",
                                  "memory.wait_signal(1)", "other.status()"])
def test_the_end_of_the_interpreter(call):
    run(f"""
group = tutti.ProcessGroup(comm.dup()) if "group" in {call!r} and [threading.Thread(target=other.dup).start()] else None
if "memory" in {call!r}:
    groups = [tutti.SymmetricGroup("memory", number, 2, each) for number, each in enumerate((store, other_store))]
    memory, peers = [group.alloc(4) for group in groups]
    thread = threading.Thread(target=peers.rendezvous); thread.start(); memory.rendezvous(); thread.join()
def calls():
    while True:
        try: {call}
        except tutti.Error: pass
for _ in range(3): threading.Thread(target=calls, daemon=True).start()
time.sleep(0.05)
""")


def test_a_second_thread_waits_for_the_first():
    assert run("""
class Slow(tutti.Communicator):
    def _destroy(self, handle):
        begun.set()
        time.sleep(0.2)
        status = super()._destroy(handle)
        said.append("destroyed")
        return status
comm.__class__, begun, said = Slow, threading.Event(), []
first = Caller(comm.close)
begun.wait()
comm.close()
print(said, first.end())
""") == "['destroyed'] None\n"


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_group_of_torch_ends_calls(asynchronous):
    assert run(f"""
import torch, torch.distributed as dist
from datetime import timedelta
from tutti.torch._group import ProcessGroup
shared, groups = dist.HashStore(), [None, None]
def meet(rank): groups[rank] = ProcessGroup(shared, rank, 2, timedelta(seconds=60))
meeting = Caller(lambda: meet(1))
meet(0)
meeting.end()
group, opts = groups[0], dist.AllreduceOptions()
opts.asyncOp = {asynchronous}
call = Caller(lambda: group.allreduce([torch.ones(1)], opts).wait(), group._comm.handle)
group.shutdown()
print(call.end())
""") == "AbortedError\n"


def test_a_signal_handler_closes():
    assert run("""
def handler(*_):
    try: comm.close()
    except tutti.InvalidError as error: print(error); comm.abort()
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try: comm.all_reduce(one)
except tutti.AbortedError: print("aborted")
comm.close()
""") == "close() of the communicator interrupts a call of the same thread that uses it: close it after the call\naborted\n"


def test_a_child_of_fork_closes():
    assert run("""
call = Caller(lambda: comm.all_reduce(np.ones(1)), comm.handle)
child = os.fork()
if child == 0:
    comm.close()
    os._exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
other.all_reduce(one)
print(call.end())
""") == "5\n[2.]\n"


def test_copies_are_refused():
    assert run("""
group = tutti.SymmetricGroup("copies", 0, 1, store)
memory = group.alloc(4)
memory.rendezvous()
alone = tutti.Communicator.from_store(tutti.Store("memory:alone"), 0, 1)
process_group = tutti.ProcessGroup(alone.dup())
work = process_group.barrier()
things = [comm, store, store.prefix("p"), group, memory, process_group, work]
for thing in things:
    for way in copy.copy, copy.deepcopy, pickle.dumps, lambda thing: copy.deepcopy([thing]):
        try: way(thing)
        except TypeError as error: assert "cannot be copied or pickled" in str(error), error
        else: print("copied", thing)
scaled = tutti.premul_sum(0.5)
for way in copy.copy, copy.deepcopy, lambda op: pickle.loads(pickle.dumps(op)):
    assert way(tutti.SUM) is tutti.SUM
    assert alone.all_reduce(np.ones(1), op=way(scaled)).tolist() == [0.5]
assert alone.all_reduce(np.ones(1), op=scaled).tolist() == [0.5]
""") == ""
