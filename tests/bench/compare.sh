#!/bin/sh
# SPDX-License-Identifier: MIT
# compare.sh PROGRAMS FAKE: a comparison in small, its results in JSON and as columns. Skipped (77) where
# ours or every rival is absent. Crowded, since then no block is discarded for the cores' sake.
set -eu
programs=$1
fake=$2
rival=none
for name in openmpi mpich gloo; do
    if [ -x "$programs/bench-$name" ]; then
        rival=$name
        break
    fi
done
if [ ! -x "$programs/bench-tutti" ] || [ $rival = none ]; then
    echo "nothing to compare: ours or every rival was not built"
    exit 77
fi
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

"$programs/compare" --crowded --ranks 2 --engines tutti,$rival --sizes 8,64K --samples 3 \
    --budget 60 --block 0.5 --json "$directory/result.json" | tee "$directory/table"
"$programs/compare" --columns "$directory/result.json" >"$directory/columns"
cat "$directory/columns"
if "$programs/compare" --columns "$directory/result.json" >/dev/full; then
    echo "succeeds though its output is lost" && exit 1
fi
# Both sizes, ours and the rival's time in each row.
awk -F'\t' -v rival=$rival '
    /^#/ { for (i = 1; i <= NF; i++) if ($i == rival) column = i; next }
    $1 == 2 && $2 == "oversubscribed" && $5 > 0 && $column > 0 { seen[$3, $4] = 1 }
    END { exit !(("any", 8) in seen && ("any", 65536) in seen && ("symmetric", 65536) in seen) }
' "$directory/columns"
# Rivals that are left to themselves are no success.
mkdir "$directory/broken"
cp "$programs/compare" "$programs/bench-$rival" "$directory/broken"
printf '#!/bin/sh\nexit 1\n' >"$directory/broken/bench-tutti"
chmod +x "$directory/broken/bench-tutti"
if "$directory/broken/compare" --crowded --ranks 2 --engines tutti,$rival --sizes 8 --samples 1 --budget 1 \
    2>"$directory/error"; then
    echo "succeeds without ours" && exit 1
fi
grep -q 'tutti did not start' "$directory/error"

# A rival that has been sampled when its results become wrong says so, and is not the best one. (Its second
# visit to a size checks again; another setting of it is right.)
mkdir "$directory/wrong"
cp "$programs/compare" "$programs/bench-tutti" "$directory/wrong"
cat >"$directory/wrong/bench-gloo" <<SHELL
#!/bin/sh
[ "\$TUTTI_BENCH_VARIANT" != new ] || export TUTTI_BENCH_VARIANT=late
exec "$fake"
SHELL
chmod +x "$directory/wrong/bench-gloo"
"$directory/wrong/compare" --crowded --ranks 2 --engines tutti,gloo --sizes 8 --samples 6 --budget 60 --block 0.5 \
    --json "$directory/wrong/result.json" 2>"$directory/error" >"$directory/table"
cat "$directory/error" "$directory/table"
grep -q 'gloo: rank 1: has wrong elements' "$directory/error"
grep -q '^ *8  oversubscribed .* gloo halving; wrong: gloo$' "$directory/table"
python3 - "$directory/wrong/result.json" <<'PYTHON'
import json, sys
for row in json.load(open(sys.argv[1]))["rows"]:
    assert row["wrong_settings"] == ["gloo"] and set(row["rivals"]) == {"gloo halving"}, row
PYTHON

# A library that there is not is no silence.
for engines in tuti tutti, "tutti,gloom"; do
    if "$programs/compare" --list --engines "$engines" 2>"$directory/error"; then
        echo "takes --engines $engines" && exit 1
    fi
    grep -q 'expected a name' "$directory/error"
done
grep -q '"ratio": [0-9]' "$directory/result.json"
