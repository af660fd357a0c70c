# SPDX-License-Identifier: MIT
"""Each collective against numpy, in place and not; options; dtypes; operands."""

import threading

import numpy as np
import pytest

import tutti
from ranks import on_threads

RANKS = 3


def block(rank, part=0):
    """What `rank` sends as block `part`."""
    return np.arange(4, dtype=np.int32) + 10 * rank + 100 * part


def blocks(rank):
    return np.concatenate([block(rank, part) for part in range(RANKS)])


def test_all_gather():
    def rank(comm):
        recv = np.zeros(4 * RANKS, np.int32)
        assert comm.all_gather(block(comm.rank), recv) is recv
        place = np.zeros((RANKS, 4), np.int32)
        place[comm.rank] = block(comm.rank)
        comm.all_gather(place[comm.rank], place)
        return recv, place

    for recv, place in on_threads(RANKS, rank):
        assert np.array_equal(recv, np.concatenate([block(r) for r in range(RANKS)]))
        assert np.array_equal(place.reshape(-1), recv)


def test_reduce_scatter():
    def rank(comm):
        recv = np.zeros(4, np.int32)
        comm.reduce_scatter(blocks(comm.rank), recv, "max")
        place = blocks(comm.rank).reshape(RANKS, 4)
        comm.reduce_scatter(place, place[comm.rank], tutti.MAX)
        return recv, place[comm.rank]

    for number, (recv, place) in enumerate(on_threads(RANKS, rank)):
        assert np.array_equal(recv, block(RANKS - 1, number))
        assert np.array_equal(place, recv)


def test_all_to_all():
    def rank(comm):
        recv, place = np.zeros(4 * RANKS, np.int32), blocks(comm.rank)
        assert comm.all_to_all(blocks(comm.rank), recv) is recv
        assert comm.all_to_all(place) is place
        return recv, place

    for number, (recv, place) in enumerate(on_threads(RANKS, rank)):
        assert np.array_equal(recv, np.concatenate([block(r, number) for r in range(RANKS)]))
        assert np.array_equal(place, recv)


COUNTS, PLACES = [2, 0, 3], [4, 0, 0]  # of the v-forms; PLACES leave a gap at 3


def ragged(rank, part):
    """What `rank` sends as block `part`, of COUNTS[part] elements."""
    return np.arange(COUNTS[part], dtype=np.int32) + 10 * rank + 100 * part


def spread(blocks):
    """Blocks at their PLACES."""
    whole = np.full(6, -1, np.int32)
    for place, block in zip(PLACES, blocks):
        whole[place:place + len(block)] = block
    return whole


def test_device_counts():
    """On CPU the arrays of counts are the host's, and are read during the call."""
    every = range(RANKS)

    def rank(comm):
        me, mine = comm.rank, np.resize(ragged(comm.rank, comm.rank), 3)
        counts, places = np.array(COUNTS, np.int64), np.array(PLACES, np.uint64)
        recv = np.full(6, -1, np.int32)
        assert comm.all_gather_v(mine, recv, counts, places, max_count=3) is recv
        assert np.array_equal(recv, spread([ragged(r, r) for r in every]))
        own = np.zeros(4, np.int32)
        comm.reduce_scatter_v(spread([ragged(me, r) for r in every]), own, counts, places, "max", max_count=3)
        assert np.array_equal(own[:COUNTS[me]], ragged(RANKS - 1, me))
        taken = np.zeros(10, np.int32)
        comm.all_to_all_v(spread([ragged(me, r) for r in every]), taken, counts, np.full(RANKS, COUNTS[me]), places,
                          max_count=3)
        assert np.array_equal(taken[:RANKS * COUNTS[me]], np.concatenate([ragged(r, me) for r in every]))
        # Entries of 32 bits are the same; each rank chooses.
        recv, narrow = np.full(6, -1, np.int32), counts.astype(np.int32 if me else np.int64)
        comm.all_gather_v(mine, recv, narrow, places.astype(narrow.dtype), max_count=3)
        assert np.array_equal(recv, spread([ragged(r, r) for r in every]))
        negative, short = np.array([2, -4, 3], np.int32), counts.astype(np.int16)
        for wrong, why in ((lambda: comm.all_gather_v(mine, recv, counts, places, max_count=2), "3 elements, and max_count is 2"),
                           (lambda: comm.all_gather_v(mine, recv, negative, max_count=3), "-4 elements, and max_count is 3"),
                           (lambda: comm.all_gather_v(mine, recv[:4], counts, places, max_count=3), "extent of 4"),
                           (lambda: comm.all_gather_v(mine, recv, counts, places, max_count=0), "max_count 0"),
                           (lambda: comm.all_gather_v(mine, recv, short, max_count=3), "int64 or uint64: this one has 3 int16"),
                           (lambda: comm.all_gather_v(mine, recv, counts[:2], max_count=3), "arrays of 3 .* has 2 int64"),
                           (lambda: comm.all_gather_v(mine, recv, counts.astype(np.int32), places, max_count=3), "all int32, or"),
                           (lambda: comm.all_gather_v(mine[:0], recv, counts, max_count=3), "has elements"),
                           (lambda: comm.all_gather(mine[:2], recv, max_count=3), "is for all_gather_v")):
            with pytest.raises(tutti.InvalidError, match=why):
                wrong()

    on_threads(RANKS, rank)


