#!/bin/bash
# tutti dump and tutti diagnose: a rank that calls something else, one that is stopped, files that are no
# dumps.
# shellcheck source=tests/tools/common.sh
. "$(dirname "$0")/common.sh"
need python3
tutti=$1 misfit=$2
dumps=$work/dumps
mkdir "$dumps"

# ---- another count: every rank dumps as it fails
status 0 env TUTTI_DUMP="$dumps" "$tutti" run -n 3 "$misfit" count
[[ $(find "$dumps" -name 'tutti-default-1-r[012]-p*.raw' -perm 600 | wc -l) == 3 ]] ||
    complain "not three private dumps: $(ls -l "$dumps")"
status 0 "$tutti" diagnose "$dumps"/*
out '^communicator "default", generation 1: dumps of 3 of 3 ranks$'
out '^  failed first: ranks disagree in operation 3: '
out '^  rank 1 called something else: operation 3$'
out '^    its call:   all_reduce of 5 float32, sum, one_shot$'
out '^    the others: all_reduce of 4 float32, sum, one_shot$'
[[ $(grep -c '^  rank' "$work/out") == 1 ]] || complain "blames more than one"
status 0 "$tutti" diagnose --json "$dumps"/*
python3 - "$work/out" <<'PYTHON' || complain "JSON"
import json, sys
(one,) = json.load(open(sys.argv[1]))["communicators"]
assert (one["name"], one["generation"], one["world_size"], one["no_dump"]) == ("default", 1, 3, [])
assert one["first_fault"]["status"] == "TUTTI_ERR_MISMATCH"
(culprit,) = one["culprits"]
assert (culprit["rank"], culprit["reason"], culprit["sequence"]) == (1, "MISMATCH", 3)
PYTHON

# ---- the same dumps as JSON
mkdir "$work/json"
status 0 "$tutti" dump -o "$work/json" "$dumps"/*
[[ $(find "$work/json" -name 'tutti-default-1-r[012]-p*.json' -perm 600 | wc -l) == 3 ]] ||
    complain "not three private files of JSON: $(ls -l "$work/json")"
for dump in "$work/json"/*; do
    python3 -m json.tool "$dump" /dev/null || complain "$dump is no JSON"
done
status 0 "$tutti" diagnose "$dumps"/*
cp "$work/out" "$work/raw-verdict"
for argument in "$work/json" "$dumps"; do
    status 0 "$tutti" diagnose "$argument"
    cmp "$work/out" "$work/raw-verdict" || complain "another verdict from the directory $argument"
done
status 1 "$tutti" dump -o "$work/json" "$work/json"/*
err 'no raw dump of Tutti: a recorder without its magic number'
for dump in "$dumps"/*; do break; done
status 1 "$tutti" dump -o "$work/json" "$dump" "$dump" # twice
err 'holds the dump of process'
(printf "rf-ittut"; printf "\x63"; tail -c +10 "$dump") >"$work/newer"
status 1 "$tutti" diagnose "$work/newer"
err 'newer is no dump of Tutti: a recorder of version 99, by Tutti .*reads version'
head -c 1000 "$dump" >"$work/cut-raw"
status 1 "$tutti" diagnose "$work/cut-raw"
err 'cut-raw is no dump of Tutti: a recorder of 1000 bytes instead of'
rm "$work/newer" "$work/cut-raw"
rm -r "$work/json"

# ---- a pattern with the process alone is enough
mkdir "$work/processes"
status 0 env TUTTI_DUMP="$work/processes/dd.%h.%p" "$tutti" run -n 3 "$misfit" count
status 0 "$tutti" diagnose "$work/processes"/dd.*
out '^communicator "default", generation 1: dumps of 3 of 3 ranks$'

# ---- files that are no dumps do not hide the others
printf '{"tutti_dump": 1' >"$work/cut"
head -c 1000 /dev/zero >"$work/zeros"
status 1 "$tutti" diagnose "$work/cut" "$dumps"/* "$work/zeros" "$work/absent" "$work"
out '^  rank 1 called something else'
for name in cut zeros absent; do
    err "$work/$name"
done
status 64 "$tutti" diagnose

# ---- nobody to blame; but what is said of it has to arrive, as of a culprit
cat >"$work/blameless" <<'DUMP'
{"tutti_dump": 1, "pid": 1, "name": "alone", "generation": 1, "rank": 0, "world_size": 1, "phase": "met",
 "taken_ns": 1, "waits": null, "fault": null, "peers": [], "operations": []}
DUMP
status 3 "$tutti" diagnose "$work/blameless"
out '^  the dumps show no rank that is to blame$'
status 3 "$tutti" diagnose --json "$work/blameless"
full() {
    local got=0
    "$tutti" diagnose "$@" >/dev/full 2>"$work/err" || got=$?
    [[ $got == 1 ]] || complain "exit status $got instead of 1 with a full disk: diagnose $*"
    [[ $(<"$work/err") == 'tutti diagnose: cannot write the output: No space left on device' ]] ||
        complain "with a full disk: $(<"$work/err")"
}
full "$work/blameless"
full --json "$work/blameless"
full "$dumps"/*
rm -f "$dumps"/*

# ---- a stopped rank, dumped from outside
"$tutti" run --no-bind -n 3 "$misfit" stop >"$work/run" 2>&1 &
launcher=$!
blamed() {
    "$tutti" dump -o "$dumps/%r" "${pids[@]}" >"$work/out" 2>"$work/err" &&
        "$tutti" diagnose "$dumps"/* >"$work/out" &&
        grep -q '^  rank 1 has not come to operation 3$' "$work/out"
}
until_true 60 stopped "$launcher" || complain "no rank has stopped"
until_true 60 blamed || { complain "the stopped rank is not blamed"; cat "$work/out" "$work/err"; }
out '^    its last:   operation 2$'
mkfifo "$work/device"
status 1 "$tutti" dump -o "$work/device" "${pids[0]}"
err 'no ordinary file'
[[ -p $work/device ]] || complain "a dump has replaced what is no file"
status 0 "$tutti" dump --output="$dumps" "${pids[0]}"
out "^$dumps/tutti-default-1-r[012]-p${pids[0]}.json\$"
status 0 "$tutti" diagnose "$dumps/0" # the others have not been asked
out '^  no dump of rank 1$'

# ---- no dump is written over another one of the same run
rm -f "$dumps"/*
status 0 "$tutti" dump -o "$dumps/dd" "${pids[@]}"
for pid in "${pids[@]}"; do
    [[ -e $dumps/dd.$(hostname).$pid ]] || complain "no dump of process $pid: $(ls "$dumps")"
done
status 0 "$tutti" diagnose "$dumps" # a directory: all in it
out '^communicator "default", generation 1: dumps of 3 of 3 ranks$'
out '^  rank 1 has not come to operation 3$'
rm -f "$dumps"/*
status 1 "$tutti" dump -o "$dumps/%n" "${pids[@]}"
out "^$dumps/default\$"
[[ $(find "$dumps" -type f) == "$dumps/default" ]] || complain "left behind: $(ls "$dumps")"
[[ $(grep -c "$dumps/default holds the dump of process ${pids[0]}" "$work/err") == 2 ]] ||
    complain "not refused twice: $(<"$work/err")"
grep -q "\"pid\": ${pids[0]}," "$dumps/default" || complain "the first dump was written over"
status 1 "$tutti" dump -o "$work/devic%%e" "${pids[@]}"
status 0 "$tutti" dump -o "$dumps/%r" "${pids[@]}"
mkfifo "$work/device-default"
status 1 "$tutti" dump -o "$work/device-%n" "${pids[@]}"
err 'no ordinary file'
kill -CONT "$victim" # alone: leak detectors of ranks that end already mind signals
wait "$launcher"

# ---- a crossed order on two communicators
rm -f "$dumps"/*
"$tutti" run --no-bind -n 3 "$misfit" cross >"$work/run" 2>&1 &
launcher=$!
crossed() {
    read -r -a pids <"/proc/$launcher/task/$launcher/children" # ends without a newline
    rm -f "$dumps"/*
    [[ ${#pids[@]} == 3 ]] && "$tutti" dump -o "$dumps" "${pids[@]}" >"$work/out" 2>"$work/err" &&
        "$tutti" diagnose "$dumps" >"$work/out" && grep -q 'in different orders' "$work/out"
}
until_true 60 crossed || { complain "no crossed order is found"; cat "$work/out" "$work/err"; }
out '^communicators "first", generation 1, and "second", generation 1: ranks call them in different'
out '^  rank 0 of "first" \(process [0-9]+\) waits in operation 2 for rank 1: all_reduce of 4 float32'
out '^  rank 1 of "second" \(process [0-9]+\) waits in operation 2 for rank 0: all_reduce of 4 float32'
out '^  call operations on these communicators in one order on all ranks$'
[[ $(grep -c '^communicator' "$work/out") == 1 ]] || complain "more than one verdict: $(<"$work/out")"
# Two communicators of a process do not go to one file either.
rm -f "$dumps"/*
status 1 "$tutti" dump -o "$dumps/dd" "${pids[0]}"
err 'holds the dump of process'
status 0 "$tutti" dump -o "$dumps/%n" "${pids[0]}"
rm -f "$dumps"/*
status 0 "$tutti" dump -o "$dumps" "${pids[@]}"
status 0 "$tutti" diagnose --json "$dumps"
python3 - "$work/out" <<'PYTHON' || complain "JSON of a crossed order"
import json, sys
told = json.load(open(sys.argv[1]))
(crossed,) = told["crossed"]
assert sorted(c["name"] for c in crossed["communicators"]) == ["first", "second"]
assert sorted((w["name"], w["rank"], w["absent"], w["sequence"]) for w in crossed["waits"]) == [
    ("first", 0, 1, 2), ("second", 1, 0, 2)]
assert [c["culprits"] for c in told["communicators"]] == [[], []]
PYTHON
kill "$launcher"
wait "$launcher"
mkdir "$work/empty"
status 1 "$tutti" diagnose "$work/empty"
err 'no file in the directory'

# ---- who has none
status 1 "$tutti" dump $$
err 'has no communicator'
status 1 "$tutti" dump 2147483647
err 'no process 2147483647'
status 64 "$tutti" dump
status 1 "$tutti" dump walk
err 'walk: No such file'
rm -f "$dumps"/*
status 1 env TUTTI_DUMP="$work/absent" "$tutti" run -n 2 "$misfit" count
err 'TUTTI_DUMP: .*absent'
finish
