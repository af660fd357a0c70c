#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What scripts/gpu-bench found: joins PyTorch's times to the rows of `tutti bench --json` and prints tables.

usage: gpu_report.py join OUT.json TUTTI.json... [--torch TORCH.json]...
       gpu_report.py table RESULT.json...
       gpu_report.py loopback OUT.json NOW.json... [--before BEFORE.json...]
"""
import json
import statistics
import sys

from rows import write as write_rows

# Issue "The GPU": bfloat16 sum in a CUDA graph, slowest rank, microseconds, by ranks and bytes.
KIB, MIB = 1 << 10, 1 << 20
GOAL_BYTES = [KIB, 4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB,
              MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB, 64 * MIB]
GOALS = {
    4: dict(zip(GOAL_BYTES, [1.9, 2.0, 2.05, 2.2, 2.4, 2.6, 3.2, 4.0, 5.0, 6.9, 11.8, 21, 39.5, 77,
                             150, 292])),
    2: dict(zip(GOAL_BYTES, [1.6, 1.7, 1.75, 1.8, 1.9, 2.0, 2.2, 2.6, 3.4, 5.0, 8.3, 14.3, 26.5,
                             51.5, 101, 200])),
}
RIVALS = {"nccl": "NCCL", "nccl_symmetric": "NCCL symmetric", "torch_one_shot": "PyTorch one-shot",
          "torch_two_shot": "PyTorch two-shot", "torch_low_contention": "PyTorch low-contention",
          "torch_reduce_scatter": "PyTorch reduce_scatter_out"}
# Issue "every collective at the link's speed": at most this part of NCCL's time, in its better form, or
# 1.15 times the bound, by bytes of the larger buffer up to these, and more.
PART_BYTES = [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, float("inf")]
PARTS = dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"),
                      [.3, .35, .45, .6, .65, .75])
PARTS.update(dict.fromkeys(("broadcast", "reduce"), [.35, .45, .6, .75, .9, .95]))
PARTS["send_recv"] = [.25, .3, .4, .5, .6, .75]
WHOLE = ("broadcast", "reduce", "send_recv")  # a rank sends its larger buffer, not all but one block of it
LAUNCH_US, HOP_US, BYTES_A_US = .58, .66, 364e3
# The times of equal kernels of two builds, in turns on one GPU, differed by up to this part: from 1 MiB on, and below.
NOISE_LARGE, NOISE_SMALL = .05, .15
GLOO = "torch_gloo"
# Issue "Topology": host-staged, so many times faster than Gloo.
STAGED_GOALS = {4 * KIB: 20, MIB: 8, 4 * MIB: 8, 16 * MIB: 8, 64 * MIB: 8}


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def size_text(size):
    for unit, text in ((1 << 30, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {text}"
    return f"{size} B"


def us_text(us):
    """Three digits that matter."""
    if us is None:
        return ""
    return f"{us:.2f}" if us < 10 else f"{us:.1f}" if us < 100 else f"{us:.0f}"


def join(out, paths, torch_paths):
    """One result of several, PyTorch's times among the rivals of rows with a graph and out of place, Gloo's
    among those of eager calls in place."""
    torch = {}
    for path in torch_paths:
        for row in load(path)["rows"]:
            torch[row.get("collective", "all_reduce"), row["dtype"], row["ranks"], row["bytes"]] = row
    results = [load(path) for path in paths]
    rows = [row for result in results for row in result["rows"]]
    for row in rows:
        key = row["collective"], row["dtype"], row["ranks"], row["bytes"]
        if row["graph"] and not row["in_place"]:
            theirs = torch.get(key, {})
            row["rivals"].update({name: theirs[name] for name in RIVALS if name in theirs})
        if not row["graph"] and row["in_place"]:
            theirs = torch.get(key, {})
            row["rivals"].update({GLOO: theirs[GLOO]} if GLOO in theirs else {})
        best = min(row["rivals"].values(), default=None)
        row["ratio"] = round(row["tutti_us"] / best, 3) if best else None
    joined = {key: results[0][key] for key in ("machine", "commit", "date")}
    joined.update({"nccl": result["nccl"] for result in results if "nccl" in result})
    joined.update({"torch": load(path)["torch"] for path in torch_paths})
    joined["command"] = "; ".join(result["command"] for result in results)
    joined["rows"] = rows
    write_rows(out, joined)


def forms(rows):
    """(plain, programmatic) rows of a graph, out of place, by dtype, ranks and bytes."""
    table = {}
    for row in rows:
        if row["graph"] and not row["in_place"] and row["collective"] == "all_reduce":
            key = row["dtype"], row["ranks"], row["bytes"]
            table.setdefault(key, [None, None])[row["programmatic_launch"]] = row
    return table


def print_block(dtype, ranks, block):
    """A table in Markdown; returns (goals met, goals, sizes slower than a rival, sizes with one)."""
    names = [name for name in RIVALS if any(name in row["rivals"] for pair in block.values()
                                            for row in pair if row)]
    goals = GOALS.get(ranks, {}) if dtype == "bfloat16" else {}
    print(f"\n{ranks} ranks, {dtype} sum, microseconds\n")
    print("| bytes | algorithm | Tutti | programmatic | " + "".join(f"{RIVALS[n]} | " for n in names) +
          "ratio |" + (" goal | |" if goals else ""))
    print("|---" * (5 + len(names) + (2 if goals else 0)) + "|")
    met = slower = compared = 0
    for size in sorted(block):
        pair = [row for row in block[size] if row]
        ours = min(row["tutti_us"] for row in pair)
        rivals = {n: min((r["rivals"][n] for r in pair if n in r["rivals"]), default=None)
                  for n in names}
        best = min((us for us in rivals.values() if us), default=None)
        ratio = ours / best if best else None
        compared += best is not None
        slower += ratio is not None and ratio > 1
        cells = [size_text(size), pair[0]["algo"] or ""]
        cells += [us_text(row["tutti_us"]) if row else "" for row in block[size]]
        cells += [us_text(rivals[n]) for n in names]
        cells.append(f"{ratio:.2f}" + (" **slower**" if ratio > 1 else "") if ratio else "")
        if goals:
            goal = goals.get(size)
            met += goal is not None and ours <= goal
            cells += [f"{goal:g}", "met" if ours <= goal else "**missed**"] if goal else ["", ""]
        print("| " + " | ".join(cells) + " |")
    return met, sum(size in goals for size in block), slower, compared


def print_staged(rows):
    """Through the host's memory, beside Gloo; returns (goals met, goals)."""
    rows = [row for row in rows if GLOO in row["rivals"]]
    met = 0
    if not rows:
        return 0, 0
    print(f"\n{rows[0]['ranks']} ranks, {rows[0]['dtype']} sum through the host's memory, microseconds\n")
    print("| bytes | Tutti | PyTorch Gloo | times faster | goal | |\n|---|---|---|---|---|---|")
    for row in rows:
        times, goal = row["rivals"][GLOO] / row["tutti_us"], STAGED_GOALS.get(row["bytes"])
        met += goal is not None and times >= goal
        print(f"| {size_text(row['bytes'])} | {us_text(row['tutti_us'])} | {us_text(row['rivals'][GLOO])} | "
              f"{times:.3g} | {goal or ''} | {'' if not goal else 'met' if times >= goal else '**missed**'} |")
    return met, sum(row["bytes"] in STAGED_GOALS for row in rows)


