#include "keys.h"
#include "scheduler.h"
#include "settings.h"
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

// -------- setters of the table

static void set_stage(reader *r, const json_t *v, double x) {
    if (r->env_stage >= 0 && x != r->env_stage) {
        key_refuse(r, NULL, "stage",
                   "stage %d, but the environment has ZERO_STAGE=%d; make them equal or remove one of them",
                   (int)x, r->env_stage);
        return;
    }
    key_sets(r, "stage", x, "");
}

// bf16.enabled and fp16.enabled: at most one may be true. If both are false, the dtype is fp32.
static void set_dtype(reader *r, const json_t *v, zero_dtype type, int on) {
    if (on && r->type_chosen) {
        key_refuse(r, v, "numbers.dtype", "bf16 and fp16 exclude each other; keep one of them");
        return;
    }
    if (!on) {
        if (!r->type_chosen) r->config.numbers.dtype = ZERO_F32;
        r->no_type = key_note(r, ZERO_KEY_HONOURED, v, "");
        return;
    }
    r->type_chosen = 1;
    key_sets(r, "numbers.dtype", type, "");
}
static void set_bf16(reader *r, const json_t *v, double x) { set_dtype(r, v, ZERO_BF16, x != 0); }
static void set_fp16(reader *r, const json_t *v, double x) {
    if (x || r->config.numbers.dtype == ZERO_F16)
        set_dtype(r, v, ZERO_F16, x != 0);
    else
        key_note(r, ZERO_KEY_HONOURED, v, "");
}

static void set_wire(reader *r, const json_t *v, double x) {
    if (!json_equals(v, "\"fp32\"|\"bf16\"|\"fp16\"")) {
        key_refuse(r, v, "comm.reduce_fp32",
                   "gradients are sent as fp32, bf16 or fp16; remove it or write \"fp32\"");
        return;
    }
    r->config.comm.reduce_fp32 = json_equals(v, "\"fp32\"");
    key_sets_text(r, "comm.reduce_fp32", json_string_value(v), "");
}

// In the plugin 0 means the largest unit. In DeepSpeed it means no buckets, so every unit is reduced alone.
static void set_bucket(reader *r, const json_t *v, double x) {
    key_sets(r, "reduce_bucket_size", x ? x : 1, x ? "" : "0 in DeepSpeed: every unit is a bucket");
}

// The plugin counts prefetched units, but DeepSpeed counts elements, so the value only switches prefetching
// on or off.
static void set_prefetch(reader *r, const json_t *v, double x) {
    key_sets(r, "prefetch", x && r->config.prefetch > 1 ? r->config.prefetch : x != 0,
             x ? "counted in units, not in elements" : "");
}

// DeepSpeed's 1 means that hpZ is off.
static void set_group(reader *r, const json_t *v, double x) {
    key_sets(r, "param_group", x > 1 ? x : 0, x > 1 ? "the parameters' only shards, not a second copy" : "");
}

static void set_betas(reader *r, const json_t *v, double x) {
    double beta[2];
    if (json_array_size(v) != 2 || !json_as_number(json_array_get(v, 0), &beta[0]) ||
        !json_as_number(json_array_get(v, 1), &beta[1])) {
        key_refuse(r, v, "trainer.beta1 trainer.beta2", "must be a list of two numbers");
        return;
    }
    key_sets(r, "trainer.beta1", beta[0], "");
    key_sets(r, "trainer.beta2", beta[1], "");
}

// -------- setters of the offload keys

// Older names of offload_param and offload_optimizer.
static void set_cpu_offload(reader *r, const json_t *v, double x) {
    const int of_params = strstr(r->path, "param") != NULL;
    const char *block = of_params ? "offload_param" : "offload_optimizer";
    const json_t *newer = json_object_get(json_object_get(r->root, "zero_optimization"), block);
    char remark[64];
    snprintf(remark, sizeof remark, "the old name of %s.device", block);
    if (newer && !json_is_null(newer))
        key_refuse(r, v, NULL, "is the old name of %s, which is also here; remove this one", block);
    else
        key_sets(r, of_params ? "offload.params" : "offload.optimizer", x ? ZERO_HOST : ZERO_DEVICE, remark);
}

static void set_folder(reader *r, const json_t *v, double x) {
    zero_deepspeed_key **folder = strstr(r->path, ".offload_param.") ? &r->params_folder : &r->states_folder;
    if (!json_is_string(v) || !json_string_length(v))
        key_refuse(r, v, "offload.nvme", "must be a folder on a disk, or several separated by commas");
    else if (json_string_length(v) >= ZERO_DEEPSPEED_VALUE)
        key_refuse(r, v, "offload.nvme", "must have at most %d bytes", ZERO_DEEPSPEED_VALUE - 1);
    else
        *folder = key_sets_text(r, "", json_string_value(v), "");
}

