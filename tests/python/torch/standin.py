# SPDX-License-Identifier: MIT
"""Collectives of CUDA tensors over the stand-in for libcuda, without a GPU and with a PyTorch that knows no CUDA. Device memory
of the stand-in is memory of the host, so a tensor of PyTorch can hold it and say that it is on CUDA. What the backend asks of
torch.cuda is replaced here.

usage: standin.py LIBRARY
"""

import contextlib
import ctypes
import multiprocessing
import os
import sys
import tempfile
import threading
import traceback
import types
import weakref
from datetime import timedelta

SIZE = 2

try:
    import torch
    import torch.distributed as dist
    from torch._C import _distributed_c10d as c10d

    import tutti
    import tutti.torch
    from tutti.torch import _cuda, _operators
except ImportError as error:
    print("skipped:", error)
    sys.exit(77)

cuda = None  # the stand-in
ours = None  # this rank's device
current = None  # its current stream


def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    assert status == 0, (name, status)


class Stream:
    """torch.cuda.Stream"""

    known = {}

    def __new__(cls, device=None, priority=0, stream_id=None, device_index=None, device_type=None):
        if stream_id is not None:
            return cls.known[stream_id]
        self = super().__new__(cls)
        self.handle, self.priority = ctypes.c_void_p(), priority
        call("cuStreamCreateWithPriority", ctypes.byref(self.handle), 1, priority)
        cls.known[self.cuda_stream] = self
        return self

    @property
    def cuda_stream(self):
        return self.handle.value

    @property
    def device(self):
        return torch.device("cuda", ours)

    def synchronize(self):
        call("cuStreamSynchronize", self.handle)


class Event:
    """torch.cuda.Event"""

    made = 0

    def __init__(self):
        self.handle = ctypes.c_void_p()
        call("cuEventCreate", ctypes.byref(self.handle), 2)
        Event.made += 1

    def record(self, stream):
        call("cuEventRecord", self.handle, stream.handle)

    def wait(self, stream):
        call("cuStreamWaitEvent", stream.handle, self.handle, 0)

    def query(self):
        return cuda.cuEventQuery(self.handle) == 0


class Tensor(torch.Tensor):
    """A tensor that says that it is on CUDA."""

    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    device = property(lambda self: torch.device("cuda", ours))

    def get_device(self):
        return ours


@contextlib.contextmanager
def on(stream):
    global current
    former, current = current, stream
    yield
    current = former


def is_capturing():
    state, number = ctypes.c_int(), ctypes.c_uint64()
    call("cuStreamGetCaptureInfo_v3", current.handle, ctypes.byref(state), ctypes.byref(number), None, None, None, None)
    return state.value == 1


def empty(shape, dtype=torch.float32):
    count = max(1, torch.Size(shape).numel()) * dtype.itemsize
    at = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(count))
    memory = (ctypes.c_char * count).from_address(at.value)
    return torch.frombuffer(memory, dtype=dtype)[:torch.Size(shape).numel()].view(shape).as_subclass(Tensor)


def enter(rank, library):
    """Makes PyTorch believe."""
    global cuda, ours, current
    os.environ["TUTTI_CUDA_LIBRARY"] = library
    cuda, ours = ctypes.CDLL(library), rank
    cuda.standin_launches.restype = ctypes.c_size_t
    cuda.standin_calls.restype = ctypes.c_uint64
    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), rank)
    call("cuCtxSetCurrent", context)
    current = Stream()
    make_empty, make_copy = torch.empty, torch.Tensor.copy_

    def torch_empty(*shape, device=None, dtype=torch.float32, **more):
        if device is None or torch.device(device).type == "cpu":
            return make_empty(*shape, dtype=dtype, **more)
        return empty(shape[0] if len(shape) == 1 else shape, dtype)

    def copy_(self, *arguments):
        """As on CUDA, behind the stream's work, in any thread."""
        call("cuCtxSetCurrent", context)
        current.synchronize()
        return make_copy(self, *arguments)

    torch.empty, torch.Tensor.copy_ = torch_empty, copy_
    torch._C._cuda_getCurrentRawStream = lambda index: current.handle.value
    torch._C._cuda_getCurrentStream = lambda index: (current.handle.value, index, 1)
    torch._C._cuda_getDevice = lambda: rank
    torch._C._cuda_isCurrentStreamCapturing = is_capturing
    torch.cuda.current_stream = lambda device=None: current
    torch.cuda.device = lambda device: contextlib.nullcontext()
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(multi_processor_count=16)
    torch.cuda.Stream, torch.cuda.Event, torch.cuda.stream = Stream, Event, on


