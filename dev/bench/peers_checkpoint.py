"""The peers in checkpoint.sh: saves and loads the bf16 training states of a GPT-2 of 124M parameters in
PyTorch on CPUs.

    torchrun --nproc-per-node N dev/bench/peers_checkpoint.py FRAMEWORK FOLDER ROUNDS
    FRAMEWORK  dcp (torch.distributed.checkpoint, with the states split evenly over the ranks)
               deepspeed (ZeRO-3: save_checkpoint, load_checkpoint)

The states are fp32 masters and two moments. Each round saves to a new folder, syncs it to the disk, drops it
from the page cache, and loads it. Prints one JSON line: the medians in seconds, and the peak increase of a
rank's resident memory during save and load, in MiB.
"""
import json
import os
import shutil
import statistics
import sys
import time

import torch
import torch.distributed as dist

from peers_model import GPT2

framework, folder, rounds = sys.argv[1], os.path.join(sys.argv[2], "llmc_zero.peer"), int(sys.argv[3])
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


def resident_mib(field):
    for line in open("/proc/self/status"):
        if line.startswith(field):
            return int(line.split()[1]) / 1024


def sync_and_drop():
    """Syncs the files, which the frameworks only write to the page cache, and drops them from it."""
    for parent, _, names in os.walk(folder):
        for name in names:
            fd = os.open(os.path.join(parent, name), os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def dcp():
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {}
    for name, p in GPT2().named_parameters():
        for what in "master", "moment1", "moment2":
            state[f"{what}.{name}"] = distribute_tensor(torch.randn(p.shape), mesh, [Shard(0)])
    return (lambda: checkpoint.save(state, checkpoint_id=folder),
            lambda: checkpoint.load(state, checkpoint_id=folder))


def deepspeed():
    import deepspeed
    model = GPT2()
    config = {"train_micro_batch_size_per_gpu": 1, "steps_per_print": 10**9, "bf16": {"enabled": True},
              "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}, "zero_optimization": {"stage": 3}}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    # the states that a step would create
    for group in engine.optimizer.fp32_partitioned_groups_flat:
        engine.optimizer.optimizer.state[group] = {"step": torch.tensor(1.0),
                                                   "exp_avg": torch.randn_like(group),
                                                   "exp_avg_sq": torch.rand_like(group)}
    return (lambda: engine.save_checkpoint(folder, tag="step"),
            lambda: engine.load_checkpoint(folder, tag="step"))


def timed(do, after):
    before = resident_mib("VmRSS:")
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")
    dist.barrier()
    begin = time.perf_counter()
    do()
    dist.barrier()
    if dist.get_rank() == 0:
        after()
    dist.barrier()
    took = time.perf_counter() - begin
    more = torch.tensor(resident_mib("VmHWM:") - before)
    dist.all_reduce(more, dist.ReduceOp.MAX)
    return took, more.item()


def nothing():
    pass


dist.init_process_group("gloo")
save, load = dcp() if framework == "dcp" else deepspeed()
saves, loads = [], []
for _ in range(rounds):
    saves.append(timed(save, sync_and_drop))
    loads.append(timed(load, nothing))
    if dist.get_rank() == 0:
        size = sum(os.path.getsize(os.path.join(p, n)) for p, _, names in os.walk(folder) for n in names)
        shutil.rmtree(folder)
    dist.barrier()
if dist.get_rank() == 0:
    print(json.dumps({"name": framework, "mib": round(size / 2**20, 1),
                      "save_s": round(statistics.median(t for t, _ in saves), 3),
                      "load_s": round(statistics.median(t for t, _ in loads), 3),
                      "save_mib": round(max(m for _, m in saves), 1),
                      "load_mib": round(max(m for _, m in loads), 1)}), flush=True)
dist.destroy_process_group()
