"""The peer of `cairn bench gpu`: a Llama-style model in plain PyTorch, bf16 weights, fused AdamW with bf16 moments, eager or compiled,
from the weights and on the tokens that Cairn has. With mode "ceiling" instead: how fast this device multiplies, for some seconds on end.

Prints lines of JSON, each as soon as it is known: {"start": ...} once, {"step", "at", "loss"} for each step, {"memory": ...} last. `at` is
in seconds since this process began, when the step's loss has reached the host. Nothing waits inside a step: the loss of a step is read when
the next one has been launched, as Cairn does.
"""
import json
import os
import sys
import time


def age():
    """Seconds since this process began."""
    with open("/proc/self/stat") as stat:
        began = int(stat.read().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began


c = json.loads(sys.argv[1])
python_s = age()
os.environ["TORCHINDUCTOR_CACHE_DIR"] = c["inductor_cache"]  # a run's own, so that the first compilation is a first one

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

torch_s = age()
device = torch.device(c["device"])


def tell(**what):
    print(json.dumps(what), flush=True)


def ceiling():
    """Large products on random data for c["seconds"]; the rate of the second half, when clocks have settled."""
    n = c["size"]
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    rates, began = [], time.perf_counter()
    while time.perf_counter() - began < c["seconds"]:
        since = time.perf_counter()
        for _ in range(c["repeats"]):
            torch.mm(a, b, out=out)
        if device.type == "cuda":
            torch.cuda.synchronize()
        rates.append(2 * n**3 * c["repeats"] / (time.perf_counter() - since) / 1e12)
    later = sorted(rates[len(rates) // 2:])
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    tell(ceiling={"tflops": later[len(later) // 2], "burst_tflops": max(rates), "device": name, "torch": torch.__version__})


class Norm(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(width))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-5)


def linear(inputs, outputs):
    return torch.nn.Linear(inputs, outputs, bias=False)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = linear(c["embed"], c["heads"] * c["head_dim"])
        self.k_proj = linear(c["embed"], c["kv_heads"] * c["head_dim"])
        self.v_proj = linear(c["embed"], c["kv_heads"] * c["head_dim"])
        self.o_proj = linear(c["heads"] * c["head_dim"], c["embed"])

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        q, k, v = (p(x).view(batch, length, -1, c["head_dim"]).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        mixed = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=c["heads"] != c["kv_heads"])
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = linear(c["embed"], c["mlp"]), linear(c["embed"], c["mlp"])
        self.down_proj = linear(c["mlp"], c["embed"])

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(c["embed"]), Norm(c["embed"])
        self.self_attn, self.mlp = Attention(), Mlp()

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(c["vocab"], c["embed"])
        self.layers = torch.nn.ModuleList(Layer() for _ in range(c["layers"]))
        self.norm = Norm(c["embed"])
        if not c["tied"]:
            self.lm_head = linear(c["embed"], c["vocab"])

    def forward(self, tokens, targets, cos, sin):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = F.linear(self.norm(x), self.embed_tokens.weight if c["tied"] else self.lm_head.weight)
        return F.cross_entropy(logits.view(-1, c["vocab"]).float(), targets.view(-1))


def angles():
    pairs = torch.arange(0, c["head_dim"], 2, dtype=torch.float64)
    angle = torch.outer(torch.arange(c["length"], dtype=torch.float64), c["rope_theta"] ** (-pairs / c["head_dim"]))
    return angle.cos().to(device, torch.bfloat16), angle.sin().to(device, torch.bfloat16)


def load(model, path):
    """Weights from a safetensors file: 8 bytes of length, a header in JSON, the values."""
    size = os.path.getsize(path)
    raw = torch.from_file(path, shared=False, size=size, dtype=torch.uint8)
    count = int.from_bytes(bytes(raw[:8].tolist()), "little")
    header = json.loads(bytes(raw[8:8 + count].tolist()))
    own = dict(model.named_parameters())
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + count + at for at in entry["data_offsets"])
        dtype = {"BF16": torch.bfloat16, "F32": torch.float32}[entry["dtype"]]
        own.pop(name.removeprefix("model.")).data.copy_(raw[begin:end].view(dtype).view(entry["shape"]))
    assert not own, f"no values for {list(own)}"


def draw(model):
    """Values of our own, as widely spread as Cairn's: what is added to the residual is smaller the more layers there are."""
    torch.manual_seed(1)
    for name, p in model.named_parameters():
        added = name.endswith(("o_proj.weight", "down_proj.weight"))
        p.data.normal_(std=0.02 / (2 * c["layers"]) ** 0.5 if added else 0.02) if p.dim() == 2 else p.data.fill_(1)


def write_kernels(profile, steps, path):
    """The same table that `log.kernels` of Cairn writes."""
    spans = sorted((e.time_range.start, e.time_range.end, e.name) for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA)
    by_name, busy, until = {}, 0, spans[0][0]
    for begin, end, name in spans:
        count, total = by_name.get(name, (0, 0))
        by_name[name] = (count + 1, total + end - begin)
        busy += max(0, end - max(until, begin))
        until = max(until, end)
    whole = until - spans[0][0]
    rows = [(whole - busy, 0, "(nothing ran)")] + sorted(((total, count, name) for name, (count, total) in by_name.items()), reverse=True)
    with open(path, "w") as out:
        out.write(f"a step on the device, over {steps} steps: {whole / steps / 1e3:.3f} ms, times each kernel ran, and which\n")
        for total, count, name in rows:
            out.write(f"{total / steps / 1e3:9.3f} ms {100 * total / whole:6.2f} % {count / steps:8.1f}  {name[:120]}\n")


def train():
    if device.type == "cpu":
        torch.set_num_threads(c["threads"])
    else:
        torch.cuda.init()
    device_s = age()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = Llama()
    model.to_empty(device=device)
    load(model, c["weights"]) if c["weights"] else draw(model)
    cos, sin = angles()
    tokens = torch.from_file(c["tokens"], shared=False, size=os.path.getsize(c["tokens"]) // 4, dtype=torch.int32)[256:].long()
    if device.type == "cuda":
        tokens = tokens.pin_memory()
        torch.cuda.synchronize()
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  lr=c["learning_rate"], betas=(0.9, 0.95), eps=1e-8, fused=True)
    run = torch.compile(model) if c["compiled"] else model
    model_s = age()
    tell(start={"python": python_s, "torch": torch_s - python_s, "device": device_s - torch_s, "model": model_s - device_s,
                "parameters": sum(p.numel() for p in model.parameters())})

    rows, length = c["batch"] * c["length"], c["length"]
    waiting = None

    def hear(step, host, there):
        if there is not None:
            there.synchronize()
        tell(step=step, at=age_now(), loss=host.item())

    began, began_age = time.perf_counter(), age()

    def age_now():
        return began_age + time.perf_counter() - began

    watched, profile = range(20, 23), None
    for step in range(c["steps"]):
        if c.get("kernels") and step == watched.start:
            torch.cuda.synchronize()
            profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            profile.start()
        for group in optimizer.param_groups:
            group["lr"] = c["learning_rate"] * min(1, (step + 1) / c["warmup"])
        piece = tokens[step * rows:step * rows + rows + 1].to(device, non_blocking=True)
        loss = run(piece[:-1].view(-1, length), piece[1:].view(-1, length), cos, sin)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if profile and step == watched.stop - 1:
            torch.cuda.synchronize()
            profile.stop()
            write_kernels(profile, len(watched), c["kernels"])
        host, there = loss.detach(), None
        if device.type == "cuda":
            host = torch.empty((), dtype=torch.float32, pin_memory=True)
            host.copy_(loss.detach(), non_blocking=True)
            there = torch.cuda.Event()
            there.record()
        if waiting:
            hear(*waiting)
        waiting = (step + 1, host, there)
    hear(*waiting)
    if device.type == "cuda":
        tell(memory={"tensors": torch.cuda.max_memory_allocated(), "allocator": torch.cuda.max_memory_reserved()})


ceiling() if c["mode"] == "ceiling" else train()
