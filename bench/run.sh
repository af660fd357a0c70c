#!/bin/bash
# SPDX-License-Identifier: MIT
# Run by `make bench`: times all-reduces beside other libraries with 2 ranks and with 4, and the set-up; draws the pictures.
# bench/run.sh [BUILD_DIRECTORY] [SECONDS_A_COMPARISON]: build/gcc, 300
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/gcc}
seconds=${2:-300}
results=bench/results

# compare RANKS ARGUMENT...: ten sizes from 8 B to 64 MiB.
compare() {
    local ranks=$1
    shift
    echo "== $ranks ranks, up to $seconds s"
    "$build/tools/tutti" bench -n "$ranks" --vs all --seconds "$seconds" \
        --counts 2,16,256,2K,16K,64K,256K,1M,4M,16M --json "$results/cpu-${ranks}ranks.json" "$@"
}

if [[ ! -x $build/tools/tutti ]]; then
    echo "run.sh: $build/tools/tutti is missing: run \`make bench\`" >&2
    exit 1
fi
mkdir -p "$results"
compare 2 --both
compare 4
"$build/bench/setup" 4
bench/chart.sh
