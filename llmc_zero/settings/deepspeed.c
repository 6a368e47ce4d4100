// Reads the configuration from a DeepSpeed JSON file and from the environment. Applies the file's keys one by
// one, then the rules that involve several keys, and reports all refused keys at once.
#include "../device/kernels.h"
#include "../base/error.h"
#include "keys.h"
#include "scheduler.h"
#include "settings.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

// -------- checking a value against its row

static int is_number_of(const key_row *w, const json_t *v, double *x) {
    int64_t n = 0;
    const int right = w->kind == COUNT ? json_as_count(v, &n) : json_as_number(v, x);
    if (w->kind == COUNT) *x = (double)n;
    return right && *x >= w->min && *x <= w->max;
}

static void refuse_number(reader *r, const key_row *w, const json_t *v) {
    const char *kind = w->kind == COUNT ? "whole number" : "number";
    double x;
    if (w->max < NO_LIMIT || (json_as_number(v, &x) && x > w->max))
        key_refuse(r, v, w->setting, "must be a %s from %.17g to %.17g", kind, w->min, w->max);
    else
        key_refuse(r, v, w->setting, "must be a %s of at least %.17g", kind, w->min);
}

// all: receives the list of words, for a message.
static int is_word_of(const zero_setting *s, const json_t *v, double *x, char *all, size_t size) {
    size_t used = 0;
    for (int i = 0; s->words[i]; i++) {
        *x = i;
        if (json_is_string(v) && !strcasecmp(json_string_value(v), s->words[i])) return 1;
        used += (size_t)snprintf(all + used, size - used, "%s\"%s\"", i ? ", " : "", s->words[i]);
    }
    return 0;
}

// Returns the block's "enabled". If it has none, returns the first "enabled" in its inner blocks that is not
// false, or else any of them; NULL: none exists. Extends the path unless all inner ones are false.
static json_t *find_enabled(json_t *block, char *path, size_t size) {
    json_t *enabled = json_object_get(block, "enabled"), *inner;
    const size_t used = strlen(path);
    const char *name;
    int on;
    if (enabled) snprintf(path + used, size - used, ".enabled");
    if (enabled) return enabled;
    json_object_foreach(block, name, inner) {
        snprintf(path + used, size - used, ".%s", name);
        json_t *found = find_enabled(inner, path, size);
        if (found) enabled = found;
        if (found && !json_is_left_out(found) && (!json_as_bool(found, &on) || on)) return found;
    }
    path[used] = '\0';
    return enabled;
}

// {"enabled": false, ...} means false, and the rest of the block has no effect.
static json_t *enabled_of(reader *r, json_t *v) {
    json_t *enabled = find_enabled(v, r->path, sizeof r->path);
    return enabled ? enabled : v;
}

// Returns 1 and sets *x if the row allows v; otherwise refuses the key.
static int check_value(reader *r, const key_row *w, const json_t *v, double *x) {
    char words[64] = "";
    int on = 0;
    if (w->kind == BLOCK && !w->set) {
        key_refuse(r, v, NULL, "must be a block { ... }");
        return 0;
    }
    switch (w->kind) {
    case ANY:
        return 1;
    case COUNT:
    case REAL:
        if (is_number_of(w, v, x)) return 1;
        refuse_number(r, w, v);
        return 0;
    case WORD:
        if (is_word_of(zero_setting_named(w->setting), v, x, words, sizeof words)) return 1;
        key_refuse(r, v, w->setting, "must be one of %s", words);
        return 0;
    case ONLY:
        if (w->only && json_equals(v, w->only)) return 1;
        if (w->only)
            key_refuse(r, v, w->setting, "%s; remove it or write %.*s", w->why, (int)strcspn(w->only, "|"),
                       w->only);
        else
            key_refuse(r, v, w->setting, "%s", w->why);
        return 0;
    default:  // BOOL, and blocks that are true or false in older files
        if (json_as_bool(v, &on)) {
            *x = on;
            return 1;
        }
        key_refuse(r, v, w->setting, "must be true or false");
        return 0;
    }
}

// Reports a key that is null or "auto", which leaves its settings as they are.
static void leave_out(reader *r, const key_row *w, const json_t *v) {
    const int is_auto = json_is_string(v);
    const char *setting = is_auto && w->setting ? w->setting : "";
    do {
        const size_t n = strcspn(setting, " ");
        zero_deepspeed_key *k = key_note(r, ZERO_KEY_HONOURED, v, w->automatic ? w->automatic : "");
        if (is_auto) strcpy(k->value, "auto");
        snprintf(k->setting, sizeof k->setting, "%.*s", (int)n, setting);
        setting += n + strspn(setting + n, " ");
    } while (*setting);
}

