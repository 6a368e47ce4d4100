// Trains a GPT-2 with ZeRO stages 0 to 3, on CPUs or on CUDA devices. Plain C, compiled by `cc -x c`: see the
// Makefile.
//
//     make train_gpt2_zero && mpirun ./train_gpt2_zero
//         needs no argument: a small model, built-in stories, stage 3
//     mpirun -np 2 ./train_gpt2_zero -z 2 -e d12 -i train.bin -j val.bin -o log124M -n 1000 -y 1
//         trains GPT-2 124M; the same command resumes it
//     mpirun -np 2 ./train_gpt2_zero -e log124M --prompts questions.txt -g 100
//         answers each line of the file
//
// From top to bottom: the tables of tensors and units for the plugin; forward, LM head and backward with the
// hooks; validation and generation; the training loop. The layers are in gpt2/, everything about ranks in
// llmc_zero/, and what any trainer needs (options, memory, checkpoints, reports) in trainer/.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gpt2/bar.h"                      // bar_show
#include "gpt2/dataloader.h"               // DataLoader, dataloader_*
#include "gpt2/hellaswag.h"                // HellaSwag, hellaswag_*
#include "gpt2/layers.h"                   // gpt2_dtype, Layers
#include "gpt2/model.h"                    // GPT2Config, GPT2Tensor, WTE..LNFB, ENCODED..LOGITS
#include "gpt2/learning_rate.h"            // Schedule, schedule_*, OutlierDetector, outlier_*
#include "gpt2/tokenizer.h"                // Tokenizer, tokenizer_*
#include "llmc_zero/zero.h"                // zero_*
#include "trainer/running/activations.h"   // GPT2, free_tables, act, row_of, *_input, allocate_activations
#include "trainer/options/config_table.h"  // print_config
#include "trainer/checkpoints/folder.h"    // *_folder, why_no_checkpoint, check_folder_lock
#include "trainer/planning/fit.h"          // settle_memory, bytes_to_come
#include "trainer/generating/generate.h"   // CachedPass, generation_*, answers_*, print_token
#include "trainer/running/inputs.h"        // TrainingData, data_*, describe_model, load_values, must_be_same
#include "trainer/running/machine.h"       // *_launched_ranks, note_differences, settle_*, plugin_settings
#include "trainer/checkpoints/offline.h"   // verify, export_model
#include "trainer/options/options.h"       // opt, parse_options, settle_options, is_answering, prompts_arrive
#include "trainer/running/report.h"        // Report, StepResult, report_*, logs_*, try_outputs
#include "trainer/running/run.h"           // run (the plugin, ranks, step), print0, now, die, *_check, LAYER
#include "trainer/checkpoints/saving.h"    // TrainerState, check_room, *_checkpoint, checkpoint_*
#include "trainer/running/signals.h"       // take_signals, REQUESTS, requests_*, *_requested, check_output
#include "trainer/planning/advice.h"       // out_of_memory, print_fastest
#include "trainer/planning/room.h"         // use_one_arena
#include "trainer/planning/plan_file.h"    // write_plan_file
#include "trainer/planning/step_time.h"    // StepTimes, time_now, time_between, machine_without, print_times
#include "trainer/planning/start_table.h"  // print_start, print_plan
#include "trainer/options/zero_file.h"     // take_zero_file, settle_zero_file, end_if_refused

// -------- the model as the plugin sees it: a table of tensors, and the units that it gathers and releases

// A block's parts, in forward's order. Each has one matrix.
enum { ATTENTION, ATTPROJ, FC, FCPROJ, BLOCK_PARTS };
static int part_of(int tensor) {
    return tensor >= FCPROJW ? FCPROJ : tensor >= LN2W ? FC : tensor >= ATTPROJW ? ATTPROJ : ATTENTION;
}

// Unit 0 holds the embeddings and the final layernorm, since wte is used at both ends of the model. The
// blocks follow, each as one unit or, with --units matrix, one for each part.
enum { EMBEDDING = 0 };
static int unit_of(const GPT2 *model, int l, int part) {
    return 1 + l * model->units_a_block + part * model->units_a_block / BLOCK_PARTS;
}
static int parts_of_unit(const GPT2 *model) { return BLOCK_PARTS / model->units_a_block; }

static zero_tensor describe_tensor(const GPT2 *model, int i) {
    const GPT2Tensor *t = &model->tensors[i];
    return (zero_tensor){
        .name = t->name,
        .n_dims = t->n_dims,
        .dims = { t->dims[0], t->dims[1] },
        .layers = t->per_layer ? model->config.num_layers : 1,
        .unit = t->per_layer ? unit_of(model, 0, part_of(i)) : EMBEDDING,
        .unit_step = model->units_a_block,
        .decay = t->n_dims == 2,
        // Backward's first matmul overwrites a matrix's gradient. wpe has no matmul; the encoder adds to its
        // gradient.
        .backward_overwrites = t->n_dims == 2 && i != WPE,
    };
}

// Backward repeats a block's forward at recompute level 3, unless the block's activations are still in
// memory: those of the last one are, if no other micro-batch has replaced them.
static int is_repeated(const GPT2 *model, int l) {
    const int is_last = l == model->config.num_layers - 1;
    const int have_their_own = model->at_once == 1 || model->units_a_block > 1;
    return model->recompute == 3 && !(is_last && have_their_own);
}

// A block of several units is repeated unit by unit up to the last, with which its backward begins.
static void describe_block(GPT2 *model, int l) {
    static const char *const of_parts[] = { " qkv", " attproj", " fc", " fcproj" };
    PluginTables *t = &model->tables;
    for (int part = 0; part < BLOCK_PARTS; part += parts_of_unit(model)) {
        const int unit = unit_of(model, l, part), last = unit_of(model, l, FCPROJ);
        const int repeats = is_repeated(model, l) && unit < last;
        snprintf(t->names[unit], sizeof *t->names, "block %d%s", l,
                 model->units_a_block > 1 ? of_parts[part] : "");
        t->units[unit] = (zero_unit){
            .name = t->names[unit], .forward_uses = 1 + repeats, .repeated_uses = repeats, .backward_uses = 1
        };
    }
}

