#!/bin/bash
# circles.sh LIST
# LIST names the library's object files. What they use of each other, by nm:
# - No room of src/ uses a function or variable of a room that stands below it in CONTRIBUTING.md's list.
# - No file of src/ uses itself by way of others. tsort finds an order of the files in which each file stands before
#   those whose functions and variables it uses.
set -euo pipefail

uses=$(xargs nm -A --format=posix <"$1" | sed -E 's/^[^ ]*\.dir\/(\.\/)?//; s/: / /' | awk '
    $3 == "U" { user[++n] = $1; used[n] = $2; next }
    $3 ~ /[A-Z]/ { owner[$2] = $1 }
    END {
        for (i = 1; i <= n; i++)
            if (used[i] in owner && owner[used[i]] != user[i]) print user[i], owner[used[i]], used[i]
    }')
[[ $(wc -l <<<"$uses") -ge 100 ]] || { echo "$1: no object files of the library"; exit 1; }

bad=0
rooms=$(sed -n 's/^| `src\/\([a-z]*\)\/`.*/\1/p' CONTRIBUTING.md | tr '\n' ' ')
upward=$(awk -v rooms="$rooms" '
    BEGIN { for (i = split(rooms, list); i; i--) place[list[i]] = i }
    {
        split($1, user, "/"); split($2, used, "/")
        if (!(user[1] in place) || !(used[1] in place) || place[used[1]] > place[user[1]]) print
    }' <<<"$uses")
[[ -z $upward ]] || { echo "rooms that use a room below them in CONTRIBUTING.md: USER USED SYMBOL"; echo "$upward"; bad=1; }

circle=$(cut -d' ' -f1,2 <<<"$uses" | tsort 2>&1 >/dev/null) && exit "$bad"
echo "files that call each other in a circle: USER USED SYMBOL"
mapfile -t files < <(sed -n 's/^tsort: \([^ ]*\.o\)$/\1/p' <<<"$circle")
for user in "${files[@]}"; do
    for used in "${files[@]}"; do
        grep -F "$user $used " <<<"$uses" || true
    done
done | sort -u
exit 1