def test_v_forms():
    every = range(RANKS)

    def rank(comm):
        me, mine = comm.rank, ragged(comm.rank, comm.rank)
        recv = np.full(6, -1, np.int32)
        assert comm.all_gather_v(mine, recv, COUNTS, PLACES) is recv
        assert np.array_equal(recv, spread([ragged(r, r) for r in every]))
        recv = np.zeros(5, np.int32)
        comm.all_gather_v(mine, recv, COUNTS)
        assert np.array_equal(recv, np.concatenate([ragged(r, r) for r in every]))
        own = np.zeros(COUNTS[me], np.int32)
        comm.reduce_scatter_v(spread([ragged(me, r) for r in every]), own, COUNTS, PLACES, "max")
        assert np.array_equal(own, ragged(RANKS - 1, me))
        taken = np.zeros(RANKS * COUNTS[me], np.int32)
        comm.all_to_all_v(spread([ragged(me, r) for r in every]), taken, COUNTS, [COUNTS[me]] * RANKS, PLACES)
        assert np.array_equal(taken, np.concatenate([ragged(r, me) for r in every]))
        recv = np.full(6, -1, np.int32) if me == 1 else None
        assert comm.gather_v(mine, recv, COUNTS, PLACES, root=1) is recv
        assert me != 1 or np.array_equal(recv, spread([ragged(r, r) for r in every]))
        comm.scatter_v(spread([ragged(2, r) for r in every]) if me == 2 else None, own, COUNTS, PLACES, root=2)
        assert np.array_equal(own, ragged(2, me))
        with tutti.group():
            comm.all_gather_v(mine + 0, taken := np.zeros(5, np.int32), list(COUNTS))
            comm.gather_v(mine + 0, recv, COUNTS, PLACES, root=1)
        assert np.array_equal(taken, np.concatenate([ragged(r, r) for r in every]))
        for wrong in (lambda: comm.all_gather_v(mine, np.zeros(4, np.int32), COUNTS),
                      lambda: comm.all_gather_v(mine, np.zeros(9, np.int32), COUNTS, [8, 0, 0]),
                      lambda: comm.all_gather_v(mine, np.zeros(9, np.int32), COUNTS[1:]),
                      lambda: comm.all_gather_v(mine, np.zeros(9, np.int32), [-1, 0, 3]),
                      lambda: comm.all_gather_v(mine, np.zeros(5), COUNTS),
                      lambda: comm.reduce_scatter_v(np.zeros(5), np.zeros(4), COUNTS)):
            with pytest.raises(tutti.InvalidError):
                wrong()

    on_threads(RANKS, rank)


@pytest.mark.parametrize("root", range(RANKS))
def test_rooted(root):
    def rank(comm):
        me, mine = comm.rank == root, block(comm.rank)
        recv, place = np.zeros(4, np.int32), block(comm.rank)
        assert comm.broadcast(mine if me else None, recv, root) is recv
        assert comm.broadcast(place, root=root) is place
        assert np.array_equal(recv, block(root)) and np.array_equal(place, recv)
        place = block(comm.rank)
        found = comm.reduce(mine, recv if me else None, "sum", root)
        comm.reduce(place, root=root)
        if me:
            assert found is recv and np.array_equal(recv, sum(block(r) for r in range(RANKS)))
            assert np.array_equal(place, recv)
        else:
            assert found is None and np.array_equal(place, mine)
        found = comm.gather(mine, np.zeros(4 * RANKS, np.int32) if me else None, root)
        assert np.array_equal(found, np.concatenate([block(r) for r in range(RANKS)])) if me else found is None
        comm.scatter(blocks(root) if me else None, recv, root)
        assert np.array_equal(recv, block(root, comm.rank))

    on_threads(RANKS, rank)