def limit_of(row):
    """The goal of a row in microseconds, None if there is none."""
    theirs = [row["rivals"][name] for name in ("nccl", "nccl_symmetric") if name in row["rivals"]]
    if row["collective"] not in PARTS or not row["graph"]:
        return None
    share = 1 if row["collective"] in WHOLE else (row["ranks"] - 1) / row["ranks"]
    bound = 1.15 * (LAUNCH_US + HOP_US + row["bytes"] * share / BYTES_A_US)
    part = next(p for size, p in zip(PART_BYTES, PARTS[row["collective"]]) if row["bytes"] <= size)
    return max(bound, part * min(theirs)) if theirs else None


def print_collectives(rows):
    """A table for each collective but the all-reduce, out of place; returns what print_block() does."""
    totals = [0] * 4
    blocks = {}
    for row in rows:
        if row["collective"] not in ("all_reduce", "barrier") and not row["in_place"]:
            key = row["collective"], row["dtype"], row["ranks"], row["graph"], row.get("max_blocks")
            blocks.setdefault(key, []).append(row)
    for (collective, dtype, ranks, graph, max_blocks), block in blocks.items():
        names = [name for name in RIVALS if any(name in row["rivals"] for row in block)]
        limits = [limit_of(row) for row in block]
        goals = any(limits)
        print(f"\n{collective}, {ranks} ranks, {dtype}, {'a graph' if graph else 'eager calls'}, "
              + (f"{max_blocks} blocks at most, " if max_blocks else "") + "microseconds\n")
        print("| bytes | Tutti | " + "".join(f"{RIVALS[n]} | " for n in names) + "ratio |" +
              (" goal | |" if goals else ""))
        print("|---" * (3 + len(names) + (2 if goals else 0)) + "|")
        for row, limit in zip(block, limits):
            us, ratio = row["tutti_us"], row["ratio"]
            cells = [size_text(row["bytes"]), us_text(us)] + [us_text(row["rivals"].get(n)) for n in names]
            cells.append(f"{ratio:.2f}" + (" **slower**" if ratio > 1 else "") if ratio else "")
            if goals:
                cells += [us_text(limit), "met" if us <= limit else "**missed**"] if limit else ["", ""]
            print("| " + " | ".join(cells) + " |")
            totals = [a + b for a, b in zip(totals, (bool(limit) and us <= limit, bool(limit),
                                                     bool(ratio) and ratio > 1, bool(ratio)))]
    return totals


