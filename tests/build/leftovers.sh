#!/bin/bash
# leftovers.sh before|after FOLDER
# `before` notes what lies in shared memory and in the private directories; `after` fails if there is more
# now, or if a process of the run lives on (TUTTI_TEST_RUN in its environment names the run).
set -euo pipefail
when=$1
note=$2/leftovers.before
run=${TUTTI_TEST_RUN:-}
unset TUTTI_TEST_RUN # what this script starts is not of the run

files() {
    find /dev/shm "${XDG_RUNTIME_DIR:-/nonexistent}/tutti" -mindepth 1 2>/dev/null || true
    # A user's private directory itself may stay. multi/test_users has ranks of two users.
    find /tmp -path '/tmp/tutti-*' ! -regex '/tmp/tutti-[0-9]+' 2>/dev/null || true
}

# Processes of this run, but neither this one nor those that it descends from.
processes() {
    [[ -n $run ]] || return 0
    local -A ours=()
    local pid=$BASHPID environ
    while [[ ${pid:-0} -gt 1 ]]; do
        ours[$pid]=1
        pid=$(awk '/^PPid:/ { print $2 }' "/proc/$pid/status" 2>/dev/null || true)
    done
    for environ in /proc/[0-9]*/environ; do
        pid=${environ#/proc/}
        pid=${pid%/environ}
        [[ -z ${ours[$pid]:-} ]] || continue
        { tr '\0' '\n' <"$environ" | grep -x "TUTTI_TEST_RUN=$run" >/dev/null; } 2>/dev/null || continue
        echo "process $pid $(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" || true)"
    done
}

if [[ $when == before ]]; then
    now=$(files; processes)
    sort <<<"$now" >"$note"
    exit 0
fi

# The kernel may take a moment to tear a killed process down.
for _ in {1..50}; do
    now=$(files; processes)
    left=$(sort <<<"$now" | comm -13 "$note" -)
    [[ -n $left ]] || exit 0
    sleep 0.2
done
echo "left behind by the tests:"
echo "$left"
exit 1
