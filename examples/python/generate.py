# SPDX-License-Identifier: MIT
"""A language model of transformers, tensor parallel by tp_plan="auto", on the backends of torch.distributed.

    tutti run -n 2 python generate.py      # or torchrun --nproc-per-node 2

A small random Llama generates tokens by Tutti and by NCCL (on CPUs by Gloo) in turns: the same tokens. Needs transformers
5.17 and accelerate. A program with one backend calls dist.init_process_group("tutti"), and passes no device_mesh.
"""

import argparse
import json
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig
from transformers.utils import logging

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--tokens", type=int, default=48, help="tokens to generate: 48")
parser.add_argument("--rounds", type=int, help="turns of each backend: 5, on CPUs 1")
parser.add_argument("--json", help="a file for the results")
given = parser.parse_args()
rounds = given.rounds or (5 if given.device == "cuda" else 1)
logging.disable_progress_bar()
if given.device == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))

models = {}
with tempfile.TemporaryDirectory() as folder:
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(
        vocab_size=1024, hidden_size=512, intermediate_size=1408, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, bos_token_id=None, eos_token_id=None)).save_pretrained(folder)  # in a group rank 0 alone writes
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    for backend in "nccl" if given.device == "cuda" else "gloo", "tutti":
        mesh = DeviceMesh.from_group(dist.new_group(backend=backend), given.device)
        models[backend] = AutoModelForCausalLM.from_pretrained(
            folder, device_mesh=mesh, distributed_config=DistributedConfig(tp_size=size, tp_plan="auto"))

prompt = torch.arange(8, device=given.device).unsqueeze(0)
times, tokens = {backend: [] for backend in models}, {}
for turn in range(rounds + 1):
    for backend, model in models.items():
        dist.barrier()
        start = time.perf_counter()
        tokens[backend] = model.generate(prompt, max_new_tokens=given.tokens, do_sample=False).tolist()[0]
        if turn:  # the first one warms up
            times[backend].append(time.perf_counter() - start)
theirs, ours = tokens.values()
assert len(ours) == prompt.numel() + given.tokens
assert ours == theirs or size > 2, f"the tokens differ: {tokens}"  # more ranks have several orders of additions
if rank == 0:
    row = {"ranks": size, "tokens": given.tokens, "unit": "s", "same": ours == theirs,
           **{backend: round(statistics.median(found), 4) for backend, found in times.items()}}
    print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump({"device": torch.cuda.get_device_name() if given.device == "cuda" else "CPU",
                       "torch": torch.__version__, "rows": [row]}, file)
            file.write("\n")
dist.barrier()
dist.destroy_process_group()
