#!/bin/bash
# install.sh BUILD CC
# Installs the build under a prefix that it does not know of, and builds and runs programs against it:
# through pkg-config and through CMake, shared and static, C and C++.
set -euo pipefail
build=$1 cc=$2
source=$PWD/tests/build/consumer
cxx=$(command -v g++ || command -v clang++) || { echo "no C++ compiler"; exit 77; }

work=$(mktemp -d "$build/install.XXXXXX")
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/first" >/dev/null
# What is installed may be moved.
mv "$work/first" "$work/prefix"
prefix=$work/prefix

pc=$(find "$prefix" -name tutti.pc)
[[ -n $pc ]] || { echo "tutti.pc is not installed"; exit 1; }
library_dir=$(dirname "$(dirname "$pc")")
export PKG_CONFIG_PATH=${pc%/*}
read -r -a flags <<<"$(pkg-config --cflags --libs tutti)"
read -r -a cflags <<<"$(pkg-config --cflags tutti)"
version=$(pkg-config --modversion tutti)
strict=(-Wall -Wextra -Wpedantic -Werror)

"$cc" -std=c11 "${strict[@]}" "$source/consumer.c" -o "$work/c_shared" "${flags[@]}"
"$cxx" -std=c++11 "${strict[@]}" "$source/consumer.cc" -o "$work/cc_shared" "${flags[@]}"
"$cc" -std=c11 "${strict[@]}" "${cflags[@]}" "$source/consumer.c" "$library_dir/libtutti.a" -lm -o "$work/c_static"
LD_LIBRARY_PATH=$library_dir "$work/c_shared"
LD_LIBRARY_PATH=$library_dir "$work/cc_shared"
"$work/c_static"
! readelf -d "$work/c_static" | grep libtutti || { echo "not static"; exit 1; }

cmake -S "$source" -B "$work/cmake" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DEXPECTED_VERSION="$version" \
    -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmake --build "$work/cmake" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
for program in c_shared c_static cc_shared; do
    "$work/cmake/$program"
done

# The tool, where it was built, finds the library beside it.
if [[ -x $prefix/bin/tutti ]]; then
    found=$(realpath "$(ldd "$prefix/bin/tutti" | awk '/libtutti.so/ { print $3 }')")
    [[ $found == "$(realpath "$library_dir/libtutti.so")" ]] || { echo "the tool finds $found"; exit 1; }
    "$prefix/bin/tutti" --version
fi
