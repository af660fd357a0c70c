#!/bin/bash
# install.sh BUILD CC
# Installs the build under a prefix that it does not know of, and builds and runs programs against it:
# through pkg-config and through CMake, shared and static, C and C++. Every function has a man page of its name, and
# the tool completes its commands and options.
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

for function in $(nm -D --defined-only "$library_dir/libtutti.so" | sed -n 's/.* [TD] \(tutti_[a-z0-9_]*\).*/\1/p'); do
    page=$prefix/share/man/man3/$function.3
    [[ -f $page ]] || { echo "no man page for $function"; exit 1; }
    target=$(sed -n '1s/^\.so //p' "$page")
    if [[ -n $target ]]; then
        grep -w "$function" "$prefix/share/man/$target" >/dev/null || { echo "$page: not in $target"; exit 1; }
    fi
done

# completed WORD...: what bash would offer for the last of the words, one a line.
completed() {
    PATH=$prefix/bin:$PATH bash -c '
        source "$0"
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _tutti
        printf "%s\n" "${COMPREPLY[@]}"' "$prefix/share/bash-completion/completions/tutti" "$@" | paste -sd' '
}
expect() { # WORDS OFFERED
    local words
    IFS=' ' read -r -a words <<<"$1"
    offered=$(completed "${words[@]/#_/}")
    [[ $offered == "$2" ]] || { echo "'$1' completes to '$offered', expected '$2'"; exit 1; }
}

# The tool, where it was built, finds the library beside it.
if [[ -x $prefix/bin/tutti ]]; then
    expect "tutti _" "bench diagnose dump info mpi nccl run tune"
    expect "tutti d" "diagnose dump"
    expect "tutti --v" "--version"
    expect "tutti run --g" "--grace"
    expect "tutti bench --min" "--minbytes"
    expect "tutti run x" ""
    for file in share/zsh/site-functions/_tutti share/fish/vendor_completions.d/tutti.fish; do
        [[ -f $prefix/$file ]] || { echo "$file is not installed"; exit 1; }
    done
    found=$(realpath "$(ldd "$prefix/bin/tutti" | awk '/libtutti.so/ { print $3 }')")
    [[ $found == "$(realpath "$library_dir/libtutti.so")" ]] || { echo "the tool finds $found"; exit 1; }
    found=$("$prefix/bin/tutti" nccl --path)
    [[ $found == "$(realpath "$library_dir")/tutti/libnccl.so.2" ]] || { echo "the tool's libnccl.so.2 is $found"; exit 1; }
    found=$("$prefix/bin/tutti" mpi --path)
    [[ $found == "$(realpath "$library_dir")/tutti/libtutti-mpi.so" ]] || { echo "the tool's libtutti-mpi.so is $found"; exit 1; }
    "$prefix/bin/tutti" --version
fi

# What `make install` and `make uninstall` do: a prefix that the dynamic linker does not search is said, and nothing stays.
said=$(scripts/install "$build" "$work/private")
for word in PATH PKG_CONFIG_PATH LD_LIBRARY_PATH; do
    grep -E "^    export .*\\<$word=$work/private/" <<<"$said" >/dev/null || { echo "no word of $word: $said"; exit 1; }
done
(
    eval "$(grep '^    export ' <<<"$said")"
    read -r -a flags <<<"$(pkg-config --cflags --libs tutti)"
    "$cc" "$source/consumer.c" -o "$work/private_shared" "${flags[@]}"
    "$work/private_shared"
)
if scripts/install --remove "$build" "$work/other" >/dev/null 2>"$work/log"; then
    echo "removed from a prefix where nothing was installed"
    exit 1
fi
grep "not under $work/other: give its PREFIX" "$work/log" >/dev/null || { cat "$work/log"; exit 1; }
scripts/install --remove "$build" "$work/private"
left=$(find "$work/private" ! -type d -o -name tutti)
[[ -z $left ]] || { echo "make uninstall leaves: $left"; exit 1; }
