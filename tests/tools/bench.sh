#!/bin/bash
# tutti bench: columns, flags, every kind of rank and buffer, JSON, and ends of all kinds.
# shellcheck source=tests/tools/common.sh
. "$(dirname "$0")/common.sh"
need python3
tutti=$1
quick=(--iters 10 -w 1)

# rows EXPECTED: as many rows, each with all columns and, checked, nothing wrong.
rows() {
    local got
    got=$(grep -vc '^#' "$work/out")
    [[ $got == "$1" ]] || { complain "$got rows instead of $1"; cat "$work/out"; }
    awk '!/^#/ && (NF != 13 || $9 != 0 || $13 != 0) { exit 1 }' "$work/out" ||
        { complain "a row lacks columns or is wrong"; cat "$work/out"; }
    narrow
    out '^# Out of bounds values : 0 OK$'
    out '^# Avg bus bandwidth    : [0-9]'
}

# ---- columns: those of nccl-tests; with --long a row for each place, and more of them
status 0 "$tutti" bench -n 2 -b 8 -e 64K -f 4 -c 1 "${quick[@]}"
rows 7
out '^# +size +count +type +redop +root +time +algbw +busbw +#wrong +time +algbw +busbw +#wrong'
out '^ +8 +2 +float32 +sum +-1 '
out '^ +32768 +8192 +float32 +sum +-1 '
[[ ! -s $work/err ]] || { complain "progress in a pipe"; cat "$work/err"; }

status 0 "$tutti" bench -n 2 -b 8 -e 64K -f 4 -d float8_e4m3 -o premul_sum "${quick[@]}" --long --json "$work/long"
out '^# +size +count +type +redop +into +time +min +mean +p50 +p99 +algbw +busbw +#wrong$'
narrow
[[ $(grep -vc '^#' "$work/out") == 14 && $(awk '!/^#/ { print $5 }' "$work/out" | uniq | head -4 | xargs) == 'out in out in' ]] ||
    { complain "--long: not a row for each place"; cat "$work/out"; }
awk '!/^#/ && !(NF == 13 && 0 < $7 && $7 <= $8 && $8 <= $6 && $9 <= $10 && $13 == 0) { exit 1 }' "$work/out" ||
    { complain "--long: min <= mean <= time and p50 <= p99 do not hold"; cat "$work/out"; }
python3 - "$work/long" <<'PYTHON' || complain "JSON of --long"
import json, sys
for row in json.load(open(sys.argv[1]))["rows"]:
    assert 0 < row["rank_min_us"] <= row["rank_mean_us"] <= row["rank_max_us"] == row["mean_us"], row
PYTHON
status 0 "$tutti" bench -n 2 --collective all_gather -b 16 -e 16K -f 4 --style osu "${quick[@]}"
out '^# Size +Avg Latency\(us\) +Min Latency\(us\) +Max Latency\(us\) +Iterations$'
awk '!/^#/ && !(NF == 5 && $1 == 8 * 4 ^ n++ && 0 < $3 && $3 <= $2 && $2 <= $4 && $5 == 10) { exit 1 }' "$work/out" ||
    { complain "--style osu: not size, mean, fastest, slowest, operations"; cat "$work/out"; }
status 64 "$tutti" bench --style osu --long
err "style osu has no place for more columns: leave out --long"
status 64 "$tutti" bench --style csv
err "'csv' is no style: give nccl-tests or osu"
status 0 "$tutti" bench -n 2 --collective barrier --long "${quick[@]}"
out '^ +0 +0 +- +- +out +[0-9.]+ .* N/A$'

# ---- nccl-tests' -t, and its -n, which is another thing here
status 0 "$tutti" bench -t 2 -b 8 -e 8 "${quick[@]}"
rows 1
out '^# nRanks 2 threads '
[[ ! -s $work/err ]] || { complain "-t 2: a hint at -n"; cat "$work/err"; }
if [[ $(nproc) -lt 10 ]]; then
    status 0 "$tutti" bench -b 8 -e 8 -w 5 -n 20 --iters 2
    out '^# nRanks 20 processes '
    err "-n 20: 20 ranks share [0-9]+ cores; nccl-tests' -n is --iters"
fi

# ---- every operation on every type, by processes and by threads
status 0 "$tutti" bench -n 2 -b 40 -e 40 -d all -o all "${quick[@]}"
rows 112
status 0 "$tutti" bench -n 3 --threads -b 4000 -e 4000 -d all -o all "${quick[@]}"
rows 112
status 0 "$tutti" bench -n 2 -b 1K -e 1K -d half,int64 -o sum,max "${quick[@]}"
rows 4

