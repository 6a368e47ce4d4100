"""The PyTorch runs of scripts/gpu_check.sh: trains GPT-2 124M, compiled, on one GPU, with bf16 autocast
and fp32 weights.

    torch_gpt2_gpu.py TOKENS B T STEPS [--attention default|cudnn] [--device cuda]

TOKENS is a glob pattern for llm.c's token shards. A step is forward, backward, clipping of the gradient norm
at 1.0, fused AdamW and reading the loss, as in the other trainers. Attention is scaled_dot_product_attention,
with PyTorch's choice of kernel or cuDNN's. Prints one JSON line: the median of STEPS steps after the warm-up,
tokens/s, the last loss, and the peak memory reserved by PyTorch's allocator. Needs torch 2.1, and 2.5 for
--attention cudnn.
"""
import argparse
import contextlib
import glob
import json
import statistics
import time

import torch
import torch.nn as nn

from peers_model import GPT2

WARM_UP = 5
parser = argparse.ArgumentParser()
parser.add_argument("tokens")
for name in "B", "T", "steps":
    parser.add_argument(name, type=int)
parser.add_argument("--attention", choices=("default", "cudnn"), default="default")
parser.add_argument("--device", default="cuda")
args = parser.parse_args()
B, T = args.B, args.T


def batches():
    """Yields (inputs, targets) in the order of the files, forever."""
    header = 1024
    shards = [open(path, "rb").read() for path in sorted(glob.glob(args.tokens))]
    if not shards:
        raise SystemExit(f"torch_gpt2_gpu.py: no file matches {args.tokens}")
    data = torch.cat([torch.frombuffer(bytearray(s), dtype=torch.int16, offset=header) for s in shards])
    data = data.long() & 0xffff
    if len(data) <= B * T:
        raise SystemExit(f"torch_gpt2_gpu.py: {args.tokens}: {len(data)} tokens, a batch takes {B * T + 1}")
    while True:
        for at in range(0, len(data) - B * T, B * T):
            part = data[at:at + B * T + 1].to(args.device, non_blocking=True)
            yield part[:-1].view(B, T), part[1:].view(B, T)


torch.manual_seed(42)
torch.set_float32_matmul_precision("high")
on_cuda = torch.device(args.device).type == "cuda"
model = GPT2(longest=T).to(args.device)
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0,
                              fused=True)
attention = contextlib.nullcontext
if args.attention == "cudnn":
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def attention():
        return sdpa_kernel(SDPBackend.CUDNN_ATTENTION)
times, source = [], batches()
for step in range(WARM_UP + args.steps):
    start = time.perf_counter()
    with torch.autocast(torch.device(args.device).type, dtype=torch.bfloat16), attention():
        loss = compiled(*next(source))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    last = loss.item()
    if on_cuda:
        torch.cuda.synchronize()        # the loss is ready before the update ends
    times.append(time.perf_counter() - start)
median = statistics.median(times[WARM_UP:])
reserved = torch.cuda.max_memory_reserved() if on_cuda else 0
print(json.dumps({"torch": torch.__version__, "step_ms": round(1e3 * median, 3),
                  "tokens_per_s": round(B * T / median, 1), "loss": round(last, 6),
                  "memory_mib": round(reserved / 2**20, 1)}), flush=True)
