// The configuration from a DeepSpeed JSON file and from the environment: goes through the file's keys, then
// judges what depends on several of them, and lists all that is refused at once.
#include "../device/kernels.h"
#include "../base/error.h"
#include "settings.h"
#include "keys.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

// -------- reading a value by its row

static void refuse_by_row(reader *r, const key_row *w, const json_t *v) {
    if (w->only)
        key_refuse(r, v, w->setting, "%s; remove it or write %.*s", w->why, (int)strcspn(w->only, "|"),
                   w->only);
    else
        key_refuse(r, v, w->setting, "%s", w->why);
}

// {"enabled": false, ...} means false. The rest of such a block has no effect then.
static void read_only(reader *r, const key_row *w, const json_t *v) {
    const json_t *enabled = w->only ? json_object_get(v, "enabled") : NULL;
    if (enabled) {
        snprintf(r->path + strlen(r->path), sizeof r->path - strlen(r->path), ".enabled");
        v = enabled;
    }
    if (json_is_left_out(v) || (w->only && json_equals(v, w->only)))
        key_note(r, ZERO_KEY_HONOURED, v, "");
    else
        refuse_by_row(r, w, v);
}

// The value is of the right kind.
static void take(reader *r, const key_row *w, const json_t *v, double x) {
    if (w->set) {
        w->set(r, v, x);
        return;
    }
    if (w->setting)
        key_sets_number(r, w->setting, x, w->why && x > 0 && x < w->max ? w->why : "");
    else
        key_note(r, ZERO_KEY_NO_EFFECT, v, w->why);
}

static void read_number(reader *r, const key_row *w, const json_t *v) {
    const char *whole = w->kind == COUNT ? "whole number" : "number";
    int64_t n = 0;
    double x = 0;
    int right = w->kind == COUNT ? json_as_count(v, &n) : json_as_number(v, &x);
    if (w->kind == COUNT) x = (double)n;
    if (right && x >= w->min && x <= w->max)
        take(r, w, v, x);
    else
        key_refuse(r, v, w->setting, "must be a %s from %.15g to %.15g", whole, w->min, w->max);
}

static void read_bool(reader *r, const key_row *w, const json_t *v) {
    int on;
    if (json_as_bool(v, &on))
        take(r, w, v, on);
    else
        key_refuse(r, v, w->setting, "must be true or false");
}

static void read_word(reader *r, const zero_setting *s, const json_t *v) {
    char all[64] = "";
    for (int i = 0; s->words[i]; i++) {
        if (json_is_string(v) && !strcasecmp(json_string_value(v), s->words[i])) {
            key_sets_number(r, s->name, i, "");
            return;
        }
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s\"%s\"", i ? ", " : "", s->words[i]);
    }
    key_refuse(r, v, s->name, "must be one of %s", all);
}

static void read_by_setting(reader *r, const key_row *w, const json_t *v) {
    const zero_setting *s = zero_setting_named(w->setting);
    key_row row = *w;
    row.kind = s->kind == ZERO_KIND_REAL ? REAL : COUNT;
    row.min = s->min;
    row.max = s->max;
    if (*s->words)
        read_word(r, s, v);
    else if (s->kind == ZERO_KIND_FLAG)
        read_bool(r, w, v);
    else
        read_number(r, &row, v);
}

static void read_value(reader *r, const key_row *w, const json_t *v) {
    if (json_is_left_out(v)) {
        zero_deepspeed_key *k = key_note(r, ZERO_KEY_HONOURED, v, w->automatic ? w->automatic : "");
        if (!json_is_string(v)) return;
        strcpy(k->value, "auto");
        if (w->setting) snprintf(k->setting, sizeof k->setting, "%s", w->setting);
        return;
    }
    switch (w->kind) {
    case COUNT:
    case REAL:
        read_number(r, w, v);
        break;
    case BOOL:
        read_bool(r, w, v);
        break;
    case ONLY:
        read_only(r, w, v);
        break;
    case BLOCK:
        if (w->set)
            read_bool(r, w, v);
        else
            key_refuse(r, v, NULL, "must be a block { ... }");
        break;
    case BY_SETTING:
        read_by_setting(r, w, v);
        break;
    case ANY:
        take(r, w, v, 0);
        break;
    }
}

// -------- the keys, one by one

static void read_block(reader *r, json_place *place, json_t *block, const char *path, const char *table);

// A block under an old name, or in a place where many put it, has the keys of `w->only`, which stands at the
// top level.
static int stands_twice(reader *r, const key_row *w) {
    if (!w->only || !json_object_get(r->root, w->only)) return 0;
    key_refuse(r, NULL, NULL, "stands at the top level as %s too; keep that one", w->only);
    return 1;
}

static void read_unknown(reader *r, const char *name) {
    char nearest[128];
    key_nearest(r, name, nearest, sizeof nearest);
    key_refuse(r, NULL, NULL, "unknown key; %s%s", *nearest ? "the nearest known one is " : "remove it",
               nearest);
}

