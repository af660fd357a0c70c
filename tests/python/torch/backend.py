# SPDX-License-Identifier: MIT
"""The backend tutti of torch.distributed, beyond PyTorch's own tests of it.

usage: backend.py RANKS [ARGUMENT OF UNITTEST]...
"""

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import unittest
from datetime import timedelta

try:
    import torch
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    import tutti
except ImportError as error:
    print("skipped:", error)
    sys.exit(77)

ranks = int(sys.argv[1])
os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", TUTTI_LOG_FILE="/dev/null")


def conjugated(values):
    return values.conj().resolve_conj().conj()


def negated(values):
    return torch._neg_view(-values)


def imaginary(values):
    """A negated view with gaps."""
    return torch.complex(torch.zeros(values.shape), -values).conj().imag


# Tensors of given values, whose memory holds other values, in another order, or with others between them.
WRITABLE = {
    "conjugated": (torch.complex64, conjugated),
    "conjugated and negated": (torch.complex64, lambda values: torch._neg_view(conjugated(-values))),
    "conjugated, with gaps": (torch.complex64, lambda values: conjugated(values.repeat_interleave(2))[::2]),
    "negated": (torch.float32, negated),
    "negated integers": (torch.int64, negated),
    "imaginary part": (torch.float32, imaginary),
    "part of a base": (torch.float32, lambda values: torch.cat((torch.zeros(3), values, torch.zeros(2)))[3:-2]),
    "with gaps": (torch.float32, lambda values: values.repeat_interleave(3)[::3]),
}
# These cannot receive.
READABLE = {
    "ZeroTensor": (torch.float32, lambda values: torch._efficientzerotensor(values.shape)),
    "expanded": (torch.float32, lambda values: values[:1].expand(values.shape)),
    "overlapping": (torch.float32, lambda values: values.as_strided((len(values) // 2, 2), (1, 1))),
}


class Test(MultiProcessTestCase):
    world_size = ranks
    timeout = timedelta(seconds=60)

    def setUp(self):
        super().setUp()
        self._start_processes(multiprocessing.get_context("fork").Process)  # spawned ones would import PyTorch again

    @classmethod
    def _run(cls, rank, name, file_name, pipe, **kwargs):
        if name not in OWN_START:
            dist.init_process_group("tutti", init_method=f"file://{file_name}", rank=rank, world_size=ranks,
                                    timeout=cls.timeout)
        super()._run(rank, name, file_name, pipe, **kwargs)

    def start(self, timeout):
        """For tests that are in OWN_START."""
        dist.init_process_group("tutti", init_method=f"file://{self.file_name}", rank=self.rank, world_size=ranks,
                                timeout=timedelta(seconds=timeout))

    # ---- collectives

    def test_names(self):
        world = dist.group.WORLD
        self.assertEqual(dist.get_backend(), "tutti")
        self.assertEqual((world.rank(), world.size(), world.name()), (self.rank, ranks, "tutti"))
        group = dist.new_group(range(ranks), group_desc="of all")
        self.assertEqual(group.group_desc, "of all")
        self.assertNotEqual(group.group_name, world.group_name)

    def test_import(self):
        """`import torch` registers the backend and imports nothing else of the package."""
        if self.rank == 0:
            program = "import sys, torch.distributed as d; print('TUTTI' in d.Backend._plugins, 'tutti' in sys.modules)"
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
            self.assertEqual(done.stdout, "True False\n", done.stderr)

    def test_dtypes(self):
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16,
                      torch.int32, torch.int64, torch.complex64, torch.complex128):
            tensor = torch.full((5,), self.rank + 1).to(dtype)
            dist.all_reduce(tensor)
            self.assertEqual(tensor, torch.full((5,), ranks * (ranks + 1) // 2).to(dtype))
        tensor = torch.tensor([self.rank == 0, False])
        dist.all_reduce(tensor)
        self.assertEqual(tensor, torch.tensor([True, False]))
        with self.assertRaisesRegex(ValueError, "complex32"):
            dist.group.WORLD.allreduce([torch.zeros(2, dtype=torch.complex32)])
        tensor = torch.full((4,), float(self.rank)).to(torch.float8_e5m2fnuz)  # which the library does not know
        dist.broadcast(tensor, 1)
        self.assertEqual(tensor.float(), torch.ones(4))

    def test_operations(self):
        mine = torch.tensor([float(self.rank + 1), -float(self.rank)])
        for op, expected in ((dist.ReduceOp.AVG, [(ranks + 1) / 2, -(ranks - 1) / 2]), (dist.ReduceOp.MAX, [ranks, 0]),
                             (dist.ReduceOp.MIN, [1, 1 - ranks])):
            tensor = mine.clone()
            dist.all_reduce(tensor, op)
            self.assertEqual(tensor.tolist(), expected)
        tensor = mine.clone()
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(2.0))
        self.assertEqual(tensor[0].item(), ranks * (ranks + 1))

    def test_layouts(self):
        """Ranks may have different strides: elements are matched by their indices."""
        base = torch.arange(12.).view(3, 4)
        tensor = base.clone() if self.rank else base.t().contiguous().t()
        dist.all_reduce(tensor)
        self.assertEqual(tensor, base * ranks)
        holes = torch.zeros(6, 2)[:, 0]
        holes += torch.arange(6.)
        dist.broadcast(holes if self.rank == 0 else holes.zero_(), 0)
        self.assertEqual(holes, torch.arange(6.))
        whole = torch.zeros(ranks, 2, 2)
        dist.all_gather(list(whole), torch.full((2, 2), float(self.rank)).t())
        self.assertEqual(whole[:, 1, 0].tolist(), list(range(ranks)))
        empty = torch.empty(0)
        dist.all_reduce(empty)

    def test_all_to_all(self):
        for asynchronous in False, True:
            given = torch.arange(float(sum(range(1, ranks + 1)) * 2)).view(-1, 2) + 100 * self.rank
            sends = list(range(1, ranks + 1))
            output = torch.empty(ranks * (self.rank + 1), 2)
            work = dist.all_to_all_single(output, given, [self.rank + 1] * ranks, sends, async_op=asynchronous)
            if asynchronous:
                work.wait()
            first = sum(sends[:self.rank])
            expected = [torch.arange(2. * first, 2. * (first + self.rank + 1)).view(-1, 2) + 100 * peer
                        for peer in range(ranks)]
            self.assertEqual(output, torch.cat(expected))
        with self.assertRaisesRegex(ValueError, "rows"):  # on all ranks: the group goes on
            dist.all_to_all_single(torch.empty(ranks + 1), torch.empty(ranks + 1))
        dist.all_to_all_single(output := torch.empty(ranks), torch.full((ranks,), float(self.rank)))
        self.assertEqual(output.tolist(), list(range(ranks)))

    def test_communicator(self):
        """Calls that torch.distributed does not have: sizes in a tensor."""
        import tutti.torch

        comm = tutti.torch.communicator("cpu")
        sizes, got = torch.arange(ranks, dtype=torch.int32), torch.empty(ranks, dtype=torch.int32)
        output = torch.zeros(ranks * ranks)
        dist.all_to_all_single(got, sizes)
        comm.all_to_all_v(torch.full((ranks * ranks,), 1. + self.rank), output, sizes, got, max_count=ranks)
        expected = torch.arange(1., ranks + 1).repeat_interleave(self.rank)
        self.assertEqual(output[:len(expected)].tolist(), expected.tolist())
        with self.assertRaises(tutti.InvalidError):
            comm.all_to_all_v(output, got.float(), sizes, got.long(), max_count=ranks)
        group = dist.new_group(backend="gloo")
        with self.assertRaisesRegex(ValueError, "no process group of the backend tutti"):
            tutti.torch.communicator("cpu", group)
        dist.barrier()  # a rank that ends breaks Gloo's set-up on others

    def test_threads_of_torch(self):
        """PyTorch's threads, or this rank's share of the cores."""
        import tutti.torch

        torch.set_num_threads(2 + self.rank)
        group = dist.new_group()
        comm = tutti.torch.communicator("cpu", group)
        cores, asked = int(comm.describe()["cores"]), sum(2 + rank for rank in range(ranks))
        share = 2 + self.rank if asked <= cores else 1 if ranks > cores else max(1, (2 + self.rank) * cores // asked)
        self.assertEqual(int(comm.describe().get("threads", 1)), share)
        for is_async in False, True:
            work = dist.all_reduce(values := torch.arange(300_000.) + self.rank, group=group, async_op=is_async)
            if is_async:
                work.wait()
            self.assertTrue(torch.equal(values, ranks * torch.arange(300_000.) + sum(range(ranks))))
        torch.set_num_threads(1)

    def test_all_to_all_refused(self):
        """The other ranks learn at once why one rank refuses its call, not after their time-out."""
        for wrong, reason in ([2] * ranks, "but the sizes"), ([1] * (ranks - 1) + [2], "to itself"):
            group = dist.new_group()
            last = self.rank == ranks - 1
            splits = wrong if last else [1] * ranks
            given = torch.ones(ranks + (last and "itself" in reason))
            with self.assertRaisesRegex(tutti.InvalidError if last else tutti.MismatchError, reason):
                dist.all_to_all_single(torch.empty(ranks), given, None, splits, group=group)
            dist.barrier()

    def test_mixed(self):
        """One rank calls asynchronously, the others do not; asynchronous calls before synchronous ones."""
        tensor, other = torch.ones(1000), torch.ones(3)
        work = dist.all_reduce(tensor, async_op=self.rank == 0)
        dist.all_reduce(other)
        dist.barrier()
        if work:
            self.assertTrue(work.is_completed())
            self.assertEqual(work.get_future().value(), [tensor])
        self.assertEqual((tensor[999].item(), other[0].item()), (ranks, ranks))

    def test_futures(self):
        """A callback may call collectives, as the PowerSGD hook does."""
        tensor = torch.ones(2)

        def again(future):
            found, = future.value()
            dist.all_reduce(found)
            return dist.all_reduce(found, async_op=True).get_future().wait()

        works = [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(3)]
        future = dist.all_reduce(tensor, async_op=True).get_future().then(again)
        self.assertEqual(future.wait()[0], torch.full((2,), float(ranks ** 3)))
        for work in works:
            work.wait()

    def test_future_is_done(self):
        """A work's future is done when wait() returns, also inside a callback of it."""
        done, tensor = [], torch.ones(1)
        for i in range(1000):
            work = dist.broadcast(tensor, 0, async_op=True)
            future = work.get_future()
            if i == 0:
                future.add_done_callback(lambda _, work=work: work.wait())
            work.wait()
            done.append(future.done() and work.is_completed())
        self.assertEqual(done.count(False), 0)
        self.assertTrue(work.wait(timedelta(days=200000)))

    def test_threads(self):
        """Calls of several threads wait for one another."""
        def all_reduce(i):
            tensor = torch.ones(50)
            work = dist.all_reduce(tensor, async_op=i % 4 == 0)
            if work:
                work.wait()
            return tensor[49].item()

        def all_to_all(i):
            tensor = torch.empty(ranks)
            dist.all_to_all_single(tensor, torch.ones(ranks))
            return tensor.sum().item()

        for call in all_reduce, all_to_all:
            found = []
            threads = [threading.Thread(target=lambda: found.extend(map(call, range(200)))) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(found, [ranks] * 600)

    def test_coalescing(self):
        tensors = [torch.full((n,), float(self.rank)) for n in range(1, 5)]
        with dist._coalescing_manager(async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        manager.wait()
        for tensor in tensors:
            self.assertEqual(tensor, torch.full_like(tensor, ranks * (ranks - 1) / 2))
        with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
            works = [dist.broadcast(tensor, 0, async_op=True) for tensor in tensors]
        manager.works[0].synchronize()
        manager.wait()
        self.assertTrue(all(work.is_completed() for work in works))

    def test_sparse(self):
        indices = torch.tensor([[0, self.rank + 1]])
        tensor = torch.sparse_coo_tensor(indices, torch.ones(2, 3), (ranks + 1, 3))
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        dense = torch.ones(ranks + 1, 3)
        dense[0] = ranks
        self.assertEqual(tensor.to_dense(), dense)
        with self.assertRaisesRegex(ValueError, "summed"):
            dist.all_reduce(tensor, dist.ReduceOp.MAX)

    def _all_operations(self, given, made):
        """The results of all operations. given: a tensor of a row for each rank; made(shape, value): one that receives."""
        world, rows, row = dist.group.WORLD, given.shape, given.shape[1:]
        mine, first = float(self.rank), self.rank == 0
        after, before = (self.rank + 1) % ranks, (self.rank - 1) % ranks

        def lists():
            return [made(row, 0) for _ in range(ranks)]

        def run(start, *operands):
            work = start(*operands)
            work.wait()
            return operands[0]

        yield "all_gather", run(world.allgather, [[made(rows, 0) for _ in range(ranks)]], [given])[0]
        yield "all_gather_single", [run(world.all_gather_single, made((ranks * rows[0], *row), 0), given)]
        yield "gather", run(world.gather, [[made(rows, 0) for _ in range(ranks)]] if first else [], [given])[0:1]
        yield "scatter", run(world.scatter, [made(row, 0)], [list(given)] if first else [])
        yield "reduce_scatter", run(world.reduce_scatter, [made(row, 0)], [list(given)])
        yield "reduce_scatter_single", [run(world.reduce_scatter_single, made((1, *row), 0), given)]
        yield "all_to_all", run(world.alltoall, lists(), list(given))
        yield "all_to_all_single", [run(world.all_to_all_single, made(rows, 0), given)]
        for start in world.allreduce, world.allreduce_coalesced:
            yield start.__name__, run(start, [made(rows, mine + 1)])
        yield "reduce", run(world.reduce, [made(rows, mine + 1)])
        yield "broadcast", run(world.broadcast, [given if first else made(rows, 0)])
        found = made(rows, 0)
        works = [world.send([given], after), world.recv([found], before)]
        for work in works:
            work.wait()
        yield "messages", [found]

    def test_lazy(self):
        """Operands whose memory does not hold their elements in order: PyTorch conjugates and negates later. The last rank's
        are plain: sums of negated values alone would be right by chance."""

        def plain(tensor):
            return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)

        for kind, (dtype, make) in {**WRITABLE, **READABLE}.items():
            values = (torch.arange(1, 2 * ranks + 1) * (2 + self.rank) + (1j if dtype.is_complex else 0)).to(dtype)
            given = plain(make(values).view(ranks, 2)) if self.rank == ranks - 1 else make(values).view(ranks, 2)

            def made(shape, value):
                values = torch.full((torch.Size(shape).numel(),), value, dtype=dtype)
                return (make(values) if kind in WRITABLE and self.rank < ranks - 1 else values).view(shape)

            def made_plain(shape, value):
                return plain(made(shape, value))

            for found, expected in zip(self._all_operations(given, made),
                                       self._all_operations(plain(given), made_plain), strict=True):
                for one, other in zip(found[1], expected[1], strict=True):
                    if isinstance(one, list):
                        one, other = torch.stack(one), torch.stack(other)
                    self.assertEqual(plain(one), other, msg=f"{found[0]}, {kind}")

    def test_lazy_reduced_at_once(self):
        """The short way of a synchronous all_reduce."""
        for kind, (dtype, make) in WRITABLE.items():
            tensor, options = torch.full((6,), self.rank + 1, dtype=dtype), dist.AllreduceOptions()
            if self.rank == 0:
                tensor = make(tensor)
            options.asyncOp = False
            dist.group.WORLD.allreduce([tensor], options)
            self.assertEqual(tensor + 0, torch.full((6,), ranks * (ranks + 1) / 2).to(dtype), msg=kind)

    def test_sparse_lazy(self):
        tensor = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), negated(torch.tensor([1., 2.])), (3,))
        dist.all_reduce(tensor)
        self.assertEqual(tensor.to_dense(), torch.tensor([1., 0., 2.]) * ranks)

    def test_not_receiving(self):
        """Refused at the call, so the group goes on."""
        world = dist.group.WORLD
        plain = torch.ones(ranks, 2)
        for kind, (_, make) in READABLE.items():
            tensor, text = make(torch.ones(2 * ranks)).view(ranks, 2), "ZeroTensor" if kind == "ZeroTensor" else "share memory"
            for call in (lambda: dist.all_reduce(tensor), lambda: dist.all_reduce(tensor, async_op=True),
                         lambda: dist.reduce(tensor, self.rank), lambda: dist.broadcast(tensor, (self.rank + 1) % ranks),
                         lambda: dist.all_gather([tensor] * ranks, plain), lambda: dist.recv(tensor, (self.rank + 1) % ranks),
                         lambda: dist.all_gather_into_tensor(tensor, plain[:1]),
                         lambda: dist.gather(plain, [tensor] * ranks, self.rank),
                         lambda: dist.scatter(tensor, [plain] * ranks, self.rank),
                         lambda: dist.reduce_scatter(tensor, [plain] * ranks),
                         lambda: dist.reduce_scatter_tensor(tensor, torch.ones(ranks * ranks, 2)),
                         lambda: dist.all_to_all([tensor] * ranks, [plain] * ranks),
                         lambda: dist.all_to_all_single(tensor, plain)):
                with self.assertRaisesRegex(ValueError, text):
                    call()
        quantized = torch.quantize_per_tensor(plain, 0.1, 0, torch.qint8)
        for call in (lambda: dist.broadcast(quantized, 0), lambda: world.allgather([plain] * ranks, quantized),
                     lambda: world.allreduce([quantized]), lambda: world.send([quantized], 0)):
            with self.assertRaisesRegex(ValueError, "quantized"):
                call()
        with self.assertRaisesRegex(ValueError, "no memory"):
            world.allreduce([torch._to_functional_tensor(plain)])
        # Gaps of two strides, so that elements are interleaved but share nothing.
        woven = torch.zeros(16).as_strided((3, 2), (2, 3))
        dist.broadcast(woven.fill_(1) if self.rank == 0 else woven, 0)
        self.assertEqual(woven, torch.ones(3, 2))

    def test_in_place(self):
        """Operands that are parts of one another."""
        whole = torch.full((ranks, 2), -1.)
        dist.all_gather_into_tensor(whole, whole[self.rank].fill_(self.rank))
        self.assertEqual(whole[:, 0].tolist(), list(range(ranks)))
        dist.reduce_scatter_tensor(whole[self.rank], whole)
        self.assertEqual(whole[self.rank].tolist(), [self.rank * ranks] * 2)

    # ---- messages

    def test_messages(self):
        after, before = (self.rank + 1) % ranks, (self.rank - 1) % ranks
        given, found = torch.full((3,), float(self.rank)), torch.empty(3)
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, given, after, tag=3),
                                        dist.P2POp(dist.irecv, found, before, tag=3)])
        for work in works:
            work.wait()
        self.assertEqual(found, torch.full((3,), float(before)))
        if self.rank == 0:
            sources = set()
            for _ in range(ranks - 1):
                sources.add(dist.recv(found, tag=7))
                self.assertIn(int(found[0]), sources)
            self.assertEqual(sources, set(range(1, ranks)))
        else:
            dist.send(given, 0, tag=7)
        dist.barrier()  # a rank that leaves ends the group

    # ---- groups

    def test_groups(self):
        first = dist.new_group([0, 1])
        if self.rank < 2:
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=first)
            self.assertEqual(tensor.item(), 2)
        mesh = dist.device_mesh.init_device_mesh("cpu", (1, ranks), mesh_dim_names=("a", "b"))
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=mesh.get_group("b"))
        self.assertEqual(tensor.item(), ranks)
        dist.all_reduce(tensor, group=mesh.get_group("a"))
        self.assertEqual(tensor.item(), ranks)
        if self.rank < 2:
            dist.destroy_process_group(first)
        dist.barrier()

    def test_again(self):
        for _ in range(3):
            dist.destroy_process_group()
            self.start(60)
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            self.assertEqual(tensor.item(), ranks)

    def test_symmetric(self):
        import tutti.torch

        tensor = tutti.torch.empty(4, 5, dtype=torch.float64)
        self.assertEqual(tensor, torch.zeros(4, 5, dtype=torch.float64))
        tensor += 1
        dist.all_reduce(tensor)
        self.assertEqual(tensor, torch.full((4, 5), float(ranks), dtype=torch.float64))
        self.assertEqual(tutti.torch.empty((2, 0)).shape, (2, 0))

    def test_composite(self):
        """A backend for each device; cuda:gloo does without a GPU."""
        import tutti.torch

        def start():
            dist.init_process_group("cpu:tutti,cuda:gloo", init_method=f"file://{self.file_name}", rank=self.rank,
                                    world_size=ranks, timeout=self.timeout)

        if torch.__version__ < (2, 14):
            return self.assertRaisesRegex(ValueError, "2.14", start)
        start()
        gc.collect()
        world = dist.group.WORLD
        self.assertNotIsInstance(world._get_backend(torch.device("cuda")), tutti.torch._backend.Backend)
        tensor = tutti.torch.empty(3)
        dist.all_reduce(tensor.fill_(self.rank))
        work = dist.broadcast(tensor.add_(self.rank), 1, async_op=True)
        work.wait()
        self.assertEqual(tensor[2].item(), ranks * (ranks - 1) / 2 + 1)
        whole, mine = torch.empty(ranks), torch.ones(1)
        dist.all_gather(list(whole.split(1)), mine * self.rank)
        self.assertEqual(whole.tolist(), list(range(ranks)))
        dist.reduce_scatter_tensor(mine, whole)
        self.assertEqual(mine.item(), self.rank * ranks)
        self.test_all_to_all()
        if self.rank < 2:
            works = [dist.isend(tensor, 1 - self.rank), dist.irecv(mine.new_empty(3), 1 - self.rank)]
            for work in works:
                work.wait()
        with dist._coalescing_manager(device=tensor.device, async_ops=True) as manager:
            for part in whole.split(1):
                dist.all_reduce(part)
        manager.wait()
        self.assertEqual(whole.tolist(), [rank * ranks for rank in range(ranks)])
        self.test_data_parallel()

    # ---- faults

    def test_mismatch(self):
        with self.assertRaises(tutti.MismatchError):
            if self.rank:
                dist.all_reduce(torch.ones(2))
            else:
                dist.broadcast(torch.ones(2), 0, async_op=True).wait()
                dist.barrier()

    def test_timeout(self):
        self.start(2)
        store = dist.group.WORLD.get_group_store()
        if self.rank:
            store.wait(["done"], self.timeout)
        else:
            with self.assertRaisesRegex(RuntimeError, "rank 0 waited for rank 1"):
                dist.all_reduce(torch.ones(1))
            work = dist.all_reduce(torch.ones(1), async_op=True)
            with self.assertRaises(tutti.TimeoutError):
                work.wait()
            self.assertIsInstance(work.exception(), tutti.TimeoutError)
            with self.assertRaises(RuntimeError):
                work.get_future().wait()
            store.set("done", "")

    def test_abort(self):
        work = dist.all_reduce(torch.ones(1), async_op=True) if self.rank == 0 else None
        if self.rank == 1:
            dist.group.WORLD.abort()
        if work:
            with self.assertRaises(tutti.AbortedError):
                work.wait()

    def test_destroyed(self):
        """Refused by name."""
        group = dist.new_group()
        dist.destroy_process_group(group)
        tensor, options = torch.ones(ranks), dist.AllreduceOptions()
        options.asyncOp = False
        for name, call in (("all_reduce", lambda: group.allreduce([tensor])), ("barrier", lambda: group.barrier()),
                           ("all_reduce", lambda: group.allreduce([tensor], options)),
                           ("all_reduce", lambda: group.allreduce([tensor.to_sparse()])),
                           ("all_to_all", lambda: group.all_to_all_single(tensor, tensor)),
                           ("send", lambda: group.send([tensor], 0)), ("recv", lambda: group.recv([tensor], 0)),
                           ("monitored_barrier", lambda: group.monitored_barrier()),
                           ("symmetric memory", lambda: group.symmetric((1,), torch.float32))):
            with self.assertRaisesRegex(ValueError, f'{name} on process group "{group.group_name}", which has been destroyed'):
                call()

    def test_roots(self):
        """Refused at an asynchronous call, too."""
        world, tensor = dist.group.WORLD, torch.ones(1)
        for root in 99, ranks, -1:
            for kind, call in ((dist.BroadcastOptions, lambda options: world.broadcast([tensor], options)),
                               (dist.ReduceOptions, lambda options: world.reduce([tensor], options)),
                               (dist.GatherOptions, lambda options: world.gather([], [tensor], options)),
                               (dist.ScatterOptions, lambda options: world.scatter([tensor], [], options))):
                options = kind()
                options.rootRank = root
                with self.assertRaisesRegex(ValueError, f"root {root} in a group of {ranks} ranks"):
                    call(options)
        for call in world.send, world.recv:
            with self.assertRaisesRegex(ValueError, f"peer 99 in a group of {ranks} ranks"):
                call([tensor], 99)

    def test_data_parallel_fault(self):
        """DistributedDataParallel, which is C++, learns that an operation has failed."""
        for hook in None, dist.BuiltinCommHookType.FP16_COMPRESS:
            group = dist.new_group()
            model = torch.nn.parallel.DistributedDataParallel(self._model(), process_group=group)
            if hook:
                model._register_builtin_comm_hook(hook)
            for _ in range(3):  # the second one rebuilds the buckets
                model(torch.ones(1, 8)).sum().backward()
            if self.rank == 0:
                group.abort()
            with self.assertRaisesRegex(RuntimeError, "aborted"):
                model(torch.ones(1, 8)).sum().backward()
            dist.barrier()

    def test_monitored_barrier(self):
        world = dist.group.WORLD
        world.monitored_barrier(timedelta(seconds=60))
        if self.rank == 0:
            with self.assertRaisesRegex(RuntimeError, "Rank 1 failed to pass monitoredBarrier in 100 ms"):
                world.monitored_barrier(timedelta(milliseconds=100))
            with self.assertRaisesRegex(RuntimeError, "Rank 0 timed out in monitoredBarrier"):
                world.monitored_barrier(timedelta(0))

    # ---- what stands on it

    def test_functional(self):
        from torch.distributed import _functional_collectives as functional

        tensor = torch.full((2 * ranks,), float(self.rank))
        world = dist.group.WORLD
        self.assertEqual(functional.all_reduce(tensor, "sum", world)[0].item(), ranks * (ranks - 1) / 2)
        self.assertEqual(functional.all_gather_tensor(tensor[:2], 0, world)[::2].tolist(), list(range(ranks)))
        self.assertEqual(functional.reduce_scatter_tensor(tensor, "avg", 0, world).tolist(), [(ranks - 1) / 2] * 2)
        self.assertEqual(functional.all_to_all_single(tensor, None, None, world)[::2].tolist(), list(range(ranks)))
        self.assertEqual(functional.broadcast(tensor, 1, world)[0].item(), 1)

    def test_compile(self):
        from torch.distributed import _functional_collectives as functional

        @torch.compile(backend="aot_eager", fullgraph=True)
        def gathered_sum(tensor):
            return functional.all_gather_tensor(functional.all_reduce(tensor * 2, "sum", dist.group.WORLD), 0,
                                                dist.group.WORLD)

        @torch.compile(backend="aot_eager")
        def in_place(tensor):
            doubled = tensor * 2
            dist.all_reduce(doubled)
            return doubled + 1

        self.assertEqual(gathered_sum(torch.ones(2)), torch.full((2 * ranks,), 2. * ranks))
        self.assertEqual(in_place(torch.ones(2)), torch.full((2,), 2. * ranks + 1))

    def test_operators(self):
        import tutti.torch  # noqa: F401  (defines them)

        ops, one = torch.ops.tutti, torch.full((2, 2 * ranks), float(self.rank))
        total = ranks * (ranks - 1) / 2
        self.assertEqual(ops.all_reduce(one), torch.full((2, 2 * ranks), total))
        self.assertEqual(ops.all_reduce(one, "avg", dist.group.WORLD.group_name)[0, 0].item(), total / ranks)
        self.assertEqual(one[0, 0].item(), self.rank)
        self.assertEqual(ops.all_reduce(one.t(), "max"), torch.full((2 * ranks, 2), ranks - 1.))
        self.assertEqual(ops.all_gather(one)[::2, 0].tolist(), list(range(ranks)))
        self.assertEqual(ops.all_gather(one, -1)[1, ::2 * ranks].tolist(), list(range(ranks)))
        columns = torch.arange(2. * ranks).repeat(2, 1)
        for op, scale in (("sum", ranks), ("avg", 1)):
            self.assertEqual(ops.reduce_scatter(columns, op, 1),
                             scale * columns[:, 2 * self.rank:2 * self.rank + 2])
        self.assertEqual(ops.all_to_all(one.t())[::2, 1].tolist(), list(range(ranks)))
        # A rank sends its number of rows to each rank.
        splits = [self.rank + 1] * ranks
        found = ops.all_to_all(torch.full((sum(splits), 1), float(self.rank)), list(range(1, ranks + 1)), splits)
        self.assertEqual(found[:, 0].tolist(), [float(rank) for rank in range(ranks) for _ in range(rank + 1)])
        ops.broadcast_(one, 1)
        ops.all_reduce_(one)
        self.assertEqual(one, torch.full((2, 2 * ranks), float(ranks)))
        with self.assertRaisesRegex(tutti.InvalidError, "expected sum, avg, product"):
            ops.all_reduce(one, "mean")
        with self.assertRaisesRegex(tutti.InvalidError, "does not divide among"):
            ops.reduce_scatter(torch.ones(ranks + 1))

    def test_operators_compiled(self):
        import tutti.torch  # noqa: F401

        def layer(tensor, weight):
            ops = torch.ops.tutti
            part = ops.reduce_scatter(ops.all_reduce(tensor @ weight) * 2, "avg", 1)
            found = ops.all_to_all(ops.all_gather(part, 1).t()) + 1
            ops.all_reduce_(found, "max")
            return found

        whole = torch.compile(layer, backend="aot_eager", fullgraph=True)
        plain = torch.ones(ranks, ranks) * (self.rank + 1)
        self.assertEqual(layer(torch.ones(2, ranks), plain), whole(torch.ones(2, ranks), plain))
        # The gradient of a sum of all ranks' losses, through each operator that has one.
        ops, grads = torch.ops.tutti, []
        for call in (lambda t: ops.all_reduce(t), lambda t: ops.all_reduce(t, "avg"), lambda t: ops.all_gather(t),
                     lambda t: ops.reduce_scatter(t), lambda t: ops.reduce_scatter(t, "avg", 1),
                     lambda t: ops.all_to_all(t)):
            compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
            for compute in (call, compiled):
                leaf = torch.ones(ranks, ranks, requires_grad=True)
                (compute(leaf) * (self.rank + 1)).sum().backward()
                grads.append(leaf.grad)
            self.assertEqual(grads[-2], grads[-1])
        factors, total = torch.arange(1., ranks + 1), ranks * (ranks + 1) / 2
        rows = factors[:, None].expand(ranks, ranks)
        for found, expected in zip(grads[::2], (total, total / ranks, total, rows, rows.t() / ranks, rows)):
            self.assertEqual(found, torch.as_tensor(expected).expand(ranks, ranks))
        with self.assertRaisesRegex(tutti.InvalidError, "has no gradient"):
            ops.all_reduce(torch.ones(1, requires_grad=True), "max").backward()

    def _model(self):
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))

    def _batches(self):
        generator = torch.Generator().manual_seed(1)
        return [torch.randn(ranks * 2, 8, generator=generator) for _ in range(3)]

    def _train(self, model, batches):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for batch in batches:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

    def test_data_parallel(self):
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        whole = self._model()
        self._train(whole, self._batches())
        mine = [batch[2 * self.rank:2 * self.rank + 2] for batch in self._batches()]
        exact = None, default_hooks.allreduce_hook, dist.BuiltinCommHookType.ALLREDUCE
        for hook in (None, default_hooks.allreduce_hook, default_hooks.fp16_compress_hook, powerSGD_hook.powerSGD_hook,
                     *dist.BuiltinCommHookType.__members__.values()):
            # Buckets of few bytes, so that there are several in flight.
            model = torch.nn.parallel.DistributedDataParallel(self._model(), bucket_cap_mb=0.001)
            if hook is powerSGD_hook.powerSGD_hook:
                state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
                model.register_comm_hook(state, hook)
            elif isinstance(hook, dist.BuiltinCommHookType):
                model._register_builtin_comm_hook(hook)
            elif hook:
                model.register_comm_hook(None, hook)
            self._train(model, mine)
            for one, other in zip(model.module.parameters(), whole.parameters()):
                self.assertEqual(one, other, atol=1e-5 if hook in exact else 1e-1, rtol=0)

    def test_join(self):
        model = torch.nn.parallel.DistributedDataParallel(self._model())
        with model.join():
            self._train(model, self._batches()[:1 + self.rank])

    def test_fully_sharded(self):
        from torch.distributed.fsdp import fully_shard

        whole, model = self._model(), self._model()
        self._train(whole, self._batches())
        fully_shard(model[0])
        fully_shard(model)
        self._train(model, [batch[2 * self.rank:2 * self.rank + 2] for batch in self._batches()])
        for one, other in zip(model.parameters(), whole.parameters()):
            self.assertEqual(one.full_tensor(), other, atol=1e-5, rtol=0)

    def test_fully_sharded_symmetric(self):
        """The all-gathers go into symmetric memory, which is used again."""
        from torch.distributed.fsdp import fully_shard

        import tutti.torch

        plain, model, gather, sizes = self._model(), self._model(), tutti.torch.AllGather(), []
        allocate = dist.group.WORLD.symmetric_memory
        dist.group.WORLD.symmetric_memory = lambda *of: sizes.append(of[0]) or allocate(*of)
        for one in plain, model:
            for module in one[0], one[2], one:
                fully_shard(module)
                if one is model:
                    module.set_custom_all_gather(gather)
            self._train(one, [batch[2 * self.rank:2 * self.rank + 2] for batch in self._batches()])
        for one, other in zip(model.parameters(), plain.parameters()):
            self.assertEqual(one.full_tensor(), other.full_tensor(), atol=0, rtol=0)
        self.assertGreater(len(sizes), 0)
        self.assertLessEqual(len(sizes), 4)  # of two layers, for 3 batches, forward and backward

    def test_profiler(self):
        """Events are there when wait() returns. They are asynchronous, as Gloo's, and have the shapes of the tensors."""
        tensor, peer = torch.ones(2, 3), self.rank ^ 1
        with torch.profiler.profile(record_shapes=True) as profile:
            for _ in range(20):
                dist.all_reduce(tensor)
                dist.all_reduce(tensor, async_op=True).wait()
                dist.all_gather([tensor.clone() for _ in range(ranks)], tensor)
                dist.barrier()
                if peer < ranks:
                    dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, peer)])
                    dist.recv(tensor.clone())
        for name, count, shapes in (("all_reduce", 40, [[2, 3]]), ("all_gather", 20, [[2, 3]]), ("barrier", 20, []),
                                    *[(name, 20 * (peer < ranks), [[2, 3]]) for name in ("send", "recvAnySource")]):
            events = [event for event in profile.events() if event.name == f"tutti:{name}"]
            self.assertEqual(len(events), count, msg=name)
            for event in events:
                self.assertTrue(event.is_async, msg=name)
                self.assertEqual(event.input_shapes, shapes, msg=name)


OWN_START = {"test_timeout", "test_composite"}

if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
