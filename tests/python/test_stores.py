# SPDX-License-Identifier: MIT
"""Our stores against PyTorch's: each side's ranks on the other side's store, and both on one.

usage: test_stores.py STORE_PEER file|tcp_libuv|tcp_legacy|our_server|gloo|torchrun
"""

import datetime
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading

here = sys.path.pop(0)  # its torch/ is not PyTorch
try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    print("skipped:", error)
    sys.exit(77)
sys.path.append(here)

PEER = sys.argv[1]
TIMEOUT = datetime.timedelta(seconds=60)


class Peer:
    """A process of ours, driven by lines."""

    def __init__(self, url):
        self.process = subprocess.Popen(
            [PEER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def opened(self):
        line = self.process.stdout.readline().strip()
        assert line == "open", f"store_peer did not open: {line!r}"
        return self

    def send(self, *words):
        self.process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self.process.stdin.flush()

    def hear(self):
        line = self.process.stdout.readline().strip()
        assert not line.startswith("error"), line
        return line

    def ask(self, *words):
        self.send(*words)
        return self.hear()

    def close(self):
        self.send("quit")
        assert self.process.wait(60) == 0


def expect(got, wanted):
    assert got == wanted, f"got {got!r}, expected {wanted!r}"


def operations(theirs, ours, deletes_tell):
    """Every operation, seen from both sides."""
    theirs.set("from_python", "value")
    expect(ours.ask("get", "from_python"), "value")
    expect(ours.ask("set", "from_c", "other"), "ok")
    expect(theirs.get("from_c"), b"other")
    expect(ours.ask("set", "empty", "-"), "ok")
    expect(theirs.get("empty"), b"")
    theirs.set("empty2", "")
    expect(ours.ask("get", "empty2"), "-")
    theirs.set("large", "x" * 60000)
    expect(ours.ask("get", "large"), "x" * 60000)

    expect(theirs.add("counter", 5), 5)
    expect(ours.ask("add", "counter", 7), "12")
    expect(theirs.add("counter", -20), -8)
    expect(ours.ask("add", "counter", 0), "-8")
    expect(ours.ask("get", "counter"), "-8")

    expect(ours.ask("check", "from_python", "from_c"), "True")
    expect(ours.ask("check", "from_python", "absent"), "False")
    expect(theirs.check(["from_c", "absent"]), False)

    expect(ours.ask("compare_set", "cs", "wrong", "new"), theirs.compare_set("cs", "wrong", "new").decode())
    expect(ours.ask("compare_set", "cs", "-", "first"), "first")
    expect(theirs.compare_set("cs", "", "second"), b"first")
    expect(theirs.compare_set("cs", "first", "second"), b"second")
    expect(ours.ask("compare_set", "cs", "second", "third"), "third")
    expect(theirs.get("cs"), b"third")

    expect(ours.ask("num_keys"), str(theirs.num_keys()))
    expect(theirs.delete_key("from_c"), True)
    expect(ours.ask("check", "from_c"), "False")
    expect(ours.ask("delete", "from_python"), "True")
    expect(theirs.check(["from_python"]), False)
    expect(ours.ask("delete", "from_python"), "False")
    if deletes_tell:
        expect(theirs.delete_key("from_python"), False)
    expect(ours.ask("num_keys"), str(theirs.num_keys()))

    # Each waits for what the other sets later.
    ours.send("wait", "later/a", "later/b")
    theirs.set("later/a", "")
    theirs.set("later/b", "")
    expect(ours.hear(), "ok")
    timer = threading.Timer(0.05, lambda: ours.ask("set", "later/c", "c"))
    timer.start()
    theirs.wait(["later/c"], TIMEOUT)
    timer.join()

    # A wait that timed out leaves the connection whole.
    try:
        theirs.wait(["never"], datetime.timedelta(milliseconds=50))
        raise AssertionError("the wait did not time out")
    except RuntimeError:  # a DistStoreError where the store has a server
        pass
    expect(theirs.get("later/c"), b"c")

    # PrefixStore is our prefix store.
    dist.PrefixStore("prefix", theirs).set("key", "inside")
    expect(ours.ask("get", "prefix/key"), "inside")


def gather(store, prefix, rank, size, rounds):
    """What tutti_exchanger_all_gather() does, in Python."""
    for number in range(rounds):
        store.set(f"{prefix}/{number}/{rank}", struct.pack("=I", 100 * number + rank))
        keys = [f"{prefix}/{number}/{other}" for other in range(size)]
        store.wait(keys, TIMEOUT)
        for other, key in enumerate(keys):
            expect(struct.unpack("=I", store.get(key))[0], 100 * number + other)


def mixed(make_theirs, peers, prefix):
    """Two ranks of PyTorch's and all of ours in one exchange."""
    size = len(peers) + 2
    failures = []

    def python_rank(rank):
        try:
            gather(make_theirs(), prefix, rank, size, 10)
        except Exception as error:  # a thread's failure is the test's
            failures.append(error)

    threads = [threading.Thread(target=python_rank, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for rank, peer in enumerate(peers):
        peer.send("gather", prefix, rank + 2, size, 10)
    for peer in peers:
        expect(peer.hear(), "ok")
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_file():
    with tempfile.TemporaryDirectory() as folder:
        for first in ("theirs", "ours"):
            path = os.path.join(folder, first)
            if first == "ours":
                peer = Peer("file:" + path).opened()
                expect(os.stat(path).st_mode & 0o777, 0o600)
            theirs = dist.FileStore(path, -1)
            theirs.set_timeout(TIMEOUT)
            if first == "theirs":
                peer = Peer("file:" + path).opened()
            operations(theirs, peer, deletes_tell=False)
            second = Peer("file:" + path).opened()
            mixed(lambda: dist.FileStore(path, -1), [peer, second], "mixed")
            peer.close()
            second.close()
            expect(theirs.get("cs"), b"third")
        # PyTorch's last worker removes the file, if our handles have gone.
        path = os.path.join(folder, "counted")
        theirs = dist.FileStore(path, 2)
        peer = Peer("file:" + path).opened()
        peer.close()
        del theirs
        assert not os.path.exists(path)


def test_tcp(libuv):
    """Their server, our clients; joining counts ours too."""
    theirs = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False,
                           timeout=TIMEOUT, use_libuv=libuv)
    url = f"tcp://127.0.0.1:{theirs.port}"
    peers = [Peer(url).opened(), Peer(url).opened()]
    operations(theirs, peers[0], deletes_tell=True)
    mixed(lambda: dist.TCPStore("127.0.0.1", theirs.port, is_master=False, timeout=TIMEOUT),
          peers, "mixed")
    for peer in peers:
        peer.close()

    # Their server's rank waits for ours to join.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ours = [Peer(f"tcp://localhost:{port}?world_size=3") for _ in range(2)]
    master = dist.TCPStore("127.0.0.1", port, 3, is_master=True, timeout=TIMEOUT, use_libuv=libuv)
    for peer in ours:
        peer.opened()
        peer.close()
    del master


def test_our_server():
    """Our server, their clients, every operation that their client has."""
    server = Peer("tcp://127.0.0.1:0?server=1").opened()
    port = int(server.ask("url").rsplit(":", 1)[1])
    theirs = dist.TCPStore("localhost", port, is_master=False, timeout=TIMEOUT)
    operations(theirs, server, deletes_tell=True)
    second = Peer(f"tcp://localhost:{port}").opened()
    mixed(lambda: dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT),
          [server, second], "mixed")

    theirs.append("appended", "one")
    theirs.append("appended", "two")
    expect(second.ask("get", "appended"), "onetwo")
    theirs.multi_set(["m1", "m2"], ["v1", "v2"])
    expect(theirs.multi_get(["m1", "m2", "cs"]), [b"v1", b"v2", b"third"])
    theirs.queue_push("queue", "first")
    theirs.queue_push("queue", "second")
    expect(theirs.queue_len("queue"), 2)
    expect(theirs.queue_pop("queue"), b"first")
    expect(theirs.queue_pop("queue", False), b"second")
    expect(theirs.queue_len("queue"), 0)
    if hasattr(theirs, "list_keys"):
        assert {"m1", "m2", "appended"} <= set(theirs.list_keys())
    if hasattr(theirs, "barrier"):
        theirs.barrier("alone", 1, TIMEOUT)
    second.close()
    del theirs
    server.close()

    # Our server's rank waits for theirs to join, and ours and theirs may come in any order.
    joining = Peer("tcp://127.0.0.1:0?server=1").opened()
    port = int(joining.ask("url").rsplit(":", 1)[1])
    joining.close()
    master = Peer(f"tcp://127.0.0.1:{port}?server=1&world_size=3")
    stores = [dist.TCPStore("127.0.0.1", port, 3, is_master=False, timeout=TIMEOUT)
              for _ in range(2)]
    master.opened()
    del stores
    master.close()


def gloo_rank(rank, size, port):
    store = dist.TCPStore("127.0.0.1", port, size, is_master=False, timeout=TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    tensor = torch.full((1000,), float(rank + 1))
    dist.all_reduce(tensor)
    expect(tensor[0].item(), size * (size + 1) / 2)
    dist.barrier()
    dist.destroy_process_group()


def test_gloo():
    """torch.distributed itself, on our server."""
    server = Peer("tcp://127.0.0.1:0?server=1").opened()
    port = int(server.ask("url").rsplit(":", 1)[1])
    ranks = [subprocess.Popen([sys.executable, __file__, PEER, "gloo_rank", str(rank), "3", str(port)])
             for rank in range(3)]
    for rank in ranks:
        expect(rank.wait(150), 0)
    server.close()


def test_torchrun():
    """env: under torchrun: our ranks meet through its agent's store, in each opening anew."""
    script = 'printf "gather meeting $RANK $WORLD_SIZE 5\\nquit\\n" | "$0" env:'
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "3",
         "sh", "-c", script, PEER],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=150)
    assert run.returncode == 0, run.stdout
    expect(run.stdout.split().count("ok"), 3)


def main():
    case = sys.argv[2]
    os.environ.pop("TUTTI_STORE_SECRET", None)
    if case == "gloo_rank":
        gloo_rank(*(int(word) for word in sys.argv[3:]))
        return
    cases = {
        "file": test_file,
        "tcp_libuv": lambda: test_tcp(True),
        "tcp_legacy": lambda: test_tcp(False),
        "our_server": test_our_server,
        "gloo": test_gloo,
        "torchrun": test_torchrun,
    }
    cases[case]()
    print("ok", case, "with PyTorch", torch.__version__)


main()
