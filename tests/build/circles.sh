#!/bin/bash
# circles.sh LIST
# No file of src/ calls itself by way of others. LIST names the library's object files. tsort finds an order of them in
# which each file stands before those whose functions and variables it uses.
set -euo pipefail

uses=$(xargs nm -A --format=posix <"$1" | sed -E 's/^[^ ]*\.dir\///; s/: / /' | awk '
    $3 == "U" { user[n] = $1; used[n++] = $2; next }
    $3 ~ /[A-Z]/ { owner[$2] = $1 }
    END {
        for (i = 0; i < n; i++)
            if (used[i] in owner && owner[used[i]] != user[i]) print user[i], owner[used[i]], used[i]
    }')
[[ $(wc -l <<<"$uses") -ge 100 ]] || { echo "$1: no object files of the library"; exit 1; }
circle=$(cut -d' ' -f1,2 <<<"$uses" | tsort 2>&1 >/dev/null) && exit 0
echo "files that call each other in a circle: USER USED SYMBOL"
mapfile -t files < <(sed -n 's/^tsort: \([^ ]*\.o\)$/\1/p' <<<"$circle")
for user in "${files[@]}"; do
    for used in "${files[@]}"; do
        grep -F "$user $used " <<<"$uses" || true
    done
done | sort -u
exit 1
