#!/usr/bin/env python3
"""A developers' check of fine-tuning against `transformers`; not part of `./cairn test`.

  tune   a base model is tuned on conversations with adapters (`cairn train`) and exported merged (`cairn snapshot export`); on N prompts,
         written by the exported chat template, `transformers`, `cairn generate` and `cairn chat` give the same greedy tokens and end at the same token;
  mask   for templates with {% generation %} marks, ids and loss mask of a conversation in `cairn data tokenize` are those of
         apply_chat_template(..., return_assistant_tokens_mask=True).

    python3 -m venv venv && venv/bin/pip install torch transformers jinja2
    venv/bin/python tools/check_finetune.py --cairn build/release/cairn [--base DIR] [--data FILE.jsonl] [--steps 60] [--prompts 10] [--set KEY=VALUE]

Without --data it makes conversations up; without --base it trains a small model on them first. Exits with 1 if
anything differs.
"""
import argparse
import json
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers

LLAMA3_LIKE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n\\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] | trim + '<|im_end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n\\n' }}{% endif %}")


def cairn(*words, **more):
    result = subprocess.run([a.cairn, *map(str, words)], capture_output=True, text=True, errors="replace", **more)
    if result.returncode != 0:
        raise SystemExit(f"cairn {' '.join(map(str, words))}: exit code {result.returncode}: {result.stderr}")
    return result.stdout


def made_up_talks(count):
    """Conversations of one or two turns, in every form that Cairn reads."""
    dice = random.Random(1)
    names, things = ["Lily", "Tom", "Ben", "Anna", "Max", "Zoe", "Sam", "Mia", "Leo", "Eva", "Finn", "Ida", "Kai", "Ruth"], ["ball", "kite", "cat", "hat", "boat", "drum"]
    for i in range(count):
        name, thing = dice.choice(names), dice.choice(things)
        asked, said = f"What did {name} find?", f"{name} found a {thing}. It was a good {thing}!"
        yield [{"instruction": "Tell what was found.", "input": name, "output": said},
               {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]},
               {"conversations": [{"from": "system", "value": "Be brief."}, {"from": "human", "value": asked},
                                  {"from": "gpt", "value": said}, {"from": "human", "value": "And then?"},
                                  {"from": "gpt", "value": f"Then {name} went home."}]}][i % 3]


def messages_of(record):
    """A record as messages, or nothing where it is no conversation."""
    roles = {"human": "user", "gpt": "assistant"}
    if "messages" in record:
        return record["messages"]
    if "conversations" in record:
        return [{"role": roles.get(one["from"], one["from"]), "content": one["value"]} for one in record["conversations"]]
    if "instruction" in record:
        asked = record["instruction"] + ("\n\n" + record["input"] if record.get("input") else "")
        return [{"role": "user", "content": asked}, {"role": "assistant", "content": record["output"]}]
    return None


def read_shard(path):
    """The documents of a token shard (docs/reference/files.md): lists of (id, is a target)."""
    data = Path(path).read_bytes()
    tokens, documents, words, width = struct.unpack("<4Q", data[-88:-56])
    ids = struct.unpack(f"<{tokens}{'H' if width == 2 else 'I'}", data[8:8 + tokens * width])
    at = 8 + (tokens * width + 7) // 8 * 8
    begins = list(struct.unpack(f"<{documents}Q", data[at:at + 8 * documents])) + [tokens]
    at += 8 * documents
    bits = struct.unpack(f"<{words}Q", data[at:at + 8 * words])
    asked = [bool(bits[i // 64] >> (i % 64) & 1) if words else True for i in range(tokens)]
    return [list(zip(ids[x:y], asked[x:y])) for x, y in zip(begins, begins[1:])]


def check_tune(scratch, base, data):
    run, merged = scratch / "tuned", scratch / "merged"
    cairn("train", "--out", run, "--set", f"model.from={base}", "--set", "model.lora.rank=8", "--set", f"data.path={data}",
          "--set", 'model.lora.targets=["q_proj", "v_proj", "down_proj"]', "--set", "data.packing=documents", "--set", f"data.length={a.length}",
          "--set", f"train.steps={a.steps}", "--set", "train.global_batch=8", "--set", "optim.learning_rate=0.01", "--set", "optim.warmup_steps=5",
          "--set", f"data.template={a.template}", "--set", "log.samples=0", "--set", "eval.every=0",
          *[word for one in a.set for word in ("--set", one)])
    cairn("snapshot", "export", run, "--out", merged)
    tokenizer = transformers.AutoTokenizer.from_pretrained(merged)
    model = transformers.AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32).eval()
    prompts = []
    for line in Path(data).read_text().splitlines():
        chat = messages_of(json.loads(line))
        if chat and chat[0]["role"] == "user" and "\n" not in chat[0]["content"] and chat[0]["content"] not in prompts:
            prompts.append(chat[0]["content"])
    wrong, ended = 0, 0
    for prompt in prompts[:a.prompts]:
        ids = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=True)["input_ids"]
        with torch.inference_mode():
            theirs = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), do_sample=False,
                                    max_new_tokens=a.tokens)[0, len(ids):].tolist()
        ours = json.loads(cairn("generate", merged, "--ids", ",".join(map(str, ids)), "--greedy", "--tokens", a.tokens, "--json"))
        stops = model.generation_config.eos_token_id
        stops = stops if isinstance(stops, list) else [stops]
        complete = bool(theirs) and theirs[-1] in stops
        ended += complete
        said = cairn("chat", merged, "--temperature", "0", "--tokens", a.tokens, input=prompt + "\n")
        expected = tokenizer.decode(theirs[:-1] if complete else theirs)
        same = (theirs[:-1] if complete else theirs) == ours["ids"] and complete == (ours["stopped"] == "end_of_text")
        wrong += not same or said.strip() != expected.strip()
        if not same or said.strip() != expected.strip():
            print(f"NOT THE SAME: {prompt!r}\n  transformers {theirs}\n  generate     {ours['ids']} ({ours['stopped']})\n  chat         {said!r}")
    count = min(a.prompts, len(prompts))
    print(f"tune: {count} prompts, {count - wrong} answered with the same greedy tokens by transformers {transformers.__version__} and Cairn, "
          f"{ended} of them complete (eos_token_id {model.generation_config.eos_token_id})")
    return wrong


