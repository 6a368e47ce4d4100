#include "fit.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../gpt2/gpt2_error.h"
#include "../../gpt2/text_file.h"
#include "../running/machine.h"
#include "../options/options.h"
#include "../running/run.h"
#include "room.h"

// -------- the memory per rank

int try_plan(const GPT2 *model, const zero_config *config, zero_plan *plan) {
    const PluginTables *t = &model->tables;
    return zero_make_plan(plan, config, t->tensors, NUM_PARAMETER_TENSORS, t->units, t->n_units, run.ranks,
                          run.ranks_on_host);
}

zero_plan plan_of(const GPT2 *model, const zero_config *config) {
    zero_plan plan;
    zero_check(try_plan(model, config, &plan));
    return plan;
}

static size_t plugin_bytes(const GPT2 *model, const zero_config *config, int stage) {
    const zero_config at_stage = settings_at_stage(config, stage);
    const zero_plan plan = plan_of(model, &at_stage);
    return bytes_on(plan.lines, plan.n_lines, ZERO_DEVICE);
}

// Returns the rank's share of its device's memory, used or free.
static size_t device_bytes(void) {
    size_t total;
    LAYER(device_bytes(&total));
    return total / ranks_on_device();
}

// Returns the memory left on a device without recomputation, at the stage that needs the most. Bits depend on
// the result, so it depends only on the device's size, the model, the batch and settings that change bits
// anyway, not on the stage, the units or the memory that is free now. An eighth of the device is reserved for
// the CUDA context, NCCL and the layers' scratch.
static size_t left_at_any_stage(const GPT2 *model, const zero_config *config) {
    GPT2 kept = *model;
    kept.units_a_block = 1;
    run.describe(&kept);
    zero_config plain = zero_defaults();
    plain.device = config->device;
    plain.micro_batches = config->micro_batches;
    plain.numbers = config->numbers;
    plain.comm.nccl = 0;
    size_t device = device_bytes(), largest = 0;
    for (int stage = 0; stage <= 3; stage++) {
        size_t bytes = plugin_bytes(&kept, &plain, stage);
        if (bytes > largest) largest = bytes;
    }
    free_tables(&kept);
    kept.recompute = 0;
    kept.chunk = 0;  // the rest is for the logits
    kept.scratch_bytes = 0;
    size_t taken = largest + activation_bytes(&kept, ZERO_DEVICE) + device / 8;
    return taken < device ? device - taken : 0;
}

// -------- the LM head's parts

enum { MOST_PARTS = 8, TILE_ROWS = 256 };  // few, since each part rounds the gradient once more

// Returns the limit on the bytes of logits in memory. Bits depend on it, since the LM head's bf16 gradient is
// rounded once per part. On CUDA the limit is the memory that every stage leaves, but at least 1 GiB (a
// sixteenth of a small device) and at most 4 GiB. Larger parts gain little: each part reads and writes the
// gradient (V, C) once more, but by an H100's data sheet that takes less than a hundredth of the time of the
// matmuls of 4 GiB (42000 rows with GPT-2's vocabulary in bf16).
static size_t logits_at_once(const GPT2 *model, const zero_config *config) {
    const size_t most = (size_t)4 << 30;
    if (!on_cuda()) return 128 << 20;
    size_t device = device_bytes(), least = device / 16 < 1 << 30 ? device / 16 : 1 << 30;
    size_t left = left_at_any_stage(model, config);
    if (left < least || config->accumulate_layers) return least;
    return left < most ? left : most;
}

static int parts_of_head(const GPT2 *model, const zero_config *config) {
    if (model->inference) return 1;
    size_t at_once = logits_at_once(model, config), all = logits_bytes(model, (size_t)model->B * model->T);
    size_t parts = (all + at_once - 1) / at_once;
    return parts < MOST_PARTS ? (int)parts : MOST_PARTS;
}

