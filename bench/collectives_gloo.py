"""The torch.distributed/Gloo side of `cairn bench collectives`: prints "operation bytes microseconds", the median on rank 0."""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]


def main(rank, ranks, port, only):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    for name in ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]:
        if only and only != name:
            continue
        for size in SIZES:
            count = size // 4
            share = count // ranks
            calls = 50 if size <= 65536 else 15 if size <= 1 << 20 else 5
            x, y = torch.zeros(count), torch.zeros(count)
            run = {
                "all_reduce": lambda: dist.all_reduce(x),
                "all_gather": lambda: dist.all_gather_into_tensor(y, x[:share]),
                "reduce_scatter": lambda: dist.reduce_scatter_tensor(y[:share], x),
                "all_to_all": lambda: dist.all_to_all_single(y, x),
            }[name]
            times = []
            try:
                for call in range(calls + 2):
                    x.fill_(rank + call)
                    dist.barrier()
                    begun = time.perf_counter()
                    run()
                    times.append(time.perf_counter() - begun)
            except (RuntimeError, NotImplementedError, ValueError):
                break  # this version of Gloo does not offer it
            times = sorted(times[2:])
            if rank == 0:
                print(name, size, f"{times[len(times) // 2] * 1e6:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    count, port, chosen = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else ""
    os.environ["OMP_NUM_THREADS"] = "1"
    mp.spawn(main, args=(count, port, chosen), nprocs=count)