def check_mask(scratch, folder, name, template, data):
    """`folder` holds the tokenizer; the template takes the place of its own."""
    place = scratch / f"mask-{name}"
    place.mkdir()
    shutil.copy(folder / "tokenizer.json", place)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    if template:
        config["chat_template"] = template
    (place / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    cairn("data", "tokenize", data, "--tokenizer", place, "--set", "data.template=model", "--out", place / "chats.tokens")
    chats = [chat for chat in map(messages_of, map(json.loads, Path(data).read_text().splitlines())) if chat]
    wrong = targets = 0
    documents = read_shard(place / "chats.tokens")
    if len(documents) != len(chats):
        raise SystemExit(f"{len(documents)} documents for {len(chats)} conversations")
    for chat, ours in zip(chats, documents):
        theirs = tokenizer.apply_chat_template(chat, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        expected = list(zip(theirs["input_ids"], map(bool, theirs["assistant_masks"])))
        targets += sum(theirs["assistant_masks"])
        if ours[:len(expected)] != expected or any(asked for _, asked in ours[len(expected):]) or len(ours) > len(expected) + 1:
            wrong += 1
            if wrong == 1:
                print(f"NOT THE SAME: {chat}\n  transformers {expected}\n  cairn        {ours}")
    print(f"mask: {name}: {len(chats)} conversations, {len(chats) - wrong} with the same ids and mask ({targets} tokens asked for)")
    return wrong + (targets == 0)


parser = argparse.ArgumentParser()
parser.add_argument("--cairn", default="./cairn")
parser.add_argument("--base")
parser.add_argument("--data")
parser.add_argument("--template", default="auto")
parser.add_argument("--set", action="append", default=[], help="a key of the tuning recipe")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--length", type=int, default=128)
parser.add_argument("--prompts", type=int, default=10)
parser.add_argument("--tokens", type=int, default=60)
a = parser.parse_args()

with tempfile.TemporaryDirectory() as where:
    scratch = Path(where)
    data = Path(a.data) if a.data else scratch / "chats.jsonl"
    if not a.data:
        data.write_text("".join(json.dumps(chat) + "\n" for chat in made_up_talks(60)))
    base = a.base
    if not base:  # its tokenizer is learned from conversations, so it has the marks of chatml
        base = scratch / "base"
        cairn("train", "--out", base, "--set", "train.steps=40", "--set", f"data.path={data}", "--set", "data.vocab=400", "--set", "data.packing=documents",
              "--set", f"data.length={a.length}", "--set", "train.global_batch=8", "--set", "log.samples=0", "--set", "eval.every=0")
    wrong = check_tune(scratch, base, data)
    merged = scratch / "merged"
    config = json.loads((merged / "tokenizer_config.json").read_text())
    has_marks = json.loads((merged / "tokenizer.json").read_text())["added_tokens"]
    if "{% generation %}" in config.get("chat_template", ""):
        wrong += check_mask(scratch, merged, "own", None, data)
    if any(one["content"] == "<|im_start|>" for one in has_marks):
        wrong += check_mask(scratch, merged, "llama3-like", LLAMA3_LIKE, data)
sys.exit(1 if wrong else 0)
