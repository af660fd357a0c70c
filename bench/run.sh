#!/bin/sh
# SPDX-License-Identifier: MIT
# What `make bench` runs: the comparison with 2 ranks and with 4, the set-up time, and the picture.
# bench/run.sh [BUILD_DIRECTORY] [SECONDS_A_COMPARISON]
set -eu
cd "$(dirname "$0")/.."
programs=${1:-build/gcc}/bench
budget=${2:-180}
results=bench/results

if [ ! -x "$programs/compare" ]; then
    echo "run.sh: $programs/compare is missing: configure with -DTUTTI_BUILD_BENCH=ON and build" >&2
    exit 1
fi
mkdir -p $results
"$programs/compare" --ranks 2 --both --budget "$budget" --json $results/cpu-2ranks.json
"$programs/compare" --ranks 4 --budget "$budget" --json $results/cpu-4ranks.json
"$programs/setup" 4

if ! command -v gnuplot >/dev/null; then
    echo "run.sh: gnuplot is not installed (Debian: gnuplot-nox): no picture" >&2
    exit 0
fi
columns=$(mktemp)
trap 'rm -f "$columns"' EXIT
"$programs/compare" --columns $results/cpu-2ranks.json $results/cpu-4ranks.json >"$columns"
gnuplot -c bench/plot.gp "$columns" docs/all_reduce_cpu.svg
echo "$results/cpu-2ranks.json, $results/cpu-4ranks.json and docs/all_reduce_cpu.svg written"
