#include "keys.h"
#include "settings.h"
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

// -------- keys with rules of their own

// bf16.enabled and fp16.enabled: at most one may be true. judge_type decides if none is.
static void set_dtype(reader *r, const json_t *v, double on) {
    const zero_dtype type = *r->path == 'b' ? ZERO_BF16 : ZERO_F16;
    if (on && key_that_sets(r, "numbers.dtype")) {
        key_refuse(r, v, "numbers.dtype", "bf16 and fp16 exclude each other; keep one of them");
    } else if (on) {
        key_sets(r, "numbers.dtype", type, "");
    } else {
        zero_deepspeed_key *k = key_note(r, ZERO_KEY_HONOURED, v, "");
        if (type == ZERO_BF16 || r->config.numbers.dtype == type) r->no_type = k;
    }
}

static void set_wire(reader *r, const json_t *v, double x) {
    r->config.comm.reduce_fp32 = 1;
    key_sets_text(r, "comm.reduce_fp32", "fp32", "");
}

// The plugin counts units, but DeepSpeed counts elements, so the value only switches prefetching on or off.
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

// DeepSpeed has a folder for parameters and one for optimizer states; the plugin has one list for both.
static void set_folder(reader *r, const json_t *v, double x) {
    static _Thread_local char folders[ZERO_DEEPSPEED_VALUE];  // of the last file read
    const zero_deepspeed_key *other = key_that_sets(r, "offload.nvme");
    if (!json_is_string(v) || !json_string_length(v) || json_string_length(v) >= sizeof folders) {
        key_refuse(r, v, "offload.nvme",
                   "must be a folder on a disk, or several separated by commas, in at most %zu bytes",
                   sizeof folders - 1);
    } else if (other && strcmp(other->value, json_string_value(v))) {
        key_refuse(r, v, "offload.nvme", "must be the same as %s; separate several folders by commas",
                   other->key);
    } else {
        r->config.offload.nvme = strcpy(folders, json_string_value(v));
        key_sets_text(r, "offload.nvme", folders, "");
    }
}

// Most files have DeepSpeed's default of 1e9, which would make a whole shard one sub-group: nothing would
// overlap, and buffers would be as large as the shard. Others have 0, which makes each tensor a sub-group.
static void set_sub_group(reader *r, const json_t *v, double x) {
    const zero_setting *s = zero_setting_named("offload.sub_group_size");
    if (x >= s->min && x < 1e9)
        key_sets(r, s->name, x, "");
    else
        key_note(r, ZERO_KEY_NO_EFFECT, v,
                 "only 2048 to 1e9 elements overlap well; the plugin's value stays");
}

static void set_block_bytes(reader *r, const json_t *v, double x) {
    enum { PAGE = 4096 };
    const zero_setting *s = zero_setting_named("offload.nvme_block_bytes");
    const double bytes = x < s->min ? s->min : (double)(((int64_t)x + PAGE - 1) / PAGE * PAGE);
    key_sets(r, s->name, bytes, bytes != x ? "raised to at least 524288 and a multiple of 4096" : "");
}

// -------- DeepSpeed's schedulers, as a schedule of the trainer

typedef struct {
    const char *type, *schedule;
    double lr_final;  // the default of cos_min_ratio, or what the trainer needs for this schedule
    double lr;        // the default of warmup_max_lr, which replaces the optimizer's lr; 0: none
} scheduler;

static const scheduler schedulers[] = {
    { "WarmupLR", "linear", 1, 0 },
    { "WarmupDecayLR", "linear", 0, 1e-3 },
    { "WarmupCosineLR", "cosine", 1e-4, 0 },
};
enum { SCHEDULERS = sizeof schedulers / sizeof *schedulers, DEFAULT_WARMUP = 1000 };

static const scheduler *scheduler_in(const reader *r) {
    const json_t *type = json_object_get(json_object_get(r->root, "scheduler"), "type");
    for (const scheduler *s = schedulers; s < schedulers + SCHEDULERS; s++)
        if (json_is_string(type) && !strcasecmp(json_string_value(type), s->type)) return s;
    return NULL;
}

static const json_t *param(const reader *r, const char *name) {
    return json_object_get(json_object_get(json_object_get(r->root, "scheduler"), "params"), name);
}