// Most files contain DeepSpeed's default of 1e9, which would make a model's whole shard one sub-group:
// nothing would overlap, and buffers would be as large as the shard. Others contain 0, which makes each
// tensor a sub-group.
static void set_sub_group(reader *r, const json_t *v, double x) {
    const char *setting = "offload.sub_group_size";
    const double least = zero_setting_named(setting)->min;
    if (!x || x >= 1e9) {
        char remark[160];
        snprintf(remark, sizeof remark,
                 "means %s in DeepSpeed; sub-groups of %lld elements overlap and need less memory",
                 x ? "no limit" : "one sub-group per tensor", (long long)r->config.offload.sub_group_size);
        key_note(r, ZERO_KEY_NO_EFFECT, v, remark);
    } else if (x < least) {
        key_refuse(r, v, setting, "must be 0 or a whole number of at least %.17g", least);
    } else {
        key_sets(r, setting, x, "");
    }
}

// -------- setters of the aio keys

enum { PAGE_BYTES = 4096, LEAST_BLOCK = 512 << 10 };

static void set_block_bytes(reader *r, const json_t *v, double x) {
    int64_t bytes = ((int64_t)x + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    char remark[120] = "";
    if (bytes < LEAST_BLOCK) bytes = LEAST_BLOCK;
    if (bytes != (int64_t)x)
        snprintf(remark, sizeof remark, "instead of %.15g: must be at least 524288 and a multiple of 4096",
                 x);
    key_sets(r, "offload.nvme_block_bytes", (double)bytes, remark);
}

// DeepSpeed reads intra_op_parallelism; its documentation has thread_count, and ds_nvme_tune prints
// num_threads.
static void set_threads(reader *r, const json_t *v, double x) {
    const char *remark = strstr(r->path, "intra_op_parallelism")
                             ? "used if the kernel has no io_uring"
                             : "another name of intra_op_parallelism, which DeepSpeed itself does not read; "
                               "used if the kernel has no io_uring";
    const zero_deepspeed_key *other = key_that_sets(r, "offload.nvme_threads");
    if (other && r->config.offload.nvme_threads != (int)x)
        key_refuse(r, v, "offload.nvme_threads", "is another name of %s, which is %d; keep one of them",
                   other->key, r->config.offload.nvme_threads);
    else
        key_sets(r, "offload.nvme_threads", x, remark);
}

// -------- the table

#define ZERO "zero_optimization"
#define PARAM ZERO ".offload_param"
#define OPTIMIZER ZERO ".offload_optimizer"
#define CHECKPOINTING "activation_checkpointing"
#define SCHEDULER "scheduler.params"

// The reasons that several keys share.
#define NOT_BUILT "not built"
#define ONE_UPDATE "the built-in update is AdamW"
#define OWN_MEMORY "the plugin sizes its buffers itself and always pins them; the memory table shows them"
#define ONE_WAY "the plugin has one way of doing this, whatever the value"
#define NEVER_READ "DeepSpeed does not read it either"
#define FOR_PYTORCH "only affects PyTorch"

// null and "auto" (a placeholder that Hugging Face fills in) mean that the key is absent.
#define SETTING(member, kind, preset, min, max, same, block, key, help) \
    { block, key, BY_SETTING, .setting = #member },
static const key_row rows[] = {
#include "settings.def"  // a setting without a key adds a row that matches nothing

    { "", ZERO, BLOCK, .set = set_stage },   // old files: true is stage 1, false stage 0
    { "", "fp16", BLOCK, .set = set_fp16 },  // also true or false
    { "", "bf16 optimizer scheduler data_types activation_checkpointing checkpoint aio compile",
      .kind = BLOCK },
    { "", "bfloat16", BLOCK, .only = "bf16", .why = "the old name of bf16" },
    { "optimizer", "params", .kind = BLOCK },
    { "scheduler", "params", .kind = BLOCK },
    { ZERO, "offload_param offload_optimizer", .kind = BLOCK },
    { ZERO, "aio", BLOCK, .only = "aio", .why = "belongs at the top level, and DeepSpeed refuses it here" },

    // ---- honoured
    { ZERO, "stage", BY_SETTING, .set = set_stage, .setting = "stage" },
    { ZERO, "reduce_bucket_size", BY_SETTING, .set = set_bucket, .setting = "reduce_bucket_size",
      .automatic = "the largest unit; Hugging Face takes the hidden size squared" },
    { ZERO, "stage3_prefetch_bucket_size", COUNT, .max = NO_LIMIT, .set = set_prefetch,
      .setting = "prefetch" },
    { ZERO, "zero_hpz_partition_size", BY_SETTING, .set = set_group, .setting = "param_group" },
    { "bf16", "enabled", BOOL, .set = set_bf16, .setting = "numbers.dtype" },
    { "bf16", "check_grad_overflow", .only = "true",
      .why = "every stage checks for infinities; DeepSpeed checks only at stages 1 and 2" },
    { "fp16", "enabled", BOOL, .set = set_fp16, .setting = "numbers.dtype" },
    { "", "communication_data_type", ANY, .set = set_wire, .setting = "comm.reduce_fp32" },

    // ---- where model states reside
    { PARAM, "nvme_path", ANY, .set = set_folder, .setting = "offload.nvme" },
    { OPTIMIZER, "nvme_path", ANY, .set = set_folder, .setting = "offload.nvme" },
    { OPTIMIZER, "ratio", BY_SETTING, .setting = "offload.optimizer_ratio",
      .why = "applied exactly; DeepSpeed rounds it to whole sub-groups" },
    { ZERO, "cpu_offload", BOOL, .set = set_cpu_offload, .setting = "offload.optimizer" },
    { ZERO, "cpu_offload_param cpu_offload_params", BOOL, .set = set_cpu_offload,
      .setting = "offload.params" },
    { ZERO, "sub_group_size", COUNT, .max = NO_LIMIT, .set = set_sub_group,
      .setting = "offload.sub_group_size" },
    { "aio", "block_size", COUNT, .min = 1, .max = 1 << 30, .set = set_block_bytes,
      .setting = "offload.nvme_block_bytes" },
    { "aio", "intra_op_parallelism thread_count num_threads", BY_SETTING, .set = set_threads,
      .setting = "offload.nvme_threads" },

    // ---- keys for the trainer
    { "", "train_batch_size", COUNT, .min = 1, .max = INT_MAX, .setting = "trainer.rows_a_step" },
    { "", "train_micro_batch_size_per_gpu", COUNT, .min = 1, .max = INT_MAX, .setting = "trainer.rows" },
    { "", "gradient_clipping", REAL, .max = NO_LIMIT, .setting = "trainer.grad_clip" },
    { "optimizer.params", "lr", REAL, .max = NO_LIMIT, .set = scheduler_or_lr, .setting = "trainer.lr" },
    { "optimizer.params", "eps", REAL, .max = 1, .setting = "trainer.eps" },
    { "optimizer.params", "betas", ANY, .set = set_betas, .setting = "trainer.beta1 trainer.beta2" },
    { "optimizer.params", "weight_decay", REAL, .max = NO_LIMIT, .setting = "trainer.weight_decay",
      .why = "for the tensors marked in the table; DeepSpeed decays every parameter" },
    { CHECKPOINTING, "cpu_checkpointing", BOOL, .setting = "trainer.offload_activations" },
    { "optimizer.params", "max_grad_norm", .setting = "trainer.grad_clip",
      .why = "gradient_clipping does this, and DeepSpeed refuses it too" },
    { "scheduler", "type", ANY, .set = scheduler_set, .setting = "trainer.schedule" },
    { SCHEDULER, "warmup_num_steps", COUNT, .min = 1, .max = INT_MAX, .setting = "trainer.warmup" },
    { SCHEDULER, "warmup_max_lr", REAL, .max = NO_LIMIT, .setting = "trainer.lr" },
    { SCHEDULER, "total_num_steps", COUNT, .min = 1, .max = INT_MAX, .setting = "trainer.steps" },
    { SCHEDULER, "cos_min_ratio", REAL, .max = 1, .setting = "trainer.lr_final" },
    { SCHEDULER, "warmup_min_lr warmup_min_ratio", .only = "0", .why = "the warm-up starts near 0" },
    { SCHEDULER, "warmup_type", .only = "\"log\"|\"linear\"", .why = "the warm-up is linear" },
    { SCHEDULER, "last_batch_iteration", .only = "-1", .why = "the checkpoint determines the step" },
    { "", "dataloader_drop_last", .only = "false", .why = "the trainer decides this" },

    // ---- The plugin always uses these values; others are refused.
    { "", "managed_gradient_accumulation", .only = "true", .why = NOT_BUILT },
    { "", "prescale_gradients", NOTED, .only = "false",
      .why = "it avoids overflow of a 16-bit sum; here sums are fp32, and divided afterwards" },
    { "", "gradient_predivide_factor", .only = "1", .why = "gradients are divided once, after the sum" },
    { "", "gradient_allreduce_op", .only = "\"mean\"", .why = "the plugin averages over the ranks" },
    { "data_types", "grad_accum_dtype", .only = "\"fp32\"", .why = "micro-batches are summed in fp32" },
    { "data_types", "param_dtype buffer_dtype", .why = "bf16.enabled sets the type; remove it",
      .setting = "numbers.dtype" },
    { "fp16", "auto_cast", NOTED, .only = "false", .why = "only casts inputs, which the trainer provides" },
    { "fp16", "fp16_master_weights_and_grads", .only = "false", .why = NOT_BUILT },
    { "bf16", "bf16_master_weights_and_grads", .only = "false", .why = NOT_BUILT,
      .setting = "numbers.no_master" },
    { "bf16", "immediate_grad_update bf16_optimizer_states", .only = "false", .why = NOT_BUILT },
    { "optimizer", "type", .only = "\"AdamW\"|\"Adam\"",
      .why = "the built-in update is AdamW, and only the program can set another (update_with)" },
    { "optimizer", "legacy_fusion", .only = "false", .why = NOT_BUILT },
    { "optimizer.params", "adam_w_mode fp32_optimizer_states", .only = "true",
      .why = "the built-in update is AdamW in fp32" },
    { "optimizer.params", "bias_correction", .only = "true", .why = "the moments' bias is always corrected" },
    { "optimizer.params", "amsgrad", .only = "false", .why = ONE_UPDATE },
    { ZERO, "contiguous_gradients", NOTED, .only = "true",
      .why = "only affects where gradients are stored in memory" },
    { ZERO, "reduce_scatter load_from_fp32_weights ignore_unused_parameters", .only = "true",
      .why = "cannot be disabled" },
    { ZERO, "stage3_module_granularity_threshold", .only = "0",
      .why = "the trainer's table defines what is gathered together" },
    { ZERO, "leaf_module", .why = "the trainer's table defines what is gathered together; remove it" },

    // ---- without effect
    { PARAM, "pin_memory buffer_count buffer_size", ANY, .why = OWN_MEMORY },
    { OPTIMIZER, "pin_memory buffer_count buffer_size", ANY, .why = OWN_MEMORY },
    { ZERO, "cpu_offload_use_pin_memory", ANY, .why = OWN_MEMORY },
    { OPTIMIZER, "pipeline_read pipeline_write fast_init super_offload cpuadam_cores_perc", ANY,
      .why = ONE_WAY },
    { "aio", "single_submit overlap_events", ANY, .why = ONE_WAY },
    { "aio", "use_gds", .only = "false", .why = "GPUDirect Storage is not built" },
    { ZERO,
      "stage3_param_persistence_threshold stage3_model_persistence_threshold stage3_max_reuse_distance "
      "stage3_max_live_parameters",
      ANY, .why = "max_open and prefetch limit what is gathered; no parameter stays resident",
      .automatic = "no parameter stays resident" },
    { ZERO,
      "allgather_bucket_size use_multi_rank_bucket_allreduce round_robin_gradients enable_sanity_checks "
      "log_trace_cache_warnings",
      ANY, .why = ONE_WAY },
    { "", "allgather_size", ANY, .why = ONE_WAY },
    { "checkpoint", "tag_validation", ANY, .why = ONE_WAY },
    { ZERO, "stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save", ANY,
      .why = "a saved model is always complete; units are gathered one by one" },
    { ZERO, "allgather_partitions", ANY, .why = NEVER_READ },
    { "", "disable_allgather", ANY, .why = NEVER_READ },
    { ZERO, "memory_efficient_linear override_module_apply", ANY, .why = FOR_PYTORCH },
    { "compile",
      "enabled disable backend kwargs deepcompile passes free_activation free_activation_threshold "
      "offload_activation_pin_memory double_buffer symmetric_memory debug_log sync_before_reduce "
      "sync_after_reduce sync_before_allgather sync_after_allgather keep_int_input_tensors "
      "keep_all_input_tensors",
      ANY, .why = FOR_PYTORCH },
    { "compile", "offload_activation offload_opt_states offload_parameters", .only = "false",
      .why = NOT_BUILT },
    { ZERO, "save_muon_momentum_buffer_in_memory", ANY, .why = ONE_UPDATE },
    { "", "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer", ANY, .why = ONE_UPDATE },
    { "optimizer.params", "torch_adam", ANY, .why = ONE_UPDATE },
    { ZERO, "legacy_stage1", .only = "false", .why = "DeepSpeed refuses it too" },
    { "", "steps_per_print log_level vocabulary_size memory_breakdown dump_state", ANY,
      .why = "the plugin never prints; the trainer decides what it prints" },
    { "", "seq_parallel_communication_data_type", ANY, .why = "there is no sequence parallelism" },
    { CHECKPOINTING,
      "partition_activations contiguous_memory_optimization number_checkpoints "
      "synchronize_checkpoint_boundary",
      ANY, .why = "each rank has all activations of its rows, allocated once, at the start" },
    { CHECKPOINTING, "profile", .only = "false", .why = NOT_BUILT, .setting = "debug.trace_events" },

    // ---- features that are not built
    { ZERO, "mics_shard_size", .only = "-1|0", .why = "MiCS is not built" },
    { ZERO,
      "zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients "
      "mics_hierarchical_params_gather elastic_checkpoint stage3_use_all_reduce_for_fetch_params "
      "stage3_allgather_sequential pipeline_loading_checkpoint",
      .only = "false", .why = NOT_BUILT },
    { ZERO, "zenflow",
      .why = "not built; delayed_update also overlaps the update with the next step; remove it",
      .setting = "offload.delayed_update" },
    { ZERO, "zeropp_loco_param", .why = "not built; remove it" },
    { "", "wall_clock_breakdown comms_logger timers", .only = "false", .why = NOT_BUILT,
      .setting = "debug.trace_events" },
    { "", "tensorboard wandb csv_monitor comet", .only = "false", .why = NOT_BUILT,
      .setting = "trainer.logs" },
    { "",
      "sparse_gradients use_data_before_expert_parallelism amp torch_autocast elasticity autotuning "
      "hybrid_engine nebula datastates flops_profiler tensor_parallel expert_parallel pipeline "
      "compression_training sparse_attention curriculum_learning data_efficiency progressive_layer_drop "
      "eigenvalue graph_harvesting weight_quantization",
      .only = "false", .why = NOT_BUILT },
    { "", "sequence_parallel_size", .only = "1", .why = NOT_BUILT },
    { "checkpoint", "load_universal use_node_local_storage", .only = "false", .why = NOT_BUILT },
    { "checkpoint", "parallel_write writer checkpoint_serialization", .why = "not built; remove it" },
    { ZERO, "grad_hooks", .why = "DeepSpeed has no such key any more; remove it" },
};
enum { ROWS = sizeof rows / sizeof *rows };

// -------- keys by name

// Returns the next word of a list and its length in *n, or NULL after the last.
static const char *next_word(const char **list, size_t *n) {
    const char *word = *list + strspn(*list, " ");
    *n = strcspn(word, " ");
    *list = word + *n;
    return *n ? word : NULL;
}

// Replaces BY_SETTING with the setting's kind and range.
static void take_setting(key_row *row) {
    const zero_setting *s = zero_setting_named(row->setting);
    if (*s->words)
        row->kind = WORD;
    else if (s->kind == ZERO_KIND_FLAG)
        row->kind = BOOL;
    else
        row->kind = s->kind == ZERO_KIND_REAL ? REAL : COUNT;
    row->min = s->min;
    row->max = s->max;
}

int key_find(const char *block, const char *name, key_row *row) {
    for (const key_row *w = rows; w < rows + ROWS; w++) {
        size_t n;
        if (strcmp(w->block, block)) continue;
        for (const char *list = w->names, *word; (word = next_word(&list, &n));) {
            if (n != strlen(name) || memcmp(word, name, n)) continue;
            *row = *w;
            if (row->kind == BY_SETTING) take_setting(row);
            return 1;
        }
    }
    return 0;
}

static int is_in_block(const reader *r, const char *block) {
    size_t n = strlen(block);
    return n ? !strncmp(r->path, block, n) && r->path[n] == '.' : !strchr(r->path, '.');
}

// Compares keys of all blocks, because the key may be misspelt or in the wrong block.
int key_nearest(const reader *r, const char *name, char *nearest, size_t size) {
    const int length = (int)strlen(name);
    int best = length / 2 + 1;
    *nearest = '\0';
    for (const key_row *w = rows; w < rows + ROWS; w++) {
        size_t n;
        for (const char *list = w->names, *word; (word = next_word(&list, &n));) {
            int d = zero_edit_distance(name, strlen(name), word, n);
            if (d > best || (d == best && (!*nearest || !is_in_block(r, w->block)))) continue;
            best = d;
            snprintf(nearest, size, "%s%s%.*s", w->block, *w->block ? "." : "", (int)n, word);
        }
    }
    return *nearest && (best <= 2 || best <= length / 3);
}