def of(count, seed):
    """Small whole numbers, so that all sums are exact."""
    return (torch.arange(count) % 7 + 10 * seed).float()


def put(values):
    found = empty(values.shape, values.dtype)
    found.as_subclass(torch.Tensor).copy_(values)
    return found


def same(found, expected):
    current.synchronize()
    found = found.as_subclass(torch.Tensor)
    assert torch.equal(found, expected), f"{found.flatten()[:8]}, expected {expected.flatten()[:8]}"


# ---- the cases: each makes operands, and returns a call of torch.distributed and what to check

def broadcast(rank, count):
    tensor = put(of(count, rank))
    return lambda a: dist.broadcast(tensor, 1, async_op=a), lambda: same(tensor, of(count, 1))


def all_reduce(rank, count):
    tensor = put(of(count, rank))
    return lambda a: dist.all_reduce(tensor, async_op=a), lambda: same(tensor, of(count, 0) + of(count, 1))


def reduce(rank, count):
    tensor = put(of(count, rank))
    return (lambda a: dist.reduce(tensor, 1, async_op=a),
            lambda: same(tensor, of(count, 0) + of(count, 1) if rank else of(count, 0)))


def all_gather_into_tensor(rank, count):
    whole, given = put(torch.zeros(2 * count)), put(of(count, rank))
    return (lambda a: dist.all_gather_into_tensor(whole, given, async_op=a),
            lambda: same(whole, torch.cat([of(count, 0), of(count, 1)])))


def all_gather(rank, count):
    found, given = [put(torch.zeros(count)) for _ in range(2)], put(of(count, rank))

    def check():
        for r in range(2):
            same(found[r], of(count, r))

    return lambda a: dist.all_gather(found, given, async_op=a), check


def reduce_scatter_tensor(rank, count):
    tensor, given = put(torch.zeros(count)), put(torch.cat([of(count, rank), of(count, rank + 3)]))
    return (lambda a: dist.reduce_scatter_tensor(tensor, given, async_op=a),
            lambda: same(tensor, of(count, 3 * rank) + of(count, 3 * rank + 1)))


def all_to_all_even(rank, count):
    found, given = put(torch.zeros(2 * count)), put(torch.cat([of(count, rank), of(count, rank + 5)]))
    return (lambda a: dist.all_to_all_single(found, given, async_op=a),
            lambda: same(found, torch.cat([of(count, 5 * rank), of(count, 5 * rank + 1)])))


def all_to_all_uneven(rank, count):
    """Rank 0 sends 1 and 2 blocks, rank 1 sends 3 and 0."""
    sent = [[1, 2], [3, 0]]
    given = put(torch.stack([of(count, 3 * rank + i) for i in range(3)]))
    received = [sent[r][rank] for r in range(2)]
    found = put(torch.zeros(sum(received), count))
    return (lambda a: dist.all_to_all_single(found, given, received, sent[rank], async_op=a),
            lambda: same(found, torch.stack([of(count, i) for i in ((0, 3, 4, 5) if rank == 0 else (1, 2))])))


def gather(rank, count):
    given, found = put(of(count, rank)), [put(torch.zeros(count)) for _ in range(2)] if rank == 1 else None

    def check():
        for r in range(2) if found else ():
            same(found[r], of(count, r))

    return lambda a: dist.gather(given, found, 1, async_op=a), check


def scatter(rank, count):
    tensor, given = put(torch.zeros(count)), [put(of(count, 4)), put(of(count, 5))] if rank == 1 else None
    return lambda a: dist.scatter(tensor, given, 1, async_op=a), lambda: same(tensor, of(count, 4 + rank))


def strided(rank, count):
    tensor = put(torch.stack([of(count, rank)] * 2, 1))[:, 0]
    return lambda a: dist.broadcast(tensor, 1, async_op=a), lambda: same(tensor, of(count, 1))


def scaled(rank, count):
    tensor = put(of(count, rank))
    return (lambda a: dist.all_reduce(tensor, dist._make_nccl_premul_sum(2.0), async_op=a),
            lambda: same(tensor, 2 * of(count, 0) + 2 * of(count, 1)))


KERNELS = (broadcast, strided, all_reduce, scaled, all_gather_into_tensor, all_gather, all_to_all_even, gather, scatter)
CASES = KERNELS + (reduce, reduce_scatter_tensor, all_to_all_uneven)
CAPTURED = broadcast, all_reduce, all_gather_into_tensor, all_to_all_even, all_to_all_uneven


