#!/usr/bin/env bash
# Trains GPT-2 124M on 10^10 tokens of FineWeb, on the GPUs of this machine. Usage: run_gpt2.sh.
#
# llm.c's published runs: validation loss 3.2722 on FineWeb in 45 minutes on 8 H100 (modded-nanogpt's record
# log); HellaSwag 29.9 % in 90 minutes on 8 A100 80GB, about $20 (github.com/karpathy/llm.c/discussions/481).
# OpenAI's GPT-2 124M: HellaSwag 29.4 %.
size=124M
. "$(dirname "${BASH_SOURCE[0]}")/run_gpt2.sh"
