"""The field peer of `cairn bench islands`: DiLoCo as published (arXiv:2311.08105) in plain PyTorch over torch.distributed with Gloo, on the
model, the weights, the samples and the optimizer settings of Cairn's run, so that losses start equal. With --ddp gradients are averaged at
every step instead.

    python diloco_gloo.py FOLDER --out curve.jsonl [--ddp] [--links 50ms,100Mbit]

FOLDER holds config.json and model.safetensors (a snapshot of Cairn's), settings.json, and train.bin and held_out.bin: int32, for each
sample its tokens and then its targets, in the order of steps and islands.

Links are a model, since a bench may not shape the machine's network: before each all-reduce every process waits for as long as a ring over
such links takes. The ring passes 2 (n - 1) pieces of bytes / n, each after the latency:

    seconds = 2 (n - 1) (latency + bytes / n / bandwidth)

The wait is idle (a sleep), as waiting for a network is; nothing is computed meanwhile, as in the published form of both methods. `bytes` is
what that ring sends over all processes, 2 (n - 1) bytes: Gloo keeps no book of its own.

Prints, and writes to --out, a line of JSON for each evaluation: step, loss (mean of the last batch over the processes), eval_loss of the
model that all share, seconds since the first step (evaluation included, as in Cairn's metrics), and waited_s and bytes so far. Step 0 is
before training.
"""
import argparse
import json
import os
import struct
import sys
import tempfile
import time

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F


def read_safetensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        body = file.read()
    header.pop("__metadata__", None)
    tensors = {}
    for name, about in header.items():
        assert about["dtype"] == "F32", f"{name} is {about['dtype']}, expected F32"
        begin, end = about["data_offsets"]
        tensors[name] = torch.from_numpy(numpy.frombuffer(body[begin:end], dtype=numpy.float32).copy()).view(about["shape"])
    return tensors


class Decoder(torch.nn.Module):
    """Llama with a tied head: RMSNorm, rotary positions, SwiGLU. Parameters have Hugging Face names, dots as underscores."""

    def __init__(self, config, tensors):
        super().__init__()
        self.c = config
        assert config["tie_word_embeddings"], "written for a tied head"
        self.names = {name: name.replace(".", "_") for name in tensors}
        for name, tensor in tensors.items():
            self.register_parameter(self.names[name], torch.nn.Parameter(tensor.clone()))
        dim = config["head_dim"]
        angle = torch.outer(torch.arange(config["max_position_embeddings"]).double(), config["rope_theta"] ** (-torch.arange(0, dim, 2).double() / dim))
        self.cos, self.sin = angle.cos().float(), angle.sin().float()

    def weight(self, name):
        return getattr(self, self.names[name])

    def norm(self, x, name):
        return F.rms_norm(x, (x.shape[-1],), self.weight(name), self.c["rms_norm_eps"])

    def rotate(self, x):
        a, b = x.chunk(2, -1)
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, tokens):
        c = self.c
        batch, length = tokens.shape
        x = F.embedding(tokens, self.weight("model.embed_tokens.weight"))
        for i in range(c["num_hidden_layers"]):
            at = f"model.layers.{i}."
            linear = lambda y, name: F.linear(y, self.weight(at + name + ".weight"))
            heads = lambda y, count: y.view(batch, length, count, c["head_dim"]).transpose(1, 2)
            h = self.norm(x, at + "input_layernorm.weight")
            q = self.rotate(heads(linear(h, "self_attn.q_proj"), c["num_attention_heads"]))
            k = self.rotate(heads(linear(h, "self_attn.k_proj"), c["num_key_value_heads"]))
            v = heads(linear(h, "self_attn.v_proj"), c["num_key_value_heads"])
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=c["num_attention_heads"] != c["num_key_value_heads"])
            x = x + linear(mixed.transpose(1, 2).reshape(batch, length, -1), "self_attn.o_proj")
            h = self.norm(x, at + "post_attention_layernorm.weight")
            x = x + linear(F.silu(linear(h, "mlp.gate_proj")) * linear(h, "mlp.up_proj"), "mlp.down_proj")
        return F.linear(self.norm(x, "model.norm.weight"), self.weight("model.embed_tokens.weight"))

    def loss(self, samples):  # [samples, 2, length]
        return F.cross_entropy(self(samples[:, 0]).flatten(0, 1), samples[:, 1].flatten())


