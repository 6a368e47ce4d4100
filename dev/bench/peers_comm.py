"""The peer of build/bench/comm --tcp: the collectives of Gloo, which PyTorch uses between CPU ranks.

    torchrun --nproc-per-node 2 dev/bench/peers_comm.py [BYTES]...

As in build/bench/comm, the size is that of the whole buffer, of which each rank owns a part. The time is the
slowest rank's, as the median of the rounds after the warm-up. Needs torch.
"""
import statistics
import sys
import time

import torch
import torch.distributed as dist

ROUNDS, WARM_UPS = 15, 2
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()


def seconds(collective):
    times = []
    for _ in range(ROUNDS + WARM_UPS):
        dist.barrier()
        start = time.perf_counter()
        collective()
        took = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        times.append(took.item())
    return statistics.median(times[WARM_UPS:])


for size in [int(a) for a in sys.argv[1:]] or [64 << 10 << 2 * i for i in range(6)]:
    shard = torch.randn(size // 4 // ranks)         # fp32
    full = torch.randn(shard.numel() * ranks)
    for name, collective in (("all-gather", lambda: dist.all_gather_into_tensor(full, shard)),
                             ("reduce-scatter", lambda: dist.reduce_scatter_tensor(shard, full)),
                             ("broadcast", lambda: dist.broadcast(full, 0))):
        took = seconds(collective)
        if rank == 0:
            print(f"  {name:<14} {full.numel() * 4:11d} fp32  gloo {took * 1e6:12.2f} us")
dist.destroy_process_group()
