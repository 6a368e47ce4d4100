#!/usr/bin/env python3
"""Writes the references for tests/test_gradients.c, computed by PyTorch in float64: a tiny GPT-2,
tests/reference_gpt2.bin, and made-up multiple-choice examples in llm.c's format,
tests/reference_hellaswag.bin.

    pip install torch numpy && python3 dev/reference_gpt2.py tests

The model is written from the paper's description and shares only the order of the tensors with the C
code. The file is little-endian: 16 int32 (magic, version, longest sequence, V, Vp, L, NH, C, B, T, steps,
5 x 0), 8 float32 (lr, beta1, beta2, eps, weight decay, clip, 0, 0), B*T+1 int32 tokens (row b is tokens
b*T .. b*T+T, so rows overlap by one), then float32: parameters; logits (B, T, V); loss before each step and
after the last; gradient norm of each step; gradients of step 1; parameters after the last step. Parameters
and gradients are in llm.c's order, with all layers of a tensor adjacent. Then comes llm.c's initialisation of
another model, computed by torch: 6 int32 (longest sequence, V, Vp, L, NH, C) and its parameters. The file
ends with the scores of the multiple-choice examples before the first step: 2 int32 (examples, right answers)
and float32, the mean loss of each completion.
"""
import math
import sys

import numpy as np
import torch

MAGIC, VERSION = 20251121, 1
B, T, STEPS = 2, 9, 3
EXAMPLES = 10
# eps is large, so that rounding errors in gradients near 0 do not move a parameter.
LR, BETA1, BETA2, EPS, DECAY, CLIP = 1e-2, 0.9, 0.95, 1e-4, 0.1, 1.0


class Config:
    def __init__(self, layers, heads, channels, vocab, longest):
        self.layers, self.heads, self.channels = layers, heads, channels
        self.vocab, self.longest = vocab, longest
        self.padded = (vocab + 127) // 128 * 128


def shapes(c):
    """Returns name -> (shape of one layer's tensor, True if every layer has one), in llm.c's order."""
    n = c.channels
    return {
        "wte": ((c.padded, n), False), "wpe": ((c.longest, n), False),
        "ln1w": ((n,), True), "ln1b": ((n,), True), "qkvw": ((3 * n, n), True), "qkvb": ((3 * n,), True),
        "attprojw": ((n, n), True), "attprojb": ((n,), True), "ln2w": ((n,), True), "ln2b": ((n,), True),
        "fcw": ((4 * n, n), True), "fcb": ((4 * n,), True),
        "fcprojw": ((n, 4 * n), True), "fcprojb": ((n,), True),
        "lnfw": ((n,), False), "lnfb": ((n,), False),
    }


def read_model(path):
    """Reads llm.c's file, fp32 or bf16. Returns the configuration, and name -> an fp32 tensor per layer."""
    header = np.fromfile(path, dtype="<i4", count=256).tolist()
    if header[0] != 20240326 or header[1] not in (3, 5):
        sys.exit(path + " is not llm.c's model file")
    longest, vocab, layers, heads, channels, padded = header[2:8]
    c = Config(layers, heads, channels, vocab, longest)
    c.padded = padded
    values = np.fromfile(path, dtype="<f4" if header[1] == 3 else "<u2", offset=1024)
    if header[1] == 5:
        values = (values.astype("<u4") << 16).view("<f4")
    p, at = {}, 0
    for name, (shape, per_layer) in shapes(c).items():
        p[name] = []
        for _ in range(layers if per_layer else 1):
            n = int(np.prod(shape))
            p[name].append(torch.from_numpy(values[at:at + n].reshape(shape).copy()))
            at += n
    assert at == len(values), path
    return c, p


def layer_norm(x, weight, bias):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-5) * weight + bias


