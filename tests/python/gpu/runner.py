# SPDX-License-Identifier: MIT
"""Runs the cases of ../gpu.py, each in a process group of its own."""

import faulthandler
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

SKIPPED = 77


class Skip(Exception):
    pass


class Rank:
    """What a case has in one of its processes."""

    def __init__(self, rank, size, gpus, folder, given):
        self.rank, self.size, self.gpus, self.folder, self.given = rank, size, gpus, folder, given
        self.cuda, self.is_tutti = given.device == "cuda", given.backend == "tutti"
        self.device = torch.device("cuda", rank % gpus) if self.cuda else torch.device("cpu")
        if self.cuda:
            if size > gpus:
                os.environ["TUTTI_ALLOW_OVERLAPPING_DEVICES"] = "1"
            torch.cuda.set_device(self.device)

    def start(self, backend=None, timeout=30):
        """Makes the default group."""
        dist.init_process_group(backend or self.given.backend, init_method=f"file://{self.folder}/torch",
                                rank=self.rank, world_size=self.size, timeout=timedelta(seconds=timeout))
        return dist.group.WORLD

    def store(self):
        import tutti

        return tutti.Store(f"file:{self.folder}/store", 30)

    def tensor(self, count, seed, dtype=torch.float32):
        """Small whole numbers, which depend on the seed: sums of few ranks are exact in every dtype."""
        return (torch.arange(count) % 23 + seed).to(dtype)

    def late(self, values):
        """A tensor on the device. The current stream fills it late, so who reads it unordered reads zeros."""
        found = torch.zeros_like(values, device=self.device)
        given = values.to(self.device)
        if self.cuda:
            torch.cuda._sleep(10_000_000)  # cycles
        return found.copy_(given)

    def back(self, found):
        return found.cpu()

    def ways(self):
        """Synchronous and asynchronous, on the default stream and on another: async_op, and a context."""
        for asynchronous in False, True:
            yield asynchronous, nullcontext()
            if self.cuda:
                yield asynchronous, torch.cuda.stream(torch.cuda.Stream())

    def synchronize(self):
        if self.cuda:
            torch.cuda.synchronize()

    def synchronize_current(self):
        if self.cuda:
            torch.cuda.current_stream().synchronize()

    def until_raised(self, kind, call):
        """Calls until the exception: an operation on a stream has its fault after the call."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                call()
                self.synchronize()
            except kind as error:
                return error
            time.sleep(0.001)
        raise AssertionError(f"no {kind.__name__} in 20 s")


def same(found, expected):
    found = found.detach().cpu()
    if not torch.equal(found, expected):
        raise AssertionError(f"{found.flatten()[:8]}..., expected {expected.flatten()[:8]}...; "
                             f"{(found != expected).sum().item()} of {found.numel()} differ")


def _child(case, me, log):
    """Never returns."""
    status = 1
    try:
        for place, suffix in (1, "out"), (2, "err"):
            os.dup2(os.open(f"{log}.{suffix}", os.O_WRONLY | os.O_CREAT, 0o600), place)
        faulthandler.enable()  # a signal, too, has a stack
        faulthandler.dump_traceback_later(max(1, case.seconds - 2))
        case.function(Rank(*me))
        if dist.is_initialized():
            dist.destroy_process_group()
        status = 0
    except Skip as why:
        print("skipped:", why)
        status = SKIPPED
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(pids, end):
    """The ranks' statuses; None: it did not end. After a failure the others have 5 s more."""
    statuses = {}
    while len(statuses) < len(pids) and time.monotonic() < end:
        for pid in pids:
            if pid not in statuses:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    statuses[pid] = os.waitstatus_to_exitcode(status)
                    if statuses[pid] not in (0, SKIPPED):
                        end = min(end, time.monotonic() + 5)
        time.sleep(0.005)
    try:
        os.killpg(pids[0], signal.SIGKILL)  # also what the ranks started
    except ProcessLookupError:
        pass
    for pid in pids:
        if pid not in statuses:
            os.waitpid(pid, 0)
    return [statuses.get(pid) for pid in pids]


def _run(case, given, gpus, seconds):
    """The verdict, and lines that explain it."""
    folder = tempfile.mkdtemp(prefix="tutti-case-")
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    ranks = range(case.ranks)
    logs = [f"{folder}/{rank}" for rank in ranks]
    pids = []
    for rank in ranks:
        pid = os.fork()
        if not pid:
            _child(case, (rank, case.ranks, gpus, folder, given), logs[rank])
        os.setpgid(pid, pids[0] if pids else pid)
        pids.append(pid)
    statuses = _wait(pids, time.monotonic() + seconds)
    out, err = ([Path(f"{log}.{suffix}").read_text(errors="replace").splitlines() for log in logs] for suffix in ("out", "err"))
    os.environ.pop("TMPDIR")
    tempfile.tempdir = None
    shutil.rmtree(folder, ignore_errors=True)
    if all(status == 0 for status in statuses):
        return "passed", out[0]
    if all(status in (0, SKIPPED) for status in statuses):
        return "skipped", [line[9:] for lines in out for line in lines if line.startswith("skipped: ")][:1]
    why = [f"longer than {seconds:.0f} s" if status is None else f"rank {rank}: status {status}"
           for rank, status in enumerate(statuses) if status not in (0, SKIPPED)]
    return "FAILED", why + [f"{rank}| {line}" for rank in ranks if statuses[rank] not in (0, SKIPPED)
                            for line in (out[rank] + err[rank])[-60:]]


def run_all(cases, given, gpus, end):
    counts = {"passed": 0, "FAILED": 0, "skipped": 0}
    for case in cases:
        if given.texts and not any(text in case.name for text in given.texts):
            continue
        begin = time.monotonic()
        if not gpus and case.needs_cuda:
            verdict, lines = "skipped", ["needs CUDA"]
        elif given.device == "cuda" and case.gpus > gpus:
            verdict, lines = "skipped", [f"needs {case.gpus} GPUs"]
        elif end - begin < 5:
            verdict, lines = "FAILED", ["no time was left"]
        else:
            verdict, lines = _run(case, given, gpus, min(case.seconds, end - begin))
        counts[verdict] += 1
        why = f"  {lines[0]}" if verdict != "passed" and lines else ""
        print(f"{case.name:28}{time.monotonic() - begin:6.1f} s  {verdict}{why}")
        for line in lines if verdict == "passed" else lines[1:]:
            print(f"    {line}")
        sys.stdout.flush()
    print(", ".join(f"{verdict} {count}" for verdict, count in counts.items()))
    return counts["FAILED"] > 0 or counts["passed"] == 0
