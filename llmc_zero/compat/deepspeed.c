// The configuration from a DeepSpeed JSON file and from the environment. A table says what becomes of each
// key; the rest of the file reads the text, finds the row and reports what is wrong. DeepSpeed accepts
// comments and trailing commas. This reader overwrites them with blanks, so that an error's line and column
// are the file's.
#include "../error.h"
#include "../device/kernels.h"
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct {
    zero_config *config;
    int env_stage;          // what ZERO_STAGE asks for, or -1
    const char *file, *at;  // at: where in the text the key in hand was found
    int line;               // of it
    int type_chosen;        // by bf16.enabled or fp16.enabled
    char path[128];         // of the key in hand: "zero_optimization.stage"
} reader;

#define FAIL(r, format, ...) \
    zero_fail(ZERO_ERR_ARGUMENT, "%s:%d: %s: " format, (r)->file, (r)->line, (r)->path, __VA_ARGS__)

// -------- the keys

static int set_stage(reader *r, int64_t v) {
    if (r->env_stage >= 0 && v != r->env_stage)
        return FAIL(r,
                    "stage %d, but the environment says ZERO_STAGE=%d; make them equal or drop one of them",
                    (int)v, r->env_stage);
    r->config->stage = (int)v;
    return 0;
}
// bf16.enabled and fp16.enabled: at most one is true. With both false the numbers are fp32.
static int set_dtype(reader *r, zero_dtype type, int on) {
    if (on && r->type_chosen)
        return FAIL(r, "true, but bf16 and fp16 exclude each other; keep %s", "one of them");
    if (on || !r->type_chosen) r->config->numbers.dtype = on ? type : ZERO_F32;
    r->type_chosen |= on;
    return 0;
}
static int set_bf16(reader *r, int64_t v) { return set_dtype(r, ZERO_BF16, (int)v); }
static int set_fp16(reader *r, int64_t v) {
    return v || r->config->numbers.dtype == ZERO_F16 ? set_dtype(r, ZERO_F16, (int)v) : 0;
}
static int set_loss_scale(reader *r, int64_t v) {
    r->config->numbers.loss_scale = (double)v;
    return 0;
}
static int set_scale_power(reader *r, int64_t v) {
    r->config->numbers.initial_scale_power = (int)v;
    return 0;
}
static int set_scale_window(reader *r, int64_t v) {
    r->config->numbers.loss_scale_window = (int)v;
    return 0;
}
static int set_hysteresis(reader *r, int64_t v) {
    r->config->numbers.hysteresis = (int)v;
    return 0;
}
static int set_consecutive(reader *r, int64_t v) {
    r->config->numbers.consecutive_hysteresis = (int)v;
    return 0;
}
static int set_min_scale(reader *r, int64_t v) {
    r->config->numbers.min_loss_scale = (double)v;
    return 0;
}
static int set_micro_batches(reader *r, int64_t v) {
    r->config->micro_batches = (int)v;
    return 0;
}
// For the plugin 0 means the largest unit; for DeepSpeed it means no bucket, so every unit alone.
static int set_bucket(reader *r, int64_t v) {
    r->config->reduce_bucket_size = v ? v : 1;
    return 0;
}
static int set_overlap(reader *r, int64_t v) {
    r->config->overlap = (int)v;
    return 0;
}
// The plugin looks ahead by units, DeepSpeed by elements. Only whether to look ahead is taken over.
static int set_prefetch(reader *r, int64_t v) {
    if (!v || r->config->prefetch < 1) r->config->prefetch = v != 0;
    return 0;
}

typedef struct {
    const char *block, *keys;  // block "": the top level. Keys that are treated alike stand in one row
    enum {
        ONLY,
        COUNT,
        BOOL,
        ANY,
        BLOCK
    } kind;                  // COUNT: a whole number, 5e8 too; ANY: has no effect here, whatever it is
    const char *only, *why;  // ONLY: the values taken, as JSON parted by |, NULL for none; why no other is
    double min, max;         // COUNT
    int (*set)(reader *r, int64_t v);  // COUNT and BOOL; NULL: has no effect here
} row;

#define ZERO "zero_optimization"
#define NO_LIMIT 1e18  // fits an int64_t
#define TRAINER "the trainer sets this by its own options"
#define OR_AUTO "; remove it or write \"auto\""
#define NOT_BUILT "not built"

