"""The peer of `cairn bench train-cpu`: the same Llama-style model in PyTorch, eager or compiled, on the same tokens, with the same batch and
optimizer. Samples hold several documents: attention stays within each (a mask), positions begin anew, and no document's first token is
asked for.

Prints one JSON object: seconds from the start of this process to the start of step 1, and the seconds and loss of each step.
"""
import json
import os
import sys
import time

import numpy
import torch
import torch.nn.functional as F


def process_age():
    with open("/proc/self/stat") as stat:
        started = int(stat.read().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


class Norm(torch.nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def linear(inputs, outputs, deviation):
    layer = torch.nn.Linear(inputs, outputs, bias=False)
    torch.nn.init.normal_(layer.weight, std=deviation)
    return layer


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Layer(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        small = 0.02 / (2 * c["layers"]) ** 0.5
        q, kv = c["heads"] * c["head_dim"], c["kv_heads"] * c["head_dim"]
        self.norm1, self.norm2 = Norm(c["embed"], 1e-5), Norm(c["embed"], 1e-5)
        self.qkv = linear(c["embed"], q + 2 * kv, 0.02)
        self.out = linear(q, c["embed"], small)
        self.gate_up = linear(c["embed"], 2 * c["mlp"], 0.02)
        self.down = linear(c["mlp"], c["embed"], small)

    def forward(self, x, cos, sin, mask):
        c = self.c
        batch, length, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, -1, c["head_dim"]).transpose(1, 2)
        q, k, v = heads.split((c["heads"], c["kv_heads"], c["kv_heads"]), dim=1)
        mixed = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, attn_mask=mask, enable_gqa=c["heads"] != c["kv_heads"])
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        self.table = torch.nn.Embedding(c["vocab"], c["embed"])
        torch.nn.init.normal_(self.table.weight, std=0.02)
        self.layers = torch.nn.ModuleList(Layer(c) for _ in range(c["layers"]))
        self.norm = Norm(c["embed"], 1e-5)
        self.head = linear(c["embed"], c["vocab"], 0.02)
        angle = torch.outer(torch.arange(c["length"]).double(), 10000 ** (-torch.arange(0, c["head_dim"], 2).double() / c["head_dim"]))
        self.cos, self.sin = angle.cos().float(), angle.sin().float()

    def forward(self, tokens, positions, mask):
        x = self.table(tokens)
        cos, sin = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.head(self.norm(x))


def places(tokens, end_of_text):
    """Document and position of each token of the samples [batch, length], and who sees whom [batch, 1, length, length]."""
    begins = torch.zeros_like(tokens)
    begins[:, 1:] = tokens[:, :-1] == end_of_text
    documents = begins.cumsum(1)
    index = torch.arange(tokens.shape[1]).expand_as(tokens)
    positions = index - torch.where(begins.bool(), index, 0).cummax(1).values
    causal = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
    return positions, (causal & (documents.unsqueeze(2) == documents.unsqueeze(1))).unsqueeze(1)


def main():
    c = json.loads(sys.argv[1])
    torch.set_num_threads(c["threads"])
    torch.manual_seed(1)
    tokens = torch.from_numpy(numpy.fromfile(c["tokens"], dtype=numpy.int32)).long()
    model = Llama(c)
    run = torch.compile(model) if c["compiled"] else model
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.95), fused=True)
    windows = (tokens.numel() - 1) // c["length"]
    order = torch.randperm(windows)
    result = {"to_first_step": process_age(), "parameters": sum(p.numel() for p in model.parameters()), "seconds": [], "losses": []}
    for step in range(c["steps"]):
        began = time.perf_counter()
        rows = [order[(step * c["batch"] + i) % windows].item() * c["length"] for i in range(c["batch"])]
        inputs = torch.stack([tokens[r:r + c["length"]] for r in rows])
        targets = torch.stack([tokens[r + 1:r + 1 + c["length"]] for r in rows])
        targets[inputs == c["end_of_text"]] = -100
        loss = F.cross_entropy(run(inputs, *places(inputs, c["end_of_text"])).view(-1, c["vocab"]), targets.view(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        result["losses"].append(loss.item())
        result["seconds"].append(time.perf_counter() - began)
    print(json.dumps(result))


main()
