#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Collectives between two "hosts", by Tutti over an MPI and by that MPI: scripts/bench-hosts.

hosts.py join RESULT RATE FILE...   makes one file of those of `tutti bench`, COLLECTIVE-SPREAD-PASS.json, and prints it
hosts.py table RESULT...            prints tables for bench/README.md

A row has the medians of its passes; its ratio is that of the passes' ratios. The bound is the time that the bytes take which must cross the cable in one direction, at its rate.
"""
import json
import os
import re
import statistics
import sys

import rows

GOALS = {8: 1.1, 1 << 18: 0.6, 1 << 21: 0.6, 1 << 24: 0.6}  # of the MPI's time, all-reduces of 2 to 8 ranks a host
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def bits_a_second(rate):
    match = re.fullmatch(r"([0-9.]+)([kmg]bit)", rate)
    return float(match[1]) * UNITS[match[2]] if match else None


def bound_us(row, rate):
    """None: the cable has no rate."""
    size, each = row["bytes"], row["ranks"] // 2
    crossing = {
        "all_reduce": size,  # each host's sums
        "all_gather": size / 2,  # the blocks of one host
        "reduce_scatter": size / 2,  # one host's sums of the other's blocks
        "broadcast": size / 2,  # the roots take turns, so each direction has every other one
        "all_to_all": size / 2 * each,  # from each rank its blocks for the other host's
    }
    bits = bits_a_second(rate)
    return crossing[row["collective"]] * 8 / bits * 1e6 if bits else None


def join_passes(spread, passes, rate):
    """One row of the same row of all passes."""
    keys = ("collective", "dtype", "op", "ranks", "bytes", "algo")
    row = {"spread": spread} | {key: passes[0][key] for key in keys}
    row["tutti_us"] = statistics.median(one["tutti_us"] for one in passes)
    row["mpi_us"] = statistics.median(one["rivals"]["mpi"] for one in passes)
    row["ratio"] = round(statistics.median(one["ratio"] for one in passes), 3)
    row["ratios"] = sorted(round(one["ratio"], 3) for one in passes)
    row["wrong"] = sum(one["wrong"] for one in passes)
    return row | {"bound_us": bound_us(row, rate)}


def join(result, rate, paths):
    found, joined = {}, {}
    for path in sorted(paths):
        with open(path, encoding="utf-8") as file:
            part = json.load(file)
        collective, spread, _ = os.path.basename(path).removesuffix(".json").split("-")
        joined = {key: part[key] for key in ("machine", "commit", "date", "mpi")}
        for row in part["rows"]:
            if "mpi" in row["rivals"]:
                found.setdefault((collective, spread, row["bytes"]), []).append(row)
    joined |= {"rate": rate, "load": round(os.getloadavg()[1], 1),
               "rows": [join_passes(key[1], passes, rate) for key, passes in found.items()]}
    rows.write(result, joined)
    return joined


def number(us):
    return "-" if us is None else f"{us:.0f}" if us >= 100 else f"{us:.1f}" if us >= 1 else f"{us:.1g}"


def verdict(row):
    """The goal beside the figure; of one rank a host, and of other collectives, there is none."""
    if row["collective"] != "all_reduce" or row["spread"] == "1,1" or row["bytes"] not in GOALS:
        return ""
    goal = GOALS[row["bytes"]]
    return f", goal {goal:g}: {'met' if row['ratio'] <= goal else '**missed**'}"


def table(joined):
    """A line for each collective and size; a column for each spread: times, bound, ratio and goal."""
    spreads = sorted({row["spread"] for row in joined["rows"]}, key=lambda spread: int(spread.split(",")[0]))
    lines = {}
    for row in joined["rows"]:
        if row["bytes"] in GOALS or (row["bytes"] == 64 and row["collective"] not in ("all_reduce", "broadcast")):
            times = f"{number(row['tutti_us'])}, {number(row['mpi_us'])}, {number(row['bound_us'])}"
            lines.setdefault((row["collective"], row["bytes"]), {})[row["spread"]] = \
                f"{times}; **{row['ratio']:.2f}**{verdict(row)}"
    print(f"{joined['mpi']}, cable: {joined['rate']}, {joined['machine']}, load {joined['load']}, {joined['commit']}, "
          f"{joined['date'][:10]}\n")
    print(f"| | bytes | {' | '.join(f'ranks on the hosts: {spread}' for spread in spreads)} |")
    print("|---" * (2 + len(spreads)) + "|")
    for (collective, size), cells in sorted(lines.items()):
        print(f"| {collective} | {size} | {' | '.join(cells.get(spread, '') for spread in spreads)} |")


if __name__ == "__main__":
    if len(sys.argv) > 4 and sys.argv[1] == "join":
        table(join(sys.argv[2], sys.argv[3], sys.argv[4:]))
    elif len(sys.argv) > 2 and sys.argv[1] == "table":
        for name in sys.argv[2:]:
            with open(name, encoding="utf-8") as stream:
                table(json.load(stream))
    else:
        sys.exit(__doc__)