// null and "auto" (a placeholder that Hugging Face uses) count as absent.
static const row rows[] = {
    { "", ZERO, BLOCK, .set = set_stage },   // old files: true is stage 1, false stage 0
    { "", "fp16", BLOCK, .set = set_fp16 },  // true and false as well
    { "", "bf16 optimizer data_types activation_checkpointing checkpoint", .kind = BLOCK },
    { "optimizer", "params", .kind = BLOCK },

    // ---- done as asked
    { ZERO, "stage", COUNT, .max = 3, .set = set_stage },
    { ZERO, "reduce_bucket_size", COUNT, .max = NO_LIMIT, .set = set_bucket },
    { ZERO, "stage3_prefetch_bucket_size", COUNT, .max = NO_LIMIT, .set = set_prefetch },
    { ZERO, "overlap_comm", BOOL, .set = set_overlap },
    { "bf16", "enabled", BOOL, .set = set_bf16 },
    { "fp16", "enabled", BOOL, .set = set_fp16 },
    { "fp16", "loss_scale", COUNT, .max = NO_LIMIT, .set = set_loss_scale },
    { "fp16", "initial_scale_power", COUNT, .max = 126, .set = set_scale_power },
    { "fp16", "loss_scale_window", COUNT, .min = 1, .max = INT_MAX, .set = set_scale_window },
    { "fp16", "hysteresis", COUNT, .min = 1, .max = INT_MAX, .set = set_hysteresis },
    { "fp16", "consecutive_hysteresis", BOOL, .set = set_consecutive },
    { "fp16", "min_loss_scale", COUNT, .min = 1, .max = NO_LIMIT, .set = set_min_scale },
    { "", "gradient_accumulation_steps", COUNT, .min = 1, .max = INT_MAX, .set = set_micro_batches },
    { "", "communication_data_type", .only = "\"fp32\"|\"bf16\"|\"fp16\"",
      .why = "gradients travel as fp32, bf16 or fp16" },  // read_wire

    // ---- The plugin does this anyway; another value is refused.
    { "", "managed_gradient_accumulation", .only = "true", .why = NOT_BUILT },
    { "", "prescale_gradients", .only = "false", .why = "gradients are divided once, after the sum" },
    { "", "gradient_predivide_factor", .only = "1", .why = "gradients are divided once, after the sum" },
    { "", "gradient_allreduce_op", .only = "\"mean\"", .why = "the plugin takes the mean over the ranks" },
    { "data_types", "grad_accum_dtype", .only = "\"fp32\"", .why = "micro-batches are summed in fp32" },
    { "data_types", "param_dtype buffer_dtype", .why = "bf16.enabled says the type; remove it" },
    { "bf16", "check_grad_overflow", .only = "true", .why = "infinities are always looked for" },
    { "fp16", "auto_cast fp16_master_weights_and_grads", .only = "false", .why = NOT_BUILT },
    { "bf16", "immediate_grad_update bf16_master_weights_and_grads bf16_optimizer_states", .only = "false",
      .why = NOT_BUILT },
    { "optimizer", "type", .only = "\"AdamW\"|\"Adam\"", .why = "the update is AdamW" },
    { "optimizer", "legacy_fusion", .only = "false", .why = NOT_BUILT },
    { "optimizer.params", "adam_w_mode bias_correction fp32_optimizer_states", .only = "true",
      .why = "the update is AdamW in fp32" },
    { "optimizer.params", "amsgrad", .only = "false", .why = "the update is AdamW" },
    { ZERO, "contiguous_gradients reduce_scatter load_from_fp32_weights ignore_unused_parameters",
      .only = "true", .why = "the plugin always does it" },
    // DeepSpeed's defaults 1e5 and 1e9 are accepted, because many files spell them out, and they would change
    // only memory and traffic.
    { ZERO, "stage3_param_persistence_threshold", .only = "0|1e5", .why = "no parameter stays resident" },
    { ZERO, "stage3_max_reuse_distance", .only = "0|1e9", .why = "a unit is released after each use" },
    { ZERO, "stage3_max_live_parameters", .only = "1e9",
      .why = "what is gathered is limited by units, not by elements" },
    { ZERO, "stage3_module_granularity_threshold", .only = "0",
      .why = "the trainer's table says what is gathered together" },
    { ZERO, "leaf_module", .why = "the trainer's table says what is gathered together; remove it" },

    // ---- No effect here. DeepSpeed does not read the key, or it only chooses between DeepSpeed's own ways
    // to the same result (sub_group_size), caps what does not exist here (resident parameters), or concerns
    // PyTorch, other optimizers, offload or printing.
    { "", "steps_per_print vocabulary_size", COUNT, .max = NO_LIMIT },
    { "", "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer disable_allgather", .kind = BOOL },
    { "", "log_level seq_parallel_communication_data_type aio", .kind = ANY },
    { "checkpoint", "tag_validation", .kind = ANY },
    { "optimizer.params", "torch_adam", .kind = BOOL },
    { ZERO, "allgather_bucket_size sub_group_size", COUNT, .max = NO_LIMIT },
    { ZERO, "stage3_model_persistence_threshold", .kind = ANY },
    { ZERO,
      "allgather_partitions use_multi_rank_bucket_allreduce round_robin_gradients memory_efficient_linear "
      "override_module_apply "
      "stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save "
      "cpu_offload_use_pin_memory "
      "enable_sanity_checks",
      .kind = BOOL },

    // ---- the trainer's
    { "", "train_batch_size train_micro_batch_size_per_gpu gradient_clipping scheduler",
      .why = TRAINER OR_AUTO },
    { "optimizer.params", "lr betas eps weight_decay max_grad_norm", .why = TRAINER OR_AUTO },
    { "", "dataloader_drop_last", .only = "false", .why = TRAINER },
    { "activation_checkpointing",
      "partition_activations cpu_checkpointing contiguous_memory_optimization "
      "synchronize_checkpoint_boundary "
      "profile",
      .only = "false", .why = "activations are the trainer's" },
    { "activation_checkpointing", "number_checkpoints", .why = "activations are the trainer's; remove it" },

    // ---- not built
    { ZERO, "offload_param offload_optimizer", .only = "\"none\"", .why = "offload is not built" },
    { ZERO, "cpu_offload cpu_offload_param", .only = "false", .why = "offload is not built" },
    { ZERO, "zero_hpz_partition_size", .only = "1|0", .why = "hpZ of ZeRO++ is not built" },
    { ZERO, "zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients",
      .only = "false", .why = "quantized communication of ZeRO++ is not built" },
    { ZERO, "mics_shard_size", .only = "-1|0", .why = "MiCS is not built" },
    { ZERO, "mics_hierarchical_params_gather", .only = "false", .why = "MiCS is not built" },
    { ZERO,
      "elastic_checkpoint stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential "
      "pipeline_loading_checkpoint "
      "log_trace_cache_warnings save_muon_momentum_buffer_in_memory",
      .only = "false", .why = NOT_BUILT },
    { ZERO, "zenflow zeropp_loco_param", .why = "not built; remove it" },
    { "",
      "wall_clock_breakdown memory_breakdown dump_state sparse_gradients use_data_before_expert_parallelism "
      "amp torch_autocast "
      "elasticity autotuning hybrid_engine compile nebula datastates timers flops_profiler comms_logger "
      "tensorboard wandb csv_monitor "
      "comet tensor_parallel expert_parallel pipeline compression_training sparse_attention "
      "curriculum_learning data_efficiency "
      "progressive_layer_drop eigenvalue graph_harvesting weight_quantization",
      .only = "false", .why = NOT_BUILT },
    { "", "sequence_parallel_size", .only = "1", .why = NOT_BUILT },
    { "checkpoint", "load_universal use_node_local_storage", .only = "false", .why = NOT_BUILT },
    { "checkpoint", "parallel_write writer checkpoint_serialization", .why = "not built; remove it" },

    // ---- usual mistakes
    { ZERO, "aio", .why = "aio belongs to the top level of the file, beside " ZERO },
    { ZERO, "legacy_stage1 grad_hooks", .why = "DeepSpeed has no such key any more; remove it" },
    { "", "bfloat16", .why = "this block is called bf16 now; rename it" },
};
enum { ROWS = sizeof rows / sizeof *rows, NAME = 64 };  // NAME: longer than any key, end included

