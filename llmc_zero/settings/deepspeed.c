// Reads the configuration from a DeepSpeed JSON file and from the environment. Applies the file's keys one by
// one, then the rules that involve several keys, and reports all refused keys at once.
#include "../base/error.h"
#include "keys.h"
#include "settings.h"
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

static int refuse_number(reader *r, const key_row *w, const json_t *v) {
    const char *kind = w->kind == COUNT ? "whole number" : "number";
    double x;
    if (w->max < NO_LIMIT || (json_as_number(v, &x) && x > w->max))
        return key_refuse(r, v, w->setting, "must be a %s from %.17g to %.17g", kind, w->min, w->max);
    return key_refuse(r, v, w->setting, "must be a %s of at least %.17g", kind, w->min);
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

// {"enabled": false, ...} means false, and the rest of the block has no effect.
static json_t *enabled_of(reader *r, json_t *v) {
    json_t *enabled = json_object_get(v, "enabled");
    const size_t used = strlen(r->path);
    if (enabled) snprintf(r->path + used, sizeof r->path - used, ".enabled");
    return enabled ? enabled : v;
}

// Returns 1 and sets *x if the row allows v; otherwise refuses the key.
static int check_value(reader *r, const key_row *w, const json_t *v, double *x) {
    char words[64] = "";
    int on = 0;
    switch (w->kind) {
    case ANY:
        return 1;
    case BLOCK:
        return key_refuse(r, v, NULL, "must be a block { ... }");
    case COUNT:
    case REAL:
        return is_number_of(w, v, x) || refuse_number(r, w, v);
    case WORD:
        return is_word_of(zero_setting_named(w->setting), v, x, words, sizeof words) ||
               key_refuse(r, v, w->setting, "must be one of %s", words);
    case ONLY:
        return json_equals(v, w->only) || key_refuse(r, v, w->setting, "%s; remove it or write %.*s", w->why,
                                                     (int)strcspn(w->only, "|"), w->only);
    default:  // BOOL
        if (!json_as_bool(v, &on)) return key_refuse(r, v, w->setting, "must be true or false");
        *x = on;
        return 1;
    }
}

// Reports a key that is null or "auto", which leaves its settings as they are.
static void leave_out(reader *r, const key_row *w, const json_t *v) {
    const int is_auto = json_is_string(v);
    const char *setting = is_auto && w->setting ? w->setting : "";
    do {
        const size_t n = strcspn(setting, " ");
        zero_deepspeed_key *k = key_note(r, ZERO_KEY_HONOURED, v, "");
        if (is_auto) strcpy(k->value, "auto");
        snprintf(k->setting, sizeof k->setting, "%.*s", (int)n, setting);
        setting += n + strspn(setting + n, " ");
    } while (*setting);
}

static void read_value(reader *r, const key_row *w, json_t *v) {
    double x = 0;
    if (w->kind == ONLY) v = enabled_of(r, v);
    if (json_is_left_out(v))
        leave_out(r, w, v);
    else if (!check_value(r, w, v, &x))
        return;
    else if (w->set)
        w->set(r, v, x);
    else if (w->kind == ONLY)
        key_note(r, ZERO_KEY_HONOURED, v, "");
    else if (w->setting)
        key_sets(r, w->setting, x, "");
    else
        key_note(r, ZERO_KEY_NO_EFFECT, v, w->why);
}

// -------- the keys, one by one

// DeepSpeed ignores unknown keys in these blocks, and refuses them in all others.
static int ignores_unknown(const char *block) {
    static const char *const blocks[] = { "",           "aio",        "activation_checkpointing",
                                          "checkpoint", "data_types", "optimizer",
                                          "scheduler" };
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        if (!strcmp(block, blocks[i])) return 1;
    return 0;
}

static void judge_unknown(reader *r, const char *block, const json_t *v) {
    char nearest[KEY_BYTES];
    const int misspelt = key_nearest(r->path, nearest);
    if (!misspelt && ignores_unknown(block))
        key_note(r, ZERO_KEY_NO_EFFECT, v, "unknown; DeepSpeed ignores it too");
    else
        key_refuse(r, NULL, NULL, "unknown key; %s%s", *nearest ? "the nearest known one is " : "remove it",
                   nearest);
}

// Returns 1 if the current key holds the parameters of a scheduler that is missing or refused.
static int is_without_scheduler(reader *r) {
    if (strcmp(r->path, "scheduler.params") || scheduler_is_known(r)) return 0;
    key_note(r, ZERO_KEY_NO_EFFECT, NULL, "scheduler.type is missing or refused");
    return 1;
}

// path: the block's, "" for the top level
static void read_block(reader *r, json_t *block, const char *path) {
    char full[sizeof r->path];
    const char *name;
    json_t *v;
    json_object_foreach(block, name, v) {
        key_row w;
        r->line = *r->lines++;
        snprintf(full, sizeof full, "%s%s%s", path, *path ? "." : "", name);
        strcpy(r->path, full);
        const int known = key_find(full, &w), opens = known && w.kind == BLOCK && json_is_object(v);
        if (opens && !is_without_scheduler(r)) {
            read_block(r, v, full);
            continue;
        }
        if (!known)
            judge_unknown(r, path, v);
        else if (!opens)
            read_value(r, &w, v);
        r->lines += json_count_keys(v);
    }
}

// -------- rules that involve several keys

// ZERO_STAGE and the file must agree.
static void judge_env(reader *r, int env_stage) {
    zero_deepspeed_key *stage = key_that_sets(r, "stage");
    if (!stage || env_stage < 0 || r->config.stage == env_stage) return;
    stage->fate = ZERO_KEY_REFUSED;
    snprintf(stage->remark, sizeof stage->remark,
             "but the environment has ZERO_STAGE=%d; make them equal or remove one of them", env_stage);
}

// If neither bf16 nor fp16 is enabled, the dtype is fp32.
static void judge_type(reader *r) {
    if (!r->no_type || key_that_sets(r, "numbers.dtype")) return;
    r->config.numbers.dtype = ZERO_F32;
    strcpy(r->no_type->setting, "numbers.dtype");
    strcpy(r->no_type->value, "fp32");
}

// As in DeepSpeed, a setting that the stage does not support has no effect. needs: stages from `lowest` on
static void needs_stage(reader *r, const zero_config *before, const char *setting, int lowest,
                        const char *needs) {
    const zero_setting *s = zero_setting_named(setting);
    zero_deepspeed_key *k = key_that_sets(r, setting);
    if (!k || r->config.stage >= lowest || !setting_get(s, &r->config)) return;
    setting_put(s, &r->config, setting_get(s, before));
    k->fate = ZERO_KEY_NO_EFFECT;
    snprintf(k->remark, sizeof k->remark, "needs %s; DeepSpeed ignores it too", needs);
}

static void judge_stage(reader *r, const zero_config *before) {
    needs_stage(r, before, "offload.params", 3, "stage 3");
    needs_stage(r, before, "param_group", 3, "stage 3");
    needs_stage(r, before, "offload.optimizer", 1, "stage 1, 2 or 3");
    zero_deepspeed_key *states = key_that_sets(r, "offload.optimizer");
    if (states && r->config.offload.optimizer == ZERO_NVME && r->config.stage < 3)
        strcpy(states->remark, "on NVMe as requested; DeepSpeed keeps it in host memory below stage 3");
}

// As in DeepSpeed, a folder has no effect if no states are on NVMe.
static void judge_folders(reader *r, const zero_config *before) {
    zero_offload_config *o = &r->config.offload;
    if (o->params == ZERO_NVME || o->optimizer == ZERO_NVME) return;
    o->nvme = before->offload.nvme;
    for (zero_deepspeed_key *k; (k = key_that_sets(r, "offload.nvme"));) {
        k->fate = ZERO_KEY_NO_EFFECT;
        strcpy(k->remark, "no states are on NVMe");
    }
}

// As in DeepSpeed, gradients are offloaded with the optimizer states, but no farther than to host memory. If
// the caller has already moved the states, gradients stay where the caller has put them.
static void place_gradients(reader *r, const zero_config *before) {
    zero_offload_config *o = &r->config.offload;
    if (o->optimizer && !before->offload.optimizer && !o->gradients && r->config.stage >= 2)
        o->gradients = ZERO_HOST;
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
        if (used + n + sizeof "\n  \n  and 9999 more" > sizeof text)
            left++;
        else
            used += (size_t)snprintf(text + used, sizeof text - used, "\n  %s", line);
    }
    if (left) snprintf(text + used, sizeof text - used, "\n  and %d more", left);
    return refused ? zero_fail(ZERO_ERR_ARGUMENT, "%d keys cannot be honoured:%s", refused, text) : 0;
}

