// To add a target, write a file that defines it, and add its name to both lists.
#include "fuzz.h"

extern const fuzz_target fuzz_checkpoint, fuzz_saved_run, fuzz_model_file, fuzz_tokenizer, fuzz_word_pieces,
    fuzz_shards, fuzz_deepspeed, fuzz_tuning, fuzz_options, fuzz_prompts, fuzz_safetensors, fuzz_hf_config;

const fuzz_target *const fuzz_targets[] = {
    &fuzz_checkpoint,
    &fuzz_saved_run,
    &fuzz_model_file,
    &fuzz_tokenizer,
    &fuzz_word_pieces,
    &fuzz_shards,
    &fuzz_deepspeed,
    &fuzz_tuning,
    &fuzz_options,
    &fuzz_prompts,
    &fuzz_safetensors,
    &fuzz_hf_config,
    NULL,
};
