#!/bin/bash
# SPDX-License-Identifier: MIT
# Draws docs/all_reduce_cpu.svg, docs/all_reduce_gpu.svg and docs/collectives_cpu.svg from the files of bench/results that exist.
# bench/chart.sh [CPU.json [GPU.json]]
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v gnuplot >/dev/null; then
    echo "chart.sh: gnuplot is not installed (Debian: gnuplot-nox): no picture" >&2
    exit 0
fi
columns=$(mktemp)
trap 'rm -f "$columns"' EXIT

# draw RESULT PICTURE
draw() {
    [[ -e $1 ]] || return 0
    python3 bench/chart.py "$1" >"$columns"
    gnuplot -c bench/plot.gp "$columns" "$2" microseconds
    echo "$2 drawn from $1"
}
draw "${1:-bench/results/cpu-2ranks.json}" docs/all_reduce_cpu.svg
draw "${2:-bench/results/gpu-2-bfloat16.json}" docs/all_reduce_gpu.svg

others=(bench/results/cpu-2ranks-*_*.json bench/results/cpu-2ranks-{broadcast,reduce,gather,scatter}.json)
existing=()
for result in "${others[@]}"; do
    [[ ! -e $result ]] || existing+=("$result")
done
if [[ ${#existing[@]} -gt 0 ]]; then
    python3 bench/chart.py "${existing[@]}" >"$columns"
    gnuplot -c bench/plot.gp "$columns" docs/collectives_cpu.svg "time / time of the fastest other library"
    echo "docs/collectives_cpu.svg drawn from ${existing[*]}"
fi
