"""The peer of `cairn bench parallel`: the same Llama-style model in PyTorch, laid out by PyTorch's own means over processes that talk by Gloo:
DistributedDataParallel, FSDP2 (`fully_shard`) or a schedule of torch.distributed.pipelining. It starts from the same weights (a safetensors
file) and trains on the same samples in the same order, so losses agree but for rounding.

Prints one JSON object: seconds of each step (rank 0), its loss over all samples, and the bytes that each rank sent in an average step, as
the kernel counted them on the rank's TCP connections.
"""
import json
import os
import socket
import struct
import sys
import time

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

SCHEDULES = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
}


class Norm(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-5)


def linear(inputs, outputs):
    return torch.nn.Linear(inputs, outputs, bias=False)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Layer(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.head_dim = c["heads"], c["head_dim"]
        width = c["heads"] * c["head_dim"]
        self.norm1, self.norm2 = Norm(c["embed"]), Norm(c["embed"])
        self.qkv = linear(c["embed"], 3 * width)
        self.out = linear(width, c["embed"])
        self.gate_up = linear(c["embed"], 2 * c["mlp"])
        self.down = linear(c["mlp"], c["embed"])

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, -1, self.head_dim).transpose(1, 2)
        q, k, v = heads.split(self.heads, dim=1)
        mixed = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Stage(torch.nn.Module):
    """Layers `first` to `last` of the model, with the embedding where that is its beginning and the head where it is its end."""

    def __init__(self, c, weights, first, last):
        super().__init__()
        begins, ends = first == 0, last == c["layers"]
        self.table = torch.nn.Embedding(c["vocab"], c["embed"]) if begins else None
        self.layers = torch.nn.ModuleList(Layer(c) for _ in range(first, last))
        self.norm = Norm(c["embed"]) if ends else None
        self.head = linear(c["embed"], c["vocab"]) if ends else None
        angle = torch.outer(torch.arange(c["length"]).double(), 10000 ** (-torch.arange(0, c["head_dim"], 2).double() / c["head_dim"]))
        self.cos, self.sin = angle.cos().float(), angle.sin().float()
        with torch.no_grad():
            if begins:
                self.table.weight.copy_(weights["model.embed_tokens.weight"])
            if ends:
                self.norm.weight.copy_(weights["model.norm.weight"])
                self.head.weight.copy_(weights["lm_head.weight"])
            for index, layer in enumerate(self.layers, first):
                named = lambda *names: torch.cat([weights[f"model.layers.{index}.{name}.weight"] for name in names])
                layer.norm1.weight.copy_(named("input_layernorm"))
                layer.norm2.weight.copy_(named("post_attention_layernorm"))
                layer.qkv.weight.copy_(named("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))
                layer.out.weight.copy_(named("self_attn.o_proj"))
                layer.gate_up.weight.copy_(named("mlp.gate_proj", "mlp.up_proj"))
                layer.down.weight.copy_(named("mlp.down_proj"))

    def forward(self, x):
        if self.table is not None:
            x = self.table(x)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return x if self.head is None else self.head(self.norm(x))


def read_weights(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = bytearray(file.read())
    whole = torch.frombuffer(data, dtype=torch.float32)
    return {
        name: whole[facts["data_offsets"][0] // 4:facts["data_offsets"][1] // 4].view(facts["shape"])
        for name, facts in header.items() if name != "__metadata__"
    }


def sent_bytes():
    """What this process has sent on all of its TCP connections so far (tcpi_bytes_sent)."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            connection = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # not a socket, or the folder's own handle
        with connection:
            if connection.type == socket.SOCK_STREAM and connection.family in (socket.AF_INET, socket.AF_INET6):
                total += struct.unpack_from("<Q", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), 200)[0]
    return total


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_optimizer(c, parameters):
    decayed = [p for p in parameters if p.dim() >= 2]
    others = [p for p in parameters if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=c["learning_rate"], betas=(0.9, 0.95), fused=True)


def data_parallel(c, rank, ranks, weights):
    """A function that runs forward and backward on the whole batch's samples, as far as they are this rank's, and the parameters."""
    model = Stage(c, weights, 0, c["layers"])
    if c["kind"] == "fsdp":
        mesh = init_device_mesh("cpu", (ranks,))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh, reshard_after_forward=True)
        fully_shard(model, mesh=mesh, reshard_after_forward=True)
        run = model
    else:
        run = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    share = c["batch"] // ranks

    def step(inputs, targets):
        mine = slice(rank * share, (rank + 1) * share)
        loss = loss_of(run(inputs[mine]), targets[mine])
        loss.backward()
        return loss.item()

    def clip(parameters):
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)

    return step, clip, list(model.parameters())


def pipeline(c, rank, ranks, weights):
    ends = [sum(c["split"][:i + 1]) for i in range(len(c["split"]))]
    stages = []
    for index in range(rank, len(ends), ranks):
        module = Stage(c, weights, ends[index - 1] if index else 0, ends[index])
        stages.append(pipelining.PipelineStage(module, index, len(ends), torch.device("cpu")))
    schedule = SCHEDULES[c["kind"]](stages if c["kind"] == "interleaved" else stages[0], c["micro_batches"], loss_fn=loss_of)
    begins, finishes = rank == 0, rank == (len(ends) - 1) % ranks

    def step(inputs, targets):
        losses = []
        arguments = (inputs,) if begins else ()
        schedule.step(*arguments, target=targets if finishes else None, losses=losses if finishes else None)
        return sum(loss.item() for loss in losses) / len(losses) if losses else 0.0

    def clip(parameters):  # the norm is one of all stages together
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters]).square()
        dist.all_reduce(norm)
        torch.nn.utils.clip_grads_with_norm_(parameters, 1.0, norm.sqrt())

    return step, clip, [p for stage in stages for p in stage.submod.parameters()]


def main(rank, ranks, port, together, c):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    tokens = torch.from_numpy(numpy.fromfile(c["tokens"], dtype=numpy.int32)).long()
    by_samples = c["kind"] in ("ddp", "fsdp")
    step, clip, parameters = (data_parallel if by_samples else pipeline)(c, rank, ranks, read_weights(c["weights"]))
    optimizer = make_optimizer(c, parameters)
    seconds, losses, sent = [], [], 0
    samples = (tokens.numel() - 1) // c["length"]
    for number in range(c["steps"]):
        if number == c["unused"]:
            sent = sent_bytes()
        began = time.perf_counter()
        rows = [(number * c["batch"] + i) % samples * c["length"] for i in range(c["batch"])]
        inputs = torch.stack([tokens[row:row + c["length"]] for row in rows])
        targets = torch.stack([tokens[row + 1:row + 1 + c["length"]] for row in rows])
        losses.append(step(inputs, targets))
        clip(parameters)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - began)
    sent = (sent_bytes() - sent) / (c["steps"] - c["unused"])
    found = [None] * ranks
    dist.all_gather_object(found, (losses, sent))
    if rank == 0:
        share = 1 / ranks if by_samples else 1  # of a pipeline only the last stage has losses
        whole = [share * sum(values) for values in zip(*(losses for losses, _ in found))]
        print(json.dumps({"seconds": seconds, "losses": whole, "sent": [sent for _, sent in found]}), flush=True)
    together.wait()
    os._exit(0)  # taking the group down in order hangs now and then


if __name__ == "__main__":
    count, listen, settings = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    os.environ["OMP_NUM_THREADS"] = "1"
    mp.spawn(main, args=(count, listen, mp.get_context("spawn").Barrier(count), settings), nprocs=count)