// Forward uses the embedding unit twice: in the encoder, then in the LM head. Backward uses it in reverse
// order, and in the encoder it only adds to gradients.
static void describe_to_plugin(GPT2 *model) {
    const int L = model->config.num_layers;
    PluginTables *t = &model->tables;
    t->n_units = unit_of(model, L, 0);
    t->units = malloc_check(t->n_units * sizeof *t->units);
    t->names = malloc_check(t->n_units * sizeof *t->names);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) t->tensors[i] = describe_tensor(model, i);
    t->units[EMBEDDING] =
        (zero_unit){ .name = "embedding", .forward_uses = 2, .backward_uses = 2, .gradient_only_uses = 1 };
    for (int l = 0; l < L; l++) describe_block(model, l);
}

// Creates run.z. Ends the run if the ranks' settings or inputs differ.
static zero_config create_plugin(GPT2 *model, int micro_batches, const char *same) {
    describe_to_plugin(model);
    const PluginTables *t = &model->tables;
    zero_config config = plugin_settings(model->dtype, micro_batches);
    config.start.same = same;
    config.memory_beside = bytes_to_come(*model, &config);
    run.creating = 1;
    int rc = zero_create(&run.z, &config, t->tensors, NUM_PARAMETER_TENSORS, t->units, t->n_units);
    if (rc == ZERO_ERR_MEMORY) out_of_memory(model, &config);
    zero_check(rc);
    check_launched_ranks();
    return config;
}

// -------- forward and backward: the layers, with hooks around each use of a unit

static const void *param(int tensor, int layer) {
    const void *p = zero_param(run.z, tensor, layer);
    zero_check(!p);
    return p;
}
static void *grad(int tensor, int layer) {
    void *p = zero_grad(run.z, tensor, layer);
    zero_check(!p);
    return p;
}

// What passes the model: n micro-batches of (B, T) tokens, of which the first is number `first` of the step.
// All n pass a unit while it is open, one after the other.
typedef struct {
    const int *inputs, *targets;  // (n, B, T)
    int n, first, B, T;
    float dloss;               // the factor of the losses' gradients; 0: forward only
    const CachedPass *cached;  // NULL: whole rows
} Pass;

// The layers work on micro-batch m of n from now on.
static void work_on(GPT2 *model, const Pass *p, int m) {
    model->micro = m;
    model->at_once = p->n;
}
static const int *tokens_of(const Pass *p, const int *tokens, int m) {
    return tokens + (size_t)m * p->B * p->T;
}

// With a cache, each span's tokens continue at the positions after those already cached.
static void encode(const GPT2 *model, const int *inputs, int B, int T, const CachedPass *cached) {
    const int C = model->config.channels;
    const gpt2_dtype dt = model->dtype;
    const void *wte = param(WTE, 0), *wpe = param(WPE, 0);
    void *encoded = act(model, ENCODED, 0);
    if (!cached) {
        LAYER(encoder_forward(dt, encoded, inputs, wte, wpe, B, T, C));
        return;
    }
    for (const layers_span *s = cached->spans; s < cached->spans + cached->n_spans; s++)
        LAYER(encoder_forward(dt, row_of(model, encoded, s->at, C), inputs + s->at, wte,
                              row_of(model, wpe, s->first, C), 1, s->n, C));
}

// In backward, makes block l's input available and starts fetching the next one.
static void take_input(const GPT2 *model, int l) {
    fetch_next_input(model, l);
    await_input(model, l);
}

// The input of block l (B, T, C) is the encoder's output, or the sum of the previous block's residual2 and
// SCRATCH_BTC, computed by this block's first layernorm in the same pass. `again` recomputes the block for
// backward: its input is still in memory, and the same layers on the same input give the same bits.
static void attention_forward(GPT2 *model, int l, const Pass *p, int again) {
    const int C = model->config.channels, NH = model->config.num_heads, BT = p->B * p->T;
    const gpt2_dtype dt = model->dtype;
    void *residual = block_input(model, l), *qkv = act(model, QKV, l), *atty = act(model, ATTY, l);
    void *ln1 = act(model, LN1, l), *ln1_mean = act(model, LN1_MEAN, l), *ln1_rstd = act(model, LN1_RSTD, l);
    if (again)
        take_input(model, l);
    else
        await_input(model, l);
    if (l == 0 || again)
        LAYER(
            layernorm_forward(dt, ln1, ln1_mean, ln1_rstd, residual, param(LN1W, l), param(LN1B, l), BT, C));
    else
        LAYER(residual_layernorm_forward(dt, residual, ln1, ln1_mean, ln1_rstd, act(model, RESIDUAL2, l - 1),
                                         act(model, SCRATCH_BTC, 0), param(LN1W, l), param(LN1B, l), BT, C));
    LAYER(matmul_forward(dt, qkv, ln1, param(QKVW, l), param(QKVB, l), BT, C, 3 * C));
    if (p->cached)
        LAYER(attention_cached(dt, atty, act(model, CACHE, l), qkv, p->cached->spans, p->cached->n_spans, C,
                               NH));
    else
        LAYER(attention_forward(dt, atty, act(model, LSE, l), qkv, p->B, p->T, C, NH));
}

// SCRATCH_BTC is the output of attention, and then of the MLP.
static void attproj_forward(GPT2 *model, int l, const Pass *p, int again) {
    const int C = model->config.channels;
    LAYER(matmul_forward(model->dtype, act(model, SCRATCH_BTC, 0), act(model, ATTY, l), param(ATTPROJW, l),
                         param(ATTPROJB, l), p->B * p->T, C, C));
}