// -------- finding a row

// Returns the next word of a list and its length in *n, or NULL after the last.
static const char *next_word(const char **list, size_t *n) {
    const char *word = *list + strspn(*list, " ");
    *n = strcspn(word, " ");
    *list = word + *n;
    return *n ? word : NULL;
}

static const row *find_row(const char *block, const char *name) {
    for (const row *w = rows; w < rows + ROWS; w++) {
        size_t n;
        if (strcmp(w->block, block)) continue;
        for (const char *list = w->keys, *word; (word = next_word(&list, &n));)
            if (n == strlen(name) && !memcmp(word, name, n)) return w;
    }
    return NULL;
}

static int least(int a, int b) { return a < b ? a : b; }

// Returns the Levenshtein distance of a and b, which are both shorter than NAME.
static int edit_distance(const char *a, size_t na, const char *b, size_t nb) {
    int d[NAME];
    for (size_t j = 0; j <= nb; j++) d[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int diagonal = d[0];
        d[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int changed = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = d[j];
            d[j] = least(changed, least(d[j], d[j - 1]) + 1);
        }
    }
    return d[nb];
}

static int is_in_block(const reader *r, const char *block) {
    size_t n = strlen(block);
    return n ? !strncmp(r->path, block, n) && r->path[n] == '.' : !strchr(r->path, '.');
}

