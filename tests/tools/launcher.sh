#!/bin/bash
# launcher.sh LAUNCHER PROGRAM: the example under a launcher of others, which env: has to recognise.
# shellcheck source=tests/tools/common.sh
. "$(dirname "$0")/common.sh"
launcher=$1
program=$2

case $launcher in
torchrun)
    for python in .venv/bin/python python3; do
        command -v "$python" >/dev/null && "$python" -c 'import torch.distributed.run' 2>/dev/null && break
        python=
    done
    [[ -n $python ]] || { echo "SKIPPED: no PyTorch here"; exit 77; }
    command=("$python" -m torch.distributed.run --no-python --standalone --nproc-per-node 2)
    ;;
*)
    command -v "$launcher" >/dev/null || { echo "SKIPPED: no $launcher here"; exit 77; }
    command=("$launcher" -n 2)
    if [[ $launcher == *openmpi ]]; then
        command=("$launcher" --allow-run-as-root --oversubscribe -n 2)
    fi
    ;;
esac
status 0 "${command[@]}" "$program"
out 'rank 0 of 2: 2 4 6 8'
out 'rank 1 of 2: 2 4 6 8'
finish
