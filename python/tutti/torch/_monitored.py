# SPDX-License-Identifier: MIT
"""A barrier through the store of a process group."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from tutti._errors import TimeoutError


def monitored_barrier(store: Any, key: str, rank: int, size: int, timeout: timedelta, wait_all_ranks: bool) -> None:
    """Rank 0 waits for a key of each other rank, in rank order, and then answers all. Without wait_all_ranks it names only
    the first rank that is missing."""
    milliseconds = round(timeout.total_seconds() * 1000)
    if rank:
        # PyTorch's tests expect these words.
        reached = (f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
                   f"rank 0:")
        store.set(f"{key}/{rank}", "")
        try:
            store.wait([f"{key}/answer"], timeout)
        except RuntimeError as error:
            raise TimeoutError(f"{reached} it has not answered in {milliseconds} ms") from error
        answer = store.get(f"{key}/answer").decode()
        if answer:
            raise TimeoutError(f"{reached} {answer}")
        return
    if milliseconds <= 0:
        answer = "Rank 0 timed out in monitoredBarrier: its time-out is 0"
        store.set(f"{key}/answer", answer)
        raise TimeoutError(answer)
    end = time.monotonic() + timeout.total_seconds()
    missing: list[int] = []
    for peer in range(1, size):
        left = max(0.001, end - time.monotonic())
        try:
            store.wait([f"{key}/{peer}"], timedelta(seconds=left))
        except RuntimeError:
            missing.append(peer)
            if not wait_all_ranks:
                break
    answer = ""
    if missing:
        ranks = f"Rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        answer = f"{ranks} failed to pass monitoredBarrier in {milliseconds} ms"
    store.set(f"{key}/answer", answer)
    if missing:
        raise TimeoutError(answer)