// The key may be misspelt or in the wrong block. The nearest key of all blocks is named, unless more than
// half of it would change.
static int fail_unknown(const reader *r, const char *name) {
    char nearest[2 * NAME] = "";
    int best = (int)strlen(name) / 2 + 1;
    for (const row *w = rows; w < rows + ROWS && strlen(name) < NAME; w++) {
        size_t n;
        for (const char *list = w->keys, *word; (word = next_word(&list, &n));) {
            int d = edit_distance(name, strlen(name), word, n);
            if (d > best || (d == best && (!*nearest || !is_in_block(r, w->block)))) continue;
            best = d;
            snprintf(nearest, sizeof nearest, "%s%s%.*s", w->block, *w->block ? "." : "", (int)n, word);
        }
    }
    return FAIL(r, "unknown key; %s%s", *nearest ? "the nearest known one is " : "remove it", nearest);
}

// -------- the values

static int is_left_out(const json_t *v) {
    return json_is_null(v) || (json_is_string(v) && !strcmp(json_string_value(v), "auto"));
}

// Returns 1 if v can be read as true or false. DeepSpeed takes 0, 1, "true" and "false" too.
static int is_bool(const json_t *v, int *on) {
    const char *s = json_is_string(v) ? json_string_value(v) : "";
    *on = json_is_true(v) || (json_is_integer(v) && json_integer_value(v) == 1) || !strcasecmp(s, "true");
    return *on || json_is_false(v) || (json_is_integer(v) && json_integer_value(v) == 0) ||
           !strcasecmp(s, "false");
}

static int fail_value(const reader *r, const json_t *v, const char *why, const char *instead) {
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15));
    int rc = FAIL(r, "%.60s: %s%s%.*s", text ? text : "this value", why,
                  instead ? "; remove it or write " : "", instead ? (int)strcspn(instead, "|") : 0,
                  instead ? instead : "");
    free(text);
    return rc;
}

static int is_accepted(const json_t *v, const char *accepted) {
    int on;
    for (size_t n; accepted && *accepted; accepted += n + (accepted[n] == '|')) {
        n = strcspn(accepted, "|");
        json_t *a = json_loadb(accepted, n, JSON_DECODE_ANY, NULL);
        int same = json_is_string(a) && json_is_string(v)
                       ? !strcasecmp(json_string_value(a), json_string_value(v))
                   : json_is_number(a) && json_is_number(v)
                       ? json_number_value(a) == json_number_value(v)
                       : json_is_boolean(a) && is_bool(v, &on) && on == json_is_true(a);
        json_decref(a);
        if (same) return 1;
    }
    return 0;
}

// {"enabled": false, ...} means false and {"device": "none", ...} means "none". The rest of such a block has
// no effect then.
static int read_only(reader *r, const row *w, const json_t *v) {
    static const char *const switches[] = { "enabled", "device" };
    const json_t *s = NULL;
    for (int i = 0; i < 2 && !s && w->only; i++)
        if ((s = json_object_get(v, switches[i])))
            snprintf(r->path + strlen(r->path), sizeof r->path - strlen(r->path), ".%s", switches[i]);
    if (s) v = s;
    return is_left_out(v) || is_accepted(v, w->only) ? 0 : fail_value(r, v, w->why, w->only);
}

