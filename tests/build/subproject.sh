#!/bin/bash
# subproject.sh BUILD CC
# The sources within the build of another project, through FetchContent and add_subdirectory(): the library alone, by
# the names of the installed one. And what a build says where jansson or pkg-config is missing.
set -euo pipefail
build=$1 cc=$2 source=$PWD
cxx=$(command -v g++ || command -v clang++) || { echo "no C++ compiler"; exit 77; }
work=$build/subproject # always the same, so that a compiler cache may know it
rm -rf "$work"
mkdir "$work"
trap 'rm -rf "$work"' EXIT

configure() { # SOURCE BUILD OPTION...
    cmake -S "$1" -B "$work/$2" -G Ninja -DCMAKE_C_COMPILER="$cc" -DTUTTI_CUDA=OFF "${@:3}" >"$work/log" 2>&1
}

for use in fetch subdirectory; do
    # The library's own flags are enough; a debugging build compiles fast.
    configure "$source/tests/build/consumer" $use -DUSE=$use -DSOURCE="$source" -DCMAKE_CXX_COMPILER="$cxx" \
        -DCMAKE_BUILD_TYPE=Debug || { cat "$work/log"; exit 1; }
    targets=$(cmake --build "$work/$use" --target help)
    ! grep -E "tutti_program|tutti_tool|test_|example_" <<<"$targets" ||
        { echo "$use builds more than the library"; exit 1; }
    [[ ! -e $work/$use/tutti/cmake_install.cmake ]] || ! grep -q "\.so" "$work/$use/tutti/cmake_install.cmake" ||
        { echo "$use installs the library"; exit 1; }
done
programs=(c_shared c_static cc_shared)
targets=("${programs[@]}")
# A short run compiles two of the consumer's sources, without the library.
[[ -z ${TUTTI_TEST_SHORT:-} ]] ||
    programs=() targets=(CMakeFiles/c_shared.dir/consumer.c.o CMakeFiles/cc_shared.dir/consumer.cc.o)
cmake --build "$work/fetch" --target "${targets[@]}" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
for program in "${programs[@]}"; do
    "$work/fetch/$program"
done

fails() { # TEXT OPTION...
    ! configure "$source" missing "${@:2}" || { echo "${*:2}: configured without jansson"; exit 1; }
    grep -qF -- "$1" <(tr -s ' \n' ' ' <"$work/log") || { echo "${*:2}: expected: $1"; cat "$work/log"; exit 1; }
    rm -rf "$work/missing"
}
unset PKG_CONFIG_PATH
export PKG_CONFIG_LIBDIR=$work # holds no package
fails "The program tutti needs jansson, which pkg-config does not find. \`make deps\` installs it (Debian and Ubuntu); -DTUTTI_BUILD_TOOLS=OFF builds without it."
fails "-DTUTTI_BUILD_TESTS=OFF builds without it." -DTUTTI_BUILD_TOOLS=OFF
fails "needs pkg-config, to find jansson. \`make deps\` installs it" -DPKG_CONFIG_EXECUTABLE=PKG_CONFIG_EXECUTABLE-NOTFOUND \
    -DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=ON
configure "$source" alone -DTUTTI_BUILD_TOOLS=OFF -DTUTTI_BUILD_TESTS=OFF || { cat "$work/log"; exit 1; }