def test_send_recv_and_barrier():
    def rank(comm):
        after, before = (comm.rank + 1) % RANKS, (comm.rank - 1) % RANKS
        recv = np.zeros(4, np.int32)
        comm.send(block(comm.rank), after)
        assert comm.recv(recv, before) is recv
        assert np.array_equal(recv, block(before))
        comm.barrier()
        comm.barrier([0, 2], timeout=30) if comm.rank != 1 else None
        comm.barrier(range(RANKS))

    on_threads(RANKS, rank)


def test_operands_that_do_not_fit():
    def rank(comm):
        for wrong in (lambda: comm.all_gather(np.ones(2), np.ones(2)),
                      lambda: comm.all_gather(np.ones(2), np.ones(2 * RANKS, np.float32)),
                      lambda: comm.reduce_scatter(np.ones(RANKS + 1), np.ones(1)),
                      lambda: comm.all_to_all(np.ones(RANKS + 1)),
                      lambda: comm.broadcast(None, None),
                      lambda: comm.scatter(None, np.ones(2), comm.rank)):
            with pytest.raises(tutti.InvalidError):
                wrong()
        for wrong in ({"timout": 1}, {"strem": 0}):
            with pytest.raises(TypeError, match=next(iter(wrong))):
                comm.all_reduce(np.ones(2), **wrong)
        with pytest.raises(tutti.InvalidError, match="no algorithm"):
            comm.all_reduce(np.ones(2), algorithm="fastest")
        comm.barrier()

    on_threads(RANKS, rank)


def test_options():
    def rank(comm):
        assert np.array_equal(comm.all_reduce(np.ones(2), algorithm="two_shot", zero_copy=False), [RANKS] * 2)
        with pytest.raises(tutti.InvalidError, match="COPY_ENGINE is for CUDA"):
            comm.all_gather(np.ones(2), np.ones(2 * RANKS), copy_engine=True)
        assert comm.algorithm(1, "bfloat16", algorithm="two_shot")[0] == "two_shot"
        assert comm.algorithm(2, np.float64)[1]
        comm.status()
        with pytest.raises(tutti.TimeoutError):
            if comm.rank == 0:
                comm.all_reduce(np.ones(1), timeout=0.05)
            expired.wait(60)  # the other ranks are late
            comm.all_reduce(np.ones(1))
            comm.all_reduce(np.ones(1))
        expired.set()
        with pytest.raises(tutti.TimeoutError):
            comm.status()

    expired = threading.Event()
    on_threads(RANKS, rank)


def test_communicator_options():
    def rank(comm):
        assert comm.describe()["name"] == "named" and comm.describe()["leaf_order"] == "2 0 1"
        assert comm.all_reduce(np.ones(2), max_blocks=2).tolist() == [RANKS] * 2  # ignored on CPU
        with pytest.raises(tutti.InvalidError, match="max_blocks -1"):
            comm.all_reduce(np.ones(2), max_blocks=-1)
        with pytest.raises(tutti.InvalidError, match="max_blocks is -3"):
            tutti.ProcessGroup(comm, max_blocks=-3)
        return comm.describe()["algorithm"], int(comm.describe()["timeout_ms"])

    found = on_threads(RANKS, rank, name="named", leaf_order=[2, 0, 1], algorithm="one_shot", strict=False, timeout=7.5,
                       arena_bytes=1 << 20, buffer_size=1 << 20, max_blocks=7, threads=1)
    assert found == [("one_shot", 7500)] * RANKS
    for wrong, error in (({"leaf_order": [0, 1]}, tutti.InvalidError), ({"device": "tpu"}, tutti.InvalidError),
                         ({"colour": 1}, TypeError), ({"arena_bytes": 1}, tutti.InvalidError),
                         ({"max_blocks": -1}, tutti.InvalidError), ({"threads": 0}, tutti.InvalidError)):
        with pytest.raises(error):
            on_threads(1, lambda comm: None, **wrong)


