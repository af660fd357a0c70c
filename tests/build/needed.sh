#!/bin/bash
# needed.sh SHARED STATIC
# The shared library needs libc and libm only, has no thread-local storage and stays where it was
# loaded; nothing of ours is a constructor (the compiler's own start-up code may be:
# __builtin_cpu_supports() brings one).
set -euo pipefail
library=$1 static=$2

bad=0
others=$(readelf -d "$library" | sed -nE 's/.*\(NEEDED\).*\[(.*)\].*/\1/p' | grep -vE '^lib[cm]\.so\.6$' || true)
[[ -z $others ]] || { echo "$library needs" $others; bad=1; }
# libtutti.so.0.2 for version 0.2.0, libtutti.so.1 for 1.2.0
version=$(realpath "$library")
version=${version##*.so.}
expected=${version%%.*}
[[ $expected != 0 ]] || expected=${version%.*}
soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
[[ $soname == "libtutti.so.$expected" ]] || { echo "$library: soname '$soname', not libtutti.so.$expected"; bad=1; }
readelf -d "$library" | grep 'FLAGS_1.*NODELETE' >/dev/null || { echo "$library: can be unloaded"; bad=1; }
! readelf -d "$library" | grep -E 'RPATH|RUNPATH|TEXTREL' || { echo "$library: RPATH or TEXTREL"; bad=1; }
! readelf -lW "$library" | grep -E '^ *TLS' || { echo "$library: thread-local storage"; bad=1; }
! readelf -SW "$static" | grep -E '\.(init_array|ctors)' || { echo "$static: a constructor"; bad=1; }
exit "$bad"
