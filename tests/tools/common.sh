# Helpers of the scripts in this folder; to be sourced. Every check that fails says so and makes the
# script fail at its end.
set -uo pipefail
failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset ${!TUTTI_@}

complain() {
    echo "FAILED: $*"
    failed=1
}

# need PROGRAM...: without one of them the test is skipped.
need() {
    local program
    for program; do
        command -v "$program" >/dev/null || { echo "skipped: no $program here"; exit 77; }
    done
}

# status EXPECTED COMMAND...: runs it, output in $work/out and $work/err, and compares the exit status.
status() {
    local expected=$1 got=0
    shift
    "$@" >"$work/out" 2>"$work/err" </dev/null || got=$?
    [[ $got == "$expected" ]] && return 0
    complain "exit status $got instead of $expected: $*"
    cat "$work/out" "$work/err"
}

# out PATTERN, err PATTERN: a line of the last output matches the extended regular expression.
out() {
    grep -qE -- "$1" "$work/out" || { complain "stdout lacks: $1"; cat "$work/out"; }
}
err() {
    grep -qE -- "$1" "$work/err" || { complain "stderr lacks: $1"; cat "$work/err"; }
}

# narrow: no row of the last output has more than 120 columns.
narrow() {
    awk 'length > 120 && (!/^#/ || /size/) { exit 1 }' "$work/out" || { complain "more than 120 columns"; cat "$work/out"; }
}

# fake_mpirun: makes $work/bin/mpirun.openmpi, which starts ranks without Open MPI.
fake_mpirun() {
    mkdir "$work/bin"
    cat >"$work/bin/mpirun.openmpi" <<'SHELL'
#!/bin/sh
while [ "$1" != -n ]; do shift; done
n=$2
while [ $((n -= 1)) -ge 0 ]; do OMPI_COMM_WORLD_RANK=$n "$3" & done
wait
SHELL
    chmod +x "$work/bin/mpirun.openmpi"
}

# until_true SECONDS COMMAND...: repeats it until it succeeds.
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [[ $SECONDS -lt $end ]] || return 1
        sleep 0.05
    done
}

# ended PID...: none of them runs any more (a zombie that init has yet to reap does not run).
ended() {
    local pid state
    for pid; do
        state=$(awk '/^State:/ { print $2 }' "/proc/$pid/status" 2>/dev/null) || continue
        [[ -z $state || $state == [ZX] ]] || return 1
    done
}

# stopped LAUNCHER: one of its ranks has stopped. Sets pids to the ranks' and victim to that rank's.
stopped() {
    local pid
    read -r -a pids <"/proc/$1/task/$1/children" 2>/dev/null || true
    for pid in "${pids[@]}"; do
        grep -qs '^State:.T' "/proc/$pid/status" || continue
        victim=$pid
        return 0
    done
    return 1
}

lines() {
    [[ -e $1 && $(wc -l <"$1") -ge $2 ]]
}

# ring_links FILE: a topology of four ranks that are linked in a ring.
ring_links() {
    printf 'tutti-topology 1\nranks 4\nX 1 0 1\n1 X 1 0\n0 1 X 1\n1 0 1 X\n' >"$1"
}

finish() {
    exit "$failed"
}
