#!/usr/bin/env bash
# Trains GPT-2 774M on 1.5 * 10^11 tokens of FineWeb, on the GPUs of this machine. Settings: run_gpt2.sh.
# Usage: scripts/run_gpt2_774M.sh [--dry-run]
#
# llm.c's published recipe: 5.6 days on 8 A100 80GB, about $2000 (the header of its script). OpenAI's GPT-2
# 774M: HellaSwag 43.2 %.
# Here: the recipe ran with a tiny model on CPUs only; README.md has the status of GPUs.
size=774M
. "$(dirname "${BASH_SOURCE[0]}")/run_gpt2.sh"
