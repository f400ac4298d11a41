"""The peer of `cairn bench moe`. With a folder: transformers on the same model directory, batch and threads, AdamW in fp32. With device
cuda: a decoder of Qwen3's form with experts in plain PyTorch, compiled, bf16 weights and moments, libtorch's grouped product.

Prints one JSON object: the tokens of a step and the seconds of each.
"""
import json
import sys
import time

import torch
import torch.nn.functional as F

c = json.loads(sys.argv[1])


def transformers_step():
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(c["threads"])
    model = AutoModelForCausalLM.from_pretrained(c["folder"], dtype=torch.float32)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)

    def step():
        ids = torch.randint(0, model.config.vocab_size, (c["batch"], c["length"]))
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


class Norm(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-5)


def linear(inputs, outputs):
    layer = torch.nn.Linear(inputs, outputs, bias=False)
    torch.nn.init.normal_(layer.weight, std=0.02)
    return layer


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = linear(c["embed"], c["heads"] * c["head_dim"]), linear(c["embed"], c["kv_heads"] * c["head_dim"])
        self.v, self.o = linear(c["embed"], c["kv_heads"] * c["head_dim"]), linear(c["heads"] * c["head_dim"], c["embed"])
        self.q_norm, self.k_norm = Norm(c["head_dim"]), Norm(c["head_dim"])

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        q, k, v = (p(x).view(batch, length, -1, c["head_dim"]) for p in (self.q, self.k, self.v))
        q, k, v = (t.transpose(1, 2) for t in (self.q_norm(q), self.k_norm(k), v))
        mixed = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True)
        return self.o(mixed.transpose(1, 2).reshape(batch, length, -1))


class Experts(torch.nn.Module):
    """top_k of `experts` MLPs, rows sorted by expert, two grouped products; the balancing loss over the whole batch."""

    def __init__(self):
        super().__init__()
        self.router = linear(c["embed"], c["experts"])
        self.gate_up = torch.nn.Parameter(torch.randn(c["experts"], 2 * c["width"], c["embed"]) * 0.02)
        self.down = torch.nn.Parameter(torch.randn(c["experts"], c["embed"], c["width"]) * 0.02)

    def forward(self, x):
        rows = x.flatten(0, 1)
        p = F.linear(rows.float(), self.router.weight.float()).softmax(-1)
        weights, ids = p.topk(c["top_k"], -1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        flat = ids.flatten()
        order = flat.argsort(stable=True)
        ones = torch.ones_like(flat, dtype=torch.int32)
        counts = torch.zeros(c["experts"], device=x.device, dtype=torch.int32).scatter_add_(0, flat, ones)
        ends = counts.cumsum(0, dtype=torch.int32)
        up = torch._grouped_mm(rows[order // c["top_k"]], self.gate_up.transpose(1, 2), offs=ends)
        gate, up = up.chunk(2, -1)
        out = torch._grouped_mm(F.silu(gate) * up, self.down.transpose(1, 2), offs=ends)
        results = torch.empty_like(out).index_copy(0, order, out).view(rows.shape[0], c["top_k"], -1)
        y = (weights.unsqueeze(1) @ results).squeeze(1)
        share = counts.float() / flat.numel()
        return y.view_as(x), c["experts"] * (share * p.mean(0)).sum()


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after, self.attention, self.experts = Norm(c["embed"]), Norm(c["embed"]), Attention(), Experts()

    def forward(self, x, cos, sin):
        x = x + self.attention(self.before(x), cos, sin)
        y, aux = self.experts(self.after(x))
        return x + y, aux


class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(c["vocab"], c["embed"])
        self.layers = torch.nn.ModuleList(Layer() for _ in range(c["layers"]))
        self.norm, self.head = Norm(c["embed"]), linear(c["embed"], c["vocab"])

    def forward(self, tokens, targets, cos, sin):
        x, losses = self.table(tokens), 0
        for layer in self.layers:
            x, aux = layer(x, cos, sin)
            losses = losses + aux
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, c["vocab"]).float(), targets.view(-1)) + 0.01 * losses / c["layers"]


def compiled_step():
    torch.set_default_dtype(torch.bfloat16)
    device = torch.device("cuda")
    with device:
        model = Decoder()
    pairs = torch.arange(0, c["head_dim"], 2, dtype=torch.float64)
    angle = torch.outer(torch.arange(c["length"], dtype=torch.float64), 10000.0 ** (-pairs / c["head_dim"]))
    cos, sin = angle.cos().to(device, torch.bfloat16), angle.sin().to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    run = torch.compile(model)

    def step():
        tokens = torch.randint(0, c["vocab"], (c["batch"], c["length"] + 1), device=device)
        loss = run(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), cos, sin)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


step = transformers_step() if "folder" in c else compiled_step()
seconds = []
for _ in range(c["steps"]):
    began = time.perf_counter()
    step().item()
    seconds.append(time.perf_counter() - began)
print(json.dumps({"tokens": c["batch"] * c["length"], "seconds": seconds}))
