#!/bin/bash
# fatbins.sh SHARED WHY KERNEL...
# The shared library embeds a fatbin of each kernel, read-only, and they take 20 MB of it at most. WHY says why
# this build has stubs in their place, whose size is not looked at; it is - where there are kernels.
set -euo pipefail
library=$1 why=$2
shift 2

bad=0
total=0
for kernel in "$@"; do
    read -r size type < <(nm -S --defined-only "$library" |
        awk -v name="cuda_fatbin_$kernel" '$4 == name { print $2, $3 }') || true
    if [[ -z ${size:-} || $((16#$size)) -eq 0 ]]; then
        echo "$library: no kernels \"$kernel\""
        bad=1
        continue
    fi
    [[ $type == r ]] || { echo "$library: cuda_fatbin_$kernel is of type $type, not read-only"; bad=1; }
    total=$((total + 16#$size))
done
echo "fatbins: $total bytes"
[[ $total -le 20000000 ]] || { echo "$library: more than 20 MB of kernels"; bad=1; }
readelf -lW "$library" | grep 'GNU_STACK .* RW ' >/dev/null || { echo "$library: wants an executable stack"; bad=1; }
if [[ $bad == 0 && $why != - ]]; then
    echo "their size was not looked at, for this build has no CUDA kernels: $why"
    exit 77
fi
exit "$bad"
