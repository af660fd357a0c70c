#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The model of docs/scale.md: what a communicator of many hosts would cost.

scale.py measure [BUILD]   measures worlds of up to 64 ranks with BUILD/bench/scale, writes bench/results/scale.json
scale.py [NODES...]        prints the model for so many nodes of 8 ranks (1000 and 10000 without it)

The model fits what grows, by least squares: bytes of the store and the server's CPU time as a + b N + c N^2 of N ranks,
memory as a + b N. Messages are counted, and take the time of a message each.
"""
import json
import os
import platform
import re
import subprocess
import sys
import time

import rows

RESULT = "bench/results/scale.json"
WORLDS = [(2, 2), (4, 4), (8, 8), (16, 16), (32, 32), (48, 48), (64, 64), (64, 8), (64, 2)]
RUNS = 3
EACH = 8  # ranks a node
GBIT = 10e9 / 8  # bytes a second
LOOKS = 5  # a second, of each rank that waits, at the store: comm/hierarchy_link.c


def run_world(build, ranks, hosts):
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *user, "--net", "sh", "-c", f"ip link set lo up; exec {build}/bench/scale {ranks} {hosts}"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def time_message(build):
    """Us of one message between hosts, both sides, by Open MPI over TCP: 8 hosts of a rank share one core, so that an
    all-reduce takes as long as all its messages together."""
    hosts = 8
    mpirun = ["taskset", "-c", "0", "mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
              "--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo",
              "--mca", "mpi_yield_when_idle", "1", "-n", str(hosts)]
    bench = f"TUTTI_HOST_ID=$OMPI_COMM_WORLD_RANK exec {build}/tools/tutti bench --fabric mpi: --vs mpi -b 8 -e 8 --json -"
    out = subprocess.run([*mpirun, "sh", "-c", bench], check=True, capture_output=True, text=True).stdout
    return json.loads(out)["rows"][0]["tutti_us"] / (2 * hosts * (hosts - 1))


def measure(build):
    worlds = []
    for ranks, hosts in WORLDS:
        runs = [run_world(build, ranks, hosts) for _ in range(RUNS)]
        worlds.append({key: sorted(one[key] for one in runs)[RUNS // 2] for key in runs[0]})
        print(worlds[-1])
    cpu = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo", encoding="utf-8").read())
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], check=True, capture_output=True, text=True).stdout
    rows.write(RESULT, {"machine": f"{cpu[1] if cpu else platform.machine()}, {os.cpu_count()} cores",
                        "commit": commit.strip(), "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                        "message_us": round(min(time_message(build) for _ in range(RUNS)), 2), "rows": worlds})


def fit(points, powers):
    """The coefficients of the powers of x, by the normal equations. Points weigh by 1/y, as relative errors do."""
    n = len(powers)
    table = [[sum((x ** (p + q)) / y ** 2 for x, y in points) for q in powers] + [sum(x ** p / y for x, y in points)]
             for p in powers]
    for i in range(n):
        table[i] = [value / table[i][i] for value in table[i]]
        for j in range(n):
            if j != i:
                table[j] = [a - table[j][i] * b for a, b in zip(table[j], table[i])]
    return [line[n] for line in table]


def at(coefficients, powers, x):
    return sum(c * x ** p for c, p in zip(coefficients, powers))


def amount(number):
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("K", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}B"
    return f"{number:.3g} B"


def duration(us):
    return f"{us / 1e6:.3g} s" if us >= 1e6 else f"{us / 1e3:.3g} ms" if us >= 1e3 else f"{us:.3g} us"


def model(nodes):
    with open(RESULT, encoding="utf-8") as file:
        measured = json.load(file)
    alone = [row for row in measured["rows"] if row["ranks"] == row["hosts"]]
    store = fit([(row["ranks"], row["store_bytes"]) for row in alone], (1, 2))
    server = fit([(row["ranks"], row["server_us"]) for row in alone], (1, 2))
    memory = fit([(row["ranks"], row["memory_kib"]) for row in alone], (0, 1))
    message_us = measured["message_us"]
    request_us = 2 * alone[0]["server_us"] / alone[0]["store_packets"]
    print(f"store: {store[0] / 1e3:.1f} KB + {store[1] / 1e3:.2f} KB x N a rank; server: {server[0]:.0f} us + "
          f"{server[1]:.2f} us x N a rank; memory: {memory[0]:.0f} KiB + {memory[1]:.2f} KiB x N a rank; "
          f"request: {request_us:.0f} us; message: {message_us} us\n")
    print("| nodes | store, a rank | its server sends | in CPU time | looks in waits | memory, a rank | "
          "8 B all-reduce: one hop | by doubling | 64 MiB: bytes | messages |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for count in nodes:
        ranks = EACH * count
        total = at(store, (1, 2), ranks)
        cells = [f"{count:,}", amount(total / ranks), amount(total), duration(at(server, (1, 2), ranks)),
                 f"{LOOKS * ranks * request_us / 1e4:.2g} %", amount(1024 * at(memory, (0, 1), ranks)),
                 duration(2 * (count - 1) * message_us), duration(2 * (count - 1).bit_length() * message_us),
                 duration(2 * (1 - 1 / count) * (64 << 20) / GBIT * 1e6), duration(3 * (count - 1) * message_us)]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    if sys.argv[1:2] == ["measure"]:
        measure(sys.argv[2] if len(sys.argv) > 2 else "build/gcc")
    model([int(word) for word in sys.argv[1:] if word.isdigit()] or [8, 1000, 10000])
