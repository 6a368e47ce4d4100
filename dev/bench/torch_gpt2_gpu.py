"""The PyTorch runs of scripts/gpu_check.sh: trains GPT-2 with a compiled model on one GPU, with bf16 autocast
and fp32 weights.

    torch_gpt2_gpu.py TOKENS B T STEPS [--layers 12] [--heads 12] [--channels 768] [--vocabulary 50304]
                      [--attention default|cudnn] [--device cuda]

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
import torch.nn.functional as F

WARM_UP = 5
parser = argparse.ArgumentParser()
parser.add_argument("tokens")
for name in "B", "T", "steps":
    parser.add_argument(name, type=int)
for name, value in ("layers", 12), ("heads", 12), ("channels", 768), ("vocabulary", 50304):
    parser.add_argument("--" + name, type=int, default=value)
parser.add_argument("--attention", choices=("default", "cudnn"), default="default")
parser.add_argument("--device", default="cuda")
args = parser.parse_args()
B, T, C, NH, V = args.B, args.T, args.channels, args.heads, args.vocabulary


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.up, self.down = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(self, x):                                       # (B, T, C)
        qkv = self.qkv(self.norm1(x)).view(B, T, 3, NH, C // NH)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)                    # (B, NH, T, C / NH) each
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(B, T, C))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(V, C), nn.Embedding(T, C)
        self.blocks = nn.ModuleList(Block() for _ in range(args.layers))
        self.norm = nn.LayerNorm(C)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, 0.0, 0.02)

    def forward(self, tokens, targets):                         # (B, T) both
        x = self.tokens(tokens) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)     # the LM head is tied to the embedding
        return F.cross_entropy(logits.float().view(-1, V), targets.view(-1))


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
model = GPT2().to(args.device)
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
