#!/bin/bash
# circles.sh FOLDER
# No file of src/ calls itself by way of others: tsort finds an order of the object files in FOLDER,
# where a file comes before those whose functions and variables it uses.
set -euo pipefail
cd "$1"

uses=$(find . -name '*.o' | sort | xargs nm -A --format=posix | sed 's/: / /' | awk '
    $3 == "U" { user[n] = $1; used[n++] = $2; next }
    $3 ~ /[A-Z]/ { owner[$2] = $1 }
    END { for (i = 0; i < n; i++) if (used[i] in owner && owner[used[i]] != user[i]) print user[i], owner[used[i]], used[i] }')
[[ $(wc -l <<<"$uses") -ge 100 ]] || { echo "$1: no object files of the library"; exit 1; }
circle=$(cut -d' ' -f1,2 <<<"$uses" | tsort 2>&1 >/dev/null) && exit 0
echo "files that call each other in a circle:"
mapfile -t files < <(sed -n 's/^tsort: \(\.\/.*\)$/\1/p' <<<"$circle")
for file in "${files[@]}"; do
    grep -F "$file " <<<"$uses" | grep -F "$(printf '%s\n' "${files[@]}" | sed 's/^/ /')" || true
done | sort -u
exit 1
