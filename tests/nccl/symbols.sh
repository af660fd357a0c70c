#!/bin/bash
# libnccl.so.2 exports what NVIDIA's does: the functions of symbols.txt, each with a twin whose name begins with p, but
# for the last one. The plain names are weak. It needs no library but libc.
# usage: symbols.sh LIBRARY
set -euo pipefail
library=$1 list=$(dirname "$0")/symbols.txt

exported() {
    nm -D --defined-only "$library" | awk -v type="$1" '$2 == type { print $3 }' | LC_ALL=C sort
}
names=$(grep -v '^#' "$list")
diff <(grep -v Internal <<<"$names") <(exported W) || { echo "weak names differ from $list"; exit 1; }
diff <({ grep -v Internal <<<"$names" | sed 's/^/p/'; grep Internal <<<"$names"; } | LC_ALL=C sort) <(exported T) ||
    { echo "strong names differ from $list"; exit 1; }
[[ $(wc -l <<<"$names") -eq 97 ]] || { echo "$list: not 97 names"; exit 1; }
readelf -d "$library" | grep -F 'soname: [libnccl.so.2]' >/dev/null || { echo "another SONAME"; exit 1; }
needed=$(readelf -d "$library" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -vE '^(libc|libm|ld-linux[^.]*|libasan|libubsan|libtsan)\.so' || true)
[[ -z $needed ]] || { echo "needs $needed"; exit 1; }
