#!/usr/bin/env bash
# Trains GPT-2 350M on 3.1 * 10^10 tokens of FineWeb, on the GPUs of this machine. Usage: run_gpt2.sh.
#
# llm.c's published runs: validation loss 2.9282 on FineWeb in 5.8 hours on 8 H100 (modded-nanogpt's record
# log); about 14 hours on 8 A100 80GB, about $200 (the header of llm.c's script). OpenAI's GPT-2 350M:
# HellaSwag 37.5 %.
size=350M
. "$(dirname "${BASH_SOURCE[0]}")/run_gpt2.sh"
