#!/bin/bash
# SPDX-License-Identifier: MIT
# Run by `make bench`: times collectives beside other libraries with 2 ranks and with 4, or with the numbers of ranks in
# $RANKS, and the set-up; draws the pictures.
# bench/run.sh [BUILD_DIRECTORY] [SECONDS_A_COMPARISON] [COLLECTIVE...]
# Without arguments: build/gcc; all-reduce for 300 s, every other collective for 40 s.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/gcc}
seconds=${2:-}
collectives=("${@:3}")
others=(all_gather reduce_scatter all_to_all broadcast reduce gather scatter)
[[ ${#collectives[@]} -gt 0 ]] || collectives=(all_reduce "${others[@]}")
results=bench/results
# Elements of a block.
counts=2,16,256,2K,16K,64K,256K,1M,4M

# compare COLLECTIVE RANKS ARGUMENT...: blocks from 8 B to 16 MiB, in all-reduces to 64 MiB.
compare() {
    local collective=$1 ranks=$2 limit=${seconds:-40} sizes=$counts suffix=-$1
    shift 2
    if [[ $collective == all_reduce ]]; then
        limit=${seconds:-300}
        sizes+=,16M
        suffix=
    fi
    echo "== $collective, $ranks ranks, up to $limit s"
    "$build/tools/tutti" bench -n "$ranks" --collective "$collective" --vs all --seconds "$limit" \
        --counts "$sizes" --json "$results/cpu-${ranks}ranks$suffix.json" "$@"
}

if [[ ! -x $build/tools/tutti ]]; then
    echo "run.sh: $build/tools/tutti is missing: run \`make bench\`" >&2
    exit 1
fi
mkdir -p "$results"
for collective in "${collectives[@]}"; do
    for ranks in ${RANKS:-2 4}; do
        both=()
        [[ $ranks != 2 ]] || both=(--both)
        compare "$collective" "$ranks" "${both[@]}"
    done
done
[[ ${collectives[0]} != all_reduce ]] || "$build/bench/setup" 4
bench/chart.sh
