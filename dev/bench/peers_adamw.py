"""The peers of build/bench/adamw: AdamW of PyTorch and DeepSpeed on fp32 elements, on CPUs.

    DS_ACCELERATOR=cpu python dev/bench/peers_adamw.py [million elements]

Prints the median milliseconds per step. Needs torch; DeepSpeed's line needs deepspeed and ninja.
"""
import os
import statistics
import sys
import time

import torch

elements = int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 124475904
parameter = torch.nn.Parameter(torch.full((elements,), 0.1))
parameter.grad = torch.full((elements,), 0.01)


def row(name, threads, make):
    optimizer, times = make(), []
    for _ in range(7):
        start = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - start)
    print(f"{name:<28} {threads:>3} threads {statistics.median(times[1:]) * 1e3:>9.1f} ms", flush=True)


def deepspeed_cpu_adam():
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    return DeepSpeedCPUAdam([parameter], lr=1e-4, adamw_mode=True)


for threads in range(1, (os.cpu_count() or 1) + 1):
    torch.set_num_threads(threads)
    row("PyTorch AdamW, fused", threads, lambda: torch.optim.AdamW([parameter], lr=1e-4, fused=True))
    row("PyTorch AdamW", threads, lambda: torch.optim.AdamW([parameter], lr=1e-4))
    row("DeepSpeedCPUAdam", threads, deepspeed_cpu_adam)
