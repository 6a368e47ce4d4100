"""PyTorch's run of dev/reproduction/run.sh: trains a GPT-2 from an llm.c model file and writes its losses.

    STEPS=n LR=x torch_gpt2.py MODEL TOKENS B T fp32|bf16 METRICS

The layers are PyTorch's own. With bf16, as in our trainer, parameters, activations and gradients are bf16,
and AdamW updates fp32 masters, from which the parameters are rounded after each step.
"""
import json
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from reference_gpt2 import read_model


def loss_of(p, x, y, c):                                                    # x and y are (B, T)
    B, T, C = *x.shape, c.channels
    norm = lambda h, name, l: F.layer_norm(h, (C,), p[name + "w"][l], p[name + "b"][l])
    linear = lambda h, name, l: F.linear(h, p[name + "w"][l], p[name + "b"][l])
    h = F.embedding(x, p["wte"][0]) + p["wpe"][0][:T]                       # (B, T, C)
    for l in range(c.layers):
        qkv = linear(norm(h, "ln1", l), "qkv", l).view(B, T, 3, c.heads, C // c.heads)
        mixed = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), is_causal=True)
        h = h + linear(mixed.transpose(1, 2).reshape(B, T, C), "attproj", l)
        h = h + linear(F.gelu(linear(norm(h, "ln2", l), "fc", l), approximate="tanh"), "fcproj", l)
    logits = F.linear(norm(h, "lnf", 0), p["wte"][0][:c.vocab])             # (B, T, V)
    return F.cross_entropy(logits.float().view(B * T, -1), y.reshape(-1))


def main(model, tokens, B, T, dtype, metrics):
    c, masters = read_model(model)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    p = {name: [m.to(dtype, copy=True).requires_grad_() for m in layers] for name, layers in masters.items()}
    pairs = [pair for name in p for pair in zip(masters[name], p[name])]
    optimizer = torch.optim.AdamW([m for m, _ in pairs], lr=float(os.environ["LR"]), betas=(0.9, 0.999),
                                  eps=1e-8, weight_decay=0)
    n = B * T
    data = torch.from_numpy(np.fromfile(tokens, dtype="<u2", offset=1024).astype(np.int64))
    with open(metrics, "w") as out:
        for step in range(int(os.environ["STEPS"])):
            rows = data[step * n:(step + 1) * n + 1]
            loss = loss_of(p, rows[:-1].view(B, T), rows[1:].view(B, T), c)
            loss.backward()
            for master, q in pairs:
                master.grad, q.grad = q.grad.float(), None
            optimizer.step()
            with torch.no_grad():
                for master, q in pairs:
                    q.copy_(master)
            out.write(json.dumps({"step": step + 1, "loss": loss.item()}) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 7:
        sys.exit(__doc__)
    main(*sys.argv[1:3], *map(int, sys.argv[3:5]), *sys.argv[5:])