int scheduler_is_known(const reader *r) { return scheduler_in(r) != NULL; }

// Sets what the type implies, and the defaults of absent parameters.
static void set_scheduler(reader *r, const json_t *v, double x) {
    const scheduler *s = scheduler_in(r);
    if (!s) {
        key_refuse(r, v, "trainer.schedule",
                   "must be one of \"WarmupLR\", \"WarmupDecayLR\", \"WarmupCosineLR\"");
        return;
    }
    key_sets_text(r, "trainer.schedule", s->schedule,
                  "the warm-up is linear from the first step; DeepSpeed's starts two steps later, and is "
                  "logarithmic unless warmup_type is \"linear\"");
    if (!param(r, "cos_min_ratio")) key_sets(r, "trainer.lr_final", s->lr_final, "");
    if (!param(r, "warmup_num_steps"))
        key_sets(r, "trainer.warmup", DEFAULT_WARMUP, "DeepSpeed's default of warmup_num_steps");
    if (s->lr && !param(r, "warmup_max_lr"))
        key_sets(r, "trainer.lr", s->lr, "DeepSpeed's default of warmup_max_lr");
}

static void set_lr(reader *r, const json_t *v, double lr) {
    const scheduler *s = scheduler_in(r);
    const json_t *given = param(r, "warmup_max_lr");
    double replaced = lr;
    if (s && given)
        json_as_number(given, &replaced);
    else if (s && s->lr)
        replaced = s->lr;
    if (replaced == lr || (given && json_is_left_out(given)))
        key_sets(r, "trainer.lr", lr, "");
    else
        key_note(r, ZERO_KEY_NO_EFFECT, v, "the scheduler's warmup_max_lr replaces it, as in DeepSpeed");
}

// -------- the table, by kinds of keys with one sentence for each

#define ZERO "zero_optimization"
#define PARAM " zero_optimization.offload_param: "
#define OPTIMIZER " zero_optimization.offload_optimizer: "
#define NOT_BUILT "not built"
#define ONE_VALUE "the plugin has no other way"

