#!/usr/bin/env python3
"""A developers' check of Cairn's model families against `transformers`; not part of `./cairn test`.

For random small configurations of every family it compares logits both ways:
  in   transformers writes a directory, `cairn logits` reads it;
  out  `cairn snapshot export` writes one from that, transformers reads it and gives the same logits;
  run  `cairn train` starts a model of its own, and transformers opens its snapshot;
  low  the same weights stored as bf16 and fp16;
  stacked  families with experts: one tensor for the matrices of all experts of a layer, as transformers 5 can write them, read, and
       exported from there with one tensor per expert;
  text greedy tokens of `cairn generate` and of transformers;
  peft an adapter that PEFT writes, merged by `cairn snapshot merge`; LoRA, MoS and MoSA (in the style of LoRA) that `cairn train` trains,
       opened by PEFT, with a tolerance of their own.

    python3 -m venv venv && venv/bin/pip install torch==2.11.0 transformers==5.23.0 peft==0.21.2
    venv/bin/python tools/check_families.py --cairn build/cairn [--seeds 3] [--adapters] [--table]

Exits with 1 if a difference is above its tolerance or a token differs. Prints one line a case, with --table the table of docs/measurements/user-models-*.md.
"""
import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import safetensors
import torch
import transformers

try:
    import peft
except ImportError:  # then adapters are not checked
    peft = None


def cairn(program, *words):
    result = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"cairn {' '.join(map(str, words))}: exit code {result.returncode}: {result.stderr}")
    return result.stdout


def common(dice, heads=(2, 3, 4), widths=(8, 16)):
    """Sizes that every family shares, as Llama names them."""
    count, width = dice.choice(heads), dice.choice(widths)
    return dict(vocab_size=dice.choice([61, 97, 128]), hidden_size=count * width, num_hidden_layers=dice.choice([1, 2, 3]),
                num_attention_heads=count, num_key_value_heads=dice.choice([k for k in range(1, count + 1) if count % k == 0]),
                intermediate_size=dice.choice([24, 40, 65]), max_position_embeddings=64, tie_word_embeddings=dice.random() < 0.5,
                rms_norm_eps=dice.choice([1e-5, 1e-6]), bos_token_id=1, eos_token_id=2, initializer_range=0.15)


SCALINGS = [None,
            dict(rope_type="linear", factor=2.5),
            dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32),
            dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
            dict(rope_type="yarn", factor=3.0, original_max_position_embeddings=20, attention_factor=0.9, beta_fast=20.0, beta_slow=2.0),
            dict(rope_type="dynamic", factor=2.0)]


def llama(dice, case):
    sizes = common(dice)
    sizes["rope_scaling"] = SCALINGS[case % len(SCALINGS)]
    sizes["rope_theta"] = dice.choice([10000.0, 500000.0])
    sizes["attention_bias"], sizes["mlp_bias"] = dice.random() < 0.5, dice.random() < 0.5
    if dice.random() < 0.5:
        sizes["head_dim"] = 12
    return transformers.LlamaConfig(**sizes)


def mistral(dice, case):
    return transformers.MistralConfig(**common(dice), sliding_window=[None, 7, 48][case % 3], rope_theta=10000.0)


def qwen2(dice, case):
    return transformers.Qwen2Config(**common(dice), use_sliding_window=False, rope_theta=dice.choice([10000.0, 1e6]))


def qwen3(dice, case):
    sizes = common(dice)
    return transformers.Qwen3Config(**sizes, head_dim=dice.choice([8, 20]), attention_bias=case % 2 == 1, rope_theta=1e6)


def gpt2(dice, case):
    heads, width = dice.choice([2, 3, 4]), dice.choice([5, 8, 16])
    return transformers.GPT2Config(vocab_size=97, n_embd=heads * width, n_layer=dice.choice([1, 2, 3]), n_head=heads, n_positions=64,
                                   n_inner=[None, 50][case % 2], bos_token_id=1, eos_token_id=2, initializer_range=0.15,
                                   layer_norm_epsilon=dice.choice([1e-5, 1e-6]), tie_word_embeddings=case % 3 != 2)


