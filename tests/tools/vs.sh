#!/bin/bash
# tutti bench --vs: rivals that are right, wrong, silent, dead or absent. They are copies of a fake one.
# vs.sh TUTTI FAKE [GLOO]: with the real Gloo's program as well, where it was built.
short=${TUTTI_TEST_SHORT:-}
# shellcheck source=tests/tools/common.sh
. "$(dirname "$0")/common.sh"
need python3
tutti=$1
fake=$2
gloo=${3:-}
export TUTTI_BENCH_RIVALS=$work/rivals
mkdir "$TUTTI_BENCH_RIVALS"

# rival NAME [LINE]: a rival's program that runs LINE, then the fake one.
rival() {
    printf '#!/bin/sh\n%s\nexec "%s"\n' "${2:-}" "$fake" >"$TUTTI_BENCH_RIVALS/tutti-bench-$1"
    chmod +x "$TUTTI_BENCH_RIVALS/tutti-bench-$1"
}
bench=("$tutti" bench -n 2 --no-bind --seconds 60)

# ---- the table and the JSON file; three ranks or more share cores on small machines
rival gloo
status 0 "${bench[@]}" --vs gloo -b 8 -e 8K -f 1024 --json "$work/gloo.json" --csv "$work/gloo.csv"
out '^# +size +tutti +symm\. +gloo +ratio +symm\.  best rival$'
out '^# placement: [a-z]+$'
out '^ +8 +[0-9.]+ +- +[0-9.]+ +[0-9.]+ +-  gloo halving$'
out '^ +8192 +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+  gloo halving$'
[[ ! -s $work/err ]] || { complain "progress in a pipe"; cat "$work/err"; }
grep -qE '^collective,.*,rivals\.gloo halving,ratio,samples,wrong_settings$' "$work/gloo.csv" || complain "CSV"
[[ $(grep -cE '^all_reduce,float32,sum,2,1,1,(8|8192),[a-z]+,(ordinary|symmetric),' "$work/gloo.csv") == 3 ]] || complain "CSV"
[[ $(grep -c '"bytes"' "$work/gloo.json") == 3 ]] || complain "not a row a line"
python3 - "$work/gloo.json" <<'PYTHON' || complain "JSON"
import json, sys
result = json.load(open(sys.argv[1]))
assert set(result) == {"machine", "commit", "date", "command", "versions", "discarded_blocks", "rows"}, set(result)
assert result["versions"] == {"gloo": "Gloo 1.2.3"}, result["versions"]
assert [(row["bytes"], row["buffers"]) for row in result["rows"]] == \
    [(8, "ordinary"), (8192, "ordinary"), (8192, "symmetric")]
for row in result["rows"]:
    assert row["ranks"] == 2 and row["dtype"] == "float32" and row["op"] == "sum"
    assert row["threads_per_rank"] == row["rival_threads_per_rank"] == 1
    assert row["tutti_us"] > 0 and row["algo"] in ("one_shot", "two_shot")
    assert set(row["rivals"]) == {"gloo halving"} and row["wrong_settings"] == [] and row["samples"] >= 3
    assert row["ratio"] == round(row["ratio"], 3)
PYTHON
status 1 bash -c '"$@" >/dev/full' bash "${bench[@]}" --vs gloo -b 8 -e 8
err 'cannot write the output'
status 0 "$tutti" bench -n 3 --vs gloo --seconds 60 --counts 2,1000
status 0 "$tutti" bench -n 2 --threads-per-rank 2 --no-bind --vs gloo --seconds 60 --counts 256K --json "$work/threads.json"
python3 - "$work/threads.json" <<'EOF'
import json, sys
for row in json.load(open(sys.argv[1]))["rows"]:
    assert row["threads_per_rank"] == 2 and row["rival_threads_per_rank"] == 1, row
EOF
if [[ -n $gloo ]]; then
    status 0 env TUTTI_BENCH_RIVALS="$(dirname "$gloo")" "${bench[@]}" --vs gloo -b 8 -e 8K -f 1024
    out '^ +8192 .* gloo halving$'
fi

# ---- a rival with wrong results is named, and is not the best; another setting of it is
for fault in wrong late; do # late: after samples have been taken
    rival gloo "[ \$TUTTI_BENCH_VARIANT = ring_chunked ] || export TUTTI_FAKE=$fault"
    status 0 "${bench[@]}" --vs gloo -b 1M -e 1M --json "$work/wrong.json" --csv "$work/wrong.csv"
    err 'gloo halving: rank 1 has wrong elements; left out from here'
    out '^ +1048576 .* gloo ring$'
    out '^#  wrong: gloo halving$'
    grep -q ',gloo halving$' "$work/wrong.csv" || complain "wrong settings in CSV"
    grep -q '"rivals": {"gloo ring": [0-9.]*}.*"wrong_settings": \["gloo halving"\]' "$work/wrong.json" ||
        { complain "wrong settings in JSON"; cat "$work/wrong.json"; }
done

# ---- one that fails or dies is named with the reason; so is one that does not start
rival gloo 'export TUTTI_FAKE=fails'
status 0 "${bench[@]}" --vs gloo -b 8 -e 8
err 'gloo halving: rank 1 failed, as asked; left out from here'
out '^ +8 .* +-  -$'
rival gloo 'export TUTTI_FAKE=dies'
status 0 "${bench[@]}" --vs gloo -b 8 -e 8
err 'gloo halving: rank 1 ended; left out from here'
rival gloo 'export TUTTI_FAKE=absent'
status 1 "${bench[@]}" --vs gloo -b 8 -e 8
err 'gloo halving: did not start \([01] of 2 ranks came\)'
err 'rank 1: absent, as asked'
err 'no rival could be started'

