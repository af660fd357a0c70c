#!/bin/bash
# SPDX-License-Identifier: MIT
# Run by `make bench`: times all-reduces beside other libraries with 2 ranks and with 4, and the set-up; draws the pictures.
# Of another collective it makes the comparisons alone.
# bench/run.sh [BUILD_DIRECTORY] [SECONDS_A_COMPARISON] [COLLECTIVE]: build/gcc, 300, all_reduce
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/gcc}
seconds=${2:-300}
collective=${3:-all_reduce}
results=bench/results
# Elements of a block.
counts=2,16,256,2K,16K,64K,256K,1M,4M
suffix=-$collective
if [[ $collective == all_reduce ]]; then
    counts+=,16M
    suffix=
fi

# compare RANKS ARGUMENT...: blocks from 8 B to 16 MiB, in all-reduces to 64 MiB.
compare() {
    local ranks=$1
    shift
    echo "== $ranks ranks, up to $seconds s"
    "$build/tools/tutti" bench -n "$ranks" --collective "$collective" --vs all --seconds "$seconds" \
        --counts "$counts" --json "$results/cpu-${ranks}ranks$suffix.json" "$@"
}

if [[ ! -x $build/tools/tutti ]]; then
    echo "run.sh: $build/tools/tutti is missing: run \`make bench\`" >&2
    exit 1
fi
mkdir -p "$results"
compare 2 --both
compare 4
[[ $collective == all_reduce ]] || exit 0
"$build/bench/setup" 4
bench/chart.sh
