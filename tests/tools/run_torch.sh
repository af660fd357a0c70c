#!/bin/bash
# PyTorch's ranks under tutti run: its env:// meets at the launcher's store.
# shellcheck source=tests/tools/common.sh
. "$(dirname "$0")/common.sh"
tutti=$1

for python in .venv/bin/python python3; do
    command -v "$python" >/dev/null && "$python" -c 'import torch.distributed' 2>/dev/null && break
    python=
done
[[ -n $python ]] || { echo "SKIPPED: no PyTorch here"; exit 77; }
cat >"$work/ranks.py" <<'PYTHON'
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="env://")
x = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(x)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {x.item():g}", flush=True)
dist.destroy_process_group()
PYTHON
# Python writes a line and its end apart: --tag keeps the ranks' lines whole.
status 0 "$tutti" run --tag -n 3 "$python" "$work/ranks.py"
for rank in 0 1 2; do
    out "^\\[$rank\\] rank $rank of 3: 6$"
done
finish
