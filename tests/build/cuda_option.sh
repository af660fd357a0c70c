#!/bin/bash
# The kernels are compiled, or it is said why not: TUTTI_CUDA in any spelling of yes and no, and the nvcc of
# TUTTI_NVCC, in whose place no other one is taken. TUTTI_PTXAS12 is a ptxas of CUDA 12.4 or newer.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.16)
project(option NONE)
include($PWD/cmake/cuda.cmake)
END

bad=0
# expect fails|passes TEXT OPTION...: the outcome, and what is said.
expect() {
    local outcome=passes said
    said=$(cmake -S "$work" -B "$work/build" "${@:3}" 2>&1) || outcome=fails
    rm -rf "$work/build"
    [[ $outcome == "$1" && $(tr -s ' \n' ' ' <<<"$said") == *"$2"* ]] ||
        { echo "${*:3} $outcome, expected that it $1, with: $2"; echo "$said"; bad=1; }
}
for yes in ON on TRUE 1 AUTO auto; do
    expect fails "TUTTI_NVCC=/nonexistent/nvcc: there is no such file" -DTUTTI_CUDA=$yes -DTUTTI_NVCC=/nonexistent/nvcc
    expect fails "/bin/false does not run" -DTUTTI_CUDA=$yes -DTUTTI_NVCC=/bin/false
done
for no in OFF off FALSE 0; do
    expect passes "no CUDA kernels: TUTTI_CUDA was $no" -DTUTTI_CUDA=$no -DTUTTI_NVCC=/nonexistent/nvcc
done
for said in "release 12.3, V12.3.107" "release 13.0, V13.0.88" nothing; do
    printf '#!/bin/sh\necho "Cuda compilation tools, %s"\n' "$said" >"$work/ptxas"
    chmod +x "$work/ptxas"
    expect fails "is no ptxas of CUDA 12.4 to 12.9" -DTUTTI_CUDA=OFF "-DTUTTI_PTXAS12=$work/ptxas"
done
expect fails "TUTTI_PTXAS12=/nonexistent/ptxas is no ptxas" -DTUTTI_CUDA=OFF -DTUTTI_PTXAS12=/nonexistent/ptxas
printf '#!/bin/sh\necho "Cuda compilation tools, release 12.4, V12.4.131"\n' >"$work/ptxas"
expect passes "no CUDA kernels" -DTUTTI_CUDA=OFF "-DTUTTI_PTXAS12=$work/ptxas"
expect fails "TUTTI_CUDA=maybe: expected AUTO, ON or OFF" -DTUTTI_CUDA=maybe
exit "$bad"
