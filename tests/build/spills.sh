#!/bin/bash
# spills.sh NVCC FOLDER
# scripts/fatbin refuses a kernel of one world size (*_sum_N) that spills registers, or has an array in local memory, and
# names it; another kernel that spills passes, and its spills are in the file of the usage. FOLDER has the files of the build.
# There the kernels of RMSNorm may spill on sm_100 and later alone.
set -euo pipefail
cd "$(dirname "$0")/../.."
nvcc=$1 folder=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# 48 sums of a thread in 32 registers.
source_of() {
    cat <<CUDA
extern "C" __global__ void __launch_bounds__(1024, 2) $1(const float *from, float *to, int n)
{
    float sum[48] = {};
    for (int i = 0; i < n; i++)
#pragma unroll
        for (int k = 0; k < 48; k++)
            sum[k] += from[i * 48 + k] * sum[(k + 7) % 48];
#pragma unroll
    for (int k = 0; k < 48; k++)
        to[threadIdx.x * 48 + k] = sum[k];
}
CUDA
}

# An element of an array that only the caller knows.
array_source() {
    cat <<CUDA
extern "C" __global__ void $1(const float *from, float *to, int n)
{
    float row[32];
    for (int i = 0; i < n; i++)
        row[(i * 7 + threadIdx.x) % 32] = from[i];
    to[threadIdx.x] = row[n % 32];
}
CUDA
}

compile() {
    if [[ $1 == array* ]]; then array_source "$1"; else source_of "$1"; fi >"$work/$1.cu"
    scripts/fatbin "$nvcc" 80 "$2" "$work/cache" "$work/$1.cu" "$work/$1.fatbin" >"$work/log" 2>&1
}

if compile hungry_sum_2 ""; then
    echo "a sum that spills was compiled"
    exit 1
fi
grep -E 'sm_80 hungry_sum_2 32 [1-9]' "$work/log" >/dev/null || { cat "$work/log"; exit 1; }
compile hungry_sum_2 -DTUTTI_SPILLS || { cat "$work/log"; exit 1; }
compile hungry "" || { cat "$work/log"; exit 1; }
grep -E '^sm_80 hungry 32 [1-9]' "$work/hungry.fatbin.usage" >/dev/null || { cat "$work/hungry.fatbin.usage"; exit 1; }
if compile array_sum_4_once ""; then
    echo "a sum with an array in local memory was compiled"
    exit 1
fi
grep -E 'sm_80 array_sum_4_once [0-9]+ 0 128' "$work/log" >/dev/null || { cat "$work/log"; exit 1; }
if cat "$folder"/rms_norm_*.usage 2>/dev/null | grep -E '^sm_[89][0-9] .*_sum_[0-9]+(_once)? [0-9]+ ([1-9]|0 [1-9])'; then
    echo "these kernels spill"
    exit 1
fi