def test_threads():
    def rank(comm):
        share = max(1, min(3, int(comm.describe()["cores"]) // 2))  # of the cores
        assert comm.describe().get("threads", "1") == str(share)
        values = np.arange(200_000, dtype=np.float32) + comm.rank
        assert np.array_equal(comm.all_reduce(values), 2 * np.arange(200_000, dtype=np.float32) + 1)
        whole = comm.all_gather(np.full(100_000, comm.rank, np.float32), np.empty(200_000, np.float32))
        assert whole[:100_000].sum() == 0 and (whole[100_000:] == 1).all()

    on_threads(2, rank, threads=3)


@pytest.mark.parametrize("name", [
    "float16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "uint32", "uint64", "bool", "complex64",
    "complex128"])
def test_dtypes(name):
    values = np.array([0, 1, 2, 1], name)
    for result in on_threads(2, lambda comm: comm.all_reduce(values.copy())):
        assert result.dtype == name
        assert np.array_equal(result, values + values)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_extended_dtypes(name):
    dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes"), name))
    for result in on_threads(2, lambda comm: comm.all_reduce(np.array([0.5, 1, 2], dtype))):
        assert result.dtype == dtype and result.astype(float).tolist() == [1, 2, 4]


def test_other_e4m3_is_refused():
    dtype = pytest.importorskip("ml_dtypes").float8_e4m3
    with pytest.raises(tutti.InvalidError, match="float8_e4m3"):
        on_threads(1, lambda comm: comm.all_reduce(np.ones(2, dtype)))


def test_premul_sum():
    op = tutti.premul_sum(0.5)
    for result in on_threads(2, lambda comm: comm.all_reduce(np.full(3, 3.0), op=op)):
        assert result.tolist() == [3.0] * 3
    op = tutti.premul_sum(-2)
    for result in on_threads(2, lambda comm: comm.all_reduce(np.full(3, 3), op=op)):
        assert result.tolist() == [-12] * 3


class Exported:
    """An array that shows itself by DLPack alone."""

    def __init__(self, array, versioned=True):
        self.array, self.versioned = array, versioned

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        if not self.versioned and "max_version" in options:
            raise TypeError("max_version")
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack(versioned):
    def rank(comm):
        array = np.ones((2, 3), np.float32)
        assert comm.all_reduce(Exported(array, versioned)).array is array
        whole = np.zeros(8, np.complex64)
        comm.all_gather(Exported(np.full(2, comm.rank + 1, np.complex64), versioned), Exported(whole[2:6], versioned))
        with pytest.raises(tutti.InvalidError, match="C-contiguous"):
            comm.all_reduce(Exported(np.ones((2, 3)).T, versioned))
        with pytest.raises(tutti.InvalidError):
            comm.all_reduce(Exported(np.ones(2, np.uint16), versioned))
        return array, whole

    for array, whole in on_threads(2, rank):
        assert (array == 2).all() and whole.tolist() == [0, 0, 1, 1, 2, 2, 0, 0]


def test_read_only_dlpack():
    frozen = np.ones(2)
    frozen.flags.writeable = False
    if not hasattr(np, "from_dlpack") or np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("this numpy does not export read-only arrays")
    with pytest.raises(tutti.InvalidError, match="read-only"):
        on_threads(1, lambda comm: comm.all_reduce(Exported(frozen)))


def test_dlpack_streams():
    """The producer gets the stream that uses memory of a device, as DLPack numbers it, and no stream for the host's."""
    from tutti._buffers import operand, stream_value

    class OnDevice(Exported):
        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, stream=None, **options):
            capsule = super().__dlpack__(**options)  # an older numpy refuses max_version, and is asked again
            streams.append(stream)
            return capsule

    class Stream:
        cuda_stream = 4096

    class CudaCoreStream:
        def __cuda_stream__(self):
            return 0, 8192

    streams = []
    for stream in (None, 2, Stream(), CudaCoreStream()):
        operand(OnDevice(np.ones(2)), True, stream_value(stream))
    assert streams == [1, 2, 4096, 8192]
    with pytest.raises(tutti.InvalidError):
        stream_value("main")
    on_threads(1, lambda comm: comm.all_reduce(Exported(np.ones(2)), stream=0))


def test_other_buffers():
    import array

    def rank(comm):
        return comm.all_reduce(array.array("d", [1, 2])), comm.all_reduce(bytearray(b"\1\2")), comm.all_reduce(np.ones(()))

    for floats, octets, scalar in on_threads(2, rank):
        assert floats.tolist() == [2, 4] and octets == b"\2\4" and scalar.shape == () and scalar == 2


def test_torch_tensors():
    torch = pytest.importorskip("torch")

    def rank(comm):
        return comm.all_reduce(torch.ones(3, dtype=torch.bfloat16)), comm.all_reduce(torch.ones(2, 2))

    for half, single in on_threads(2, rank):
        assert half.tolist() == [2, 2, 2] and half.dtype == torch.bfloat16 and single.tolist() == [[2, 2], [2, 2]]


def test_a_group_of_calls():
    def rank(comm):
        numbers = [np.full(1 << 15, comm.rank, np.int32) for _ in range(RANKS)]
        received = [np.zeros(1 << 15, np.int32) for _ in range(RANKS)]
        with tutti.group():
            for peer in range(RANKS):  # long messages, also to itself
                comm.send(numbers[peer] + 0, peer)
                comm.recv(received[peer], peer)
            with tutti.group():
                total = comm.all_reduce(np.ones(2))
            comm.barrier([comm.rank])
        assert total.tolist() == [RANKS] * 2
        assert [int(array[-1]) for array in received] == list(range(RANKS))

    on_threads(RANKS, rank)


def test_a_group_that_raises_runs_no_call():
    def rank(comm):
        array = np.ones(2)
        with pytest.raises(ZeroDivisionError), tutti.group():
            comm.all_reduce(array)
            comm.rank / 0
        with pytest.raises(tutti.InvalidError, match="C-contiguous|contiguous"), tutti.group():
            comm.all_reduce(array)
            comm.all_reduce(np.ones((2, 2))[:, 0])
        with pytest.raises(tutti.InvalidError), tutti.group():
            comm.all_reduce(array)
            comm.send(array, RANKS)
        with pytest.raises(tutti.InvalidError), tutti.group():
            comm.send(array, comm.rank)  # without a receive
        assert array.tolist() == [1, 1]
        return comm.all_reduce(array).tolist()

    assert on_threads(RANKS, rank) == [[RANKS] * 2] * RANKS


def test_a_group_keeps_its_communicators_open():
    def rank(comm):
        array = np.ones(1)
        with pytest.raises(tutti.InvalidError, match="group"), tutti.group():
            comm.all_reduce(array)
            comm.close()
        assert array[0] == 1 and comm.all_reduce(array)[0] == 1

    on_threads(1, rank)


def test_the_fault_of_a_group():
    def rank(comm):
        with pytest.raises(tutti.MismatchError) as caught, tutti.group():
            comm.all_reduce(np.ones(1 + comm.rank))
        assert caught.value.sequence == 1

    on_threads(2, rank)


def test_send_recv():
    def rank(comm):
        recv = np.zeros(4, np.int32)
        comm.send_recv(block(comm.rank), (comm.rank + 1) % RANKS, recv, (comm.rank - 1) % RANKS)
        with pytest.raises(tutti.InvalidError, match="do not fit"):
            comm.send_recv(np.ones(2), 0, recv, 0)
        return recv

    for number, recv in enumerate(on_threads(RANKS, rank)):
        assert np.array_equal(recv, block((number - 1) % RANKS))


def test_all_reduce_rms_norm():
    tokens, hidden = 3, 256

    def rank(comm):
        data = np.full((tokens, hidden), comm.rank + 1, np.float32)
        residual = np.arange(tokens * hidden, dtype=np.float32).reshape(tokens, hidden) / 64
        weight = np.linspace(0, 1, hidden, dtype=np.float32)
        quantised, scales = np.zeros((tokens, hidden), np.int8), np.zeros(tokens, np.float32)
        norm_out = np.zeros_like(data)
        assert comm.all_reduce_rms_norm(data, weight, epsilon=1e-5, weight_bias=1.0, residual=residual, norm_out=norm_out,
                                        quant="int8_token", quant_out=quantised, scales=scales) is norm_out
        assert comm.all_reduce_rms_norm(data, weight) is data
        with pytest.raises(tutti.InvalidError, match="hidden 12"):
            comm.all_reduce_rms_norm(np.zeros(24, np.float32), np.zeros(12, np.float32))
        return data, residual, norm_out, quantised, scales

    x = np.arange(tokens * hidden, dtype=np.float32).reshape(tokens, hidden) / 64 + RANKS * (RANKS + 1) / 2
    weight = np.linspace(0, 1, hidden, dtype=np.float32)
    y = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-5) * (weight + 1)
    for data, residual, norm_out, quantised, scales in on_threads(RANKS, rank):
        assert np.array_equal(residual, x)
        assert np.allclose(norm_out, y, 1e-5)
        assert np.allclose(scales, np.abs(y).max(-1) / 127, 1e-5)
        assert np.abs(quantised * scales[:, None] - y).max() <= scales.max() * 0.51
        assert np.allclose(data, np.broadcast_to(weight, data.shape), 1e-4)