static void fc_forward(GPT2 *model, int l, const Pass *p, int again) {
    const int C = model->config.channels, BT = p->B * p->T;
    const gpt2_dtype dt = model->dtype;
    void *ln2 = act(model, LN2, l);
    LAYER(residual_layernorm_forward(dt, act(model, RESIDUAL2, l), ln2, act(model, LN2_MEAN, l),
                                     act(model, LN2_RSTD, l), block_input(model, l),
                                     act(model, SCRATCH_BTC, 0), param(LN2W, l), param(LN2B, l), BT, C));
    LAYER(matmul_gelu_forward(dt, act(model, FCH_GELU, l), act(model, FCH, l), ln2, param(FCW, l),
                              param(FCB, l), BT, C, 4 * C));
}

// Backward does not need its output, so it is never recomputed.
static void fcproj_forward(GPT2 *model, int l, const Pass *p, int again) {
    const int C = model->config.channels;
    if (p->dloss) offload_input(model, l);
    LAYER(matmul_forward(model->dtype, act(model, SCRATCH_BTC, 0), act(model, FCH_GELU, l), param(FCPROJW, l),
                         param(FCPROJB, l), p->B * p->T, 4 * C, C));
}

typedef void Forward(GPT2 *model, int l, const Pass *p, int again);
static Forward *const forward_of[] = { attention_forward, attproj_forward, fc_forward, fcproj_forward };

// Runs the parts of block l that are in the same unit as `first`, its first one.
static void unit_forward(GPT2 *model, int l, int first, const Pass *p, int again) {
    const int unit = unit_of(model, l, first), end = first + parts_of_unit(model);
    zero_check(zero_pre_forward(run.z, unit));
    for (int m = 0; m < p->n; m++) {
        work_on(model, p, m);
        for (int part = first; part < end; part++) forward_of[part](model, l, p, again);
    }
    zero_check(zero_post_forward(run.z, unit));
}

// Computes the residual stream after the last block from the inputs, as two summands (B, T, C): residual2 of
// block L-1, and SCRATCH_BTC. The next layernorm adds the two and writes the sum to residual3. That needs no
// parameter of this block, so the block is released first. With a cache, the inputs are the tokens of that
// pass, and their keys and values are added to the cache.
static void gpt2_forward(GPT2 *model, const Pass *p) {
    zero_check(zero_pre_forward(run.z, EMBEDDING));
    for (int m = 0; m < p->n; m++) {
        work_on(model, p, m);
        encode(model, tokens_of(p, p->inputs, m), p->B, p->T, p->cached);
    }
    zero_check(zero_post_forward(run.z, EMBEDDING));

    for (int l = 0; l < model->config.num_layers; l++)
        for (int part = 0; part < BLOCK_PARTS; part += parts_of_unit(model))
            unit_forward(model, l, part, p, 0);
}

// The head of one micro-batch. Its forward and backward alternate chunk by chunk, so the logits of the whole
// batch never exist at once, and the unit is open for forward and backward at the same time.
static void head(const GPT2 *model, const int *targets, int BT, float dloss, int micro) {
    const int L = model->config.num_layers, C = model->config.channels;
    const int V = model->config.vocab_size, Vp = model->config.padded_vocab_size;
    const gpt2_dtype dt = model->dtype;
    void *residual = block_input(model, L), *dlnf = act(model, DL_BTC, 0);
    void *lnf = act(model, LNF, 0), *lnf_mean = act(model, LNF_MEAN, 0), *lnf_rstd = act(model, LNF_RSTD, 0);
    void *logits = act(model, LOGITS, 0), *dresidual = act(model, DRESIDUAL, 0);
    float *losses = act(model, LOSSES, 0);

    await_input(model, L);
    LAYER(residual_layernorm_forward(dt, residual, lnf, lnf_mean, lnf_rstd, act(model, RESIDUAL2, L - 1),
                                     act(model, SCRATCH_BTC, 0), param(LNFW, 0), param(LNFB, 0), BT, C));
    for (int row = 0; row < BT; row += model->chunk) {
        int n = BT - row < model->chunk ? BT - row : model->chunk;
        int add = row > 0;  // to wte's gradient
        void *inp = row_of(model, lnf, row, C), *dinp = row_of(model, dlnf, row, C);
        LAYER(matmul_forward(dt, logits, inp, param(WTE, 0), NULL, n, C, Vp));
        LAYER(softmax_crossentropy(dt, losses + row, logits, dloss, targets + row, n, V, Vp));
        if (dloss)
            LAYER(matmul_backward(dt, dinp, NULL, grad(WTE, 0), NULL, logits, inp, param(WTE, 0), NULL, n, C,
                                  Vp, add));
    }
    LAYER(sum((double *)act(model, LOSS_SUMS, 0) + micro, losses, BT, 0));
    if (!dloss) return;
    LAYER(clear(dresidual, (size_t)BT * C * gpt2_dtype_size(dt)));
    LAYER(layernorm_backward(dt, dresidual, grad(LNFW, 0), grad(LNFB, 0), act(model, DRESIDUAL_SUMS, 0), dlnf,
                             residual, param(LNFW, 0), lnf_mean, lnf_rstd, BT, C));
}

// Runs the final layernorm, the LM head and the losses and, if dloss is not 0, their backward pass. The sum
// of a micro-batch's losses is at its number in LOSS_SUMS; does not wait for it.
static void gpt2_head(GPT2 *model, const Pass *p) {
    zero_check(zero_pre_forward(run.z, EMBEDDING));
    if (p->dloss) zero_check(zero_pre_backward(run.z, EMBEDDING));
    for (int m = 0; m < p->n; m++) {
        work_on(model, p, m);
        head(model, tokens_of(p, p->targets, m), p->B * p->T, p->dloss, p->first + m);
        if (p->dloss) zero_check(zero_post_micro(run.z, EMBEDDING, p->first + m));
    }
    zero_check(zero_post_forward(run.z, EMBEDDING));
    if (p->dloss) zero_check(zero_post_backward(run.z, EMBEDDING));
}