// Returns the rows of logits per part. On CUDA they fill whole tiles of the matmuls, except in the last part.
// In inference each row of the cache needs the logits of its last token.
static int rows_of_part(const GPT2 *model, int parts) {
    size_t BT = (size_t)model->B * model->T, rows = (BT + parts - 1) / parts;
    if (model->inference) return model->cache_rows;
    if (on_cuda()) rows = (rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    return (int)(rows < BT ? rows : BT);
}

// The layers plan their scratch for model->chunk.
static int plan_scratch(GPT2 *model) {
    const GPT2Config *c = &model->config;
    if (model->inference)
        return run.layers->plan_cached(model->dtype, model->B * model->T, model->cache_rows, model->cache_T,
                                       c->channels, c->num_heads, c->padded_vocab_size,
                                       &model->scratch_bytes);
    return run.layers->plan(model->dtype, model->B, model->T, c->channels, c->num_heads, c->padded_vocab_size,
                            model->chunk, &model->scratch_bytes);
}

int plan_layers(GPT2 *model, const zero_config *config) {
    model->chunk = rows_of_part(model, parts_of_head(model, config));
    return plan_scratch(model);
}

// -------- --tune: a file of the fastest matmul algorithms

// Broadcasts rank 0's text; the other ranks pass NULL. The caller frees the result.
static char *text_of_rank_0(char *text) {
    uint64_t bytes = text ? strlen(text) + 1 : 0;
    zero_check(zero_broadcast(run.z, 0, &bytes, sizeof bytes));
    if (!text) text = malloc_check(bytes);
    zero_check(zero_broadcast(run.z, 0, text, bytes));
    return text;
}

// Rank 0 plans first, times the matmuls that the file lacks, and adds them. All ranks use its choices, so
// that bits depend only on the file. Its choices are valid for one GPU model and library version.
static void plan_tuned(GPT2 *model) {
    const char *gpu = layers_cuda_card();
    char line[512];
    if (!gpu) die("%s", gpt2_last_error());
    snprintf(line, sizeof line, "GPU and library of --tune = %s", gpu);
    zero_check(zero_require_same(run.z, line));
    char *text = run.rank == 0 ? text_file_read(opt.tune) : text_of_rank_0(NULL);
    if (!text) die("option --tune: %s", gpt2_last_error());
    gpt2_check(layers_cuda_tune(opt.tune, text, run.rank == 0));
    gpt2_check(plan_scratch(model));
    if (run.rank == 0) {
        char *tuned = layers_cuda_tuned();
        if (!tuned) die("option --tune: %s", gpt2_last_error());
        const int changed = strcmp(tuned, text);
        if (changed && text_file_write(opt.tune, tuned)) die("option --tune: %s", gpt2_last_error());
        print0("tuning     %s%s\n", opt.tune, changed ? ", with new timings" : "");
        free(text_of_rank_0(tuned));
    }
    free(text);
}

// -------- the level of recompute

static int gelu_is_fused(gpt2_dtype dt) {
    if (!run.machine) return layers_cuda_gelu_fused(dt);
    return dt != GPT2_F32 && (opt.gelu_fusion < 0 ? machine_of_plan()->gelu_fused : opt.gelu_fusion > 0);
}

// Returns the lowest level at which the activations fit into the memory that the plugin leaves. Keeps 1/32 of
// the device free, since kernels load and NCCL connects later, and allocations leave gaps. If the forward
// matmul computes GELU, level 0 gives different bits from the others, so it must fit at every stage.
static int lowest_recompute(const GPT2 *model, const zero_config *config) {
    size_t left, reserve = device_bytes() / 32;
    GPT2 tried = *model;
    zero_check(memory_left(model, config, &left));
    if (!run.z) reserve += plugin_bytes(model, config, config->stage);
    tried.recompute = 0;
    if (gelu_is_fused(model->dtype)) {
        if (logits_bytes(model, model->chunk) <= left_at_any_stage(model, config)) return 0;
        tried.recompute = 1;
    }
    while (tried.recompute < most_chosen_recompute(model)) {
        if (activation_bytes(&tried, ZERO_DEVICE) + reserve <= left) break;
        tried.recompute++;
    }
    return tried.recompute;
}

// Returns the maximum of the ranks' numbers, each from 0 to `most` <= 64. On CPUs all ranks have the same
// number.
static int largest_of_ranks(int number, int most) {
    double ranks_above[64];
    int largest = 0;
    if (!run.z || !on_cuda()) return number;
    for (int i = 0; i < most; i++) ranks_above[i] = number > i;
    zero_check(zero_sum(run.z, ranks_above, most));
    while (largest < most && ranks_above[largest] > 0) largest++;
    return largest;
}

void settle_memory(GPT2 *model, const zero_config *config) {
    const int parts = largest_of_ranks(parts_of_head(model, config), MOST_PARTS);
    model->chunk = rows_of_part(model, parts);
    if (opt.tune && run.z)
        plan_tuned(model);
    else if (run.z || run.machine || !on_cuda())
        gpt2_check(plan_scratch(model));
    // Wait until ranks that share a device have freed the memory of their trial matmuls.
    if (run.z && on_cuda()) zero_check(zero_barrier(run.z));
    if (model->recompute >= 0) return;
    model->recompute = on_cuda() ? largest_of_ranks(lowest_recompute(model, config), MOST_RECOMPUTE) : 1;
}

size_t bytes_to_come(GPT2 model, const zero_config *config) {
    if (on_cuda()) return 0;
    settle_memory(&model, config);
    return activation_bytes(&model, ZERO_DEVICE) + bytes_beside(&model, config);
}
