# SPDX-License-Identifier: MIT
"""The backend tutti of torch.distributed between two "hosts" of this machine (TUTTI_HOST_ID), over a real MPI.

usage: hosts.py MPI [LIBRARY]    (openmpi5 or mpich5 of scripts/rivals, openmpi or mpich of the system; LIBRARY: the stand-in for
                                  libcuda, for CUDA tensors)
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
import warnings

RANKS, CUDA_RANKS = 4, 2
LAUNCHERS = {"openmpi": "mpirun.openmpi", "openmpi5": ".rivals/openmpi/bin/mpirun", "mpich": "mpiexec.mpich",
             "mpich5": ".rivals/mpich/bin/mpiexec"}


def collectives(dist, torch, rank, size, group=None):
    ranks = torch.arange(size)
    x = torch.full((1000,), float(rank))
    dist.all_reduce(x, group=group)
    assert torch.equal(x, torch.full((1000,), float(ranks.sum())))
    work = dist.all_reduce(x := torch.full((70000,), float(rank)), group=group, async_op=True)
    work.wait()
    assert torch.equal(x, torch.full((70000,), float(ranks.sum())))
    got = [torch.empty(3) for _ in range(size)]
    dist.all_gather(got, torch.full((3,), float(rank)), group=group)
    assert torch.equal(torch.stack(got)[:, 0], ranks.float())
    dist.all_gather_into_tensor(whole := torch.empty(2 * size), torch.full((2,), float(rank)), group=group)
    assert torch.equal(whole, ranks.float().repeat_interleave(2))
    dist.reduce_scatter_tensor(part := torch.empty(5), torch.arange(5.0 * size), group=group)
    assert torch.equal(part, torch.arange(5.0 * rank, 5.0 * rank + 5) * size)
    dist.all_to_all_single(taken := torch.empty(size), torch.full((size,), float(rank)), group=group)
    assert torch.equal(taken, ranks.float())
    root = dist.get_global_rank(group, size - 1) if group else size - 1
    dist.broadcast(x := torch.full((7,), float(rank)), root, group=group)
    assert x[0] == size - 1
    dist.gather(torch.tensor([rank]), list(got := torch.empty(size, 1, dtype=torch.int64)) if rank == size - 1 else None, root,
                group=group)
    assert rank < size - 1 or torch.equal(got[:, 0], ranks)
    dist.scatter(one := torch.empty(1, dtype=torch.int64), list(ranks[:, None] * 10) if rank == size - 1 else None, root,
                 group=group)
    assert one == 10 * rank
    dist.barrier(group=group)


def messages(dist, torch, rank, size):
    """Both ways at once, of long and short ones; tags in the opposite order; from any source."""
    peer, count = (rank + size // 2) % size, 100000
    sent = [torch.full((count if tag else 3,), float(10 * rank + tag)) for tag in range(3)]
    taken = [torch.empty_like(x) for x in sent]
    works = [dist.isend(sent[tag], peer, tag=tag) for tag in range(3)]
    works += [dist.irecv(taken[tag], peer, tag=tag) for tag in (2, 1, 0)]
    for work in works:
        work.wait()
    assert all(x[-1] == 10 * peer + tag for tag, x in enumerate(taken))
    if rank == 0:
        sources = [dist.recv(torch.empty(1), tag=7) for _ in range(size - 1)]
        assert sorted(sources) == list(range(1, size)), sources
    else:
        dist.send(torch.ones(1), 0, tag=7)
    entries = torch.sparse_coo_tensor([[rank, size]], [1.0, 1.0], (size + 1,))
    dist.all_reduce(entries)
    assert torch.equal(entries.to_dense(), torch.tensor([1.0] * size + [float(size)]))


def cuda_tensors(dist, torch, rank, library):
    """The collectives of standin.py between two hosts, each with one rank."""
    import standin
    import tutti

    standin.enter(rank, library)
    make_future = torch.futures.Future
    torch.futures.Future = lambda devices=None: make_future()
    for case in standin.CASES:
        for asynchronous in False, True:
            for count in 5, 300_001:
                start, check = case(rank, count)
                work = start(asynchronous)
                if asynchronous:
                    work.wait()
                check()
    tensors = [standin.put(standin.of(count, rank)) for count in (3, 70_000)]
    with dist._coalescing_manager(device=torch.device("cuda", rank)):
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor in tensors:
        standin.same(tensor, standin.of(len(tensor), 0) + standin.of(len(tensor), 1))
    dist.barrier(device_ids=[rank])
    try:
        dist.all_reduce(standin.put(standin.of(8 + rank, rank)))
        raise AssertionError("ranks disagree, and no rank has noticed it")
    except tutti.MismatchError:
        pass


def live():
    import tutti

    library = os.environ.get("TUTTI_TEST_STANDIN")
    me = tutti.launcher()
    os.environ.update(TUTTI_FABRIC="mpi:", TUTTI_HOST_ID="ab"[me.rank * 2 // me.world_size], RANK=str(me.rank),
                      WORLD_SIZE=str(me.world_size), OMP_NUM_THREADS="1")
    warnings.simplefilter("ignore")
    import torch
    import torch.distributed as dist

    began = time.monotonic()
    dist.init_process_group("tutti")
    size = dist.get_world_size()
    what = dist.group.WORLD.communicator(torch.device("cpu")).describe()
    assert what["hosts"] == "2" and what["fabric"].startswith("mpi"), what
    if library:
        cuda_tensors(dist, torch, me.rank, library)
    else:
        collectives(dist, torch, me.rank, size)
        messages(dist, torch, me.rank, size)
        mixed = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3], [2, 3], [3, 0, 1])]  # [2, 3] on one host
        for group, ranks in zip(mixed, ([0, 2], [1, 3], [2, 3], [3, 0, 1])):
            if me.rank in ranks:
                collectives(dist, torch, dist.get_group_rank(group, me.rank), len(ranks), group)
        dist.barrier()
    dist.destroy_process_group()
    print(f"rank {me.rank}: passed in {time.monotonic() - began:.1f} s", flush=True)


def main(mpi, library=""):
    try:
        import torch.distributed  # noqa: F401

        import tutti  # noqa: F401
    except ImportError as error:
        print("skipped:", error)
        return 77
    root = os.path.dirname(os.path.abspath(__file__)) + "/../../.."
    launcher = LAUNCHERS[mpi]
    if launcher.startswith("."):
        launcher = os.path.join(root, launcher)
    if subprocess.run(["sh", "-c", f"command -v {launcher}"], stdout=subprocess.DEVNULL).returncode:
        print("skipped: no", launcher)
        return 77
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"] if "open" in mpi else []
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TMPDIR=folder,
                           OMPI_MCA_mpi_yield_when_idle="1", TUTTI_TEST_STANDIN=library)
        ranks = CUDA_RANKS if library else RANKS
        done = subprocess.run([launcher, *options, "-n", str(ranks), sys.executable, os.path.abspath(__file__)],
                              env=environment, stdout=subprocess.PIPE, text=True, timeout=200)
    print(done.stdout)
    return done.returncode or done.stdout.count(": passed") != ranks


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) > 1 else live())