// These propagate dresidual, the gradient of the residual stream (B, T, C), through block l, the last part
// first. Each weight matrix of a block has only one matmul. It overwrites the gradient instead of adding to
// it, so describe_tensor marks the matrix `backward_overwrites`. dresidual is the gradient of both attproj's
// and fcproj's output. Before each of the two, a layernorm's backward adds to dresidual and also sums its
// columns: these sums are the gradients of their biases.
//
// fcproj's matmul may also sum fcb's gradient. If that is in another unit, which is not open yet, the sums
// wait in DFCB.
//
// GELU is recomputed from the rounded fch at levels 1 to 3, so that these levels give the same bits even if
// the forward matmul computes GELU from unrounded values.
static int sums_dfcb(const GPT2 *model, int BT) {
    const int C = model->config.channels;
    return run.layers->dinp_bias_fused(model->dtype, BT, 4 * C, C);
}

static void fcproj_backward(GPT2 *model, int l, const Pass *p) {
    const int C = model->config.channels, BT = p->B * p->T;
    const gpt2_dtype dt = model->dtype;
    void *fch = act(model, FCH, l), *fch_gelu = act(model, FCH_GELU, l), *dfcb = NULL;
    if (sums_dfcb(model, BT)) dfcb = model->units_a_block > 1 ? act(model, DFCB, 0) : grad(FCB, l);
    if (model->recompute >= 1) LAYER(gelu_forward(dt, fch_gelu, fch, (size_t)BT * 4 * C));
    LAYER(bias_from_sums(dt, grad(FCPROJB, l), act(model, DRESIDUAL_SUMS, 0), C));
    LAYER(matmul_backward(dt, act(model, DL_BT4C, 0), dfcb, grad(FCPROJW, l), NULL, act(model, DRESIDUAL, 0),
                          fch_gelu, param(FCPROJW, l), fch, BT, 4 * C, C, 0));
}

static void fc_backward(GPT2 *model, int l, const Pass *p) {
    const int C = model->config.channels, BT = p->B * p->T, is_summed = sums_dfcb(model, BT);
    const gpt2_dtype dt = model->dtype;
    void *residual2 = act(model, RESIDUAL2, l), *dl_btc = act(model, DL_BTC, 0);
    void *ln2 = act(model, LN2, l), *ln2_mean = act(model, LN2_MEAN, l), *ln2_rstd = act(model, LN2_RSTD, l);
    if (model->recompute == 2)
        LAYER(
            layernorm_forward(dt, ln2, ln2_mean, ln2_rstd, residual2, param(LN2W, l), param(LN2B, l), BT, C));
    if (is_summed && model->units_a_block > 1)
        LAYER(copy(grad(FCB, l), act(model, DFCB, 0), 4 * C * gpt2_dtype_size(dt)));
    LAYER(matmul_backward(dt, dl_btc, NULL, grad(FCW, l), is_summed ? NULL : grad(FCB, l),
                          act(model, DL_BT4C, 0), ln2, param(FCW, l), NULL, BT, C, 4 * C, 0));
    LAYER(layernorm_backward(dt, act(model, DRESIDUAL, 0), grad(LN2W, l), grad(LN2B, l),
                             act(model, DRESIDUAL_SUMS, 0), dl_btc, residual2, param(LN2W, l), ln2_mean,
                             ln2_rstd, BT, C));
}

// Includes attention, which has no parameters.
static void attproj_backward(GPT2 *model, int l, const Pass *p) {
    const int C = model->config.channels, NH = model->config.num_heads;
    const gpt2_dtype dt = model->dtype;
    void *atty = act(model, ATTY, l), *dl_btc = act(model, DL_BTC, 0);
    LAYER(bias_from_sums(dt, grad(ATTPROJB, l), act(model, DRESIDUAL_SUMS, 0), C));
    LAYER(matmul_backward(dt, dl_btc, NULL, grad(ATTPROJW, l), NULL, act(model, DRESIDUAL, 0), atty,
                          param(ATTPROJW, l), NULL, p->B * p->T, C, C, 0));
    LAYER(attention_backward(dt, act(model, DL_BT4C, 0), dl_btc, act(model, QKV, l), atty, act(model, LSE, l),
                             p->B, p->T, C, NH));
}

static void qkv_backward(GPT2 *model, int l, const Pass *p) {
    const int C = model->config.channels, BT = p->B * p->T;
    const gpt2_dtype dt = model->dtype;
    void *residual = block_input(model, l), *dl_btc = act(model, DL_BTC, 0);
    void *ln1 = act(model, LN1, l), *ln1_mean = act(model, LN1_MEAN, l), *ln1_rstd = act(model, LN1_RSTD, l);
    float *sums = l > 0 ? act(model, DRESIDUAL_SUMS, 0) : NULL;
    if (model->recompute == 2)
        LAYER(
            layernorm_forward(dt, ln1, ln1_mean, ln1_rstd, residual, param(LN1W, l), param(LN1B, l), BT, C));
    LAYER(matmul_backward(dt, dl_btc, NULL, grad(QKVW, l), grad(QKVB, l), act(model, DL_BT4C, 0), ln1,
                          param(QKVW, l), NULL, BT, C, 3 * C, 0));
    LAYER(layernorm_backward(dt, act(model, DRESIDUAL, 0), grad(LN1W, l), grad(LN1B, l), sums, dl_btc,
                             residual, param(LN1W, l), ln1_mean, ln1_rstd, BT, C));
}

typedef void Backward(GPT2 *model, int l, const Pass *p);
static Backward *const backward_of[] = { qkv_backward, attproj_backward, fc_backward, fcproj_backward };

// Runs backward of the parts of block l that are in the same unit as `first`, its first one. The block's last
// unit comes first. It repeats its own parts of the forward; the other units' have been repeated before.
static void unit_backward(GPT2 *model, int l, int first, const Pass *p) {
    const int unit = unit_of(model, l, first), end = first + parts_of_unit(model);
    const int begins = end == BLOCK_PARTS, repeats = is_repeated(model, l);
    zero_check(zero_pre_backward(run.z, unit));
    for (int m = 0; m < p->n; m++) {
        work_on(model, p, m);
        if (begins && !repeats) take_input(model, l);
        for (int part = first; begins && repeats && part < FCPROJ; part++) forward_of[part](model, l, p, 1);
        for (int part = end - 1; part >= first; part--) backward_of[part](model, l, p);
        zero_check(zero_post_micro(run.z, unit, p->first + m));
    }
    zero_check(zero_post_backward(run.z, unit));
}

