#!/bin/bash
# Searches all states of a model.
#
# usage: check.sh FOLDER OUTPUT CC WANTED MODEL SWITCH...
#
# WANTED is `holds`: the search is complete, finds no error, and every line of the model is reached; else a
# pattern: the search ends with an error that it matches.
set -euo pipefail
folder=$1 output=$2 cc=$3 wanted=$4 model=$5
shift 5

command -v spin >/dev/null || {
    echo "no spin here: \`make deps\` installs it"
    exit 77
}
fail() {
    echo "$model $*"
    cat out 2>/dev/null
    exit 1
}

rm -rf "$output"
mkdir -p "$output"
cd "$output"
spin -a "$@" "$folder/$model.pml" >said 2>&1 || { cat said; fail "$@: spin does not take it"; }
"$cc" -w -O2 -DSAFETY -DCOLLAPSE -DMEMLIM=2048 -o pan pan.c
depth=10000000
[[ $wanted == holds ]] || depth=20000 # what fails fails soon
./pan "-m$depth" -w22 >out || true
rm -f pan pan.?

grep -qE '^State-vector .*, errors: [0-9]+$' out || fail "$@: the search came to no end"
if [[ $wanted == holds ]]; then
    grep -qE ', errors: 0$' out || fail "$@: refuted"
    ! grep -qiE 'search depth too small|not completed|out of memory|memory limit|bytes limit' out ||
        fail "$@: the search is not complete"
    # The end of a process without one is not reached, which is all.
    unreached=$(grep -P '^\t.*, state \d+, ' out | grep -v -- '"-end-"' || true)
    [[ -z $unreached ]] || fail "$@: not reached: $unreached"
    grep -E 'states, stored|elapsed' out | sort -u
else
    grep -qE ', errors: 1$' out || fail "$@: the twin is not refuted"
    grep -E '^pan:1: ' out | grep -E -- "$wanted" >/dev/null || fail "$@: refuted, but not as expected"
    grep -E '^pan:1: ' out
fi
