#!/bin/bash
# What was given to a preset once does not stay: `make demo` builds the rivals and no tests in the directory in which
# `make test` then builds. A project without sources shows it, since it has the presets.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp CMakePresets.json "$work"
printf 'cmake_minimum_required(VERSION 3.16)\nproject(presets NONE)\n' >"$work/CMakeLists.txt"
cd "$work"

bad=0
# settings PRESET OPTION...: the values in the cache, after the preset was configured with the options.
settings() {
    cmake --preset "$@" >log 2>&1 || { cat log; exit 1; }
    grep -oE '^TUTTI_(BUILD_TESTS|BUILD_BENCH|CUDA):[A-Z]+=.*' "build/$1/CMakeCache.txt" | sed 's/:[A-Z]*//' | sort | xargs
}
# expect PRESET TESTS BENCH CUDA OPTION...
expect() {
    local preset=$1 expected="TUTTI_BUILD_BENCH=$3 TUTTI_BUILD_TESTS=$2 TUTTI_CUDA=$4" got
    shift 4
    got=$(settings "$preset" "$@")
    [[ $got == "$expected" ]] || { echo "$preset $*: $got instead of $expected"; bad=1; }
}
expect gcc OFF ON AUTO -DTUTTI_CUDA=AUTO -DTUTTI_BUILD_TESTS=OFF -DTUTTI_BUILD_BENCH=ON
expect gcc ON OFF OFF
exit "$bad"