// Propagates the gradient of the residual stream after the last block back to the embeddings.
static void gpt2_backward(GPT2 *model, const Pass *p) {
    const int last = BLOCK_PARTS - parts_of_unit(model);  // the first part in a block's last unit
    work_on(model, p, 0);
    fetch_first_input(model);
    for (int l = model->config.num_layers - 1; l >= 0; l--) {
        for (int part = 0; part < last && is_repeated(model, l); part += parts_of_unit(model))
            unit_forward(model, l, part, p, 1);
        for (int part = last; part >= 0; part -= parts_of_unit(model)) unit_backward(model, l, part, p);
    }

    zero_check(zero_pre_backward(run.z, EMBEDDING));
    for (int m = 0; m < p->n; m++) {
        work_on(model, p, m);
        LAYER(encoder_backward(model->dtype, grad(WTE, 0), grad(WPE, 0), act(model, DRESIDUAL, 0),
                               tokens_of(p, p->inputs, m), p->B, p->T, model->config.channels));
        zero_check(zero_post_micro(run.z, EMBEDDING, p->first + m));
    }
    zero_check(zero_post_backward(run.z, EMBEDDING));
}

// Gathers the n losses of every rank and adds them in a binary tree, neighbours first, in the order of their
// rows in the data, so that the sum does not depend on the number of ranks. The same collective sums the
// requests made by signals. consecutive: 1 if a rank's micro-batches follow each other in the data; 0 if the
// ranks take turns.
static double sum_of_losses(const double *losses, int n, int consecutive) {
    const int ranks = run.ranks, values = n + REQUESTS;
    double *mine = malloc_check((size_t)(1 + ranks) * values * sizeof *mine), *all = mine + values;
    memcpy(mine, losses, n * sizeof *mine);
    requests_of_rank(mine + n);
    zero_check(zero_gather(run.z, mine, all, values));
    memset(mine + n, 0, REQUESTS * sizeof *mine);
    for (int r = 0; r < ranks; r++)
        for (int i = 0; i < REQUESTS; i++) mine[n + i] += all[r * values + n + i];
    requests_of_all(mine + n);
    double *tree = malloc_check((size_t)ranks * n * sizeof *tree);
    for (int r = 0; r < ranks; r++)
        for (int i = 0; i < n; i++) tree[consecutive ? r * n + i : i * ranks + r] = all[r * values + i];
    for (int left = ranks * n; left > 1; left = (left + 1) / 2) {
        for (int i = 0; i < left / 2; i++) tree[i] = tree[2 * i] + tree[2 * i + 1];
        if (left % 2) tree[left / 2] = tree[left - 1];  // the odd one out moves up
    }
    const double sum = *tree;
    free(tree);
    free(mine);
    return sum;
}

// Computes the gradients of a training step. Returns the mean loss over the global batch. By layers, all A
// micro-batches pass each unit together, and the plugin takes their mean; otherwise one after the other
// passes the model, and each contributes 1/A.
static double gpt2_gradients(GPT2 *model, DataLoader *loader) {
    const int A = model->micro_batches, at_once = model->by_layers ? A : 1;
    const double tokens = (double)model->B * model->T;
    double *losses = malloc_check(A * sizeof *losses);
    for (int micro = 0; micro < A; micro += at_once) {
        if (!run.machine) gpt2_check(dataloader_next(loader));  // virtual layers read no tokens
        const float dloss = (float)(zero_loss_scale(run.z) / (tokens * (A / at_once)));
        const Pass p = { loader->inputs, loader->targets, at_once, micro, model->B, model->T, dloss };
        zero_check(zero_check_batch(run.z, p.inputs, (size_t)at_once * p.B * p.T * sizeof(int)));
        zero_check(zero_begin_train(run.z, micro, A));
        gpt2_forward(model, &p);
        gpt2_head(model, &p);
        gpt2_backward(model, &p);
    }
    LAYER(download(losses, act(model, LOSS_SUMS, 0), A * sizeof *losses));
    const double loss = sum_of_losses(losses, A, model->by_layers);
    free(losses);
    if (!isfinite(loss))
        die("step %d: the loss is not finite (%f); %s", run.step + 1, loss, last_checkpoint());
    return loss / (tokens * A * run.ranks);
}

// -------- validation and generation. All ranks run every forward pass, because at stage 3 it is collective

// Computes the losses of a batch that is not part of a training step.
static void evaluate(GPT2 *model, const int *inputs, const int *targets) {
    const Pass p = { inputs, targets, .n = 1, .B = model->B, .T = model->T };
    zero_check(zero_begin_eval(run.z));
    gpt2_forward(model, &p);
    gpt2_head(model, &p);
}

static double gpt2_validate(GPT2 *model, DataLoader *loader, int batches) {
    double *losses = malloc_check(batches * sizeof *losses);
    gpt2_check(dataloader_reset(loader));
    for (int i = 0; i < batches; i++) {
        gpt2_check(dataloader_next(loader));
        evaluate(model, loader->inputs, loader->targets);
        LAYER(download(&losses[i], act(model, LOSS_SUMS, 0), sizeof *losses));
    }
    const double sum = sum_of_losses(losses, batches, 0);
    free(losses);
    return sum / ((double)batches * model->B * model->T * run.ranks);
}