# ---- sizes and ranks
status 0 "$tutti" bench -n 1 -b 4 -e 1K -i 340 "${quick[@]}"
rows 4
out '^# nRanks 1 processes minBytes 4 maxBytes 1024 step: 340\(bytes\) warmup iters: 1 iters: 10$'
status 0 "$tutti" bench -n 2 --counts 3,17 "${quick[@]}"
rows 2
out '^# nRanks 2 processes counts 3,17 warmup iters: 1 '
status 0 "$tutti" bench -n 5 -b 1M -e 1M "${quick[@]}"
rows 1
status 0 "$tutti" bench -n 2 -b 0 -e 0 "${quick[@]}"
rows 1
status 0 "$tutti" bench -n 2 -b 7 -e 7 -d int16 "${quick[@]}"
out '^ +6 +3 +int16 '

# ---- warm-up: until the times settle, in rounds that all ranks agree on; or so many operations
status 0 "$tutti" bench -n 3 -b 8 -e 4K -f 512 --iters 10
rows 2
out ' warmup iters: auto iters: 10$'
status 0 "$tutti" bench -n 2 --cold -b 64 -e 64
rows 1
out ' warmup iters: auto iters: auto$'
status 0 "$tutti" bench -n 2 --threads --collective barrier --iters 10
status 0 "$tutti" bench -n 2 -b 8 -e 8 -w 0
rows 1

# ---- algorithms and buffers
for algo in none one_shot two_shot; do
    status 0 "$tutti" bench -n 3 --algo "$algo" -b 8 -e 1M -f 32 "${quick[@]}"
    rows 4
done
# CPU ranks share memory, whatever the links.
ring_links "$work/ring"
status 0 env TUTTI_TOPOLOGY_FILE="$work/ring" "$tutti" bench -n 4 -b 8 -e 64K -f 32 "${quick[@]}"
rows 3
status 0 env TUTTI_ALGO=two_shot "$tutti" bench -n 3 -b 8 -e 4K -f 8 "${quick[@]}" --json "$work/two.json"
rows 4
status 0 "$tutti" bench -n 2 --cold -b 8 -e 2M -f 64 "${quick[@]}"
rows 4
status 0 "$tutti" bench -n 2 --symmetric -b 8 -e 2M -f 64 "${quick[@]}"
rows 4
status 0 "$tutti" bench -n 2 --symmetric --cold --threads -b 8 -e 2M -f 64 "${quick[@]}"
rows 4
status 0 "$tutti" bench -n 2 --no-bind --timeout 60 -c 0 -b 8 -e 8 "${quick[@]}"
out '^# Out of bounds values : 0 \(not checked\)$'
out ' N/A '
status 0 "$tutti" bench -n 3 --collective barrier "${quick[@]}"
out '^ +0 +0 +- +- +-1 +[0-9.]+ '
out '^# nRanks 3 processes warmup iters: 1 iters: 10$'
out '^# validation: 0 caches: hot buffers: ordinary$'
out '^# Out of bounds values : 0 \(not checked\)$'

# ---- blocks: the size is that of the buffer with a block for each rank, the count that of one block
for collective in all_gather reduce_scatter all_to_all; do
    status 0 "$tutti" bench -n 3 --collective "$collective" -b 40 -e 160K -f 16 "${quick[@]}" --json "$work/$collective.json"
    rows 4
    out '^ +36 +3 +float32 +(-|sum) +-1 '
    status 0 "$tutti" bench -n 2 --collective "$collective" --counts 1,17,5000 -d all --threads "${quick[@]}"
    rows 48
    for flags in --cold --symmetric; do
        status 0 "$tutti" bench -n 3 --collective "$collective" "$flags" -b 1K -e 3M -f 50 "${quick[@]}"
        rows 3
    done
    status 0 "$tutti" bench -n 4 --collective "$collective" -b 8 -e 8 "${quick[@]}"
    out '^ +0 +0 +float32 '