# ---- by a launcher, which says the rank; without one
fake_mpirun
rival gloo
rival openmpi
rival mpich
status 0 env PATH="$work/bin:$PATH" "${bench[@]}" --vs openmpi,gloo -b 8 -e 8
out '^# +size +tutti +symm\. +openmpi +gloo '
out '^ +8 +[0-9.]+ +- +[0-9.]+ +[0-9.]+ +[0-9.]+ +-  (openmpi|gloo)'
[[ ! -s $work/err ]] || { complain "something is wrong with a launcher"; cat "$work/err"; }
# ---- other collectives: of rivals that have them. A short run leaves out some.
more='broadcast reduce gather scatter all_gather_v reduce_scatter_v all_to_all_v gather_v scatter_v'
for collective in all_gather reduce_scatter all_to_all send_recv $([[ $short ]] || echo "$more"); do
    status 0 env PATH="$work/bin:$PATH" "${bench[@]}" --collective "$collective" --vs openmpi,gloo --counts 1,1000 \
        --json "$work/$collective.json"
    err "gloo is left out: its $collective is not measured"
    [[ $(wc -l <"$work/err") == 1 ]] || { complain "said for each setting"; cat "$work/err"; }
    out "^# tutti $collective beside others, float32( sum)?( in place)?, 2 ranks "
    out '^ +[48] +[0-9.]+ +- +[0-9.]+ +[0-9.]+ +-  openmpi'
    out '^ +[48]000 +[0-9.]+ +- +[0-9.]+ '
    status 1 "${bench[@]}" --collective "$collective" --vs gloo
    err 'no rival could be started'
done
python3 - "$work/all_gather.json" "$work/reduce_scatter.json" "$work/all_to_all.json" <<'PYTHON' || complain "JSON of other collectives"
import json, sys
for name, op in zip(sys.argv[1:], (None, "sum", None)):
    rows = json.load(open(name))["rows"]
    assert [row["bytes"] for row in rows] == [8, 8000], rows
    for row in rows:
        assert name.endswith(row["collective"] + ".json") and row["op"] == op and row["algo"] is None, row
        assert row["dtype"] == "float32" and row["tutti_us"] > 0 and "openmpi" in row["rivals"], row
PYTHON
# A setting of all-reduces alone takes no part.
for collective in all_reduce all_gather; do
    status 0 env PATH="$work/bin:$PATH" "${bench[@]}" --collective "$collective" --vs openmpi -b 16M -e 16M --csv -
    grep -q 'openmpi ring' "$work/out"
    [[ $? == $([[ $collective == all_reduce ]]; echo $?) ]] || { complain "settings of $collective"; cat "$work/out"; }
done
# Three ranks; wrong results of a rival.
status 0 env PATH="$work/bin:$PATH" "$tutti" bench -n 3 --collective all_gather --vs openmpi --seconds 60 --counts 5
rival openmpi 'export TUTTI_FAKE=wrong'
for collective in all_gather reduce_scatter all_to_all send_recv $([[ $short ]] || echo broadcast scatter all_to_all_v); do
    status 0 env PATH="$work/bin:$PATH" "${bench[@]}" --collective "$collective" --vs openmpi -b 64 -e 64
    err 'openmpi: rank 1 has wrong elements'
done
status 1 "${bench[@]}" --collective all_gather --vs openmpi -b 4 -e 4
err 'a size of 0 bytes: give 4 bytes'
status 0 env PATH="$work/nowhere" "${bench[@]}" --vs mpich,gloo -b 8 -e 8
err 'mpich: did not start \(0 of 2 ranks came\)'
err 'mpiexec.mpich: No such file'

# ---- what is not built is named, with the command that builds it
rm "$TUTTI_BENCH_RIVALS"/tutti-bench-*
status 1 "${bench[@]}" --vs gloo,mpich5,intelmpi -b 8 -e 8
err 'gloo: tutti-bench-gloo is not built: run `make bench`'
err 'mpich5: tutti-bench-mpich5 is not built: run `make bench`'
err 'intelmpi: tutti-bench-mpich5 is not built: run `make bench`'
[[ $(grep -c mpich5: "$work/err") == 1 ]] || complain "said for each setting"

# ---- what is refused
refused() {
    local pattern=$1
    shift
    status 64 "$tutti" bench "$@"
    err "$pattern"
}
for names in gloom gloo,gloom gloom,gloo; do
    refused "--vs: 'gloom'.*openmpi, openmpi5, mpich, mpich5, intelmpi, gloo or all" --vs "$names"
done
refused "--vs: ''" --vs ''
refused '--vs nccl needs --device cuda' --vs nccl
refused '--vs: .*leave out -d, --cold, -w$' --vs gloo --cold -w 1 -d int8
refused '--vs: .*leave out -t$' --vs gloo -t 2
refused '--collective barrier: .*leave out --vs$' --collective barrier --vs gloo
refused '--both needs --vs' --both
refused '--seconds needs --vs' --seconds 3
status 1 "$tutti" bench -n 2 --vs gloo -b 2 -e 2
err 'a size of 0 bytes'
status 1 "$tutti" bench -n 1 --vs gloo
err 'at least 2 ranks'

# ---- the tool is killed: so are the ranks
rival gloo
"${bench[@]}" --vs gloo -b 8 -e 64M --both >"$work/out" 2>"$work/err" &
killed=$!
rivals() {
    pgrep -f "^$fake" >"$work/pids"
}
until_true 60 rivals || complain "the rival did not start"
mapfile -t all < <(cat "$work/pids"; pgrep -P "$killed")
kill -KILL "$killed"
wait "$killed" 2>/dev/null
until_true 30 ended "${all[@]}" || complain "ranks outlived the tool"

finish
