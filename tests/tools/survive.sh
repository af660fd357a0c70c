#!/bin/bash
# The example survive: the ranks that a crash leaves name the dead one, go on without it and get right sums;
# a rank that stops is named by tutti diagnose, and goes on when it is continued.
# shellcheck source=tests/tools/common.sh
. "$(dirname "$0")/common.sh"
export TUTTI_DEBUG=NONE # the ranks say themselves what has happened
tutti=$1 survive=$2 dumps=$work/dumps

# ---- one rank ends with status 0 before it has met the others, which do not wait for the time-out
for gone in 0 1 2; do
    got=0
    # shellcheck disable=SC2016
    GONE=$gone timeout 200 "$tutti" run --wait 60 -n 3 sh -c '[ "$RANK" = "$GONE" ] || exec "$0"' "$survive" \
        >"$work/out" 2>"$work/err" || got=$?
    [[ $got != 0 && $got != 124 ]] || complain "rank $gone ends early: exit status $got"
    err "rank $gone ended with status 0 before it came to communicator"
    err "^tutti run: rank [0-9] .*; rank $gone had ended with status 0"
done

# ---- one rank is killed
for ranks in 2 3 4; do
    dead=$((ranks - 1))
    status 137 "$tutti" run -n "$ranks" "$survive"
    err "^tutti run: rank $dead \(pid [0-9]+\) was killed by signal 9"
    for ((rank = 0; rank < dead; rank++)); do
        out "^rank $rank: rank $dead is gone .* in operation 1000: "
        out "^rank $rank of $ranks goes on as rank $rank of $dead, after iteration 999\$"
        out "^rank $rank: 2000 iterations done, the last sum is $((dead * ranks / 2)) on $dead ranks\$"
    done
    [[ $(wc -l <"$work/out") == $((3 * dead)) && $(wc -l <"$work/err") == 1 ]] ||
        { complain "$ranks ranks: other lines than those"; cat "$work/out" "$work/err"; }
done
status 0 "$tutti" run -n 1 "$survive"
out '^rank 0: 2000 iterations done, the last sum is 1 on 1 ranks$'

# ---- one rank stops
mkdir "$dumps"
"$tutti" run -n 3 "$survive" stop >"$work/run" 2>&1 &
launcher=$!
blamed() {
    "$tutti" dump -o "$dumps" "${pids[@]}" >"$work/out" 2>"$work/err" &&
        "$tutti" diagnose "$dumps"/* >"$work/out" &&
        grep -q '^  rank 2 has not come to operation 1000$' "$work/out"
}
until_true 60 stopped "$launcher" || complain "no rank has stopped"
until_true 60 blamed || { complain "the stopped rank is not blamed"; cat "$work/out" "$work/err"; }
out '^communicator "default", generation 1: dumps of 3 of 3 ranks$'
out '^    its last:   operation 999$'
out '^    the others: all_reduce of 1000 float32, sum, '
kill -CONT "$victim"
wait "$launcher" || complain "the ranks do not end well once the stopped one goes on"
[[ $(grep -c ': 2000 iterations done, the last sum is 6 on 3 ranks$' "$work/run") == 3 ]] ||
    { complain "wrong results after a stop"; cat "$work/run"; }

# ---- what README.md shows, pasted as a block
block=$(sed -n '/^## A rank is killed/,/^## /s/^    \$ //p' README.md |
    sed "s|build/tools/tutti|$tutti|g; s|build/examples/survive|$survive|g")
[[ $(grep -c "$tutti" <<<"$block") -ge 4 ]] || complain "README.md has lost its demonstrations"
(cd "$work" && TUTTI_DEBUG='' timeout -s KILL 200 bash) <<<"$block"$'\n'wait >"$work/out" 2>"$work/err" ||
    { complain "README.md's demonstrations do not end well"; cat "$work/err"; }
out '^rank 0: rank 2 is gone '
out '^rank 0 of 3 goes on as rank 0 of 2, after iteration 999$'
out '^rank 0: 2000 iterations done, the last sum is 3 on 2 ranks$'
out '^communicator "default", generation 1: dumps of 3 of 3 ranks$'
[[ $(grep -A1 '^communicator' "$work/out" | tail -n 1) == '  rank 2 has not come to operation 1000' ]] ||
    { complain "README.md's demonstration does not blame rank 2"; cat "$work/out"; }
finish