done
status 0 "$tutti" bench -n 3 --collective reduce_scatter --counts 100 -d all -o all "${quick[@]}"
rows 112
python3 - "$work/all_gather.json" "$work/reduce_scatter.json" "$work/all_to_all.json" <<'PYTHON' || complain "JSON of collectives with blocks"
import json, sys
for name, op in zip(sys.argv[1:], (None, "sum", None)):
    rows = json.load(open(name))["rows"]
    assert [row["bytes"] for row in rows[::2]] == [36, 636, 10236, 163836], rows
    for row in rows:
        assert name.endswith(row["collective"] + ".json") and row["op"] == op and row["algo"] is None, row
        assert row["dtype"] == "float32" and row["wrong"] == 0, row
PYTHON
# Each rank is the root in turn.
for collective in broadcast reduce gather scatter; do
    status 0 "$tutti" bench -n 3 --collective "$collective" -b 48 -e 192K -f 16 "${quick[@]}"
    rows 4
    status 0 "$tutti" bench -n 2 --collective "$collective" --counts 1,17,5000 -d all --threads "${quick[@]}"
    rows 48
done
# Blocks of one length each, and messages to the next rank. Where operands may not overlap the columns in place are empty.
apart() { awk '!/^#/ && ($9 != 0 || $10 != "-" || $13 != "-") { exit 1 }' "$work/out" || { complain "wrong, or in place"; cat "$work/out"; }; }
for collective in all_gather_v reduce_scatter_v all_to_all_v gather_v scatter_v send_recv; do
    status 0 "$tutti" bench -n 3 --collective "$collective" -b 48 -e 192K -f 16 "${quick[@]}" --json "$work/v.json"
    grep -q "\"collective\": \"$collective\"" "$work/v.json" || complain "JSON of $collective"
    if [[ $collective == all_to_all_v || $collective == send_recv ]]; then apart; else rows 4; fi
    status 0 "$tutti" bench -n 2 --collective "$collective" --counts 0,1,17,5000 -d all --threads "${quick[@]}"
    if [[ $collective == all_to_all_v || $collective == send_recv ]]; then apart; else rows 64; fi
