#!/bin/bash
# tutti bench counts what is wrong: with results that a preloaded library spoils, #wrong is what it spoiled
# and the exit status is 1. A rank that does not come is waited for as long as --timeout says.
# shellcheck source=tests/tools/common.sh
. "$(dirname "$0")/common.sh"
need python3
tutti=$1
spoiler=$2
fake=$3 # a rival

# spoiled HOW OUT IN [COLLECTIVE]: #wrong out of place and in place.
spoiled() {
    local how=$1 total=$(($2 + $3))
    status $((total > 0)) env SPOIL="$how" LD_PRELOAD="$spoiler" \
        "$tutti" bench -n 2 --collective "${4:-all_reduce}" -b 64K -e 64K -w 1 --iters 2 -d float32 --json "$work/spoiled.json"
    awk -v out="$2" -v in_="$3" '!/^#/ { found = $9 == out && $13 == in_ } END { exit !found }' \
        "$work/out" || { complain "$how: not $2 and $3 wrong"; cat "$work/out"; }
    out "^# Out of bounds values : $total "
    [[ $(python3 -c 'import json, sys
print(sum(row["wrong"] for row in json.load(open(sys.argv[1]))["rows"]))' "$work/spoiled.json") == "$total" ]] ||
        complain "$how: JSON has another number"
}

spoiled nothing 0 0
spoiled bit 1 1
spoiled past 1 1
spoiled input 1 0
spoiled bit 1 1 all_gather
spoiled past 1 1 all_gather
spoiled input 1 0 all_gather
spoiled bit 1 1 reduce_scatter
spoiled past 1 1 reduce_scatter
spoiled input 1 1 reduce_scatter # the first block of two, which is no result either
spoiled bit 1 1 all_to_all
spoiled past 1 1 all_to_all
spoiled input 1 0 all_to_all
# Operations become slower by far than the warm-up has shown: the row ends all the same, with fewer of them.
status 0 timeout -s KILL 60 env SPOIL=later LD_PRELOAD="$spoiler" "$tutti" bench -n 1 -w 150 -b 8 -e 8

# Beside others, wrong results of ours are a failure.
ln -s "$fake" "$work/tutti-bench-gloo"
export TUTTI_BENCH_RIVALS=$work
status 0 env SPOIL=nothing LD_PRELOAD="$spoiler" "$tutti" bench -n 2 --vs gloo -b 64K -e 64K
status 1 env SPOIL=bit LD_PRELOAD="$spoiler" "$tutti" bench -n 2 --vs gloo -b 64K -e 64K
err 'tutti: rank [01] has wrong elements'
ln -s "$fake" "$work/tutti-bench-openmpi"
fake_mpirun
for collective in all_gather reduce_scatter all_to_all; do
    status 1 env PATH="$work/bin:$PATH" SPOIL=bit LD_PRELOAD="$spoiler" \
        "$tutti" bench -n 2 --collective "$collective" --vs openmpi -b 64K -e 64K
    err 'tutti: rank [01] has wrong elements'
done
status 1 timeout 30 env SPOIL=absent LD_PRELOAD="$spoiler" "$tutti" bench -n 2 --symmetric --timeout 1 -b 8 -e 8
err 'rank 0: TUTTI_ERR_TIMEOUT'
finish