static int read_count(reader *r, const row *w, const json_t *v) {
    double d = json_number_value(v);
    char why[96];
    snprintf(why, sizeof why, "must be a whole number from %.15g to %.15g", w->min, w->max);
    if (!json_is_number(v) || d < w->min || d > w->max || d != (double)(int64_t)d)
        return fail_value(r, v, why, NULL);
    return w->set ? w->set(r, (int64_t)d) : 0;
}

static int read_bool(reader *r, const row *w, const json_t *v) {
    int on;
    if (!is_bool(v, &on)) return fail_value(r, v, "must be true or false", NULL);
    return w->set ? w->set(r, on) : 0;
}

// Moves r->at to the next key of this name. Keys are visited in the order in which the file has them.
static void find_line(reader *r, const char *name) {
    size_t n = strlen(name);
    int line = r->line;
    for (const char *s = r->at; *s; s++) {
        line += *s == '\n';
        if (*s != '"' || strncmp(s + 1, name, n) || s[n + 1] != '"' ||
            s[n + 2 + strspn(s + n + 2, " \t\r\n")] != ':')
            continue;
        r->at = s + 1;
        r->line = line;
        return;
    }
}

// Skips the keys inside a value that is not read.
static void skip_keys(reader *r, json_t *v) {
    const char *name;
    json_t *inner;
    json_object_foreach(v, name, inner) {
        find_line(r, name);
        skip_keys(r, inner);
    }
    for (size_t i = 0; i < json_array_size(v); i++) skip_keys(r, json_array_get(v, i));
}

static int read_value(reader *r, const row *w, const json_t *v) {
    switch (w->kind) {
    case COUNT:
        return read_count(r, w, v);
    case BOOL:
        return read_bool(r, w, v);
    case ONLY:
        return read_only(r, w, v);
    case BLOCK:
        return w->set ? read_bool(r, w, v) : fail_value(r, v, "must be a block { ... }", NULL);
    case ANY:
        break;
    }
    return 0;
}

static int read_block(reader *r, json_t *block, const char *path) {
    char full[sizeof r->path], prefixed[sizeof r->path];
    const char *name;
    json_t *v;
    json_object_foreach(block, name, v) {
        find_line(r, name);
        snprintf(full, sizeof full, "%s%s%s", path, *path ? "." : "", name);
        strcpy(r->path, full);
        const row *w = find_row(path, name);
        snprintf(prefixed, sizeof prefixed, "stage3_%s",
                 name);  // DeepSpeed takes these keys without the prefix too
        if (!w && (w = find_row(path, prefixed)) && json_object_get(block, prefixed))
            return FAIL(r, "stands here as %s too; keep one of them", prefixed);
        if (!w) return fail_unknown(r, name);
        if (w->kind == BLOCK && json_is_object(v)) {
            ZERO_TRY(read_block(r, v, full));
            continue;
        }
        if (!is_left_out(v)) ZERO_TRY(read_value(r, w, v));
        skip_keys(r, v);
    }
    return 0;
}

// -------- the file

enum { LARGEST_FILE = 1 << 20 };

// The caller frees *text, also after a failure.
static int read_text(const char *file, char **text, size_t *n) {
    FILE *f = fopen(file, "rb");
    if (!f) return zero_fail(ZERO_ERR_IO, "%s: cannot be opened: %s", file, strerror(errno));
    *text = malloc(LARGEST_FILE + 2);
    *n = *text ? fread(*text, 1, LARGEST_FILE + 1, f) : 0;
    int error = ferror(f) ? errno : 0;
    if (fclose(f) && !error) error = errno;
    if (!*text) return zero_fail(ZERO_ERR_MEMORY, "%s: out of memory to read it", file);
    if (error) return zero_fail(ZERO_ERR_IO, "%s: cannot be read: %s", file, strerror(error));
    if (*n > LARGEST_FILE)
        return zero_fail(ZERO_ERR_ARGUMENT, "%s: larger than 1 MiB, which no DeepSpeed configuration is",
                         file);
    (*text)[*n] = '\0';
    return 0;
}

