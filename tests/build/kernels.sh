#!/bin/bash
# `make` compiles kernels for the GPUs of the machine, or none without a GPU, and says so; KERNELS names others.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH=$work:$PATH

bad=0
# expect OPTIONS SAID [ARGUMENT]: what scripts/kernels prints, and a part of what it says.
expect() {
    local options
    options=$(scripts/kernels "${@:3}" 2>"$work/said" | xargs) || options=fails
    [[ $options == "$1" && $(<"$work/said") == *"$2"* ]] ||
        { echo "KERNELS=${3:-}: $options, expected $1 and: $2"; cat "$work/said"; bad=1; }
}
# gpus LINE...: what nvidia-smi prints, or that it fails.
gpus() {
    printf '#!/bin/sh\n%s\n' "$([[ $# -gt 0 ]] && echo "printf '%s\\n' $*" || echo 'echo failed; exit 9')" >"$work/nvidia-smi"
    chmod +x "$work/nvidia-smi"
}
gpus 9.0 8.9 9.0
expect '-DTUTTI_CUDA=AUTO -DTUTTI_CUDA_ARCHS=89;90' 'for the GPUs of this machine, compute capability 89 90'
expect '-DTUTTI_CUDA=ON -UTUTTI_CUDA_ARCHS' 'for all GPUs, which takes' all
expect '-DTUTTI_CUDA=OFF' none none
expect '-DTUTTI_CUDA=ON -DTUTTI_CUDA_ARCHS=80;120' '80 120' '80 120'
expect fails 'KERNELS=here: give all, none' here
gpus 12.0
expect '-DTUTTI_CUDA=AUTO -DTUTTI_CUDA_ARCHS=120' 'compute capability 120'
gpus 7.5 # too old for Tutti
expect '-DTUTTI_CUDA=OFF' 'no GPU'
gpus
expect '-DTUTTI_CUDA=OFF' 'none, since this machine has no GPU for them (KERNELS=all: for all)'

# The first build of the preset release decides, later ones keep what it decided unless KERNELS says another.
cp -r scripts CMakePresets.json "$work"
printf 'cmake_minimum_required(VERSION 3.16)\nproject(kernels NONE)\n' >"$work/CMakeLists.txt"
# built KERNELS EXPECTED: configures the preset, and looks into the cache.
built() {
    local got
    KERNELS=$1 "$work/scripts/build" release >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    got=$(sed -nE 's/^TUTTI_CUDA(_ARCHS)?:[A-Z]+=//p' "$work/build/release/CMakeCache.txt" | xargs)
    [[ $got == "$2" ]] || { echo "KERNELS=$1 configures '$got', expected '$2'"; bad=1; }
}
gpus 9.0
built '' 'AUTO 90'
gpus
built '' 'AUTO 90'
built all ON
built '' ON
exit "$bad"