def loopback(out, paths, before_paths):
    """The kernels' times among ranks of one device, medians of the turns, beside those of an earlier commit."""
    def medians(paths):
        times = {}
        for path in paths:
            for row in load(path)["rows"]:
                if not row["in_place"]:
                    key = row["collective"], row["algo"] or "", row["ranks"], row["bytes"]
                    times.setdefault(key, []).append(row["tutti_us"])
        return {key: statistics.median(us) for key, us in times.items()}

    now, before = medians(paths), medians(before_paths)
    first = load(paths[0])
    former = load(before_paths[0])["commit"] if before_paths else None
    print(f"{first['machine']}, commit {first['commit']}" + (f" beside {former}" if former else "") + f", {first['date']}\n")
    print("| collective | kernel | ranks | bytes | before | now | now / before |\n|---|---|---|---|---|---|---|")
    rows, slower = [], 0
    for key, us in now.items():
        collective, kernel, ranks, size = key
        ratio = us / before[key] if key in before else None
        is_slower = ratio is not None and ratio > 1 + (NOISE_LARGE if size >= MIB else NOISE_SMALL)
        slower += is_slower
        rows.append({"collective": collective, "kernel": kernel, "ranks": ranks, "bytes": size, "us": us,
                     "before_us": before.get(key), "ratio": ratio and round(ratio, 3)})
        print(f"| {collective} | {kernel} | {ranks} | {size_text(size)} | {us_text(before.get(key))} | {us_text(us)} | " +
              (f"{ratio:.2f}" + (" **slower**" if is_slower else "") if ratio else "") + " |")
    wrong = sum(row["wrong"] or 0 for path in paths for row in load(path)["rows"])
    print(f"\nslower by more than {NOISE_LARGE:.0%}, below 1 MiB {NOISE_SMALL:.0%}: {slower} of {sum(row['ratio'] is not None for row in rows)}; "
          f"wrong elements: {wrong}")
    write_rows(out, {"machine": first["machine"], "commit": first["commit"], "before": former, "date": first["date"],
                     "rows": rows})
    return not wrong


def table(paths):
    """All tables, then a line that says how many goals are met; returns whether all is well."""
    rows = []
    for path in paths:
        result = load(path)
        rows += result["rows"]
        versions = "".join(f", {name} {result[key]}" for key, name in
                           (("nccl", "NCCL"), ("torch", "PyTorch")) if key in result)
        print(f"{path}: {result['machine']}{versions}, commit {result['commit']}, {result['date']}")
    totals = [0] * 4
    blocks = {}
    for (dtype, ranks, size), pair in forms(rows).items():
        blocks.setdefault((dtype, ranks), {})[size] = pair
    for (dtype, ranks), block in blocks.items():
        totals = [a + b for a, b in zip(totals, print_block(dtype, ranks, block))]
    totals[:2] = [a + b for a, b in zip(totals, print_staged(rows))]
    totals = [a + b for a, b in zip(totals, print_collectives(rows))]
    hosts = [row["host_us"] for row in rows
             if row.get("host_us") and not row["in_place"] and row["dtype"] == "bfloat16" and
             row["collective"] == "all_reduce"]
    wrong = sum(row["wrong"] or 0 for row in rows)
    unchecked = sum(row["wrong"] is None for row in rows)
    print(f"\ngoals met: {totals[0]} of {totals[1]}; slower than the best rival: {totals[2]} of "
          f"{totals[3]} sizes; wrong elements: {wrong}" + (f"; rows unchecked: {unchecked}" if unchecked else ""))
    if hosts:
        print(f"host cost of an eager call: {min(hosts):.2f} to {max(hosts):.2f} us")
    return not wrong


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in ("join", "table", "loopback"):
        sys.exit(__doc__)
    if sys.argv[1] == "table":
        sys.exit(0 if table(sys.argv[2:]) else 1)
    if sys.argv[1] == "loopback":
        words = sys.argv[3:]
        cut = words.index("--before") if "--before" in words else len(words)
        sys.exit(0 if loopback(sys.argv[2], words[:cut], words[cut + 1:]) else 1)
    words, torch, paths = iter(sys.argv[3:]), [], []
    for word in words:
        if word == "--torch":
            torch.append(next(words))
        else:
            paths.append(word)
    join(sys.argv[2], paths, torch)


main()