static void read_value(reader *r, const key_row *w, json_t *v) {
    double x = 0;
    if (w->kind == ONLY && w->only) v = enabled_of(r, v);
    if (json_is_left_out(v))
        leave_out(r, w, v);
    else if (!check_value(r, w, v, &x))
        return;
    else if (w->set)
        w->set(r, v, x);
    else if (w->kind == ONLY || (w->kind == NOTED && json_equals(v, w->only)))
        key_note(r, ZERO_KEY_HONOURED, v, "");
    else if (w->setting)
        key_sets(r, w->setting, x, w->why && x > 0 && x < w->max ? w->why : "");
    else
        key_note(r, ZERO_KEY_NO_EFFECT, v, w->why);
}

// -------- the keys, one by one

// DeepSpeed ignores unknown keys in these blocks, and refuses them in all others.
static int ignores_unknown(const char *table) {
    static const char *const blocks[] = { "",           "aio",        "activation_checkpointing",
                                          "checkpoint", "data_types", "optimizer",
                                          "scheduler" };
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        if (!strcmp(table, blocks[i])) return 1;
    return 0;
}

static void judge_unknown(reader *r, const char *table, const char *name, const json_t *v) {
    char nearest[128];
    const int misspelt = key_nearest(r, name, nearest, sizeof nearest);
    if (!misspelt && ignores_unknown(table))
        key_note(r, ZERO_KEY_NO_EFFECT, v, "unknown; DeepSpeed ignores it too");
    else
        key_refuse(r, NULL, NULL, "unknown key; %s%s", *nearest ? "the nearest known one is " : "remove it",
                   nearest);
}

// DeepSpeed also accepts the stage3_ keys without the prefix. Returns 1 if the key is unknown or present
// twice.
static int has_no_row(reader *r, const json_t *block, const char *table, const char *name, key_row *w) {
    char prefixed[128];
    snprintf(prefixed, sizeof prefixed, "stage3_%s", name);
    if (key_find(table, name, w)) return 0;
    if (!key_find(table, prefixed, w))
        judge_unknown(r, table, name, json_object_get(block, name));
    else if (json_object_get(block, prefixed))
        key_refuse(r, NULL, NULL, "is also here as %s; keep one of them", prefixed);
    else
        return 0;
    return 1;
}

// A block with an older name, or in a common wrong place, stands for the top-level block `w->only`. If the
// file has both, refuses this one and returns 1.
static int stands_twice(reader *r, const key_row *w) {
    if (!w->only || !json_object_get(r->root, w->only)) return 0;
    key_refuse(r, NULL, NULL, "is also at the top level as %s; keep that one", w->only);
    return 1;
}

// Returns 1 if the current key holds the parameters of a scheduler that is missing or refused.
static int is_without_scheduler(reader *r) {
    if (strcmp(r->path, "scheduler.params") || scheduler_is_known(r)) return 0;
    key_note(r, ZERO_KEY_NO_EFFECT, NULL, "scheduler.type is missing or refused");
    return 1;
}

// path: the block's path in the file; table: its name in the table of keys.
static void read_block(reader *r, json_t *block, const char *path, const char *table) {
    char full[sizeof r->path];
    const char *name;
    json_t *v;
    json_object_foreach(block, name, v) {
        key_row w;
        r->line = *r->lines++;
        snprintf(full, sizeof full, "%s%s%s", path, *path ? "." : "", name);
        strcpy(r->path, full);
        int done = has_no_row(r, block, table, name, &w);
        const int opens = !done && w.kind == BLOCK && json_is_object(v);
        if (opens) done = stands_twice(r, &w) || is_without_scheduler(r);
        if (opens && !done) {
            if (w.why) key_note(r, ZERO_KEY_HONOURED, NULL, w.why);
            read_block(r, v, full, w.only ? w.only : full);
            continue;
        }
        if (!done) read_value(r, &w, v);
        r->lines += json_count_keys(v);
    }
}

// -------- rules that involve several keys

// Refuses a key that was honoured so far and has a word as its value. setting: the one to use instead.
static void __attribute__((format(printf, 3, 4)))
refuse_later(zero_deepspeed_key *k, const char *setting, const char *fmt, ...) {
    char quoted[64];
    va_list args;
    snprintf(quoted, sizeof quoted, "\"%.60s\"", k->value);
    strcpy(k->value, quoted);
    k->fate = ZERO_KEY_REFUSED;
    snprintf(k->setting, sizeof k->setting, "%s", setting);
    va_start(args, fmt);
    vsnprintf(k->remark, sizeof k->remark, fmt, args);
    va_end(args);
}

