"""The peers in bench.sh and offload.sh: trains a GPT-2 in PyTorch on CPUs, with one framework.

    torchrun --nproc-per-node 2 dev/bench/peers.py FRAMEWORK DTYPE B T STEPS [FOLDER]
    FRAMEWORK  fsdp2 | deepspeed (ZeRO-3) | ddp | single (no framework: one process with all threads and the
               whole batch)
               deepspeed-optimizer | deepspeed-both: ZeRO-3 with the optimizer states, or with these and the
               parameters, on NVMe in FOLDER
    DTYPE  fp32 | bf16 (ddp and single: fp32 parameters under autocast)

A step is forward, backward, clipping of the global norm at 1.0 and AdamW, as in our trainer. Prints one
JSON line: the median step in seconds without the first two steps, tokens/s of all ranks, the first and the
last loss, the seconds from the start of the process to the first loss, and the peak resident memory per rank
in MiB. Needs torch; the DeepSpeed frameworks need deepspeed, and with NVMe ninja and libaio's header.
"""
import json
import os
import resource
import statistics
import sys
import time

# The start time of this process: field 22 of stat counts clock ticks since boot.
UPTIME = float(open("/proc/uptime").read().split()[0])
START_TICKS = int(open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19])
BORN = time.time() - UPTIME + START_TICKS / os.sysconf("SC_CLK_TCK")

import torch
import torch.distributed as dist
import torch.nn as nn

from peers_model import GPT2

framework, dtype, B, T, steps = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
folder = sys.argv[6] if len(sys.argv) > 6 else None
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
torch.manual_seed(42)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), fused=True)


def plain_step(model, optimizer, autocast=False):
    def step(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = model(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss
    return step


def make_step():
    if framework == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        model, mesh = GPT2(), init_device_mesh("cpu", (dist.get_world_size(),))
        policy = MixedPrecisionPolicy()
        if dtype == "bf16":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        return plain_step(model, adamw(model.parameters()))
    if framework in ("ddp", "single"):
        model = nn.parallel.DistributedDataParallel(GPT2()) if framework == "ddp" else GPT2()
        return plain_step(model, adamw(model.parameters()), dtype == "bf16")
    return deepspeed_step(GPT2())


def on_nvme():
    """Returns the sections of a DeepSpeed configuration that put states on NVMe, with our trainer's block
    size, depth and sub-groups. DeepSpeed reads ahead one parameter per buffer, here the four matrices of two
    blocks. Each buffer has the size of a rank's part of the largest parameter."""
    optimizer = {"device": "nvme", "nvme_path": folder, "buffer_count": 12, "pipeline_read": True,
                 "pipeline_write": True}
    zero = {"offload_optimizer": optimizer, "sub_group_size": 4 << 20}
    if framework == "deepspeed-both":
        largest = -(-50304 * 768 // dist.get_world_size())
        zero["offload_param"] = {"device": "nvme", "nvme_path": folder, "buffer_count": 8,
                                 "buffer_size": largest}
    aio = {"block_size": 1 << 20, "queue_depth": 32, "intra_op_parallelism": 1, "single_submit": False,
           "overlap_events": True}
    return zero, aio


def deepspeed_step(model):
    import deepspeed
    config = {"train_micro_batch_size_per_gpu": B, "gradient_accumulation_steps": 1,
              "gradient_clipping": 1.0, "steps_per_print": 10**9,
              "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95]}},
              "bf16": {"enabled": dtype == "bf16"},
              "zero_optimization": {"stage": 3, "overlap_comm": True, "contiguous_gradients": True}}
    if framework != "deepspeed":
        zero, config["aio"] = on_nvme()
        config["zero_optimization"].update(zero)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    def step(x, y):
        loss = engine(x, y)
        engine.backward(loss)
        engine.step()
        return loss
    return step


dist.init_process_group("gloo")
step, times, losses = make_step(), [], []
x, y = torch.randint(0, 50257, (B, T)), torch.randint(0, 50257, (B, T))
for i in range(steps):
    start = time.perf_counter()
    losses.append(float(step(x, y).detach()))
    times.append(time.perf_counter() - start)
    if i == 0:
        first = time.time() - BORN
largest = torch.tensor(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
dist.all_reduce(largest, dist.ReduceOp.MAX)
if dist.get_rank() == 0:
    median = statistics.median(times[2:])
    rate = B * T * dist.get_world_size() / median
    print(json.dumps({"name": framework, "dtype": dtype, "step_s": round(median, 4),
                      "tokens_per_s": round(rate, 1), "loss": [losses[0], losses[-1]],
                      "first_loss_s": round(first, 2), "resident_mib": largest.item() // 1024}), flush=True)
dist.destroy_process_group()
