"""The peer of `cairn bench snapshot`: torch.distributed.checkpoint of parameters sharded by FSDP2 and their AdamW state, over processes that
talk by Gloo. The parameters have the shapes that Cairn's run has (SHAPES, a JSON list), so both save the same bytes.

    python snapshot_peer.py save|restore RANKS PORT FOLDER SHAPES

save: three times async_save (how long the call holds up the caller, and then until its future is done), then twice save. restore: load of
what save left, in fresh processes, into parameters and moments that are there. Prints one JSON object: {"stalls", "flushes", "restore"},
seconds of the slowest rank.
"""
import json
import os
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Part(torch.nn.Module):
    """One tensor of the model. FSDP shards it, and gathers it in forward."""

    def __init__(self, shape):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(shape) * 0.02)

    def forward(self, x):
        return x + self.weight.sum() * 1e-6


class Model(torch.nn.Module):
    def __init__(self, shapes):
        super().__init__()
        self.parts = torch.nn.ModuleList(Part(shape) for shape in shapes)

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x


def make(shapes, ranks):
    torch.manual_seed(1)
    model = Model(shapes)
    mesh = init_device_mesh("cpu", (ranks,))
    for part in model.parts:
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    model(torch.ones(1)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def slowest(seconds):
    found = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return found.item()


def state_of(model, optimizer):
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optim": moments}


def save(model, optimizer, folder, rank):
    stalls, flushes = [], []
    control = dist.new_group(backend="gloo")  # async_save wants one of its own
    for turn in range(3):
        dist.barrier()
        began = time.perf_counter()
        future = dcp.async_save(state_of(model, optimizer), checkpoint_id=f"{folder}/async-{turn}", process_group=control)
        stalls.append(slowest(time.perf_counter() - began))
        future.result()
        dist.barrier()
        if rank == 0:
            shutil.rmtree(f"{folder}/async-{turn}")
    for turn in range(2):
        dist.barrier()
        began = time.perf_counter()
        dcp.save(state_of(model, optimizer), checkpoint_id=f"{folder}/{turn}")
        os.sync()  # its files are not on disk before that
        flushes.append(slowest(time.perf_counter() - began))
    return {"stalls": stalls[1:], "flushes": flushes[1:], "restore": 0}


def restore(model, optimizer, folder):
    dist.barrier()
    began = time.perf_counter()
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=f"{folder}/1")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    return {"stalls": [], "flushes": [], "restore": slowest(time.perf_counter() - began)}


def run(rank, what, ranks, port, folder, shapes):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    model, optimizer = make(shapes, ranks)
    result = save(model, optimizer, folder, rank) if what == "save" else restore(model, optimizer, folder)
    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    what, ranks, port, folder, shapes = sys.argv[1:6]
    with open(shapes) as file:
        mp.spawn(run, (what, int(ranks), int(port), folder, json.load(file)), nprocs=int(ranks))