def experts(dice):
    """Experts, as Qwen names their keys."""
    count = dice.choice([3, 4, 7, 8])
    return dict(num_experts=count, num_experts_per_tok=dice.choice([k for k in (1, 2, 3) if k < count]))


# Widths of experts are multiples of 4: libtorch's grouped product, which transformers calls, needs rows of whole 16 bytes.


def layers_with_experts(dice, case, layers):
    """Which layers have experts: all, every other one, or all but some."""
    if layers == 1 or case % 3 == 0:
        return {}
    return dict(decoder_sparse_step=2) if case % 3 == 1 else dict(mlp_only_layers=[dice.randrange(layers)])


def mixtral(dice, case):
    sizes, some = {**common(dice), "intermediate_size": dice.choice([24, 40])}, experts(dice)
    return transformers.MixtralConfig(**sizes, num_local_experts=some["num_experts"], num_experts_per_tok=some["num_experts_per_tok"],
                                      sliding_window=[None, 7, 48][case % 3], rope_theta=dice.choice([10000.0, 1e6]))


def qwen2_moe(dice, case):
    sizes = common(dice)
    return transformers.Qwen2MoeConfig(**sizes, **experts(dice), **layers_with_experts(dice, case, sizes["num_hidden_layers"]),
                                       moe_intermediate_size=dice.choice([16, 28]), shared_expert_intermediate_size=dice.choice([9, 32]),
                                       norm_topk_prob=case % 2 == 1, use_sliding_window=False, rope_theta=1e6)


def qwen3_moe(dice, case):
    sizes = common(dice)
    return transformers.Qwen3MoeConfig(**sizes, **experts(dice), **layers_with_experts(dice, case, sizes["num_hidden_layers"]),
                                       moe_intermediate_size=dice.choice([16, 28]), norm_topk_prob=case % 2 == 0,
                                       head_dim=dice.choice([8, 20]), attention_bias=case % 2 == 1, rope_theta=1e6)


def olmoe(dice, case):
    sizes = {**common(dice), **experts(dice), "intermediate_size": dice.choice([24, 40])}
    return transformers.OlmoeConfig(**sizes, norm_topk_prob=case % 2 == 1, attention_bias=case % 3 == 1,
                                    pad_token_id=0, rope_theta=10000.0)


FAMILIES = dict(llama=llama, mistral=mistral, qwen2=qwen2, qwen3=qwen3, gpt2=gpt2, mixtral=mixtral, qwen2_moe=qwen2_moe,
                qwen3_moe=qwen3_moe, olmoe=olmoe)
WITH_EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe")


def build(config):
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():  # biases and gains that do not hide a mistake
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name or ".ln_" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            if name.endswith("gate.weight"):  # routers that choose clearly
                parameter.copy_(torch.randn_like(parameter))
    return model