def attention(x, p, l, c):
    rows, length, n = x.shape
    heads = lambda y: y.view(rows, length, c.heads, n // c.heads).transpose(1, 2)
    q, k, v = (heads(y) for y in (x @ p["qkvw"][l].T + p["qkvb"][l]).split(n, dim=2))
    scores = q @ k.transpose(2, 3) / math.sqrt(n // c.heads)
    future = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
    y = torch.softmax(scores.masked_fill(future, -math.inf), dim=3) @ v
    return y.transpose(1, 2).reshape(rows, length, n) @ p["attprojw"][l].T + p["attprojb"][l]


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def logits_of(p, inputs, c):
    x = p["wte"][0][inputs] + p["wpe"][0][: inputs.shape[1]]
    for l in range(c.layers):
        x = x + attention(layer_norm(x, p["ln1w"][l], p["ln1b"][l]), p, l, c)
        h = gelu(layer_norm(x, p["ln2w"][l], p["ln2b"][l]) @ p["fcw"][l].T + p["fcb"][l])
        x = x + h @ p["fcprojw"][l].T + p["fcprojb"][l]
    return layer_norm(x, p["lnfw"][0], p["lnfb"][0]) @ p["wte"][0][: c.vocab].T


def random_parameters(c):
    """Returns float32 values as float64. None is 0 or 1, so every term of every gradient matters."""
    generator = torch.Generator().manual_seed(1)
    p = {}
    for name, (shape, per_layer) in shapes(c).items():
        p[name] = []
        for _ in range(c.layers if per_layer else 1):
            x = torch.randn(shape, generator=generator, dtype=torch.float32) * 0.25
            if name.startswith("ln") and name.endswith("w"):
                x = 1 + x
            if name == "wte":
                x[c.vocab:] = 0
            p[name].append(x.double().requires_grad_())
    return p


def llmc_initialisation(c):
    torch.manual_seed(42)
    p = {name: [] for name in shapes(c)}
    for l in range(c.layers):
        for name, (shape, per_layer) in shapes(c).items():
            if l and not per_layer:
                continue
            x = torch.ones(shape) if name in ("ln1w", "ln2w", "lnfw") else torch.zeros(shape)
            if name == "wte":
                x[: c.vocab].normal_(0, 0.02)
            elif len(shape) == 2:
                x.normal_(0, 0.02 / math.sqrt(2 * c.layers) if name in ("attprojw", "fcprojw") else 0.02)
            p[name].append(x)
    return p


@torch.no_grad()
def completion_loss(p, context, completion, c):
    row = torch.tensor(context + completion)
    logits = logits_of(p, row[None, :-1], c)[0, len(context) - 1:]
    return torch.nn.functional.cross_entropy(logits, row[len(context):]).item()


def multiple_choice(p, c):
    """Returns made-up examples as the uint16 of llm.c's file, the loss of each completion, and the number of
    right answers. The longest rows have T + 1 tokens, the last of which is only a target."""
    generator = torch.Generator().manual_seed(3)
    draw = lambda below: torch.randint(0, below, (1,), generator=generator).item()
    text = lambda longest: [draw(c.vocab) for _ in range(1 + draw(longest))]
    words, losses, right = [], [], 0
    for i in range(EXAMPLES):
        context = text(T)
        completions = [text(T + 1 - len(context)) for _ in range(4)]
        scores = [completion_loss(p, context, x, c) for x in completions]
        answer = scores.index(min(scores))
        label = answer if i % 2 else draw(4)
        example = [label, 4] + [word for x in [context] + completions for word in [len(x)] + x]
        words.append([65535, 2 * (3 + len(example)), i] + example)
        losses += scores
        right += answer == label
    return words, losses, right


def write_multiple_choice(path, words):
    header = np.zeros(256, dtype="<i4")
    header[:4] = 20240522, 1, len(words), 2 * max(map(len, words))
    with open(path, "wb") as f:
        f.write(header.tobytes() + np.array(sum(words, []), dtype="<u2").tobytes())


def flat(p):
    return np.concatenate([x.detach().float().numpy().ravel() for layers in p.values() for x in layers])


def main(folder):
    path = folder + "/reference_gpt2.bin"
    c = Config(layers=2, heads=2, channels=16, vocab=40, longest=12)
    p = random_parameters(c)
    tokens = torch.randint(0, c.vocab, (B * T + 1,), generator=torch.Generator().manual_seed(2))
    inputs, targets = tokens[:-1].view(B, T), tokens[1:].view(B, T)
    start = flat(p)
    words, choices, right = multiple_choice(p, c)
    write_multiple_choice(folder + "/reference_hellaswag.bin", words)
    everything = [x for layers in p.values() for x in layers]
    optimizer = torch.optim.AdamW([{"params": [x for x in everything if x.dim() == 2], "weight_decay": DECAY},
                                   {"params": [x for x in everything if x.dim() == 1], "weight_decay": 0.0}],
                                  lr=LR, betas=(BETA1, BETA2), eps=EPS)
    losses, norms = [], []
    for step in range(STEPS + 1):
        logits = logits_of(p, inputs, c)
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, c.vocab), targets.reshape(-1))
        losses.append(loss.item())
        if step == STEPS:
            break
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            first_logits, gradients = logits.detach(), flat({k: [x.grad for x in v] for k, v in p.items()})
        norms.append(torch.nn.utils.clip_grad_norm_(everything, CLIP).item())
        optimizer.step()
    assert min(norms) > CLIP, "the reference must exercise clipping"

    small = Config(layers=2, heads=2, channels=10, vocab=37, longest=7)     # sizes are not multiples of 16
    ints = lambda *x: np.array(x, dtype="<i4").tobytes()
    floats = lambda x: np.asarray(x, dtype="<f4").tobytes()
    with open(path, "wb") as f:
        f.write(ints(MAGIC, VERSION, c.longest, c.vocab, c.padded, c.layers, c.heads, c.channels, B, T, STEPS,
                     0, 0, 0, 0, 0))
        f.write(floats([LR, BETA1, BETA2, EPS, DECAY, CLIP, 0, 0]))
        f.write(ints(*tokens.tolist()))
        for x in (start, first_logits.numpy().ravel(), losses, norms, gradients, flat(p)):
            f.write(floats(x))
        f.write(ints(small.longest, small.vocab, small.padded, small.layers, small.heads, small.channels))
        f.write(floats(flat(llmc_initialisation(small))))
        f.write(ints(EXAMPLES, right))
        f.write(floats(choices))
    print(f"{path}: losses {losses}, gradient norms {norms}")
    print(f"{right} of {EXAMPLES} right answers; losses of the completions {choices}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) == 2 else sys.exit(__doc__))