// Returns how many of HellaSwag's questions the model answers right.
static int gpt2_hellaswag(GPT2 *model, HellaSwag *h) {
    const size_t bytes = (size_t)model->B * model->T * sizeof *h->losses;
    hellaswag_begin(h);
    for (int i = 0; i < h->batches; i++) {
        hellaswag_next(h);
        evaluate(model, h->inputs, h->targets);
        LAYER(download(h->losses, act(model, LOSSES, 0), bytes));
        gpt2_check(hellaswag_score(h));
    }
    double correct = h->correct;
    zero_check(zero_sum(run.z, &correct, 1));
    return (int)correct;
}

// Runs a pass over the cache, and computes in fp32 the logits (n_spans, V) of the token that follows each
// span.
static void next_logits(GPT2 *model, const CachedPass *pass, float *logits) {
    const int L = model->config.num_layers, C = model->config.channels;
    const int V = model->config.vocab_size, Vp = model->config.padded_vocab_size;
    const gpt2_dtype dt = model->dtype;
    float *mean = act(model, LNF_MEAN, 0), *rstd = act(model, LNF_RSTD, 0);

    zero_check(zero_begin_eval(run.z));
    gpt2_forward(model, &(Pass){ .inputs = pass->tokens, .n = 1, .B = pass->n, .T = 1, .cached = pass });
    zero_check(zero_pre_forward(run.z, EMBEDDING));
    for (int i = 0; i < pass->n_spans; i++) {
        const size_t last = pass->spans[i].at + pass->spans[i].n - 1;
        LAYER(residual_layernorm_forward(dt, row_of(model, block_input(model, L), i, C),
                                         row_of(model, act(model, LNF, 0), i, C), mean + i, rstd + i,
                                         row_of(model, act(model, RESIDUAL2, L - 1), last, C),
                                         row_of(model, act(model, SCRATCH_BTC, 0), last, C), param(LNFW, 0),
                                         param(LNFB, 0), 1, C));
    }
    LAYER(matmul_forward(dt, act(model, LOGITS, 0), act(model, LNF, 0), param(WTE, 0), NULL, pass->n_spans, C,
                         Vp));
    zero_check(zero_post_forward(run.z, EMBEDDING));
    void *row = malloc_check(V * gpt2_dtype_size(dt));
    for (int i = 0; i < pass->n_spans; i++) {
        LAYER(download(row, row_of(model, act(model, LOGITS, 0), i, Vp), V * gpt2_dtype_size(dt)));
        for (int v = 0; v < V; v++) logits[(size_t)i * V + v] = gpt2_value(dt, row, v);
    }
    free(row);
}

// Prints the tokens of a single row as they are generated. All ranks choose the same tokens.
static void gpt2_generate(GPT2 *model, Generation *g, const Tokenizer *tokenizer) {
    const GenerationRow *row = g->rows;
    while (generation_next(g)) {
        next_logits(model, &g->pass, g->logits);
        generation_choose(g);
        print_token(tokenizer, row->tokens[row->length - 1]);
    }
    generation_end(g);
}

// Prints text generated from the end-of-text token.
static void gpt2_sample(GPT2 *model, const Tokenizer *tokenizer) {
    Generation g;
    generation_begin(&g, model);
    generation_add(&g, &tokenizer->eot_token, 1, opt.sample_tokens, (uint64_t)opt.seed);
    print0("generating:\n---\n");
    gpt2_generate(model, &g, tokenizer);
    print0("\n---\n");
}

// Answers prompts one after the other, as they arrive.
static void gpt2_converse(GPT2 *model, Answers *answers) {
    Generation g;
    while (answers_next(answers, model, &g)) {
        gpt2_generate(model, &g, &answers->tokenizer);
        print0("\n");
        check_output(NULL);
    }
}

// Answers the prompts of a file. Each pass gathers a layer once for all rows.
static void gpt2_answer(GPT2 *model, Answers *answers) {
    Generation *g = answers_begin(answers, model);
    while (generation_next(g)) {
        next_logits(model, &g->pass, g->logits);
        generation_choose(g);
        answers_passed(answers);
    }
    answers_end(answers, model);
}

#ifndef TESTING  // tests include this file and define main
// -------- a training step

typedef struct {
    GPT2 model;
    TrainingData data;
    Schedule schedule;
    TrainerState state;  // the trainer's part of a checkpoint
    int resume_step;     // step of the resumed checkpoint; -1: a new run
    int is_done;         // 1: the run that resumes had finished, so its files stay unchanged
    Report report;
    Answers answers;  // for --prompt and --prompts, which use only this and the model
    char **argv;
} Trainer;

static int is_outlier(const char *what, double z_score, double limit) {
    if (!limit || !isfinite(z_score) || z_score <= limit) return 0;
    print0("skipping the update: the %s is an outlier by %.2f deviations\n", what, z_score);
    return 1;
}

// If the gradients overflow fp16, the step changes only the loss scale.
static void skip_overflow(TrainerState *state, const zero_step_result *result) {
    zero_check(zero_discard(run.z));
    state->overflows++;
    print0("skipping the update: gradients overflow fp16 at loss scale %g; the next is %g\n",
           result->loss_scale, zero_loss_scale(run.z));
}

// The hyperparameters of AdamW's update t, counted from 1.
static zero_hyper hyper_of(float lr, int t) {
    return (zero_hyper){
        .lr = lr,
        .beta1 = (float)opt.beta1,
        .beta2 = (float)opt.beta2,
        .eps = (float)opt.eps,
        .weight_decay = (float)opt.weight_decay,
        .grad_clip = (float)opt.clip,
        .t = t,
    };
}

// Returns 1 if the update needs no value that is known only after backward. It may then begin earlier.
static int always_updates(const GPT2 *model) {
    return !opt.clip && !opt.skip_loss_z && !opt.skip_grad_z && model->dtype != GPT2_F16;
}

