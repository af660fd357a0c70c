# SPDX-License-Identifier: MIT
"""Set-ups over PyTorch's stores, one after the other: no set-up fails, and so none waits for a key that never comes.

Three ranks meet again and again, under one name and under a prefix of each round: processes that are forked or spawned
over FileStore and TCPStore, threads over HashStore, and each through PrefixStore too. The store `slow` sleeps up to 30 ms
after a successful check, so that a peer deletes keys between two calls of one look-up.

usage: setups.py [KIND]...   of file, tcp, hash, slow; default: all
TUTTI_TEST_OPERATIONS says how many set-ups (1500, at most five minutes); with TUTTI_TEST_SHORT 48.
"""

import datetime
import multiprocessing
import os
import random
import socket
import sys
import tempfile
import threading
import time
import traceback

here = os.path.dirname(os.path.abspath(__file__))
sys.path = [path for path in sys.path if path != here]  # its torch/ is not PyTorch
try:
    import torch.distributed as dist

    import tutti
except ImportError as error:
    print("skipped:", error)
    sys.exit(77)

RANKS = 3
ROUNDS = {"fork": 100, "spawn": 250}  # of one group of ranks; a spawned process takes seconds to begin
SECONDS = 300
TIMEOUT = 60  # of a set-up
PATIENCE = datetime.timedelta(seconds=90)  # of PyTorch's stores


class Slow:
    """A store whose look-ups are slow after a successful check."""

    def __init__(self, store):
        self.store = store

    def __getattr__(self, name):
        return getattr(self.store, name)

    def check(self, keys):
        found = self.store.check(keys)
        if found:
            time.sleep(random.random() * 0.03)
        return found


def opened(kind, address, rank):
    if kind == "tcp":
        return dist.TCPStore("127.0.0.1", address, RANKS, rank == 0, PATIENCE, multi_tenant=True)
    store = address if kind == "hash" else dist.FileStore(address, RANKS)
    store.set_timeout(PATIENCE)
    return Slow(store) if kind == "slow" else store


def meet(kind, address, rank, rounds):
    """One rank's part of the rounds: every other round is under a prefix of its own."""
    store = opened(kind, address, rank)
    for number in range(rounds):
        under = store
        if number % 2 and kind != "slow":  # PrefixStore takes no store of Python's
            under = dist.PrefixStore(f"round/{number}", store)
        with tutti.Store.wrap(under) as own, tutti.Communicator.from_store(own, rank, RANKS, timeout=TIMEOUT) as comm:
            comm.barrier()


def process(kind, address, rank, rounds):
    try:
        meet(kind, address, rank, rounds)
    except BaseException:
        print(f"{kind}, rank {rank}:\n{traceback.format_exc()}", flush=True)
        os._exit(1)
    os._exit(0)  # without the ends of a library that a fork has copied


def in_processes(kind, how, rounds, folder):
    """Whether all rounds of one group succeed."""
    context = multiprocessing.get_context(how)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = port if kind == "tcp" else tempfile.mktemp(dir=folder)
    ranks = [context.Process(target=process, args=(kind, address, rank, rounds)) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return all(rank.exitcode == 0 for rank in ranks)


def in_threads(rounds):
    failed = []

    def run(rank):
        try:
            meet("hash", store, rank, rounds)
        except BaseException:
            failed.append(f"hash, rank {rank}:\n{traceback.format_exc()}")

    store = dist.HashStore()
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for text in failed:
        print(text)
    return not failed


def main():
    short = "TUTTI_TEST_SHORT" in os.environ
    wanted = int(os.environ.get("TUTTI_TEST_OPERATIONS", 48 if short else 1500))
    kinds = sys.argv[1:] or ["file", "tcp", "slow", "hash"]
    cases = [(kind, how) for how in ("fork", "spawn") for kind in kinds if kind != "hash" or how == "fork"]
    done = {case: 0 for case in cases}
    end = time.monotonic() + SECONDS
    with tempfile.TemporaryDirectory(prefix="tutti-setups-") as folder:
        while sum(done.values()) < wanted and time.monotonic() < end:
            for kind, how in cases:
                rounds = min(ROUNDS[how], max(2, wanted // len(cases)))
                # Threads come last in their turn: this process forks, and the threads have ended by then.
                if not (in_threads(rounds) if kind == "hash" else in_processes(kind, how, rounds, folder)):
                    sys.exit(f"FAILED: {kind}, {how}, after {sum(done.values())} set-ups")
                done[kind, how] += rounds
    print(f"{sum(done.values())} set-ups:", ", ".join(f"{kind} {how} {count}" for (kind, how), count in done.items()))


if __name__ == "__main__":
    main()
