#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A result's figures as columns for bench/plot.gp: bytes, then microseconds of each library.

Lines with # come first: what is drawn, on which machine and when, the range of the figures, the colour of each column. The next
line names the columns. "?" stands where there is no figure.
Of a result of `tutti bench --vs` the placement is near, or the one with the most rows; of a rival the best setting.

Of several results: Tutti's time divided by the fastest rival's, a column for each result's collective.

usage: chart.py RESULT.json...
"""
import collections
import json
import sys

# Of results that do not say their versions.
TITLES = {"openmpi": "Open MPI", "openmpi5": "Open MPI 5", "mpich": "MPICH", "mpich5": "MPICH 5",
          "intelmpi": "Intel MPI", "gloo": "Gloo"}

# A library has the same colour in every picture: hues of middling lightness, for light and dark pages. The longest
# beginning of a title counts. The colours of collectives are no library's.
COLOURS = {"Tutti": "#e05a2b", "Tutti, symmetric": "#2fa36b", "Open MPI": "#3f8fd0", "Open MPI 5": "#3a5fb0",
           "MPICH": "#8a6fb0", "MPICH 5": "#c58fd8", "Intel MPI": "#209090", "Gloo": "#a07850", "NCCL": "#a8a010",
           "PyTorch": "#d0508f"}
COLLECTIVES = {"all-gather": "#e6a117", "reduce-scatter": "#c04040", "all-to-all": "#7a9a2a", "broadcast": "#5c7cfa",
               "reduce": "#d080b0", "gather": "#20b0c0", "scatter": "#808890"}


def colour(title):
    """The colour of a column."""
    beginnings = [name for name in COLOURS if title.startswith(name)]
    return COLLECTIVES.get(title.split(" ")[0]) or COLOURS[max(beginnings, key=len)]


def origin(results):
    """The machine, the day and the commit of the figures."""
    machines = dict.fromkeys(result["machine"].split(", Linux")[0] for result in results)
    days = dict.fromkeys(result["date"][:10] for result in results)
    commits = dict.fromkeys(result["commit"] for result in results)
    return f"{' and '.join(machines)}; {', '.join(days)}; commit {', '.join(commits)}"


def best(rivals, *names):
    """The least of the settings whose first word is one of the names."""
    return min((us for setting, us in rivals.items() if setting.split(" ")[0] in names), default=None)


def placed(result):
    """The rows of one placement."""
    counts = collections.Counter(row["placement"] for row in result["rows"])
    placement = "near" if "near" in counts else counts.most_common(1)[0][0]
    return [row for row in result["rows"] if row["placement"] == placement]


def ratios(results):
    """The title, and a column for each collective."""
    columns = {}
    for result in results:
        rows = [row for row in placed(result) if row["ratio"] and row.get("buffers", "ordinary") == "ordinary"]
        name = rows[0]["collective"].replace("_", "-")
        if rows[0]["placement"] != "near":
            name += f" ({rows[0]['placement']})"
        columns[name] = {row["bytes"]: row["ratio"] for row in rows}
    return f"{rows[0]['ranks']} processes, float32: time / time of the fastest of Open MPI, MPICH and Intel MPI", columns


def cpu(result):
    """The title, and the columns by name."""
    rows = placed(result)
    names = list(dict.fromkeys(setting.split(" ")[0] for row in rows for setting in row["rivals"]))
    titles = result.get("versions", TITLES)
    columns = {titles[name]: {row["bytes"]: best(row["rivals"], name) for row in rows} for name in names}
    for title, kinds in (("Tutti", (None, "ordinary")), ("Tutti, symmetric", ("symmetric",))):
        columns[title] = {row["bytes"]: row["tutti_us"] for row in rows if row.get("buffers") in kinds}
    return f"all-reduce, {rows[0]['ranks']} processes, float32 sum", columns


def gpu(result):
    """The same of GPUs: in a graph, out of place; of NCCL and PyTorch the better of two."""
    rows = [row for row in result["rows"] if row["graph"] and not row["in_place"] and row["dtype"] == "bfloat16"]
    columns = {}
    for title, names in ((f"NCCL {result.get('nccl', '')}", ("nccl", "nccl_symmetric")),
                         ("PyTorch " + result.get("torch", "").split("+")[0],
                          ("torch_one_shot", "torch_two_shot"))):
        figures = collections.defaultdict(list)
        for row in rows:
            figures[row["bytes"]].append(best(row["rivals"], *names))
        columns[title] = {size: min((us for us in all_us if us), default=None) for size, all_us in figures.items()}
    columns["Tutti"] = {row["bytes"]: row["tutti_us"] for row in rows if row["programmatic_launch"]}
    return f"all-reduce, {rows[0]['ranks']} GPUs, bfloat16 sum, in a CUDA graph", columns


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    results = []
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            results.append(json.load(file))
    if len(results) > 1:
        title, columns = ratios(results)
    else:
        title, columns = (gpu if results[0]["rows"][0]["placement"] == "gpu" else cpu)(results[0])
    columns = {name: figures for name, figures in columns.items() if any(figures.values())}
    figures = [figure for column in columns.values() for figure in column.values() if figure]
    print(f"# {title}\n# {origin(results)}\n# {min(figures) * 0.9:.4f} {max(figures) * 1.1:.4f}")
    print("#", " ".join(colour(name.strip()) for name in columns))
    print("\t".join(["bytes"] + [name.strip() for name in columns]))
    for size in sorted({size for figures in columns.values() for size in figures}):
        us = [figures.get(size) for figures in columns.values()]
        print("\t".join([str(size)] + ["?" if value is None else f"{value:.4f}" for value in us]))


main()