def run(case, rank, count, asynchronous):
    start, check = case(rank, count)
    cuda.standin_forget()
    work = start(asynchronous)
    if asynchronous:
        other = Stream()
        with on(other):
            work.wait()
            check()
        work.wait()
    check()
    if case in KERNELS:
        launches = cuda.standin_launches(None, ctypes.c_size_t(0))
        assert launches == 1, f"{launches} launches"
        assert cuda.standin_calls(b"cuStreamWaitValue64") == 0  # nothing waits for the host


def capture(case, rank):
    """In a graph, which is replayed with other input."""
    start, check = case(rank, 300)
    graph, replay = ctypes.c_void_p(), ctypes.c_void_p()
    with on(Stream()):
        call("cuStreamBeginCapture_v2", current.handle, 2)
        for asynchronous in False, True:
            if case is not all_reduce or not asynchronous:
                work = start(asynchronous)
                if asynchronous:
                    work.wait()
        call("cuStreamEndCapture", current.handle, ctypes.byref(graph))
        call("cuGraphInstantiateWithFlags", ctypes.byref(replay), graph, ctypes.c_uint64(0))
        call("cuGraphLaunch", replay, current.handle)
        check()


def captured_works(rank):
    """In a capture an asynchronous operation is on the current stream. One that nobody waits for leaves no stream unjoined; one
    that another stream of the capture waits for is before what follows there."""
    tensor, found, graph, replay = put(of(5, rank)), put(torch.zeros(5)), ctypes.c_void_p(), ctypes.c_void_p()
    other, event = Stream(), Event()
    with on(Stream()):
        call("cuStreamBeginCapture_v2", current.handle, 2)
        dist.broadcast(tensor, 1, async_op=True)
        work = dist.all_reduce(tensor, async_op=True)
        assert launched_on() is current and work.is_completed()
        with on(other):
            work.wait()
            call("cuMemcpyAsync", ctypes.c_uint64(found.data_ptr()), ctypes.c_uint64(tensor.data_ptr()),
                 ctypes.c_size_t(20), other.handle)
        event.record(other)
        event.wait(current)
        call("cuStreamEndCapture", current.handle, ctypes.byref(graph))
        call("cuGraphInstantiateWithFlags", ctypes.byref(replay), graph, ctypes.c_uint64(0))
        for i in 1, 2:
            call("cuGraphLaunch", replay, current.handle)
            same(found, of(5, 1) * 2 ** i)
        work.wait()


def refuse(case, rank, kind, text):
    start, _ = case(rank, 300)
    graph = ctypes.c_void_p()
    with on(Stream()):
        call("cuStreamBeginCapture_v2", current.handle, 2)
        try:
            start(False)
        except kind as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"no {kind.__name__}")
        call("cuStreamEndCapture", current.handle, ctypes.byref(graph))


def message(rank, count):
    tensor = put(of(count, rank))
    return lambda a: dist.isend(tensor, 1 - rank), None


def launched_on():
    """The stream of the last kernel."""
    launches = ctypes.create_string_buffer(1 << 16)  # of struct standin_launch: a name of 64 bytes, the stream, and more
    assert cuda.standin_launches(launches, ctypes.c_size_t(1)) >= 1
    return Stream.known[ctypes.c_void_p.from_buffer(launches, 64).value]


def streams(rank):
    """Synchronous operations are on the current stream, asynchronous ones on one of the group, which has a high priority."""
    tensor, seen = put(of(5, rank)), []
    for asynchronous in False, True, True:
        for context in contextlib.nullcontext(), on(Stream()):
            with context:
                cuda.standin_forget()
                work = dist.all_reduce(tensor, async_op=asynchronous)
                found = launched_on()
                assert asynchronous != (found is current)
                if asynchronous:
                    seen.append(found)
                    work.wait()
    assert len(set(seen)) == 1 and seen[0].priority < 0, seen