// null and "auto" (a placeholder that Hugging Face fills in) mean that the key is absent.
#define SETTING(member, kind, preset, min, max, same, block, key, help) \
    { block ": " key, BY_SETTING, .setting = #member },
static const key_row rows[] = {
#include "settings.def"  // a setting without a key adds a row that matches nothing

    { "zero_optimization fp16 bf16 optimizer scheduler data_types activation_checkpointing checkpoint aio "
      "zero_optimization: offload_param offload_optimizer optimizer: params scheduler: params",
      BLOCK },
    { "bf16: enabled fp16: enabled", BOOL, .set = set_dtype, .setting = "numbers.dtype" },
    { "communication_data_type", .set = set_wire, .only = "\"fp32\"", .setting = "comm.reduce_fp32",
      .why = "gradients are sent in their own type, which needs no key, or as fp32" },
    { ZERO ": stage3_prefetch_bucket_size", COUNT, .max = NO_LIMIT, .set = set_prefetch,
      .setting = "prefetch" },
    { ZERO ": zero_hpz_partition_size", BY_SETTING, .set = set_group, .setting = "param_group" },
    { ZERO ": sub_group_size", COUNT, .max = NO_LIMIT, .set = set_sub_group,
      .setting = "offload.sub_group_size" },
    { PARAM "nvme_path" OPTIMIZER "nvme_path", ANY, .set = set_folder, .setting = "offload.nvme" },
    { "aio: block_size", COUNT, .min = 1, .max = 1 << 30, .set = set_block_bytes,
      .setting = "offload.nvme_block_bytes" },

    // ---- for the trainer
    { "train_batch_size", COUNT, .min = 1, .max = INT_MAX, .setting = "trainer.rows_a_step" },
    { "train_micro_batch_size_per_gpu", COUNT, .min = 1, .max = INT_MAX, .setting = "trainer.rows" },
    { "gradient_clipping", REAL, .max = NO_LIMIT, .setting = "trainer.grad_clip" },
    { "optimizer.params: lr", REAL, .max = NO_LIMIT, .set = set_lr, .setting = "trainer.lr" },
    { "optimizer.params: eps", REAL, .max = 1, .setting = "trainer.eps" },
    { "optimizer.params: betas", ANY, .set = set_betas, .setting = "trainer.beta1 trainer.beta2" },
    { "optimizer.params: weight_decay", REAL, .max = NO_LIMIT, .setting = "trainer.weight_decay" },
    { "activation_checkpointing: cpu_checkpointing", BOOL, .setting = "trainer.offload_activations" },
    { "scheduler: type", ANY, .set = set_scheduler, .setting = "trainer.schedule" },
    { "scheduler.params: warmup_num_steps", COUNT, .min = 1, .max = INT_MAX, .setting = "trainer.warmup" },
    { "scheduler.params: warmup_max_lr", REAL, .max = NO_LIMIT, .setting = "trainer.lr" },
    { "scheduler.params: total_num_steps", COUNT, .min = 1, .max = INT_MAX, .setting = "trainer.steps" },
    { "scheduler.params: cos_min_ratio", REAL, .max = 1, .setting = "trainer.lr_final" },

    // ---- values that would change the numbers are refused
    { "managed_gradient_accumulation bf16: check_grad_overflow "
      "optimizer.params: adam_w_mode fp32_optimizer_states bias_correction "
      "zero_optimization: reduce_scatter load_from_fp32_weights ignore_unused_parameters",
      .only = "true", .why = "cannot be disabled" },
    { "gradient_predivide_factor sequence_parallel_size", .only = "1", .why = ONE_VALUE },
    { "gradient_allreduce_op", .only = "\"mean\"", .why = ONE_VALUE },
    { "data_types: grad_accum_dtype", .only = "\"fp32\"", .why = ONE_VALUE },
    { "optimizer: type", .only = "\"AdamW\"|\"Adam\"",
      .why = "the built-in update is AdamW, and only the program can set another (update_with)" },
    { "scheduler.params: last_batch_iteration", .only = "-1", .why = ONE_VALUE },
    { "scheduler.params: warmup_min_lr warmup_min_ratio", .only = "0", .why = "the warm-up starts near 0" },
    { "scheduler.params: warmup_type", .only = "\"log\"|\"linear\"", .why = "the warm-up is linear" },

    // ---- older names
    { "bfloat16", .only = "false", .why = "an old name; write bf16" },
    { ZERO ": cpu_offload cpu_offload_param cpu_offload_params", .only = "false",
      .why = "an old name; write the block offload_optimizer or offload_param" },
    { "optimizer.params: max_grad_norm", .only = "0", .why = "an old name; write gradient_clipping" },

    // ---- features that are not built
    { ZERO ": mics_shard_size", .only = "-1|0", .why = NOT_BUILT },
    { ZERO ": stage3_module_granularity_threshold", .only = "0", .why = NOT_BUILT },
    { ZERO ": zenflow", .only = "false", .why = NOT_BUILT, .setting = "offload.delayed_update" },
    { "bf16: bf16_master_weights_and_grads", .only = "false", .why = NOT_BUILT,
      .setting = "numbers.no_master" },
    { "data_types: param_dtype buffer_dtype", .only = "false", .why = NOT_BUILT, .setting = "numbers.dtype" },
    { "wall_clock_breakdown comms_logger timers activation_checkpointing: profile", .only = "false",
      .why = NOT_BUILT, .setting = "debug.trace_events" },
    { "tensorboard wandb csv_monitor comet", .only = "false", .why = NOT_BUILT, .setting = "trainer.logs" },
    { "sparse_gradients use_data_before_expert_parallelism amp torch_autocast elasticity autotuning "
      "hybrid_engine nebula datastates flops_profiler tensor_parallel expert_parallel pipeline "
      "compression_training sparse_attention curriculum_learning data_efficiency progressive_layer_drop "
      "eigenvalue graph_harvesting weight_quantization dataloader_drop_last "
      "aio: use_gds fp16: fp16_master_weights_and_grads "
      "bf16: immediate_grad_update bf16_optimizer_states "
      "checkpoint: load_universal use_node_local_storage parallel_write writer checkpoint_serialization "
      "optimizer: legacy_fusion optimizer.params: amsgrad "
      "zero_optimization: zero_quantized_weights zero_quantized_nontrainable_weights "
      "zero_quantized_gradients mics_hierarchical_params_gather elastic_checkpoint leaf_module "
      "stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential pipeline_loading_checkpoint "
      "zeropp_loco_param legacy_stage1",
      .only = "false", .why = NOT_BUILT },

    // ---- without effect
    { PARAM
      "pin_memory buffer_count buffer_size" OPTIMIZER
      "pin_memory buffer_count buffer_size pipeline_read pipeline_write fast_init super_offload "
      "cpuadam_cores_perc aio: single_submit overlap_events zero_optimization: cpu_offload_use_pin_memory "
      "contiguous_gradients allgather_bucket_size use_multi_rank_bucket_allreduce round_robin_gradients "
      "stage3_param_persistence_threshold stage3_model_persistence_threshold stage3_max_reuse_distance "
      "stage3_max_live_parameters activation_checkpointing: partition_activations "
      "contiguous_memory_optimization number_checkpoints synchronize_checkpoint_boundary",
      ANY, .why = "the plugin sizes its buffers itself and always pins them; the memory table shows them" },
    { "steps_per_print log_level vocabulary_size memory_breakdown dump_state checkpoint: tag_validation "
      "zero_optimization: enable_sanity_checks log_trace_cache_warnings",
      ANY, .why = "the trainer decides what it checks and prints" },
    { "prescale_gradients fp16: auto_cast", ANY,
      .why = "sums are fp32, and the trainer provides the inputs" },
    { ZERO ": stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save", ANY,
      .why = "a saved model is always complete; units are gathered one by one" },
    { "allgather_size disable_allgather aio: thread_count num_threads zero_optimization: "
      "allgather_partitions",
      ANY, .why = "DeepSpeed does not read it either" },
    { "compile zero_allow_untested_optimizer zero_force_ds_cpu_optimizer "
      "seq_parallel_communication_data_type optimizer.params: torch_adam "
      "zero_optimization: memory_efficient_linear override_module_apply save_muon_momentum_buffer_in_memory",
      ANY, .why = "only affects PyTorch, or a feature that the plugin does not have" },
};
enum { ROWS = sizeof rows / sizeof *rows };

// -------- keys by name

// Replaces the key, with its block, by the next one of a row's list. Returns its name alone; NULL: no more.
static const char *next_key(const char **list, char key[KEY_BYTES]) {
    for (;;) {
        const char *word = *list + strspn(*list, " ");
        const int n = (int)strcspn(word, " ");
        char *dot = strrchr(key, '.'), *name = dot ? dot + 1 : key;
        *list = word + n;
        if (!n) return NULL;
        if (word[n - 1] != ':') {
            sprintf(name, "%.*s", n, word);
            return name;
        }
        sprintf(key, "%.*s%s", n - 1, word, n > 1 ? "." : "");
    }
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

int key_find(const char *path, key_row *row) {
    for (const key_row *w = rows; w < rows + ROWS; w++) {
        char key[KEY_BYTES] = "";
        for (const char *list = w->keys; next_key(&list, key);) {
            if (strcmp(key, path)) continue;
            *row = *w;
            if (row->kind == BY_SETTING) take_setting(row);
            return 1;
        }
    }
    return 0;
}

// Compares keys of all blocks, because the key may be misspelt or in the wrong block.
int key_nearest(const char *path, char nearest[KEY_BYTES]) {
    const char *dot = strrchr(path, '.'), *name = dot ? dot + 1 : path;
    const size_t block = (size_t)(name - path);
    const int length = (int)strlen(name);
    int best = length / 2 + 1;
    *nearest = '\0';
    for (const key_row *w = rows; w < rows + ROWS; w++) {
        char key[KEY_BYTES] = "";
        for (const char *list = w->keys, *word; (word = next_key(&list, key));) {
            const int d = zero_edit_distance(name, strlen(name), word, strlen(word));
            const int here = (size_t)(word - key) == block && !memcmp(key, path, block);
            if (d > best || (d == best && (!*nearest || !here))) continue;
            best = d;
            strcpy(nearest, key);
        }
    }
    return *nearest && (best <= 2 || best <= length / 3);
}