// If neither bf16 nor fp16 is enabled, the dtype is fp32.
static void judge_type(reader *r) {
    if (!r->no_type || r->type_chosen) return;
    strcpy(r->no_type->setting, "numbers.dtype");
    strcpy(r->no_type->value, "fp32");
}

// As in DeepSpeed, settings that the stage does not support have no effect.
static void has_no_effect(zero_deepspeed_key *k, const char *needs) {
    k->fate = ZERO_KEY_NO_EFFECT;
    snprintf(k->remark, sizeof k->remark, "needs %s; DeepSpeed ignores it too", needs);
}

static void judge_stage(reader *r, const zero_config *before) {
    zero_offload_config *o = &r->config.offload;
    const int stage = r->config.stage;
    zero_deepspeed_key *params = key_that_sets(r, "offload.params"), *group = key_that_sets(r, "param_group"),
                       *states = key_that_sets(r, "offload.optimizer");
    if (params && o->params && stage < 3) {
        o->params = before->offload.params;
        has_no_effect(params, "stage 3");
    }
    if (group && r->config.param_group && stage < 3) {
        r->config.param_group = before->param_group;
        has_no_effect(group, "stage 3");
    }
    if (states && o->optimizer && stage < 1) {
        o->optimizer = before->offload.optimizer;
        has_no_effect(states, "stage 1, 2 or 3");
    } else if (states && o->optimizer == ZERO_NVME && stage < 3)
        strcpy(states->remark, "on NVMe as requested; DeepSpeed keeps it in host memory below stage 3");
}

// As in DeepSpeed, gradients are offloaded with the optimizer states, but no farther than to host memory. If
// the caller has already moved the states, gradients stay where the caller has put them.
static void place_gradients(reader *r, const zero_config *before) {
    zero_offload_config *o = &r->config.offload;
    if (o->optimizer && !before->offload.optimizer && !o->gradients && r->config.stage >= 2)
        o->gradients = ZERO_HOST;
}

// Returns 1 if the folder of this key is used.
static int use_folder(zero_deepspeed_key *folder, zero_tier tier) {
    if (!folder) return 0;
    if (tier == ZERO_NVME) {
        strcpy(folder->setting, "offload.nvme");
        return 1;
    }
    folder->fate = ZERO_KEY_NO_EFFECT;
    strcpy(folder->remark, "the device is not nvme, or is not used at this stage");
    return 0;
}

static _Thread_local char nvme[2 * ZERO_DEEPSPEED_VALUE];  // the folders of the last file read

// DeepSpeed has one folder for parameters and one for optimizer states; the plugin has one list of folders
// for both.
static void join_folders(reader *r) {
    zero_deepspeed_key *params = r->params_folder, *states = r->states_folder;
    const int of_params = use_folder(params, r->config.offload.params);
    const int of_states = use_folder(states, r->config.offload.optimizer);
    if (!of_params && !of_states) return;
    strcpy(nvme, of_states ? states->value : params->value);
    if (of_params && of_states && strcmp(params->value, states->value)) {
        const int n = snprintf(nvme, sizeof nvme, "%s,%s", params->value, states->value);
        if (n >= ZERO_DEEPSPEED_VALUE) {
            refuse_later(states, "offload.nvme", "the two folder names together are too long");
            return;
        }
        strcpy(params->value, nvme);
        strcpy(states->value, nvme);
        strcpy(params->remark, "blocks alternate between the folders of both keys");
        strcpy(states->remark, params->remark);
    }
    r->config.offload.nvme = nvme;
}

// Gradients are sent as fp32 or unconverted, in the dtype that the other settings determine. A communication
// dtype that would round them is refused.
static void judge_wire(reader *r) {
    const zero_config *c = &r->config;
    zero_deepspeed_key *wire = key_that_sets(r, "comm.reduce_fp32");
    if (!wire || !c->micro_batches || c->comm.reduce_fp32) return;
    const char *own = c->stage >= 2 || c->micro_batches == 1 ? dtype_name(c->numbers.dtype) : "fp32";
    char wanted[8];
    snprintf(wanted, sizeof wanted, "%.7s", wire->value);
    if (!strcasecmp(wanted, own)) return;
    refuse_later(wire, "comm.reduce_fp32",
                 "with this stage, type and number of micro-batches gradients are sent as %s, and %s would "
                 "round them before they are summed; remove it or write \"%s\"",
                 own, wanted, own);
}

