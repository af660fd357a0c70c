#!/bin/bash
# scripts/gpu-bench and bench/gpu_report.py over stand-ins: what they measure, and the tables that they print.
# shellcheck source=tests/tools/common.sh
. "$(dirname "$0")/common.sh"
need python3
tutti=$1 cuda=$2 nccl=$3
export TUTTI_PROGRAMS OUT=$work/results TUTTI_CUDA_LIBRARY=$cuda TUTTI_NCCL_LIBRARY=/nonexistent/nccl
TUTTI_PROGRAMS=$(dirname "$tutti")

# ---- the kernels among ranks of one device, beside an earlier program
status 0 env CUDA_VISIBLE_DEVICES=0 TUTTI_BEFORE="$TUTTI_PROGRAMS" scripts/gpu-bench --loopback --quick
out '^\| all_reduce \| two_shot_pipelined \| 4 \| 256 KiB \| [0-9.]+ \| [0-9.]+ \| [0-9.]+( \*\*slower\*\*)? \|$'
out '^\| broadcast \|  \| 2 \| 256 KiB \| [0-9.]+ \| [0-9.]+ \| '
out ' of [0-9]+; wrong elements: 0$'
python3 - "$work/results/gpu-loopback.json" <<'PYTHON' || complain "the file of --loopback"
import json, sys
result = json.load(open(sys.argv[1]))
assert result["machine"].startswith("1 GPU, "), result["machine"]
assert result["before"] == result["commit"]
kernels = {row["kernel"] for row in result["rows"]}
assert kernels >= {"one_shot_ll", "one_shot_lines", "two_shot_lines", "two_shot_pipelined", "ring"}, kernels
assert {row["ranks"] for row in result["rows"]} == {2, 4}
assert all(row["us"] > 0 and abs(row["us"] / row["before_us"] - row["ratio"]) < 1e-3 for row in result["rows"])
PYTHON

# ---- all collectives, those without a kernel in eager calls
status 0 env CUDA_VISIBLE_DEVICES=0,1 scripts/gpu-bench --collectives --quick
for collective in all_gather all_to_all broadcast gather scatter; do
    out "^$collective, 2 ranks, bfloat16, a graph, microseconds$"
done
out '^send_recv, 2 ranks, bfloat16, a graph, microseconds$'
out 'wrong elements: 0$'
status 1 env CUDA_VISIBLE_DEVICES=0,1 scripts/gpu-bench --torch --quick
for name in decode decode-nccl generate train; do
    out "^gpu-bench: $name: no time left, or no PyTorch$"
done
status 64 scripts/gpu-bench --collective
err 'usage: scripts/gpu-bench'

# ---- goals: a part of NCCL's time, or a bound
status 0 env TUTTI_NCCL_LIBRARY="$nccl" "$tutti" bench --device cuda -t 2 -g 1 --iters 2 -w 1 --graph=2 -b 1K -e 64K -f 64 \
    --collective all_gather --vs nccl -d bfloat16 --json "$work/gather.json"
python3 - "$work/gather.json" <<'PYTHON' || complain "a changed file"
import json, sys
result = json.load(open(sys.argv[1]))
for row in result["rows"]:
    row.update({"tutti_us": 2.9 if row["bytes"] > 1024 else 1.5, "rivals": {"nccl": 9.9, "nccl_symmetric": 8.0}})
    assert row["wrong"] == 0
json.dump(result, open(sys.argv[1], "w"))
json.dump({"torch": "2.0", "rows": [{"collective": "all_gather", "dtype": "bfloat16", "ranks": 2, "bytes": 65536,
                                     "torch_low_contention": 2.5}]}, open(sys.argv[1] + ".torch", "w"))
PYTHON
status 0 python3 bench/gpu_report.py join "$work/joined.json" "$work/gather.json" --torch "$work/gather.json.torch"
status 0 python3 bench/gpu_report.py table "$work/joined.json"
# .3 of 8 us; 2.9 us is more than that, and 1.16 times PyTorch's time
out '^\| 1 KiB \| 1.50 \| 9.90 \| 8.00 \|  \| 0.19 \| 2.40 \| met \|$'
out '^\| 64 KiB \| 2.90 \| 9.90 \| 8.00 \| 2.50 \| 1.16 \*\*slower\*\* \| 2.40 \| \*\*missed\*\* \|$'
out 'goals met: 1 of 2; slower than the best rival: 1 of 2 sizes; wrong elements: 0$'
finish
