#!/bin/bash
# headers.sh CC
# Each header compiles alone: the public ones as C11 and as C++11, the library's own as C11.
set -euo pipefail
cc=$1
cxx=$(command -v g++ || command -v clang++ || command -v c++) || { echo "no C++ compiler"; exit 77; }

bad=0
strict=(-Wall -Wextra -Wpedantic -Werror -fsyntax-only)
# Compiles the text on its input with the given command.
check() {
    local text
    text=$(cat)
    "$@" - <<<"$text" || { echo "failed: $*, of:"; echo "$text"; bad=1; }
}
for header in include/tutti/*.h; do
    check "$cc" -std=c11 "${strict[@]}" -Wstrict-prototypes -Iinclude -x c <<<"#include <${header#include/}>"
    check "$cxx" -std=c++11 "${strict[@]}" -Iinclude -x c++ <<<"#include <${header#include/}>"
done
while read -r header; do
    # The second time shows the include guard.
    check "$cc" -std=c11 "${strict[@]}" -Wno-pedantic -Wno-unused-function -D_GNU_SOURCE -Iinclude -Isrc -x c \
        <<<"#include \"$header\""$'\n'"#include \"$header\""
done < <(find src -name '*.h' -printf '%P\n' | sort)
exit "$bad"
