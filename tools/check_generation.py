#!/usr/bin/env python3
"""Checks `cairn generate --greedy` against `transformers` on a Hugging Face directory: the same ids, log-probabilities to 1e-4.

Needs `pip install torch transformers`. Usage: tools/check_generation.py DIR [--cairn PATH] [--tokens N] [--prompt TEXT ...]
Unequal prompts are continued by Cairn together and by transformers one by one.
"""

import argparse
import json
import subprocess
import sys
import tempfile

import torch
import transformers

parser = argparse.ArgumentParser()
parser.add_argument("directory")
parser.add_argument("--cairn", default="./cairn")
parser.add_argument("--tokens", type=int, default=200)
parser.add_argument("--repetition-penalty", type=float, default=1.0)
parser.add_argument("--prompt", nargs="*", default=["Once upon a time", "One day, Lily", "The dog"])
a = parser.parse_args()

with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
    file.write("".join(prompt + "\n" for prompt in a.prompt))
    file.flush()
    said = subprocess.run([a.cairn, "generate", a.directory, "--prompt-file", file.name, "--tokens", str(a.tokens), "--greedy", "--json",
                           "--repetition-penalty", str(a.repetition_penalty)], capture_output=True, text=True, check=True).stdout
ours = [json.loads(line) for line in said.splitlines()]

model = transformers.AutoModelForCausalLM.from_pretrained(a.directory, dtype=torch.float32).eval()
wrong = 0
for one in ours:
    prompt = torch.tensor([one["prompt_ids"]])
    with torch.inference_mode():
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=a.tokens, do_sample=False, pad_token_id=0,
                             repetition_penalty=a.repetition_penalty, output_logits=True, return_dict_in_generate=True)
    theirs = out.sequences[0, prompt.shape[1]:].tolist()
    chances = [torch.log_softmax(logits[0].double(), -1)[id].item() for logits, id in zip(out.logits, theirs)]
    if one["stopped"] == "end_of_text":
        theirs = theirs[:-1]
    same = theirs == one["ids"]
    gap = max((abs(x - y) for x, y in zip(chances, one["log_probabilities"])), default=0)
    print(f"{one['prompt']!r}: {len(theirs)} tokens, {'the same' if same else 'NOT THE SAME'}, log-probabilities within {gap:.1e}")
    wrong += not same or gap > 1e-4
sys.exit(1 if wrong else 0)