// Returns where the comment that begins at s ends: s if none begins, NULL if it is never closed.
static char *comment_end(char *s) {
    if (*s == '#' || (s[0] == '/' && s[1] == '/')) return s + strcspn(s, "\n");
    if (s[0] != '/' || s[1] != '*') return s;
    char *close = strstr(s + 2, "*/");
    return close ? close + 2 : NULL;
}

static void blank_comments_and_commas(char *text) {
    char *comma = NULL;  // the last thing before s but blanks and comments, if it was a comma
    for (char *s = text; *s; s++) {
        char *end = comment_end(s);
        if (!end) return;  // the parser reports it
        if (end > s) {
            for (; s < end; s++)
                if (*s != '\n') *s = ' ';
            s--;
        } else if (*s == '"') {
            while (s[1] && *++s != '"')
                if (*s == '\\' && s[1]) s++;
            comma = NULL;
        } else if (*s == ',')
            comma = s;
        else if (!strchr(" \t\r\n", *s)) {
            if (comma && (*s == '}' || *s == ']')) *comma = ' ';
            comma = NULL;
        }
    }
}

// Gradients travel in their own type, which follows from the other settings, or as fp32. Nothing may round
// them on the way.
static int read_wire(reader *r, const json_t *root) {
    zero_config *c = r->config;
    const char *wanted = json_string_value(json_object_get(root, "communication_data_type"));
    const char *own = c->stage >= 2 || c->micro_batches == 1 ? dtype_name(c->numbers.dtype) : "fp32";
    if (!wanted || !strcmp(wanted, "auto")) return 0;
    c->comm.reduce_fp32 = !strcasecmp(wanted, "fp32");
    if (c->comm.reduce_fp32 || !strcasecmp(wanted, own)) return 0;
    return zero_fail(
        ZERO_ERR_ARGUMENT,
        "%s: communication_data_type: \"%s\": with this stage, type and number of micro-batches gradients "
        "travel as %s, and %s would round them before they are added up; remove it or write \"%s\"",
        r->file, wanted, own, wanted, own);
}

static int read_json(reader *r, char *text, size_t n) {
    json_error_t e;
    blank_comments_and_commas(text);
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    if (!root)
        return zero_fail(ZERO_ERR_ARGUMENT, "%s:%d:%d: not JSON: %s", r->file, e.line, e.column, e.text);
    r->at = text;
    r->line = 1;
    int rc = json_is_object(root) ? read_block(r, root, "")
                                  : zero_fail(ZERO_ERR_ARGUMENT, "%s:1: must be a block { ... }", r->file);
    if (!rc) rc = read_wire(r, root);
    json_decref(root);
    return rc;
}

static int read_file(zero_config *config, const char *file, int env_stage) {
    zero_config c = *config;
    reader r = { .config = &c, .env_stage = env_stage, .file = file };
    char *text = NULL;
    size_t n = 0;
    if (env_stage >= 0) c.stage = env_stage;
    int rc = read_text(file, &text, &n);
    if (!rc) rc = read_json(&r, text, n);
    free(text);
    if (!rc) *config = c;
    return rc;
}

static int check_size(const zero_config *config) {
    if (config && config->size == sizeof *config) return 0;
    return zero_fail(
        ZERO_ERR_ARGUMENT,
        "zero_config.size is not that of this library: start from zero_defaults() and the same zero.h");
}

int zero_config_from_file(zero_config *config, const char *path) {
    ZERO_TRY(check_size(config));
    return path ? read_file(config, path, -1)
                : zero_fail(ZERO_ERR_ARGUMENT, "zero_config_from_file: no path");
}

int zero_config_from_env(zero_config *config) {
    const char *stage = getenv("ZERO_STAGE"), *file = getenv("ZERO_CONFIG");
    int env_stage = -1;
    ZERO_TRY(check_size(config));
    if (stage && *stage) {
        if (*stage < '0' || *stage > '3' || stage[1])
            return zero_fail(ZERO_ERR_ARGUMENT, "ZERO_STAGE=%s: the stages are 0, 1, 2 and 3", stage);
        env_stage = stage[0] - '0';
    }
    if (file && *file) return read_file(config, file, env_stage);
    if (env_stage >= 0) config->stage = env_stage;
    return 0;
}