def coalesced(rank):
    """Operations of one work, of one kernel each, and messages on two streams of one communicator."""
    tensors = [put(of(count, rank)) for count in (5, 3000)]
    with dist._coalescing_manager(device=torch.device("cuda", rank), async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert launched_on().priority < 0
    manager.wait()
    for tensor in tensors:
        same(tensor, of(len(tensor), 0) + of(len(tensor), 1))
    exchanges = [all_to_all_uneven(rank, 3000) for _ in range(4)]
    for i, (start, _) in enumerate(exchanges):
        work = start(i % 2 == 1)
    work.wait()
    for _, check in exchanges:
        check()


def overlap(rank, store):
    """While an asynchronous operation waits for a rank, the current stream goes on. What it uses lives until a wait, or, of a work
    that is gone, until its end."""
    whole, options = put(torch.zeros(10)), c10d.BarrierOptions()
    options.device = torch.device("cuda", rank)
    for is_gone in False, True:
        given = put(of(5, rank))
        alive = weakref.ref(given)
        if rank:
            store.wait([f"goes on {is_gone}"])
        work = dist.all_gather_into_tensor(whole, given, async_op=True)
        del given
        current.synchronize()
        if rank == 0:
            assert not work.is_completed() and not work.is_success()
            with_raised(tutti.TimeoutError, lambda: work.wait(timedelta(milliseconds=20)))
        if is_gone:
            del work
        assert alive() is not None or rank
        store.set(f"goes on {is_gone}", "")
        dist.group.WORLD.barrier(options)
        if not is_gone:
            work.wait()
            assert work.is_success() and work.exception() is None
        else:
            dist.all_reduce(whole[:0], async_op=True).wait()
        assert alive() is None
        same(whole, torch.cat([of(5, 0), of(5, 1)]))


def with_raised(kind, function):
    try:
        function()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


def groups(rank):
    """Operations of two groups run in the order of their calls, unless all their blocks fit; in one group the library sees to it."""
    tensor, world, other = put(of(5, rank)), dist.group.WORLD, dist.new_group()
    dist.all_reduce(tensor, group=other)
    for device in world._cuda_streams.device, limited(rank):
        for group in world, other:
            group._cuda_streams.device = device
        for group, asynchronous in (other, False), (world, False), (world, True):
            dist.all_reduce(tensor, async_op=asynchronous, group=group)
        found = []
        for group, asynchronous in (world, True), (other, False), (other, False), (other, True), (world, True):
            cuda.standin_forget()
            dist.all_reduce(tensor, async_op=asynchronous, group=group)
            found.append(cuda.standin_calls(b"cuStreamWaitEvent"))
        assert found == ([1, 0, 0, 2, 1] if device._blocks == 16 else [1, 1, 0, 2, 2]), found
    current.synchronize()


def limited(rank):
    """The device of two groups that fit, of which a third one would not."""
    os.environ["TUTTI_MAX_BLOCKS"] = "8"
    found, more = _cuda.Device(rank), _cuda.Device(rank)
    for side in 1, 2:
        found.add(side)
        more.add(side)
    more.add(3)
    assert more._is_ordered and not found._is_ordered
    del os.environ["TUTTI_MAX_BLOCKS"]
    return found


def functional(rank):
    """What functional collectives call for one tensor takes the short way, too."""
    group, whole, given = dist.group.WORLD, put(torch.zeros(10)), put(of(5, rank))
    collective, group._collective = group._collective, None
    group.allreduce([given], c10d.AllreduceOptions()).wait()
    group.allgather_into_tensor_coalesced([whole], [given], c10d.AllgatherOptions()).wait()
    same(whole, torch.cat([of(5, 0) + of(5, 1)] * 2))
    group.reduce_scatter_tensor_coalesced([given], [whole], c10d.ReduceScatterOptions()).wait()
    same(given, 2 * (of(5, 0) + of(5, 1)))
    group._collective = collective


def rms_norm(rank):
    """The operator runs as one kernel on the current stream, with the bits of the CPU; captured, too."""
    parts = [(of(6 * 256, r) / 8).view(6, 256).bfloat16() for r in range(SIZE)]
    operands = parts[rank], (of(256, 1) / 16), parts[1] * 2
    expected = torch.ops.tutti.all_reduce_rms_norm(*operands, 1e-5)
    given = [put(operand) for operand in operands]
    graph, replay = ctypes.c_void_p(), ctypes.c_void_p()
    with on(Stream()):
        for captured in False, True:
            cuda.standin_forget()
            if captured:
                call("cuStreamBeginCapture_v2", current.handle, 2)
            found = _operators._all_reduce_rms_norm(*given, 1e-5)
            if captured:
                call("cuStreamEndCapture", current.handle, ctypes.byref(graph))
                call("cuGraphInstantiateWithFlags", ctypes.byref(replay), graph, ctypes.c_uint64(0))
                call("cuGraphLaunch", replay, current.handle)
            else:
                assert launched_on() is current and cuda.standin_launches(None, ctypes.c_size_t(0)) == 1
            for value, right in zip(found, expected):
                same(value, right)
        quants = [("fp8_token", residual, None, 1e-5, 0.0, True) for residual in operands[2:]]
        quants += [("fp8_tensor", None, torch.full((1,), .01)), ("fp8_group", None, None, 1e-5, 0.0, False, 4)]
        for quant, *more in quants:
            right = torch.ops.tutti.all_reduce_rms_norm_quant(*operands[:2], quant, *more)
            found = _operators._all_reduce_rms_norm_quant(*given[:2], quant, *(
                put(each) if isinstance(each, torch.Tensor) else each for each in more))
            for pair in zip(found, right):
                same(*(each.view(torch.uint8) if each.dtype.itemsize == 1 else each for each in pair))
        _operators._all_reduce_rms_norm_in_place(*given, 1e-5)
        same(given[0], expected[0])
        same(given[2], expected[1])


def device_counts(rank):
    """A graph of an all-to-all of counts and one of the blocks that these say, replayed with other counts."""
    device, plain = torch.device("cuda", rank), [put(of(8, rank)), put(torch.zeros(8))]
    plain += [put(torch.zeros(SIZE, dtype=torch.int32)) for _ in range(2)]
    sent, received = plain[2:]
    given, found, *counts = [tensor.as_subclass(torch.Tensor) for tensor in plain]
    graph, replay = ctypes.c_void_p(), ctypes.c_void_p()
    comm = tutti.torch.communicator(device)
    with on(Stream()):
        call("cuStreamBeginCapture_v2", current.handle, 2)
        dist.all_to_all_single(received, sent)
        comm.all_to_all_v(given, found, *counts, max_count=4, stream=current.cuda_stream)
        call("cuStreamEndCapture", current.handle, ctypes.byref(graph))
        call("cuGraphInstantiateWithFlags", ctypes.byref(replay), graph, ctypes.c_uint64(0))
        for lengths in [[1, 3], [2, 0]], [[4, 4], [0, 2]], [[0, 0], [1, 1]]:
            counts[0].copy_(torch.tensor(lengths[rank], dtype=torch.int32))
            call("cuGraphLaunch", replay, current.handle)
            blocks = [of(8, r)[sum(lengths[r][:rank]):][:lengths[r][rank]] for r in range(SIZE)]
            same(plain[1][:sum(map(len, blocks))], torch.cat(blocks))
    # Behind the operations of other groups.
    tensor, other = put(of(5, rank)), dist.new_group()
    dist.all_reduce(tensor, group=other)
    with on(Stream()):
        cuda.standin_forget()
        assert tutti.torch.communicator(device, dist.group.WORLD) is comm
        assert cuda.standin_calls(b"cuStreamWaitEvent") == 1
    current.synchronize()


def events(rank):
    """An asynchronous operation makes no event, no stream and no thread, also if nobody waits for it."""
    tensor = put(of(5, rank))
    for i in range(20):
        if i == 10:
            made, threads = Event.made, threading.active_count()
            cuda.standin_forget()
        dist.broadcast(tensor, 0, async_op=True)
        dist.all_reduce(tensor, async_op=True).wait()
        current.synchronize()
    assert Event.made == made, (Event.made, made)
    assert threading.active_count() == threads
    for name in b"cuEventCreate", b"cuStreamCreateWithPriority", b"cuMemAlloc", b"cuMemHostAlloc":
        assert cuda.standin_calls(name) == 0, name
    assert cuda.standin_calls(b"cuStreamWaitEvent") == 2 * 10 + 10  # a fork each, and a wait


def main(rank, folder, library):
    enter(rank, library)
    dist.init_process_group("tutti", init_method=f"file://{folder}/torch", rank=rank, world_size=SIZE)
    dist.all_reduce(put(of(1, rank)))  # makes the communicator
    for case in CASES:
        for asynchronous in False, True:
            for count in 5, 300_001:
                try:
                    run(case, rank, count, asynchronous)
                except BaseException:
                    print(case.__name__, "async" if asynchronous else "sync", count, flush=True)
                    raise
    for case in CAPTURED:
        capture(case, rank)
    captured_works(rank)
    refuse(message, rank, tutti.InvalidError, "captured")
    streams(rank)
    functional(rank)
    coalesced(rank)
    events(rank)
    device_counts(rank)
    rms_norm(rank)
    overlap(rank, dist.distributed_c10d._get_default_store())
    groups(rank)
    dist.destroy_process_group()


def child(rank, folder, library):
    status = 1
    try:
        main(rank, folder, library)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="tutti-standin-") as folder:
        spawn = multiprocessing.get_context("spawn")
        children = [spawn.Process(target=child, args=(rank, folder, sys.argv[1])) for rank in range(SIZE)]
        for process in children:
            process.start()
        for process in children:
            process.join()
        sys.exit(any(process.exitcode for process in children))