// -------- the report of refused keys

// Returns 0 if no key is refused. The error message has one line per refused key, up to its size limit.
static int fail_refused(const char *file, const zero_deepspeed *report) {
    char text[900] = "", line[560];
    size_t used = 0;
    int refused = 0, left = 0;
    for (const zero_deepspeed_key *k = report->keys; k < report->keys + report->n; k++)
        refused += k->fate == ZERO_KEY_REFUSED;
    for (const zero_deepspeed_key *k = report->keys; k < report->keys + report->n; k++) {
        if (k->fate != ZERO_KEY_REFUSED) continue;
        size_t n = (size_t)snprintf(line, sizeof line, "%s:%d: %s: %s%s%s", file, k->line, k->key, k->value,
                                    *k->value ? ": " : "", k->remark);
        if (refused == 1) return zero_fail(ZERO_ERR_ARGUMENT, "%s", line);
        if (used + n + 4 > sizeof text)
            left++;
        else
            used += (size_t)snprintf(text + used, sizeof text - used, "\n  %s", line);
    }
    if (left) snprintf(text + used, sizeof text - used, "\n  and %d more", left);
    return refused ? zero_fail(ZERO_ERR_ARGUMENT, "%d keys cannot be honoured:%s", refused, text) : 0;
}

// -------- the file

// Refuses the trainer's keys, for a file that no trainer reads. A key that sets several settings is refused
// once.
static void refuse_trainers_keys(zero_deepspeed *report) {
    const char *last = "";
    for (int i = 0; i < report->n; i++) {
        zero_deepspeed_key *k = &report->keys[i];
        if (k->fate != ZERO_KEY_HONOURED || strncmp(k->setting, "trainer.", 8) || !strcmp(k->value, "auto"))
            continue;
        k->fate = strcmp(k->key, last) ? ZERO_KEY_REFUSED : ZERO_KEY_NO_EFFECT;
        strcpy(k->remark, "the trainer sets this with its options; remove it or write \"auto\"");
        last = k->key;
    }
}

// alone: 1 if no trainer reads its own keys.
static int read_file(zero_config *config, zero_deepspeed *report, const char *file, int env_stage,
                     int alone) {
    reader r = { .config = *config, .report = report, .env_stage = env_stage };
    json_file j;
    report->n = 0;
    if (env_stage >= 0) r.config.stage = env_stage;
    int rc = json_open(&j, file);
    if (!rc) {
        r.root = j.root;
        r.lines = j.lines;
        read_block(&r, j.root, "", "");
        judge_type(&r);
        judge_stage(&r, config);
        place_gradients(&r, config);
        join_folders(&r);
        judge_wire(&r);
        if (alone) refuse_trainers_keys(report);
        rc = fail_refused(file, report);
    }
    json_close(&j);
    if (!rc) *config = r.config;
    return rc;
}

int zero_deepspeed_read(zero_config *config, zero_deepspeed *report, const char *path) {
    ZERO_TRY(settings_check_size(config));
    if (!path || !report) return zero_fail(ZERO_ERR_ARGUMENT, "zero_deepspeed_read: path or report is NULL");
    return read_file(config, report, path, -1, 0);
}

static int read_for_plugin(zero_config *config, const char *file, int env_stage) {
    zero_deepspeed *report = malloc(sizeof *report);
    if (!report) return zero_fail(ZERO_ERR_MEMORY, "%s: out of memory to read it", file);
    int rc = read_file(config, report, file, env_stage, 1);
    free(report);
    return rc;
}

int zero_config_from_file(zero_config *config, const char *path) {
    ZERO_TRY(settings_check_size(config));
    return path ? read_for_plugin(config, path, -1)
                : zero_fail(ZERO_ERR_ARGUMENT, "zero_config_from_file: path is NULL");
}

int zero_config_from_env(zero_config *config) {
    const char *stage = getenv("ZERO_STAGE"), *file = getenv("ZERO_CONFIG");
    int env_stage = -1;
    ZERO_TRY(settings_check_size(config));
    if (stage && *stage) {
        if (*stage < '0' || *stage > '3' || stage[1])
            return zero_fail(ZERO_ERR_ARGUMENT, "ZERO_STAGE=%s: the stages are 0, 1, 2 and 3", stage);
        env_stage = stage[0] - '0';
    }
    if (file && *file) return read_for_plugin(config, file, env_stage);
    if (env_stage >= 0) config->stage = env_stage;
    return 0;
}
