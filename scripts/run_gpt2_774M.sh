#!/usr/bin/env bash
# Trains GPT-2 774M on 1.5 * 10^11 tokens of FineWeb, on the GPUs of this machine. Usage: run_gpt2.sh.
#
# llm.c's published recipe: 5.6 days on 8 A100 80GB, about $2000 (the header of its script). OpenAI's GPT-2
# 774M: HellaSwag 43.2 %.
size=774M
. "$(dirname "${BASH_SOURCE[0]}")/run_gpt2.sh"