class Ring:
    """Means over all processes by Gloo, after the time that the modelled links take."""

    def __init__(self, ranks, links):
        self.ranks, self.links, self.bytes, self.waited_s = ranks, links, 0, 0.0

    def mean(self, tensors):
        flat = torch.cat([t.reshape(-1) for t in tensors])
        if self.links and self.ranks > 1:
            latency_s, bytes_per_s = self.links
            seconds = 2 * (self.ranks - 1) * (latency_s + flat.numel() * 4 / self.ranks / bytes_per_s)
            dist.barrier()  # a ring begins when the last one is there
            time.sleep(seconds)
            self.waited_s += seconds
        dist.all_reduce(flat)
        self.bytes += 2 * (self.ranks - 1) * flat.numel() * 4
        flat /= self.ranks
        offset = 0
        for t in tensors:
            t.copy_(flat[offset : offset + t.numel()].view_as(t))
            offset += t.numel()


def parse_links(text):
    """50ms,100Mbit: latency in seconds and bytes per second."""
    if not text:
        return None
    latency, bandwidth = text.split(",")
    assert latency.endswith("ms") and bandwidth.endswith("Mbit"), f"--links {text}: expected like 50ms,100Mbit"
    return float(latency[:-2]) / 1e3, float(bandwidth[:-4]) * 1e6 / 8


def worker(rank, ranks, place, o):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=rank, world_size=ranks)
    s = json.load(open(f"{o.folder}/settings.json"))
    model = Decoder(json.load(open(f"{o.folder}/config.json")), read_safetensors(f"{o.folder}/model.safetensors"))
    samples = lambda name: torch.from_numpy(numpy.fromfile(f"{o.folder}/{name}.bin", dtype=numpy.int32)).long().view(-1, 2, s["length"])
    train, held_out = samples("train"), samples("held_out")
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": s["weight_decay"]},
              {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]
    inner = torch.optim.AdamW(groups, lr=s["learning_rate"], betas=(s["beta1"], s["beta2"]), eps=s["eps"], fused=True)
    anchor = [torch.nn.Parameter(p.detach().clone()) for p in parameters]
    outer = torch.optim.SGD(anchor, lr=o.outer_lr, momentum=o.outer_momentum, nesterov=True)
    ring = Ring(ranks, parse_links(o.links))
    share = s["global_batch"] // ranks
    out = open(o.out, "w") if rank == 0 else None
    begun = None

    @torch.no_grad()
    def report(step, loss):
        own = [p.detach().clone() for p in parameters]
        if not o.ddp:
            for p, a in zip(parameters, anchor):
                p.copy_(a)
        held = model.loss(held_out).item()
        for p, saved in zip(parameters, own):
            p.copy_(saved)
        losses = torch.tensor([loss], dtype=torch.float64)
        dist.all_reduce(losses)
        if rank == 0:
            line = json.dumps({"step": step, "loss": losses.item() / ranks, "eval_loss": held, "seconds": time.perf_counter() - begun if begun else 0.0,
                               "waited_s": ring.waited_s, "bytes": ring.bytes})
            print(line, flush=True)
            print(line, file=out, flush=True)

    with torch.no_grad():
        report(0, model.loss(train[rank * share : (rank + 1) * share]).item())
    dist.barrier()
    begun = time.perf_counter()
    for step in range(1, s["steps"] + 1):
        for group in inner.param_groups:
            group["lr"] = s["learning_rate"] * min(1.0, step / max(1, s["warmup_steps"]))
        first = (step - 1) * s["global_batch"] + rank * share
        loss = model.loss(train[first : first + share])
        inner.zero_grad(set_to_none=True)
        loss.backward()
        with torch.no_grad():
            if o.ddp:
                ring.mean([p.grad for p in parameters])
            torch.nn.utils.clip_grad_norm_(parameters, s["clip"])
            inner.step()
            if not o.ddp and step % o.every == 0:
                for p, a in zip(parameters, anchor):
                    a.grad = a.detach() - p
                ring.mean([a.grad for a in anchor])
                outer.step()
                for p, a in zip(parameters, anchor):
                    p.copy_(a)
        if step % s["eval_every"] == 0 or step == s["steps"]:
            report(step, loss.item())
    dist.destroy_process_group()


def main():
    parse = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parse.add_argument("folder")
    parse.add_argument("--out", required=True, help="JSON lines")
    parse.add_argument("--ddp", action="store_true", help="average gradients at every step")
    parse.add_argument("--links", default="", help="like 50ms,100Mbit; empty: as fast as the machine is")
    parse.add_argument("--ranks", type=int, default=4)
    parse.add_argument("--every", type=int, default=30, help="inner steps of a round")
    parse.add_argument("--outer-lr", type=float, default=0.7)
    parse.add_argument("--outer-momentum", type=float, default=0.9)
    options = parse.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as place:
        mp.spawn(worker, args=(options.ranks, place, options), nprocs=options.ranks)


if __name__ == "__main__":
    sys.exit(main())
