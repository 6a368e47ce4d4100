#!/usr/bin/env python3
"""Loads a folder written by train_gpt2_zero --export with transformers, and compares its logits in float64
with those of dev/reference_gpt2.py for the same model's llm.c file. Neither shares code with the exporter.

    train_gpt2_zero --export MODEL --to folder
    train_gpt2_zero --export MODEL --to model.bin
    dev/check_export.py folder model.bin

Loading must print nothing: no warning, and no missing, unused or wrongly shaped key. The exit status is 0 if
the test passed, 77 if transformers or PyTorch is not installed, and 1 otherwise.
"""
import os
import sys
import tempfile
import warnings

try:
    import torch
    import transformers
    import reference_gpt2
except ImportError as e:
    print(e)
    sys.exit(77)

ROWS = 3


def die(message):
    sys.exit("check_export: " + message)


def printed_by(function):
    """Returns the result of `function`, and its output to stderr, including Python warnings."""
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as f, warnings.catch_warnings():
        warnings.simplefilter("always")
        os.dup2(f.fileno(), 2)
        try:
            result = function()
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
        f.seek(0)
        return result, f.read().decode()


def check_model(folder, path):
    (model, info), printed = printed_by(lambda: transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True))
    if printed or any(info.values()):
        die("loading %s is not silent: %s %s" % (folder, printed, {k: v for k, v in info.items() if v}))
    c, p = reference_gpt2.read_model(path)
    p = {name: [x.double() for x in layers] for name, layers in p.items()}
    length = min(c.longest, 128)
    tokens = torch.randint(0, c.vocab, (ROWS, length), generator=torch.Generator().manual_seed(1))
    dtype = next(model.parameters()).dtype
    with torch.no_grad():
        expected = reference_gpt2.logits_of(p, tokens, c)
        found = model.double()(tokens).logits
        as_loaded = model.to(dtype)(tokens).logits.double()
    if found.shape != expected.shape:
        die("logits have the shape %s, expected %s" % (tuple(found.shape), tuple(expected.shape)))
    size = expected.abs().max().item()
    error, own = (found - expected).abs().max().item(), (as_loaded - expected).abs().max().item()
    print("%s: transformers %s loads it silently; %d logits up to %.3f: in float64 at most %.1e off, in %s "
          "%.1e" % (folder, transformers.__version__, expected.numel(), size, error, dtype, own))
    if not error <= 1e-9 * max(size, 1):
        die("the logits differ")
    if not own <= (1e-4 if dtype == torch.float32 else 0.1) * max(size, 1):
        die("the logits differ by more than rounding to %s" % dtype)
    return model


def check_tokenizer(folder, model):
    tokenizer, printed = printed_by(lambda: transformers.AutoTokenizer.from_pretrained(folder))
    if printed:
        die("loading the tokenizer of %s is not silent: %s" % (folder, printed))
    if len(tokenizer) != model.config.vocab_size or tokenizer.eos_token_id != model.config.eos_token_id:
        die("the tokenizer has %d tokens and ends text with %d" % (len(tokenizer), tokenizer.eos_token_id))
    text = "Once a caf\u00e9\n  \U0001f600 12."  # shorter than any model here
    tokens = tokenizer(text)["input_ids"]
    if tokenizer.decode(tokens) != text:
        die("the tokenizer converts %r to %r" % (text, tokenizer.decode(tokens)))
    prompt = tokenizer("Once", return_tensors="pt")
    _, printed = printed_by(lambda: model.generate(**prompt, max_new_tokens=4, do_sample=False))
    if printed:
        die("generating is not silent: %s" % printed)
    print("%s: its tokenizer loads silently, %d tokens; %r is %s" % (folder, len(tokenizer), text[:16],
                                                                    tokens[:16]))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    transformers.utils.logging.disable_progress_bar()
    loaded = check_model(*sys.argv[1:])
    if os.path.exists(os.path.join(sys.argv[1], "vocab.json")):
        check_tokenizer(sys.argv[1], loaded)