// The place is that of the key; r->path is set.
static void read_key(reader *r, json_place *place, json_t *block, const char *table, const char *name,
                     json_t *v) {
    char prefixed[128], full[sizeof r->path];
    snprintf(prefixed, sizeof prefixed, "stage3_%s", name);
    const key_row *w = key_find(table, name);
    if (!w && (w = key_find(table, prefixed)) && json_object_get(block, prefixed)) {
        // DeepSpeed takes these keys without the prefix too.
        key_refuse(r, NULL, NULL, "stands here as %s too; keep one of them", prefixed);
    } else if (!w) {
        read_unknown(r, name);
    } else if (w->kind == BLOCK && json_is_object(v)) {
        if (stands_twice(r, w)) {
            json_go_past(place, v);
            return;
        }
        if (w->why) key_note(r, ZERO_KEY_HONOURED, NULL, w->why);
        strcpy(full, r->path);
        read_block(r, place, v, full, w->only ? w->only : full);
        return;
    } else {
        read_value(r, w, v);
    }
    json_go_past(place, v);
}

// path: of the block in the file; table: under which name its keys stand in the table.
static void read_block(reader *r, json_place *place, json_t *block, const char *path, const char *table) {
    const char *name;
    json_t *v;
    json_object_foreach(block, name, v) {
        json_go_to_key(place, name);
        r->line = place->line;
        snprintf(r->path, sizeof r->path, "%s%s%s", path, *path ? "." : "", name);
        read_key(r, place, block, table, name, v);
    }
}

// -------- what depends on several keys

// The value of such a key is a word.
static void refuse_later(zero_deepspeed_key *k, const char *setting) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%.60s\"", k->value);
    strcpy(k->value, quoted);
    k->fate = ZERO_KEY_REFUSED;
    snprintf(k->setting, sizeof k->setting, "%s", setting);
}

// Without bf16 and fp16 the numbers are fp32.
static void judge_type(reader *r) {
    if (!r->no_type || r->type_chosen) return;
    strcpy(r->no_type->setting, "numbers.dtype");
    strcpy(r->no_type->value, "fp32");
}

// DeepSpeed ignores what a stage cannot move off the device. The plugin refuses it.
static void judge_stage(reader *r) {
    const zero_config *c = &r->config;
    zero_deepspeed_key *params = key_that_sets(r, "offload.params"),
                       *states = key_that_sets(r, "offload.optimizer");
    if (params && c->offload.params && c->stage < 3) {
        refuse_later(params, "stage");
        snprintf(params->remark, sizeof params->remark,
                 "needs stage 3, and DeepSpeed ignores it at stage %d; remove it or set the stage", c->stage);
    }
    if (!states || !c->offload.optimizer) return;
    if (c->stage < 1) {
        refuse_later(states, "stage");
        snprintf(states->remark, sizeof states->remark,
                 "needs stage 1, 2 or 3, and DeepSpeed ignores it at stage 0; remove it or set the stage");
    } else if (c->offload.optimizer == ZERO_NVME && c->stage < 3) {
        snprintf(states->remark, sizeof states->remark,
                 "on NVMe as asked; DeepSpeed keeps it in host memory below stage 3");
    }
}

// As DeepSpeed has it, gradients go where the optimizer's states are, but no further than host memory. A
// caller that has moved the states already has decided this too.
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
    strcpy(folder->remark, "its device is not nvme");
    return 0;
}

// DeepSpeed has a folder for parameters and one for the states. The plugin has one list for both.
static void join_folders(reader *r) {
    zero_deepspeed_key *params = r->params_folder, *states = r->states_folder;
    const int of_params = use_folder(params, r->config.offload.params);
    const int of_states = use_folder(states, r->config.offload.optimizer);
    if (!of_params && !of_states) return;
    strcpy(r->nvme, of_states ? states->value : params->value);
    if (of_params && of_states && strcmp(params->value, states->value)) {
        const int n = snprintf(r->nvme, sizeof r->nvme, "%s,%s", params->value, states->value);
        if (n >= ZERO_DEEPSPEED_VALUE) {
            refuse_later(states, "offload.nvme");
            strcpy(states->remark, "the names of both folders are too long together");
            return;
        }
        strcpy(params->value, r->nvme);
        strcpy(states->value, r->nvme);
        strcpy(params->remark, "blocks alternate between the folders of both keys");
        strcpy(states->remark, params->remark);
    }
    r->config.offload.nvme = r->nvme;
}

// Gradients travel in their own type, which follows from the other settings, or as fp32. Nothing may round
// them on the way.
static void judge_wire(reader *r) {
    const zero_config *c = &r->config;
    zero_deepspeed_key *wire = key_that_sets(r, "comm.reduce_fp32");
    if (!wire || !c->micro_batches || c->comm.reduce_fp32) return;
    const char *own = c->stage >= 2 || c->micro_batches == 1 ? dtype_name(c->numbers.dtype) : "fp32";
    char wanted[8];
    snprintf(wanted, sizeof wanted, "%.7s", wire->value);
    if (!strcasecmp(wanted, own)) return;
    refuse_later(wire, "comm.reduce_fp32");
    snprintf(
        wire->remark, sizeof wire->remark,
        "with this stage, type and number of micro-batches gradients travel as %s, and %s would round them "
        "before they are added up; remove it or write \"%s\"",
        own, wanted, own);
}

