#!/bin/bash
# tutti tune over the stand-in for libcuda: the file that it writes, what it keeps of a former one, that a
# communicator loads it, and what is refused. Which of two is quicker on a stand-in says nothing, unless one is
# made slow.
# shellcheck source=tests/tools/common.sh
. "$(dirname "$0")/common.sh"
need python3
tutti=$1 cuda=$2 nvml=$3
export TUTTI_CUDA_LIBRARY=$cuda TUTTI_NVML_LIBRARY=$nvml TUTTI_STANDIN_DEVICES=3 TUTTI_STANDIN_MULTIPROCESSORS=132
small=(--quick -b 1K -e 2K --iters 2 --graph 3)

# plan RANKS FILE: what a communicator has that loads the file, as rows of a file.
plan() {
    status 0 env TUTTI_STANDIN_DEVICES="$1" TUTTI_TUNING_FILE="$2" "$tutti" info --json -n 2
    python3 - "$work/out" "$1" <<'PYTHON'
import json, re, sys
text = json.load(open(sys.argv[1]))["cuda"]["communicator"]["describe"]["plan"]
for row in text.split("; "):
    kernel, size, *rest = re.fullmatch(
        r"(\w+) up to (any size|\d+ bytes), (\d+) threads, (\d+) blocks, (\d+) units", row).groups()
    print("sm_90 ranks", sys.argv[2], "bytes", "rest" if size == "any size" else size.split()[0],
          "kernel", kernel, "threads %s blocks %s units %s" % tuple(rest))
PYTHON
}

# ---- into the cache, which has rows of others and of a former run
export XDG_CACHE_HOME=$work/cache
file=$work/cache/tutti/tuning
status 0 "$tutti" tune "${small[@]}" --json "$work/json"
out "^# written: $file\$"
out '^# 3 GPUs: [0-9]+ candidates for 2 sizes, at most 120 s$'
out '^ +1024  one_shot_ll 512x[0-9]+/1 +[0-9.]+  '
[[ $(head -n 1 "$file") == "tutti-tuning 1" ]] || complain "the first line"
cat >"$file" <<'END'
# by hand
tutti-tuning 1
# sm_90 ranks 3: of a former run
sm_90 ranks 3 bytes rest kernel two_shot_pipelined threads 32 blocks 1 units 1
any ranks 2 bytes rest kernel two_shot_pipelined threads 256 blocks 4 units 1 # others
sm_90 ranks 2 bytes rest kernel two_shot_pipelined threads 96 blocks 7 units 3
END
status 0 env TUTTI_STANDIN_SLOW=one_shot_ll "$tutti" tune "${small[@]}" -n 3
for bytes in 1024 2048; do
    out "^ +$bytes  one_shot_ll 512x[0-9]+/1 +[0-9.]+  (one_shot_lines|two_shot_(lines|pipelined)) .*%\$"
done
grep -qE '^sm_90 ranks 3 bytes 2048 kernel (one_shot_lines|two_shot)' "$file" || complain "2048 bytes: not the quicker"
grep -qE '^sm_90 ranks 3 bytes 32768 kernel one_shot_ll' "$file" || complain "32768 bytes: not what is built in"
for line in '^# by hand$' '^any ranks 2 bytes rest .*# others$' '^sm_90 ranks 2 bytes rest .* blocks 7 units 3$' \
    '^# sm_90 ranks 3: 3 GPUs, 20' '^# sm_90 ranks 3: tutti 0.* commit .*: tutti tune --quick'; do
    grep -qE -- "$line" "$file" || { complain "the file lacks: $line"; cat "$file"; }
done
grep -q 'former\|blocks 1 ' "$file" && complain "rows of the former run are still there"
[[ $(grep -c tutti-tuning "$file") == 1 ]] || complain "two heads"
plan 3 "$file" >"$work/loaded"
grep '^sm_90 ranks 3' "$file" | diff - "$work/loaded" || complain "the communicator has another plan"
[[ $(plan 2 "") == "sm_90 ranks 2 bytes rest kernel two_shot_pipelined threads 96 blocks 7 units 3" ]] ||
    complain "the cache is not loaded"