// Computes the gradients of all micro-batches, then their norm, and updates the parameters. Skips the update
// if -sl or -sg flags the loss or the norm as an outlier.
static StepResult train_step(Trainer *t) {
    TrainerState *state = &t->state;
    const int updates = run.step - state->overflows;  // so far
    StepResult r = { .lr = schedule_lr(&t->schedule, updates), .zloss = NAN, .znorm = NAN };
    const zero_hyper hyper = hyper_of(r.lr, updates + 1);
    zero_step_result result;
    if (always_updates(&t->model)) zero_check(zero_promise_update(run.z, &hyper));
    if (opt.overfit) gpt2_check(dataloader_reset(&t->data.train));
    r.loss = gpt2_gradients(&t->model, &t->data.train);
    zero_check(zero_finish_gradients(run.z, &result));
    if (result.note) note0("note: %s\n", result.note);
    r.norm = result.grad_norm;
    if (!result.finite && t->model.dtype == GPT2_F16) {
        skip_overflow(state, &result);
        return r;
    }
    if (!result.finite)
        die("step %d: the gradient norm is not finite (%f); %s", run.step + 1, r.norm, last_checkpoint());
    r.zloss = outlier_update(&state->loss_outliers, r.loss);
    r.znorm = outlier_update(&state->norm_outliers, r.norm);
    if (is_outlier("loss", r.zloss, opt.skip_loss_z) || is_outlier("gradient norm", r.znorm, opt.skip_grad_z))
        zero_check(zero_discard(run.z));
    else
        zero_check(zero_update(run.z, &hyper));
    return r;
}

// -------- set-up, the loop, the end

// Does everything that needs no other rank, so that most mistakes are found before ranks wait for each other.
static void set_up_alone(Trainer *t) {
    take_zero_file();
    settle_options();
    settle_machine(t->argv);
    settle_zero_file();
    if (!opt.plan && !opt.print_config) {
        make_folder();
        lock_folder();
        try_outputs();
    }
    t->resume_step = is_answering(&opt) ? -1 : checkpoint_to_resume(logs_exist());
    describe_model(&t->model, t->resume_step);
    t->data.micro_batches = 1;
    if (is_answering(&opt))
        answers_describe(&t->answers, &t->model);
    else
        data_divide(&t->data, &t->model);
}

static void open_data(Trainer *t) {
    data_open(&t->data, &t->model);
    if (opt.max_steps)
        gpt2_check(schedule_init(&t->schedule, opt.schedule, (float)opt.lr, opt.warmup, t->data.steps,
                                 (float)opt.lr_final));
}

// Connects the ranks and allocates all memory, so that no step allocates any.
static void set_up_together(Trainer *t) {
    char *same = must_be_same(&t->model, t->resume_step, &t->data.train, &t->data.val);
    zero_config config = create_plugin(&t->model, t->data.micro_batches, same);
    free(same);
    check_folder_lock();
    checkpoints_remove_leftovers();
    check_one_folder();
    note_differences();
    settle_memory(&t->model, &config);
    if (allocate_activations(&t->model)) out_of_memory(&t->model, &config);
}

// Returns 1 if a periodic action is due at this step. every > 0: at multiples, and after the last step; < 0:
// only after the last step; 0: never.
static int is_due(const Trainer *t, int every) {
    if (run.step == t->data.steps) return every != 0;
    return every > 0 && run.step % every == 0;
}

static int stops_here(void) { return opt.stop_after && run.step == opt.stop_after; }

static int validates(const Trainer *t) { return is_due(t, opt.val_every) && t->data.val_batches > 0; }

static void begin_or_resume(Trainer *t) {
    outlier_init(&t->state.loss_outliers);
    outlier_init(&t->state.norm_outliers);
    if (t->resume_step < 0) {
        load_values(&t->model);
        logs_continue(-1, 0);  // a killed run may have left lines, but no checkpoint
        return;
    }
    load_checkpoint(&t->model, &t->data, &t->state);
    if (opt.resume_anyway && t->state.position.num_rows != t->data.train.num_rows)
        print0("other data: starting with its first row\n");
    else
        gpt2_check(dataloader_seek(&t->data.train, t->state.position));
    if (t->state.step > t->data.steps)
        die("option -x %d: the checkpoint is already at step %d; a larger -x continues the run",
            t->data.steps, t->state.step);
    if (opt.stop_after && t->state.step > opt.stop_after)
        die("option --stop-after %d: the checkpoint is already at step %d", opt.stop_after, t->state.step);
    print0("resuming at step %d\n", t->state.step);
    if (t->state.step == t->data.steps)
        print0("all %d steps are done; a larger -x continues the run\n", t->data.steps);
    run.step = t->state.step;
    t->is_done = run.step == t->data.steps && summary_exists();
    if (!t->is_done) logs_continue(run.step, validates(t));
}

static void save(Trainer *t) {
    t->state.step = run.step;
    t->state.position = dataloader_tell(&t->data.train);
    write_checkpoint(&t->model, &t->data, &t->state);
    checkpoint_is_written();
}

// Validates, samples and saves if due. HellaSwag, sampling and saving may take long, so the ranks share
// pending signal requests after each.
static void between_steps(Trainer *t) {
    const int last = run.step == t->data.steps, begun = run.step > 0 || last;
    if (validates(t))
        report_validation(&t->report, gpt2_validate(&t->model, &t->data.val, t->data.val_batches));
    if (opt.hellaswag && validates(t) && begun) {
        const int correct = gpt2_hellaswag(&t->model, &t->data.hellaswag);
        report_hellaswag(&t->report, correct, t->data.hellaswag.num_examples);
        share_requests();
    }
    if (is_due(t, opt.sample_every) && begun) {
        gpt2_sample(&t->model, &t->data.tokenizer);
        share_requests();
    }
    const int fresh = run.step != t->resume_step;
    if (!begun || (!fresh && !checkpoint_is_elsewhere())) return;
    const int wanted = is_due(t, opt.checkpoint_every) || (stops_here() && opt.checkpoint_every);
    const int due = fresh && wanted && !why_no_checkpoint();
    if (due || checkpoint_is_requested(last)) {
        save(t);
        share_requests();
    }
}