// -------- the file

// Refuses the trainer's keys in a file that no trainer reads; once, if a key sets several settings.
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

// report NULL: no trainer reads its own keys.
static int read_file(zero_config *config, zero_deepspeed *report, const char *file, int env_stage) {
    zero_deepspeed *own = report ? NULL : malloc(sizeof *own);
    reader r = { .config = *config, .report = report ? report : own };
    json_file j;
    if (!r.report) return zero_fail(ZERO_ERR_MEMORY, "%s: out of memory to read it", file);
    r.report->n = 0;
    if (env_stage >= 0) r.config.stage = env_stage;
    int rc = json_open(&j, file);
    if (!rc) {
        r.root = j.root;
        r.lines = j.lines;
        read_block(&r, j.root, "");
        judge_env(&r, env_stage);
        judge_type(&r);
        judge_stage(&r, config);
        judge_folders(&r, config);
        place_gradients(&r, config);
        if (own) refuse_trainers_keys(own);
        rc = fail_refused(file, r.report);
    }
    json_close(&j);
    free(own);
    if (!rc) *config = r.config;
    return rc;
}

int zero_deepspeed_read(zero_config *config, zero_deepspeed *report, const char *path) {
    ZERO_TRY(settings_check_size(config));
    if (!path || !report) return zero_fail(ZERO_ERR_ARGUMENT, "zero_deepspeed_read: path or report is NULL");
    return read_file(config, report, path, -1);
}

int zero_config_from_file(zero_config *config, const char *path) {
    ZERO_TRY(settings_check_size(config));
    return path ? read_file(config, NULL, path, -1)
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
    if (file && *file) return read_file(config, NULL, file, env_stage);
    if (env_stage >= 0) config->stage = env_stage;
    return 0;
}
