#!/usr/bin/env bash
# Trains GPT-2 1558M on 3.4 * 10^10 tokens of FineWeb-Edu, on the GPUs of this machine. Usage: run_gpt2.sh.
#
# llm.c's published run: 24 hours on 8 H100, $672, on FineWeb-Edu; it reaches the HellaSwag score of OpenAI's
# GPT-2 1558M, 48.9 %, after 25000 of the 32000 steps (github.com/karpathy/llm.c/discussions/677).
# scripts/multi_node/ has the same recipe for several machines.
size=1558M
. "$(dirname "${BASH_SOURCE[0]}")/run_gpt2.sh"
