#!/bin/bash
# tutti info: as text and as JSON; every self-test of a sound machine passes.
# shellcheck source=tests/tools/common.sh
. "$(dirname "$0")/common.sh"
tutti=$1

status 0 "$tutti" info -n 3
for pattern in '^library:' '^  version: [0-9]+\.[0-9]+\.[0-9]+$' '^  isa: (baseline|avx2|avx512|neon)$' \
    '^host:' '^  kernel: ' '^processors:' '^limits:' '^  sealed_memfd: yes$' \
    '^namespaces:' 'test memory, result ok' 'test file, result ok' 'test tcp, result ok' \
    'test all-reduce of 2 threads, result ok' 'test all-reduce of 3 processes, result ok' \
    'algo (one_shot|two_shot), why .'; do
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
status 64 "$tutti" info -n 1
err "'1'.*2 to 64"
finish
