#!/usr/bin/env python3
"""Whether Cairn and `transformers` agree about vision transformers.

    python -m pip install torch transformers numpy
    python tools/check_pictures.py --cairn build/release/cairn

Opens directories of `transformers` as models to start from and compares losses; trains, and opens the snapshot with `transformers`.
"""
import argparse
import json
import pathlib
import random
import subprocess
import tempfile

import numpy
import torch
import transformers

COUNT, HELD = 16, 24


def run(*command):
    ended = subprocess.run([str(one) for one in command], capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{ended.stdout}{ended.stderr}")


def build(dice):
    heads, width, patch = dice.choice([1, 2, 3]), dice.choice([4, 8]), dice.choice([2, 4])
    config = transformers.ViTConfig(hidden_size=heads * width, num_hidden_layers=dice.choice([1, 3]), num_attention_heads=heads,
                                    intermediate_size=dice.choice([12, 20]), image_size=patch * dice.choice([1, 3]), patch_size=patch,
                                    num_channels=dice.choice([1, 3]), qkv_bias=dice.random() < 0.7, num_labels=5,
                                    layer_norm_eps=dice.choice([1e-12, 1e-5]), initializer_range=0.2)
    model = transformers.ViTForImageClassification(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name or "token" in name or "position" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def losses(model, pixels, labels):
    with torch.no_grad():
        logits = model(pixels).logits
    return torch.nn.functional.cross_entropy(logits, labels).item(), (logits.argmax(1) == labels).double().mean().item()


def check(program, case, folder):
    dice = random.Random(case)
    torch.manual_seed(case)
    model = build(dice)
    config = model.config
    model.save_pretrained(folder / "model")
    data = folder / "data"
    data.mkdir()
    numpy.random.seed(case)
    for prefix, count in [("", COUNT), ("test_", HELD)]:
        pixels = numpy.random.randn(count, config.image_size, config.image_size, config.num_channels).astype("float32")
        numpy.save(data / f"{prefix}images.npy", pixels)
        numpy.save(data / f"{prefix}labels.npy", numpy.arange(count) % 5)
    held = torch.tensor(pixels).permute(0, 3, 1, 2).contiguous()
    labels = torch.arange(HELD) % 5

    def train(source, out, rate):
        sets = [f"data.path={data}", "data.kind=images", f"model.from={source}", "train.steps=2", "train.global_batch=8", "eval.every=2",
                f"optim.learning_rate={rate}", "snapshot.every=2", "log.tensorboard=false", "log.trace=false"]
        (folder / "empty.toml").write_text("")
        run(program, "train", folder / "empty.toml", "--out", out, *[part for one in sets for part in ("--set", one)])
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        found = [row for row in rows if "eval_loss" in row][-1]
        return found["eval_loss"], found["eval_accuracy"]

    worst = 0
    here, there = train(folder / "model", folder / "same", 0), losses(model, held, labels)
    worst = max(worst, abs(here[0] - there[0]), abs(here[1] - there[1]))
    here = train(folder / "model", folder / "moved", 0.01)
    snapshot = folder / "moved" / "snapshots" / "step-00000002"
    opened = transformers.ViTForImageClassification.from_pretrained(snapshot).float().eval()
    transformers.ViTImageProcessor.from_pretrained(snapshot)
    there = losses(opened, held, labels)
    return max(worst, abs(here[0] - there[0]), abs(here[1] - there[1]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cairn", default="build/release/cairn")
    parser.add_argument("--cases", type=int, default=6)
    a = parser.parse_args()
    worst = 0
    for case in range(a.cases):
        with tempfile.TemporaryDirectory() as folder:
            apart = check(a.cairn, case, pathlib.Path(folder))
        print(f"case {case}: largest difference of loss and accuracy {apart:.1e}")
        worst = max(worst, apart)
    raise SystemExit(worst > 1e-4)


if __name__ == "__main__":
    main()
