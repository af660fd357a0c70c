# SPDX-License-Identifier: MIT
"""Ranks for tests: threads of this process, or processes."""

import itertools
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import tutti

_numbers = itertools.count()


def on_threads(count, function, **options):
    """Calls function(comm) on `count` ranks, each a thread with its communicator; the results in rank order.

    Raises the exception of the first rank that has one.
    """
    results, errors = [None] * count, [None] * count
    url = f"memory:test{next(_numbers)}"
    options = {"timeout": 60, **options}

    def run(rank):
        try:
            with tutti.Store(url) as store, tutti.Communicator.from_store(store, rank, count, **options) as comm:
                results[rank] = function(comm)
        except BaseException as error:  # also an assertion
            errors[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if error is not None:
            raise error
    return results


def start_processes(count, program, **options):
    """Starts a program on `count` ranks: there `store`, `rank` and `count` are set, numpy and tutti imported.

    SIGINT raises KeyboardInterrupt there, also if the tests run in the background of a shell, which ignores it.
    """
    url = f"file:{Path(tempfile.mkdtemp(), 'store')}"
    head = ("import os, signal, numpy, tutti\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
            f"count, store = {count}, tutti.Store({url!r}, 60)\n")
    return [subprocess.Popen([sys.executable, "-c", f"{head}rank = {rank}\n{program}"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, **options) for rank in range(count)]
