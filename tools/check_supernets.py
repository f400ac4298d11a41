#!/usr/bin/env python3
"""Whether `transformers` opens what `cairn supernet export` writes, and computes the same.

    python -m pip install torch transformers numpy
    python tools/check_supernets.py --cairn build/release/cairn

Trains small supernets, exports networks, and compares logits.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

import torch
import transformers

RECIPE = """
[model]
kind = "{kind}"
layers = 3
embed = 32
heads = 4
kv_heads = {kv}
mlp = 64
[data]
length = 32
stories_bytes = 60000
tokenizer = "bytes"
[supernet]
depth = [2, 3]
mlp = [16, 32, 64]
[train]
steps = 30
global_batch = 8
[snapshot]
every = 0
[log]
tensorboard = false
trace = false
"""


def run(*command):
    ended = subprocess.run([str(one) for one in command], capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def check_decoder(program, kind, folder):
    (folder / "recipe.toml").write_text(RECIPE.format(kind=kind, kv=4 if kind == "gpt2" else 2))
    run(program, "train", folder / "recipe.toml", "--out", folder / "run")
    worst = 0
    for subnet in ["2:16", "3:32", "2:64"]:
        out = folder / subnet.replace(":", "-")
        run(program, "supernet", "export", folder / "run", "--subnet", subnet, "--out", out)
        model = transformers.AutoModelForCausalLM.from_pretrained(out, attn_implementation="eager", dtype=torch.float32).eval()
        ids = [1, 5, 9, 80, 90, 100, 33]
        here = torch.tensor(json.loads(run(program, "logits", out, "--ids", ",".join(map(str, ids))))["logits"], dtype=torch.double)
        with torch.no_grad():
            there = model(torch.tensor([ids])).logits[0].double()
        worst = max(worst, (here - there).abs().max().item())
    return worst


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cairn", default="build/release/cairn")
    program = parser.parse_args().cairn
    failed = False
    for kind in ["llama", "gpt2", "qwen3"]:
        with tempfile.TemporaryDirectory() as folder:
            apart = check_decoder(program, kind, pathlib.Path(folder))
        failed |= apart > 1e-5
        print(f"{kind:8} largest difference of a logit {apart:.1e}")
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
