#!/usr/bin/env python3
"""Checks `cairn eval` against `transformers` on a small random Llama: loss of texts in chunks and in sliding windows, the log-likelihood of
every choice, and greedy answers, to 1e-4.

Needs `pip install torch transformers tokenizers`. Usage: tools/check_eval.py [--cairn PATH]
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile

import tokenizers
import torch
import transformers

parser = argparse.ArgumentParser()
parser.add_argument("--cairn", default="./cairn")
parser.add_argument("--seed", type=int, default=1)
a = parser.parse_args()
draw = random.Random(a.seed)
torch.manual_seed(a.seed)
WORDS = "the a one dog cat went home to sleep and then it was happy red blue small house über naïve, . ! river song".split()
LENGTH = 48


def sentence(words):
    return " ".join(draw.choice(WORDS) for _ in range(words))


def make_model(folder):
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator([sentence(50) for _ in range(50)], trainer)
    bpe.post_processor = tokenizers.processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    bpe.save(os.path.join(folder, "tokenizer.json"))
    config = transformers.LlamaConfig(vocab_size=bpe.get_vocab_size(), hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, max_position_embeddings=LENGTH, bos_token_id=0, eos_token_id=0, initializer_range=0.3)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    return model, bpe


def losses(model, ids):
    """-log p of ids[1:], one sequence by itself."""
    with torch.inference_mode():
        logs = torch.log_softmax(model(torch.tensor([ids[:-1]])).logits[0].double(), -1)
    return [-logs[i, id].item() for i, id in enumerate(ids[1:])]


def text_loss(model, bpe, texts, window, stride):
    total, tokens = 0.0, 0
    for text in texts:
        ids = bpe.encode(text).ids  # begins with <|endoftext|>, which the post-processor adds
        first, done = 0, 1
        while done < len(ids):
            end = min(len(ids), first + window + 1)
            total += sum(losses(model, ids[first:end])[done - first - 1:])
            tokens += end - done
            first, done = first + stride, end
    return total, tokens


def cairn(*arguments):
    said = subprocess.run([a.cairn, "eval", *arguments, "--json"], capture_output=True, text=True, check=True)
    return json.loads(said.stdout)["results"]


wrong = 0


def compare(name, ours, theirs, bound=1e-4):
    global wrong
    gap = max(abs(x - y) for x, y in zip(ours, theirs, strict=True))
    print(f"{name}: {len(ours)} numbers within {gap:.1e}{'' if gap <= bound else '  NOT within ' + str(bound)}")
    wrong += gap > bound


with tempfile.TemporaryDirectory() as folder:
    os.environ["CAIRN_CACHE"] = os.path.join(folder, "cache")
    directory = os.path.join(folder, "model")
    os.mkdir(directory)
    model, bpe = make_model(directory)

    texts = [sentence(n) for n in (1, 3, 40, 120, 7, 300)]
    data = os.path.join(folder, "texts.jsonl")
    with open(data, "w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    for window, stride in ((LENGTH, LENGTH), (LENGTH, 16), (20, 7)):
        one = cairn(directory, "--data", data, "--window", str(window), "--stride", str(stride), "--batch", "3")[0]
        total, tokens = text_loss(model, bpe, texts, window, stride)
        assert one["tokens"] == tokens and one["bytes"] == sum(len(text.encode()) for text in texts), one
        compare(f"texts, windows of {window} every {stride}: loss, perplexity (relative), bits per byte",
                [one["loss"], one["perplexity"] / math.exp(total / tokens), one["bits_per_byte"]],
                [total / tokens, 1, total / math.log(2) / one["bytes"]])

    items = [{"question": sentence(draw.randint(1, 12)), "choices": [sentence(draw.randint(1, 5)) for _ in range(draw.randint(2, 5))], "answer": 0} for _ in range(40)]
    for item in items:
        item["answer"] = draw.randrange(len(item["choices"]))
    tasks, each = os.path.join(folder, "choices.jsonl"), os.path.join(folder, "each.jsonl")
    with open(tasks, "w") as file:
        file.writelines(json.dumps(item) + "\n" for item in items)
    summary = cairn(directory, "--task", "multiple-choice", tasks, "--items", each)[0]
    ours = [json.loads(line) for line in open(each)]
    theirs, picked, picked_norm = [], [], []
    for item in items:
        context = bpe.encode(item["question"]).ids
        scores = []
        for choice in item["choices"]:
            whole = bpe.encode(item["question"] + " " + choice).ids
            scores.append(-sum(losses(model, whole)[len(context) - 1:]))
        theirs += scores
        picked.append(max(range(len(scores)), key=lambda i: scores[i]) == item["answer"])
        picked_norm.append(max(range(len(scores)), key=lambda i: scores[i] / len(item["choices"][i].encode())) == item["answer"])
    compare("choices: log-likelihoods", [score for one in ours for score in one["log_likelihoods"]], theirs)
    count = len(items)
    error = [math.sqrt(m * (1 - m) / (count - 1)) for m in (sum(picked) / count, sum(picked_norm) / count)]
    compare("choices: acc, acc_norm and their standard errors", [summary["acc"], summary["acc_norm"], summary["acc_stderr"], summary["acc_norm_stderr"]],
            [sum(picked) / count, sum(picked_norm) / count, *error], 1e-9)

    prompts = [{"prompt": sentence(draw.randint(1, 8)), "answer": "x"} for _ in range(12)]
    tasks = os.path.join(folder, "answers.jsonl")
    with open(tasks, "w") as file:
        file.writelines(json.dumps(prompt) + "\n" for prompt in prompts)
    cairn(directory, "--task", "exact-match", tasks, "--tokens", "10", "--items", each)
    same = 0
    for prompt, line in zip(prompts, open(each), strict=True):
        ids = torch.tensor([bpe.encode(prompt["prompt"]).ids])
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False, pad_token_id=0)[0, ids.shape[1]:].tolist()
        if 0 in out:
            out = out[:out.index(0)]
        same += bpe.decode(out).split("\n")[0] == json.loads(line)["text"]
    print(f"answers: {same} of {len(prompts)} the same greedy text")
    wrong += same != len(prompts)
sys.exit(1 if wrong else 0)