def logits_there(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double()


def logits_here(program, folder, ids):
    return torch.tensor(json.loads(cairn(program, "logits", folder, "--ids", ",".join(map(str, ids))))["logits"], dtype=torch.double)


def opened(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()


def check_stored_low(program, model, ids, folder, dtype):
    """A file of lower precision is computed in fp32 by both."""
    model.to(dtype).save_pretrained(folder)
    there = logits_there(opened(folder), ids)
    return (logits_here(program, folder, ids) - there).abs().max().item()


def check_stacked(program, model, ids, folder, expected):
    """The layout of transformers 5: the matrices of all experts of a layer are one tensor."""
    model.save_pretrained(folder, save_original_format=False)
    with safetensors.safe_open(folder / "model.safetensors", "pt") as file:
        names = list(file.keys())
    if not any(name.endswith("mlp.experts.gate_up_proj") for name in names):
        raise SystemExit(f"this transformers writes no stacked experts: {names[:5]}")
    read = (logits_here(program, folder, ids) - expected).abs().max().item()
    cairn(program, "snapshot", "export", folder, "--out", folder.with_name("from-stacked"))
    written = (logits_there(opened(folder.with_name("from-stacked")), ids) - expected).abs().max().item()
    return max(read, written), greedy_differences(program, model, ids, folder)


def greedy_differences(program, model, ids, folder, tokens=16):
    """How many of the greedy tokens after a prompt differ. A tie in the logits is not counted."""
    prompt = ids[:8]
    said = json.loads(cairn(program, "generate", folder, "--ids", ",".join(map(str, prompt)), "--tokens", tokens, "--greedy", "--ignore-end",
                            "--json"))["ids"]
    there = list(prompt)
    for id in said:
        logits = logits_there(model, there)[-1]
        if logits.max() - logits[id] > 1e-4:
            return 1
        there.append(id)
    return int(len(said) != tokens)


def check_case(program, family, case, folder):
    dice = random.Random(f"{family} {case}")
    torch.manual_seed(1000 + case)
    config = FAMILIES[family](dice, case)
    model = build(config)
    ids = [dice.randrange(config.vocab_size) for _ in range([41, 64, 17, 1, 33, 2][case % 6])]
    shard = ["100MB", "40KB"][case % 2]
    model.save_pretrained(folder / "theirs", max_shard_size=shard)
    expected = logits_there(model, ids)
    into = (logits_here(program, folder / "theirs", ids) - expected).abs().max().item()
    cairn(program, "snapshot", "export", folder / "theirs", "--out", folder / "ours", *(["--shard-bytes", 40000] if case % 2 else []))
    back = opened(folder / "ours")
    out = (logits_there(back, ids) - expected).abs().max().item()
    sharded = " in shards" if case % 2 else ""
    found = {"read" + sharded: into, "written" + sharded: out, "text": greedy_differences(program, model, ids, folder / "theirs")}
    if family in WITH_EXPERTS:
        found["stacked"], other_text = check_stacked(program, model, ids, folder / "stacked", expected)
        found["text"] = max(found["text"], other_text)
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        found[name] = check_stored_low(program, model, ids, folder / name, dtype)
    return found, expected.abs().max().item(), len(ids)


def train(program, out, *keys):
    sets = ["train.steps=2", "data.length=32", "data.tokenizer=bytes", "data.stories_bytes=20000", "eval.every=0", "log.samples=0", *keys]
    cairn(program, "train", "--out", out, *(word for key in sets for word in ("--set", key)))


def own_experts(family):
    if family not in WITH_EXPERTS:
        return []
    return ["model.moe.experts=6", *(["model.moe.every=2", "model.moe.width=20"] if family.startswith("qwen") else [])]


def check_run(program, family, folder):
    """A model that Cairn itself started: its snapshot opens in transformers and says the same."""
    kv = 4 if family == "gpt2" else 2
    train(program, folder / "run", f"model.kind={family}", f"model.kv_heads={kv}", "model.layers=2", "model.embed=32", "model.mlp=48",
          *own_experts(family))
    snapshot = sorted((folder / "run" / "snapshots").iterdir())[-1]
    ids = [random.Random(5).randrange(257) for _ in range(29)]
    expected = logits_there(opened(snapshot), ids)
    return (logits_here(program, folder / "run", ids) - expected).abs().max().item(), expected.abs().max().item()


# Kinds of adapters that PEFT opens as LoRA, and their keys.
ADAPTERS = {
    "lora": ["model.adapter.rank=3"],
    "mos": ["model.adapter.kind=mos", "model.adapter.rank=4", "model.adapter.equivalent_rank=2", "model.adapter.private_rank=0",
            "model.adapter.shards_per_vector=4"],
    "mosa": ["model.adapter.kind=mosa", "model.adapter.style=lora", "model.adapter.rank=4", "model.adapter.modules=4"],
}


def check_adapter(program, family, folder):
    """PEFT's adapters merged here, and adapters trained here opened there."""
    dice, ids = random.Random(family), [random.Random(9).randrange(61) for _ in range(23)]
    torch.manual_seed(7)
    model = build(FAMILIES[family](dice, 0))
    model.save_pretrained(folder / "base")
    targets = ["c_attn", "c_fc"] if family == "gpt2" else ["q_proj", "v_proj", "o_proj" if family in WITH_EXPERTS else "down_proj"]
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=6, target_modules=targets, init_lora_weights=False,
                                                         fan_in_fan_out=family == "gpt2")).eval()
    adapted.save_pretrained(folder / "adapter")
    cairn(program, "snapshot", "merge", folder / "base", "--adapter", folder / "adapter", "--out", folder / "merged")
    into = (logits_here(program, folder / "merged", ids) - logits_there(adapted, ids)).abs().max().item()

    listed = "[" + ", ".join(f'"{one}"' for one in targets) + "]"
    kv = 4 if family == "gpt2" else 2
    train(program, folder / "first", f"model.kind={family}", f"model.kv_heads={kv}", "model.layers=2", "model.embed=32", "model.mlp=48",
          *own_experts(family))
    cairn(program, "snapshot", "export", folder / "first", "--out", folder / "plain")
    plain = logits_here(program, folder / "plain", ids)
    found = {"adapter read": into}
    for kind, keys in ADAPTERS.items():
        tuned, exported = folder / f"tuned-{kind}", folder / f"peft-{kind}"
        train(program, tuned, f"model.from={folder / 'first'}", f"model.adapter.targets={listed}", "train.steps=8", "optim.learning_rate=0.02",
              *keys)
        cairn(program, "snapshot", "export", tuned, "--out", exported, "--adapter")
        there = peft.PeftModel.from_pretrained(opened(folder / "plain"), exported).eval()
        here = logits_here(program, tuned, ids)
        if (here - plain).abs().max().item() < 0.01:
            raise SystemExit(f"{family}: {kind} hardly moved the logits: this shows nothing")
        found[f"{kind} written"] = (here - logits_there(there, ids)).abs().max().item()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cairn", required=True, help="the program")
    parser.add_argument("--seeds", type=int, default=6, help="configurations of each family")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--adapter-tolerance", type=float, default=1e-5, help="of adapters that were trained here and opened by PEFT")
    parser.add_argument("--adapters", action="store_true", help="only adapters")
    parser.add_argument("--table", action="store_true", help="print the table of docs/measurements/user-models-*.md at the end")
    parser.add_argument("--family", choices=FAMILIES, help="only this one")
    a = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    cells = {}  # the largest difference of each family in each respect

    def note(family, found):
        for name, value in found.items():
            row = cells.setdefault(family, {})
            row[name] = max(row.get(name, 0.0), value)
        return ", ".join(f"{name} {value:.1e}" for name, value in found.items())

    for family in [a.family] if a.family else FAMILIES:
        for case in range(0 if a.adapters else a.seeds):
            with tempfile.TemporaryDirectory() as folder:
                found, size, length = check_case(a.cairn, family, case, Path(folder))
            print(f"{family:8} case {case}: {length:2} tokens, largest logit {size:7.2f}: {note(family, found)}", flush=True)
        if not a.adapters:
            with tempfile.TemporaryDirectory() as folder:
                run, size = check_run(a.cairn, family, Path(folder))
            print(f"{family:8} run    : largest logit {size:7.2f}: {note(family, {'own run': run})}", flush=True)
        if peft is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            adapters = check_adapter(a.cairn, family, Path(folder))
        print(f"{family:8} peft   : {note(family, adapters)}", flush=True)
    if a.table:
        columns = list(dict.fromkeys(name for row in cells.values() for name in row))
        print("\n| | " + " | ".join("greedy text" if name == "text" else name for name in columns) + " |\n|---" * 1 + "|---" * len(columns) + "|")
        for family, row in cells.items():
            shown = ["-" if name not in row else ("same" if row[name] == 0 else "NOT") if name == "text" else f"{row[name]:.0e}" for name in columns]
            print(f"| `{family}` | " + " | ".join(shown) + " |")
        print()
    values = [(name, value) for row in cells.values() for name, value in row.items()]
    above = False
    for what, bound, kept in (("trained adapters", a.adapter_tolerance, [v for n, v in values if n.endswith(" written") and n.split()[0] in ADAPTERS]),
                              ("everything else", a.tolerance, [v for n, v in values if n.split()[0] not in ADAPTERS])):
        if not kept:
            continue
        above |= max(kept) > bound
        print(f"{what}: largest difference {max(kept):.1e}: {'within' if max(kept) <= bound else 'ABOVE'} {bound:.0e}")
    sys.exit(above)


if __name__ == "__main__":
    main()