[[ $(ls "$work/cache/tutti") == tuning ]] || complain "files are left beside the tuning file"
python3 - "$work/json" <<'PYTHON' || complain "JSON"
import json, sys
tune = json.load(open(sys.argv[1]))
assert tune["machine"] == "3 GPUs" and tune["capability"] == 90 and tune["ranks"] == 3
assert tune["not_reached"] == 0 and tune["commit"] and tune["command"].startswith("tutti tune --quick")
assert [row["bytes"] for row in tune["rows"]] == [1024, 2048]
for row in tune["rows"]:
    assert row["built_in"]["kernel"] == "one_shot_ll" and row["built_in"]["units"] == 1
    kernels = {candidate["kernel"] for candidate in row["candidates"]}
    assert kernels == {"one_shot_ll", "one_shot_lines", "two_shot_lines", "two_shot_pipelined"}, kernels
    assert all(c["us"] > 0 and c["built_in_us"] > 0 and c["wrong"] == 0 for c in row["candidates"])
    assert row["chosen"] is None or row["chosen_us"] < row["built_in_us"]
    choices = [(c["kernel"], c["threads"], c["blocks"], c["units"]) for c in row["candidates"]]
    assert len(set(choices)) == len(choices)
PYTHON

# ---- elsewhere: what is smaller and larger, and what time did not allow, stays as it is built in
status 0 "$tutti" tune -n 2 -b 64K -e 64K --iters 40 --graph 5 --seconds 1 -o "$work/new/folder/file"
out '^# [0-9]+ candidates were not reached in 1 s'
status 0 "$tutti" tune "${small[@]}" -n 2 -o "$work/other"
for bytes in 524288 2097152 rest; do
    row=$(grep "^sm_90 ranks 2 bytes $bytes " "$work/new/folder/file") || complain "no row for $bytes"
    grep -qxF -- "$row" "$work/other" || complain "not what is built in: $row"
done

# ---- what is refused, and what fails
refused() {
    local pattern=$1
    shift
    status 64 "$tutti" tune "$@"
    err "$pattern"
}
refused "--device: 'cpu' cannot be tuned: give cuda" --device cpu
refused "-n: '9'.*from 2 to 8" -n 9
refused "-b: '3K' is no power of two" -b 3K
refused "-e: '512M' is no power of two from 256 to 256M" -e 512M
refused '-b 4096 is larger than -e 1024' -b 4K -e 1K
refused "--graph: '0'" --graph 0
refused "--seconds: 'x'" --seconds x
refused "--json: '/nonexistent/x' cannot be written" --json /nonexistent/x
refused "'more': no argument is expected" more
status 1 "$tutti" tune -n 4
err '-n 4: each rank needs a GPU of its own, and this machine has 3'
status 1 env -u XDG_CACHE_HOME -u HOME "$tutti" tune
err 'neither XDG_CACHE_HOME nor HOME names a folder: give -o FILE'
status 1 "$tutti" tune "${small[@]}" -o /proc/none/file
err 'cannot make the folder /proc/none'
printf 'tutti-tuning 1\nnonsense\n' >"$work/bad"
status 1 "$tutti" tune "${small[@]}" -o "$work/bad"
err "tuning file $work/bad, line 2: expected 13 words"
before=$(cat "$file")
ring_links "$work/ring"
status 1 env TUTTI_TOPOLOGY_FILE="$work/ring" TUTTI_STANDIN_DEVICES=4 "$tutti" tune "${small[@]}" -n 4
err 'make the algorithm a ring, which is in no tuning table'
status 1 env TUTTI_STANDIN_FAIL=cuStreamBeginCapture:1 "$tutti" tune "${small[@]}"
err 'rank [0-2]: TUTTI_ERR_CUDA: cuStreamBeginCapture: CUDA_ERROR_UNKNOWN'
status 1 env TUTTI_STANDIN_WRONG=one_shot_lines "$tutti" tune "${small[@]}" --json -
err "elements were wrong: $file is left as it is"
python3 - "$work/out" <<'PYTHON' || complain "JSON of a kernel that is wrong"
import json, sys
for row in json.load(open(sys.argv[1]))["rows"]:
    assert not row["chosen"] or row["chosen"]["kernel"] != "one_shot_lines", row
    for candidate in row["candidates"]:
        assert candidate["wrong"] == (1 if candidate["kernel"] == "one_shot_lines" else 0), candidate
PYTHON
[[ $before == "$(cat "$file")" ]] || complain "a run that failed has changed the file"
finish
