"""The PyTorch side of `cairn bench context`: zigzag ring attention over Gloo, forward and backward, in plain PyTorch with its CPU flash kernel.

Prints "kv_heads milliseconds bytes": the median over calls of the slowest rank, and what all ranks send in one call.
"""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
attend_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Ring:
    """Passes tensors to the next rank, and counts what it sends."""

    def __init__(self):
        self.rank, self.ranks, self.sent = dist.get_rank(), dist.get_world_size(), 0

    def start(self, x):
        received = torch.empty_like(x)
        ahead, behind = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        self.sent += x.numel() * x.element_size()
        return received, dist.batch_isend_irecv([dist.P2POp(dist.isend, x, ahead), dist.P2POp(dist.irecv, received, behind)])


def wait(transfer):
    received, works = transfer
    for work in works:
        work.wait()
    return received


def heads_repeated(kv, heads):
    return kv.repeat_interleave(heads // kv.shape[2], dim=2) if kv.shape[2] != heads else kv


def pieces(step, rank, length):
    """What a block of keys needs: queries, keys, and whether the causal mask applies. Rank r has chunks r and 2n-1-r."""
    half = length // 2
    if step == 0:
        return slice(0, length), slice(0, length), True
    if step <= rank:
        return slice(0, length), slice(0, half), False
    return slice(half, length), slice(0, length), False


def forward(ring, q, kv):
    out, lse = None, None
    length, current = q.shape[2], kv
    for step in range(ring.ranks):
        transfer = ring.start(current) if step + 1 < ring.ranks else None
        rows, keys, causal = pieces(step, ring.rank, length)
        k, v = heads_repeated(current[:, :, :, keys], q.shape[1])
        part, part_lse = attend(q[:, :, rows], k, v, 0.0, causal)
        if out is None:
            out, lse = part, part_lse
        else:
            old, old_lse = out[:, :, rows], lse[:, :, rows]
            weight = torch.sigmoid(part_lse - old_lse).unsqueeze(-1)
            out[:, :, rows] = old - weight * (old - part)
            lse[:, :, rows] = old_lse - torch.nn.functional.logsigmoid(old_lse - part_lse)
        if transfer:
            current = wait(transfer)
    return out, lse


def backward(ring, dout, q, kv, out, lse):
    dq, length, current, gradient, following = torch.zeros_like(q), q.shape[2], kv, None, None
    for step in range(ring.ranks):
        transfer = ring.start(current) if step + 1 < ring.ranks else None
        rows, keys, causal = pieces(step, ring.rank, length)
        k, v = heads_repeated(current[:, :, :, keys], q.shape[1])
        found = attend_backward(dout[:, :, rows], q[:, :, rows], k, v, out[:, :, rows], lse[:, :, rows], 0.0, causal)
        dq[:, :, rows] += found[0]
        group = q.shape[1] // kv.shape[2]
        dk, dv = (x.unflatten(1, (kv.shape[2], group)).sum(2) for x in found[1:])
        gradient = wait(following) if following else torch.zeros_like(kv)
        gradient[0][:, :, keys] += dk
        gradient[1][:, :, keys] += dv
        if ring.ranks > 1:
            following = ring.start(gradient)
        if transfer:
            current = wait(transfer)
    return dq, wait(following) if following else gradient


def main(rank, ranks, port, length, heads, head_dim, calls):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    for kv_heads in [heads, heads // 4]:
        local = length // ranks
        q, dout = torch.randn(1, heads, local, head_dim), torch.randn(1, heads, local, head_dim)
        kv = torch.randn(2, 1, kv_heads, local, head_dim)
        times = []
        for call in range(calls + 1):
            dist.barrier()
            ring = Ring()
            begun = time.perf_counter()
            out, lse = forward(ring, q, kv)
            backward(ring, dout, q, kv, out, lse)
            slowest = torch.tensor([time.perf_counter() - begun], dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            sent = torch.tensor([ring.sent], dtype=torch.int64)
            dist.all_reduce(sent)
            times.append(slowest[0].item())
        times = sorted(times[1:])
        if rank == 0:
            print(kv_heads, f"{times[len(times) // 2] * 1e3:.3f}", sent.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    numbers = [int(x) for x in sys.argv[1:]]  # ranks port length heads head_dim calls
    os.environ["OMP_NUM_THREADS"] = "1"
    mp.spawn(main, args=tuple(numbers), nprocs=numbers[0])
