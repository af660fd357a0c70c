#!/bin/bash
# tutti info: as text and as JSON; every self-test of a sound machine passes.
# shellcheck source=tests/tools/common.sh
. "$(dirname "$0")/common.sh"
need python3
tutti=$1

status 0 "$tutti" info -n 3
for pattern in '^library:' '^  version: [0-9]+\.[0-9]+\.[0-9]+$' '^  isa: (baseline|avx2|avx512|neon)$' \
    '^host:' '^  kernel: ' '^processors:' '^limits:' '^  sealed_memfd: yes$' \
    '^namespaces:' 'test memory, result ok' 'test file, result ok' 'test tcp, result ok' \
    'test all-reduce of 2 threads, result ok' 'test all-reduce of 3 processes, result ok' \
    'processes, .*direct_copies (yes|no \(.+), arena_nodes ([0-9]+ ){2}[0-9]+$' 'algo (one_shot|two_shot), why .'; do
    out "$pattern"
done
[[ ! -s $work/err ]] || { complain "says something on stderr"; cat "$work/err"; }

status 0 env TUTTI_STRICT=1 "$tutti" info --json -n 4
python3 - "$work/out" <<'PYTHON' || complain "JSON"
import json, sys
info = json.load(open(sys.argv[1]))
assert info["library"]["environment"] == {"TUTTI_STRICT": "1"}
assert info["processors"]["cores_allowed"] >= 1 and info["processors"]["caches"]
assert [store["result"] for store in info["stores"]] == ["ok"] * 3
assert {one["ranks"] for one in info["algorithms"]} == {2, 4}
for one in info["algorithms"]:
    end = 0
    for choice in one["choices"]:  # without a gap, from the first element to any size
        assert choice["from_bytes"] == end + 4, one
        end = choice["to_bytes"]
        assert choice["why"]
    assert end == "any"
    strict = [(choice["to_bytes"], choice["algo"]) for choice in one["choices"]]
    assert strict == [(256 << 10, "one_shot"), (10 << 20, "two_shot"), ("any", "none")], strict
PYTHON

# A topology file: matrix, verdict, reason; what is chosen, by strict mode too.
cat >"$work/mesh" <<'TEXT'
tutti-topology 1
ranks 8
X 1 1 2 2 0 0 0
1 X 2 1 0 2 0 0
1 2 X 2 0 0 1 0
2 1 2 X 0 0 0 1
2 0 0 0 X 1 1 2
0 2 0 0 1 X 2 1
0 0 1 0 1 2 X 2
0 0 0 1 2 1 2 X
TEXT
status 0 env TUTTI_TOPOLOGY_FILE="$work/mesh" "$tutti" info -n 8
for pattern in 'topology hybrid_cube_mesh, topology_reason quads 0 1 2 3 and 4 5 6 7' \
    'R2 +NV1 +NV2 +X +NV2 +- +- +NV1 +-' 'to_bytes any, algo hybrid_cube_mesh, why .' \
    'test all-reduce of 8 processes, result ok'; do
    out "$pattern"
done
status 0 env TUTTI_TOPOLOGY_FILE="$work/mesh" TUTTI_STRICT=1 "$tutti" info --plan --json -n 8
python3 - "$work/out" <<'PYTHON' || complain "plan of a cube mesh"
import json, sys
table = json.load(open(sys.argv[1]))["algorithms"]
assert len(table) == 3 and all(len(one["links"]) == 8 for one in table)
assert sum(len(one["dtype"].split()) for one in table) == 16
for one in table:
    rows = [(choice["to_bytes"], choice["algo"]) for choice in one["choices"]]
    if one["dtype"] == "float32":
        assert rows == [(256 << 10, "hybrid_cube_mesh"), ("any", "none")], rows
    elif one["dtype"] == "bfloat16": # odd counts are not aligned
        assert rows[1] == (256 << 10, "hybrid_cube_mesh") and rows[-1] == ("any", "none"), rows
    else:
        assert rows == [("any", "none")], rows
PYTHON
# What is no UTF-8 is told all the same.
status 1 env TUTTI_TOPOLOGY_FILE=$'/tmp/\xff' "$tutti" info --json -n 2
python3 - "$work/out" <<'PYTHON' || complain "a text that is no UTF-8"
import json, sys
info = json.load(open(sys.argv[1]))
assert info["library"]["environment"] == {"TUTTI_TOPOLOGY_FILE": "/tmp/?"}
assert len(info["communicators"]) == 2
assert all("/tmp/?: " in one["result"] for one in info["communicators"]), info["communicators"]
PYTHON

# What cannot be read is said where it belongs.
status 0 env TUTTI_SYMM_BACKEND=nvshmem RANK=x WORLD_SIZE=2 "$tutti" info -n 2
out '^  symmetric_memory: TUTTI_SYMM_BACKEND=nvshmem is not known'
out '^  launcher: RANK=x: expected a whole number'

# A report is passed on.
status 0 env TUTTI_STORE_SECRET=swordfish "$tutti" info -n 2
out 'TUTTI_STORE_SECRET: '
grep -q swordfish "$work/out" && complain "the secret is shown"
status 0 "$tutti" info --plan --json -n 2
python3 - "$work/out" <<'PYTHON' || complain "plan"
import json, sys
table = json.load(open(sys.argv[1]))["algorithms"]
for ranks in range(2, 9): # dtypes of another width may begin at another size
    assert sum(len(one["dtype"].split()) for one in table if one["ranks"] == ranks) == 16, table
assert {one["ranks"] for one in table} == set(range(2, 9))
assert all(choice["algo"] != "none" for one in table for choice in one["choices"])
PYTHON
status 1 env TUTTI_TOPOLOGY_FILE="$work/mesh" "$tutti" info --plan -n 3
err 'is of 8 ranks, the world size is 3'
# What is known stands there while something is tried that does not end: here a library that is a pipe.
mkfifo "$work/fifo"
TUTTI_CUDA_LIBRARY=$work/fifo "$tutti" info -n 2 >"$work/out" 2>"$work/err" </dev/null &
pid=$!
until_true 60 grep -q '^algorithms:' "$work/out" || complain "nothing is printed before the last trial"
exec 3<>"$work/fifo" # the trial goes on
exec 3>&-
wait "$pid"
for pattern in '^library:' '^  kernel: ' '^limits:' '^stores:' '^cuda:'; do
    out "$pattern"
done
# What is declined is said, and is no failure.
status 0 env TUTTI_DISABLE=1 "$tutti" info -n 3
out '^  enabled: no$'
out 'test all-reduce of 3 processes, result tutti_comm_create: TUTTI_DISABLE is set'
# CPU ranks share memory, whatever the links.
ring_links "$work/ring"
status 0 env TUTTI_TOPOLOGY_FILE="$work/ring" "$tutti" info -n 4
out 'test all-reduce of 4 processes, result ok'
out 'algo one_shot, why no links join all ranks'
status 64 "$tutti" info -n 1
err "'1'.*2 to 64"
finish