// -------- the list of what is refused

static int count_refused(const zero_deepspeed *said) {
    int n = 0;
    for (int i = 0; i < said->n; i++) n += said->keys[i].fate == ZERO_KEY_REFUSED;
    return n;
}

static int describe(char *text, size_t size, const char *file, const zero_deepspeed_key *k) {
    return snprintf(text, size, "%s:%d: %s: %s%s%s", file, k->line, k->key, k->value, *k->value ? ": " : "",
                    k->remark);
}

// One sentence for one key; for more, a line each, as many as a sentence has room for.
static int fail_refused(const char *file, const zero_deepspeed *said, int refused) {
    char text[900], line[560];
    size_t used = 0;
    int left = refused;
    *text = '\0';
    for (int i = 0; i < said->n; i++) {
        if (said->keys[i].fate != ZERO_KEY_REFUSED) continue;
        int n = describe(line, sizeof line, file, &said->keys[i]);
        if (refused == 1) return zero_fail(ZERO_ERR_ARGUMENT, "%s", line);
        if (used + (size_t)n + 4 > sizeof text) continue;
        used += (size_t)snprintf(text + used, sizeof text - used, "\n  %s", line);
        left--;
    }
    if (left) snprintf(text + used, sizeof text - used, "\n  and %d more", left);
    return zero_fail(ZERO_ERR_ARGUMENT, "%d keys cannot be honoured:%s", refused, text);
}

// -------- the file

static int read_json(reader *r, const char *file, const zero_config *before, json_file *j) {
    ZERO_TRY(json_open(j, file));
    json_place place = { .at = j->text, .line = 1 };
    r->root = j->root;
    read_block(r, &place, j->root, "", "");
    judge_type(r);
    judge_stage(r);
    place_gradients(r, before);
    join_folders(r);
    judge_wire(r);
    int refused = count_refused(r->said);
    return refused ? fail_refused(file, r->said, refused) : 0;
}

static int read_file(zero_config *config, zero_deepspeed *said, const char *file, int env_stage) {
    static _Thread_local char
        nvme[2 * ZERO_DEEPSPEED_VALUE];  // config->offload.nvme, when the file is closed
    reader r = { .config = *config, .said = said, .env_stage = env_stage };
    json_file j;
    said->n = 0;
    if (env_stage >= 0) r.config.stage = env_stage;
    int rc = read_json(&r, file, config, &j);
    json_close(&j);
    if (rc) return rc;
    *config = r.config;
    if (config->offload.nvme == r.nvme) config->offload.nvme = strcpy(nvme, r.nvme);
    return 0;
}

static int check_size(const zero_config *config) {
    if (config && config->size == sizeof *config) return 0;
    return zero_fail(
        ZERO_ERR_ARGUMENT,
        "zero_config.size is not that of this library: start from zero_defaults() and the same zero.h");
}

int zero_deepspeed_read(zero_config *config, zero_deepspeed *said, const char *path) {
    ZERO_TRY(check_size(config));
    if (!path || !said) return zero_fail(ZERO_ERR_ARGUMENT, "zero_deepspeed_read: no path, or no list");
    return read_file(config, said, path, -1);
}

// Nobody takes what the file asks of the trainer.
static void refuse_trainers_keys(zero_deepspeed *said) {
    for (int i = 0; i < said->n; i++) {
        zero_deepspeed_key *k = &said->keys[i];
        if (k->fate != ZERO_KEY_HONOURED || strncmp(k->setting, "trainer.", 8) || !strcmp(k->value, "auto"))
            continue;
        k->fate = ZERO_KEY_REFUSED;
        strcpy(k->remark, "the trainer sets this by its own options; remove it or write \"auto\"");
    }
}

static int read_for_plugin(zero_config *config, const char *file, int env_stage) {
    zero_config c = *config;
    zero_deepspeed *said = malloc(sizeof *said);
    if (!said) return zero_fail(ZERO_ERR_MEMORY, "%s: out of memory to read it", file);
    int rc = read_file(&c, said, file, env_stage);
    if (!rc || said->n) {
        refuse_trainers_keys(said);
        int refused = count_refused(said);
        if (refused) rc = fail_refused(file, said, refused);
    }
    free(said);
    if (!rc) *config = c;
    return rc;
}

int zero_config_from_file(zero_config *config, const char *path) {
    ZERO_TRY(check_size(config));
    return path ? read_for_plugin(config, path, -1)
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
    if (file && *file) return read_for_plugin(config, file, env_stage);
    if (env_stage >= 0) config->stage = env_stage;
    return 0;
}
