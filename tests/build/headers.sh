#!/bin/bash
# headers.sh CC
# Each header compiles alone: the public one as C11 and as C++11, the library's own as C11.
set -euo pipefail
cc=$1
cxx=$(command -v g++ || command -v clang++ || command -v c++) || { echo "no C++ compiler"; exit 77; }

bad=0
strict=(-Wall -Wextra -Wpedantic -Werror -fsyntax-only)
check() {
    "$@" || { echo "failed: $*"; bad=1; }
}
printf '#include <tutti/tutti.h>\n' | check "$cc" -std=c11 "${strict[@]}" -Wstrict-prototypes -Iinclude -x c -
printf '#include <tutti/tutti.h>\n' | check "$cxx" -std=c++11 "${strict[@]}" -Wold-style-cast -Iinclude -x c++ -
while read -r header; do
    # The second time shows the include guard.
    printf '#include "%s"\n#include "%s"\n' "$header" "$header" |
        check "$cc" -std=c11 "${strict[@]}" -Wno-pedantic -D_GNU_SOURCE -Wno-unused-function \
            -Iinclude -Isrc -x c -
done < <(find src -name '*.h' -printf '%P\n' | sort)
exit "$bad"
