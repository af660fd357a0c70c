#!/bin/bash
# needed.sh LIBRARY
# The shared library needs libc and libm only, has no constructors and no thread-local storage.
set -euo pipefail
library=$1

bad=0
others=$(readelf -d "$library" | sed -nE 's/.*\(NEEDED\).*\[(.*)\].*/\1/p' | grep -vE '^lib[cm]\.so\.6$' || true)
[[ -z $others ]] || { echo "$library needs" $others; bad=1; }
readelf -d "$library" | grep -q 'SONAME.*\[libtutti\.so\.[0-9]*\]' || { echo "$library: no soname"; bad=1; }
! readelf -d "$library" | grep -qE 'RPATH|RUNPATH|TEXTREL' || { echo "$library: RPATH or TEXTREL"; bad=1; }
! readelf -lW "$library" | grep -qE '^ *TLS' || { echo "$library: thread-local storage"; bad=1; }
# The compiler's own start-up code has one entry.
size=$(readelf -d "$library" | sed -nE 's/.*\(INIT_ARRAYSZ\) *([0-9]+).*/\1/p')
[[ ${size:-0} -le 8 ]] || { echo "$library: $((size / 8 - 1)) constructor(s)"; bad=1; }
exit "$bad"