done
# Counts that the operation reads.
for flag in all_gather_v:--device-counts reduce_scatter_v:--device-counts=int32 all_to_all_v:--device-counts=int32; do
    status 0 "$tutti" bench -n 3 --collective "${flag%:*}" "${flag#*:}" --counts 0,1,917 -d all "${quick[@]}" --json "$work/v.json"
    if [[ $flag == all_to_all_v* ]]; then apart; else rows 48; fi
    type=${flag#*=}
    out " counts: ${type/*counts/int64}, read by the operation caches: hot buffers: ordinary$"
    grep -q "\"device_counts\": \"${type/*counts/int64}\"" "$work/v.json" || complain "device_counts of $flag"
done
# Rows of a norm, beside the same work apart.
norms() { # ROWS
    [[ $(grep -vc '^#' "$work/out") == "$1" ]] || { complain "not $1 rows"; cat "$work/out"; }
    awk '!/^#/ && !(NF == 10 && $5 > 0 && $8 > 0 && $9 == 0 && $10 > 0) { exit 1 }' "$work/out" || { complain "a norm is wrong"; cat "$work/out"; }
    narrow
}
for quant in none fp8_tensor fp8_token fp8_group fp8_group_ue8m0 int8_token; do
    status 0 "$tutti" bench -n 3 --collective all_reduce_rms_norm --hidden 640 --tokens 0,1,7 --quant $quant -d bfloat16 "${quick[@]}" --json "$work/norm.json"
    norms 3
    out "tokens 0,1,7 hidden 640 quant $quant "
    grep -q '"apart_us"' "$work/norm.json" && grep -q '"collective": "all_reduce_rms_norm"' "$work/norm.json" || complain "JSON of a norm"
done
status 0 "$tutti" bench -n 1 --collective send_recv -b 8 -e 8 "${quick[@]}" --long
out '^# tutti .* send_recv, '
out '^ +8 +2 +float32 +- +out '
[[ $(grep -vc '^#' "$work/out") == 1 ]] || complain "send_recv has another row than out of place"
status 0 "$tutti" bench -n 3 --collective reduce_scatter_v --counts 100 -d all -o all "${quick[@]}"
rows 112
# All busbw are (n-1)/n of algbw, or for all_reduce twice that; of a broadcast, a reduction or messages they are equal.
for factor in all_gather:0.75 reduce_scatter:0.75 all_to_all:0.75 all_reduce:1.5 broadcast:1 reduce:1 gather:0.75 scatter:0.75 \
    send_recv:1 all_to_all_v:0.75 gather_v:0.75; do
    status 0 "$tutti" bench -n 4 --collective "${factor%:*}" -b 16M -e 16M --iters 2 -w 0
    awk -v factor="${factor#*:}" '!/^#/ { error = $8 - factor * $7; exit error > 0.02 || error < -0.02 }' "$work/out" ||
        { complain "busbw of ${factor%:*}"; cat "$work/out"; }
done

# ---- JSON
status 0 "$tutti" bench -n 2 -b 8 -e 8 "${quick[@]}" --json "$work/"$'\xff' # a path that is no UTF-8
[[ $(grep -c '^  {"collective": ' "$work/"$'\xff') == 2 ]] || complain "not a row a line"
python3 -m json.tool "$work/"$'\xff' /dev/null || complain "JSON of a command line that is no UTF-8"
status 0 "$tutti" bench -n 2 -b 8 -e 1M -f 64 "${quick[@]}" --json "$work/bench.json"
python3 - "$work/bench.json" "$work/two.json" <<'PYTHON' || complain "JSON"
import datetime, json, sys
bench, two = (json.load(open(name)) for name in sys.argv[1:])
assert set(bench) == {"machine", "commit", "date", "command", "rows"}, set(bench)
assert all(isinstance(bench[key], str) and bench[key] for key in ("machine", "commit", "command"))
datetime.datetime.strptime(bench["date"], "%Y-%m-%dT%H:%M:%SZ")
assert bench["command"].startswith("tutti bench -n 2"), bench["command"]
assert [row["bytes"] for row in bench["rows"]] == [8, 8, 512, 512, 32768, 32768]
for row in bench["rows"]:
    assert row["collective"] == "all_reduce" and row["dtype"] == "float32" and row["op"] == "sum"
    assert row["ranks"] == 2 and row["rivals"] == {} and row["ratio"] is None and row["wrong"] == 0
    assert row["placement"] in ("near", "far", "moved", "oversubscribed", "unknown")
    assert row["algo"] in ("one_shot", "two_shot"), row["algo"]
    assert 0 < row["p50_us"] <= row["p99_us"] and row["mean_us"] > 0
    assert row["tutti_us"] == row["p50_us"] and row["iterations"] == 10
assert [row["in_place"] for row in bench["rows"][:2]] == [False, True]
assert {row["algo"] for row in two["rows"]} == {"two_shot"}
PYTHON

# ---- results on the standard output: the table is on stderr then; CSV has the rows of JSON
status 0 "$tutti" bench -n 2 -b 8 -e 32K -f 64 "${quick[@]}" --json - --csv "$work/bench.csv"
err '^ +8 +2 +float32 +sum +-1 '
err '^# Out of bounds values : 0 OK$'
python3 - "$work/out" "$work/bench.csv" <<'PYTHON' || complain "CSV is not what JSON is"
import csv, json, sys
rows = json.load(open(sys.argv[1]))["rows"]
with open(sys.argv[2], newline="") as file:
    lines = list(csv.DictReader(file))
assert len(lines) == len(rows) == 6
for row, line in zip(rows, lines):
    assert row.pop("rivals") == {}
    assert list(line) == list(row), (list(line), list(row))
    for key, value in row.items():
        text = "" if value is None else str(value).lower() if isinstance(value, (bool, str)) else None
        assert line[key] == text if text is not None else float(line[key]) == value, (key, value, line[key])
PYTHON
status 0 "$tutti" bench -n 2 -b 8 -e 8 "${quick[@]}" --csv -
out '^collective,dtype,op,ranks,bytes,placement,algo,tutti_us,ratio,mean_us,.*,wrong$'
out '^all_reduce,float32,sum,2,8,[a-z]+,one_shot,[0-9.]+,,[0-9.]+,.*,false,.*,0$'
[[ $(wc -l <"$work/out") == 3 ]] || { complain "--csv -: more or less than 3 lines"; cat "$work/out"; }
for file in "$work/out" "$work/bench.csv" "$work/bench.json"; do
    [[ -z $(tail -c 1 "$file") ]] || complain "$file does not end in a newline"
done
for option in --json --csv; do
    status 1 bash -c '"$@" >/dev/full' bash "$tutti" bench -n 2 -b 8 -e 8 "${quick[@]}" "$option" -
    err "$option: cannot write '-': No space left"
done
[[ ! -e - ]] || complain "there is a file called -"

# ---- what is refused, by value and with what is expected
refused() {
    local pattern=$1
    shift
    status 64 "$tutti" bench "$@"
    err "$pattern"
}
refused "-b: '3Q'.*such as 64M" -b 3Q
refused 'only --collective all_reduce_rms_norm .*leave out --hidden, --quant' --hidden 64 --quant none
refused 'leave out -b, -o' --collective all_reduce_rms_norm -b 64 -o max
refused "-d: all_reduce_rms_norm has float32" --collective all_reduce_rms_norm -d int8
refused "--hidden 136: give a multiple of 128" --collective all_reduce_rms_norm --hidden 136 --quant fp8_group
refused "--quant: 'fp4'" --collective all_reduce_rms_norm --quant fp4
refused "-e: '-1'" -e -1
refused '-b 64 .*-e 8' -b 64 -e 8
refused "-n: '0'.*1 to 64" -n 0
refused "-n: '100'.*1 to 64.*nccl-tests' -n is --iters" -n 100
refused "-n 20: -t already says how many.*--iters" -t 2 -n 20
refused "-n 20: -g already says how many.*--iters" -n 20 -g 2
refused "-t 32 -g 4: give at most 64" -t 32 -g 4
refused "-f: '1'.*2 to" -f 1
refused "-d: 'float31'.*float32" -d float32,float31
refused "-o: 'plus'.*sum" -o plus
refused "-d: a data type is missing" -d ''
refused "-o: an operation is missing" -o ''
refused "none of the operations of -o" -d float32,bool -o band -d float16
refused "-c: '2'.*0 to 1" -c 2
refused "--algo: 'tree'.*one_shot" --algo tree
refused "--collective: 'gathers'.*barrier" --collective gathers
for option in '-b 8' '-e 8' '-f 2' '-i 8' '--counts 8' '-d int8' '-o max' '-c 0' '-c 1' --cold --symmetric '--algo two_shot'; do
    read -ra words <<<"$option"
    refused "--collective barrier: .*leave out ${words[0]}$" --collective barrier "${words[@]}"
    refused "--collective barrier: .*leave out ${words[0]}$" "${words[@]}" --collective barrier
done
refused '--collective all_gather: .*leave out -o, --algo$' --collective all_gather --algo one_shot -o sum
refused '--collective reduce_scatter: .*leave out --algo$' --algo two_shot --collective reduce_scatter
refused '--collective barrier: .*leave out -b, --cold, -c$' -b 8 --cold --collective barrier -c 1 --no-bind
refused "--json: '/nonexistent/x'.*No such file" --json /nonexistent/x
refused "--csv: '/nonexistent/x'.*No such file" --csv /nonexistent/x
refused "--json and --csv: both write '-'" --json - --csv -
refused "'8'.*options only" 8
refused '--counts: a number is missing' --counts ,
refused "-i: '0'.*1 or more" -i 0
refused '-i 1: more than [0-9]+ sizes' -b 0 -e 3G -i 1
status 1 "$tutti" bench -n 2 -b 1000T -e 1000T
err 'this machine has'

# ---- strict mode has no algorithm for what the roots do not know
status 1 env TUTTI_STRICT=1 "$tutti" bench -n 2 -d int32 -b 8 -e 8 "${quick[@]}"
err 'TUTTI_ERR_DECLINED'

# ---- a rank is killed: all end, and it is named
"$tutti" bench -n 3 -b 1K -e 1K --iters 100000000 -w 0 >"$work/out" 2>"$work/err" &
bench=$!
until_true 60 grep -q 'Rank  2 pid' "$work/out" || complain "the ranks did not start"
mapfile -t all < <(awk '/ Rank / { print $5 }' "$work/out")
kill -KILL "${all[1]}"
got=0
wait "$bench" || got=$?
[[ $got == 1 ]] || complain "a rank was killed: exit status $got instead of 1"
err "rank 1 \(pid ${all[1]}\) was killed by signal 9"
ended "${all[@]}" || complain "ranks outlived a killed one"

# ---- the parent is killed: so are the ranks
for kind in --no-bind --threads; do
    "$tutti" bench "$kind" -n 2 -b 1K -e 1K --iters 100000000 -w 0 >"$work/out" 2>"$work/err" &
    bench=$!
    until_true 60 grep -q 'Rank  1 pid' "$work/out" || complain "the ranks did not start"
    mapfile -t all < <(awk '/ Rank / { print $5 }' "$work/out")
    kill -KILL "$bench"
    wait "$bench" 2>/dev/null
    until_true 30 ended "${all[@]}" || complain "ranks outlived the parent ($kind)"
done

finish