// Returns after the last step, or after a signal or --stop-after has stopped the run.
static void train(Trainer *t) {
    // Before its first step, a run needs to save only if -y 1 would not find its position.
    if (checkpoint_is_elsewhere()) signals_in_training();
    for (run.step = t->state.step;; run.step++) {
        const int last = run.step == t->data.steps;
        if (last) {
            zero_check(zero_finish_update(run.z));
            // now, because validation and a save may read files too
            zero_files_info(run.z, &t->report.files_at_end);
        }
        between_steps(t);
        const int ends = last || stops_here() || stop_is_requested();
        end_checkpoint(ends);
        bar_show();  // redrawn below the printed lines
        if (ends) return;
        signals_in_training();
        double start = now();
        StepResult r = train_step(t);
        report_step(&t->report, &t->model, &r, now() - start);
    }
}

static void close_plugin(Trainer *t) {
    if (opt.trace && run.z) zero_check(zero_trace_write(run.z, opt.trace));
    run.layers->free();
    zero_destroy(run.z);
    free_tables(&t->model);
}

// -------- modes of the program, chosen by option

static int train_model(Trainer *t) {
    set_up_alone(t);
    open_data(t);
    set_up_together(t);
    check_room(&t->model, &t->data);
    begin_or_resume(t);
    if (!t->is_done) data_keep_tokenizer(&t->data);
    print_start(&t->model, t->data.micro_batches, t->data.steps, t->resume_step);
    report_begin(&t->report, &t->model, t->state.step, t->data.steps,
                 t->data.tokens_at_once * t->data.micro_batches, t->is_done);
    train(t);
    if (run.step == t->data.steps)
        report_end(&t->report, &t->model);
    else
        report_stop(&t->report);
    data_close(&t->data);
    close_plugin(t);
    return EXIT_SUCCESS;
}

// The plugin holds only parameters, since nothing is trained.
static int answer_prompts(Trainer *t) {
    set_up_alone(t);
    set_up_together(t);
    load_values(&t->model);
    if (opt.verbose) print_start(&t->model, 1, 0, -1);
    if (prompts_arrive())
        gpt2_converse(&t->model, &t->answers);
    else
        gpt2_answer(&t->model, &t->answers);
    const int status = answers_free(&t->answers);
    check_output(NULL);
    close_plugin(t);
    return status;
}

// Runs steps in virtual time and returns what the last one took. The first have no schedule yet.
static StepTime time_step(Trainer *t, const zero_machine *machine) {
    enum { STEPS = 3 };
    GPT2 *model = &t->model;
    StepTime before = { 0 }, after = { 0 };
    run.machine = machine;
    run.step = 0;
    zero_config config = plugin_settings(model->dtype, model->micro_batches);
    zero_check(zero_create(&run.z, &config, model->tables.tensors, NUM_PARAMETER_TENSORS, model->tables.units,
                           model->tables.n_units));
    zero_check(allocate_activations(model));
    gpt2_check(
        schedule_init(&t->schedule, opt.schedule, (float)opt.lr, opt.warmup, STEPS, (float)opt.lr_final));
    outlier_init(&t->state.loss_outliers);
    outlier_init(&t->state.norm_outliers);
    for (int i = 0; i < STEPS; i++, run.step++) {
        before = after;
        train_step(t);
        after = time_now();
    }
    if (opt.trace && machine == &machine_of_plan()->plugin) zero_check(zero_trace_write(run.z, opt.trace));
    zero_destroy(run.z);
    run.z = NULL;
    const StepTime took = time_between(&before, &after);
    if (!(took.seconds > 0 && isfinite(took.seconds)))
        die("option --machine %s: a step would take %g s: check the file's figures", opt.machine,
            took.seconds);
    return took;
}

// The same step on a machine without some costs shows which of them are exposed.
static void show_time(Trainer *t) {
    const zero_machine *machine = run.machine;
    StepTimes times = { .is = time_step(t, machine) };
    for (int i = 0; i < LINKS; i++) {
        const zero_machine faster = machine_without(i);
        times.without[i] = time_step(t, &faster).seconds;
    }
    run.machine = machine;
    print_times(&t->model, t->data.tokens_at_once * t->data.micro_batches, &times);
    if (opt.output) write_plan_file(&t->model, t->data.micro_batches, &times);
}

static double seconds_of_step(void *trainer, const GPT2 *model) {
    Trainer *t = trainer;
    t->model = *model;
    return time_step(t, run.machine).seconds;
}

static int show_plan(Trainer *t) {
    set_up_alone(t);
    describe_to_plugin(&t->model);
    if (opt.print_config)
        print_config(&t->model, t->data.micro_batches);
    else
        print_plan(&t->model, t->data.micro_batches);
    const GPT2 model = t->model;
    if (opt.machine && !opt.print_config) show_time(t);
    if (opt.fit && !opt.print_config) print_fastest(&model, t->data.micro_batches, seconds_of_step, t);
    t->model = model;
    check_output(NULL);
    if (run.rank == 0) end_if_refused(1);
    close_plugin(t);
    return EXIT_SUCCESS;
}

static int verify_files(Trainer *t) { return run.rank == 0 ? verify(opt.verify) : EXIT_SUCCESS; }

static int export_files(Trainer *t) {
    export_model();
    check_output(NULL);
    return EXIT_SUCCESS;
}

static const struct {
    const char *option;      // NULL: any other command line
    int (*run)(Trainer *t);  // returns the exit status
} modes[] = {
    { "--verify", verify_files },    { "--export", export_files },   { "--to", export_files },
    { "--print-config", show_plan }, { "--plan", show_plan },        { "--fit", show_plan },
    { "--prompts", answer_prompts }, { "--prompt", answer_prompts }, { NULL, train_model },
};

int main(int argc, char **argv) {
    Trainer t = { .argv = argv };
    int mode = 0;
    run.describe = describe_to_plugin;
    replace_closed_descriptors();
    use_one_arena();
    take_signals();
    take_launched_ranks();
    parse_options(argc, argv);
    while (modes[mode].option && !option_named(modes[mode].option)->given) mode++;
    return modes[mode].run(&t);
}
#endif
