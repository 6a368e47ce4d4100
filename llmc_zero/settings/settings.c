// The table of settings, and the checks before zero_create starts.
#include "settings.h"
#include "../base/error.h"
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// -------- the table

static const char *const words[][5] = {
    [ZERO_KIND_DTYPE] = { "fp32", "bf16", "fp16" },
    [ZERO_KIND_DEVICE] = { "cpu", "cuda" },
    [ZERO_KIND_TIER] = { "none", "cpu", "nvme" },
    [ZERO_KIND_TEXT] = { NULL },
};

// A row's kind must match its member's type. The compiler treats an enum as unsigned.
// clang-format off
#define IS_FROM(kind, first, last) \
    (ZERO_KIND_##kind >= ZERO_KIND_##first && ZERO_KIND_##kind <= ZERO_KIND_##last)
#define SETTING(member, kind, ...)                                     \
    _Static_assert(_Generic(((zero_config *)0)->member,                \
                            int: IS_FROM(kind, INT, FLAG),             \
                            unsigned: IS_FROM(kind, UNSIGNED, TIER),   \
                            int64_t: IS_FROM(kind, INT64, INT64),      \
                            double: IS_FROM(kind, REAL, REAL),         \
                            const char *: IS_FROM(kind, TEXT, TEXT)), #member);
#include "settings.def"
#undef SETTING

enum { OWN, SAME };
#define SETTING(member, kind, preset, min, max, same, block, key, help) \
    { #member, ZERO_KIND_##kind, offsetof(zero_config, member), preset, min, max, same, help, \
      words[ZERO_KIND_##kind] },
static const zero_setting settings[] = {
#include "settings.def"
};
// clang-format on
enum { SETTINGS = sizeof settings / sizeof *settings };

const zero_setting *zero_settings(int *n) {
    *n = SETTINGS;
    return settings;
}

const zero_setting *zero_setting_named(const char *name) {
    for (const zero_setting *s = settings; s < settings + SETTINGS; s++)
        if (!strcmp(s->name, name)) return s;
    return NULL;
}

// Computes the matrix of distances row by row.
int zero_edit_distance(const char *a, size_t na, const char *b, size_t nb) {
    enum { LONGEST = 64 };
    int d[LONGEST + 1];
    if (na > LONGEST || nb > LONGEST) return (int)(na + nb);
    for (size_t j = 0; j <= nb; j++) d[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int diagonal = d[0];
        d[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int changed = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = d[j];
            const int added = (d[j] < d[j - 1] ? d[j] : d[j - 1]) + 1;
            d[j] = changed < added ? changed : added;
        }
    }
    return d[nb];
}

// -------- values

double setting_get(const zero_setting *s, const zero_config *config) {
    const void *at = (const char *)config + s->offset;
    if (s->kind == ZERO_KIND_UNSIGNED) return *(const unsigned *)at;
    if (s->kind == ZERO_KIND_INT64) return (double)*(const int64_t *)at;
    if (s->kind == ZERO_KIND_REAL) return *(const double *)at;
    return s->kind == ZERO_KIND_TEXT ? 0 : *(const int *)at;
}

void setting_put(const zero_setting *s, zero_config *config, double x) {
    void *at = (char *)config + s->offset;
    if (s->kind == ZERO_KIND_UNSIGNED)
        *(unsigned *)at = (unsigned)x;
    else if (s->kind == ZERO_KIND_INT64)
        *(int64_t *)at = (int64_t)x;
    else if (s->kind == ZERO_KIND_REAL)
        *(double *)at = x;
    else if (s->kind == ZERO_KIND_TEXT)
        *(const char **)at = NULL;
    else
        *(int *)at = (int)x;
}

zero_config zero_defaults(void) {
    zero_config config = { .size = sizeof config };
    for (const zero_setting *s = settings; s < settings + SETTINGS; s++) setting_put(s, &config, s->preset);
    return config;
}

const char *settings_update(const zero_config *c) { return c->update_with ? c->update_name : "AdamW"; }

static int in_range(const zero_setting *s, double x) {
    return x == s->preset || (x >= s->min && x <= s->max);
}

void zero_setting_text(const zero_setting *s, const zero_config *config, char *text, size_t size) {
    const double x = setting_get(s, config);
    const char *const *given = (const void *)((const char *)config + s->offset);
    if (s->kind == ZERO_KIND_TEXT)
        snprintf(text, size, "%s", *given ? *given : "");
    else if (*s->words && in_range(s, x))
        snprintf(text, size, "%s", s->words[(int)x]);
    else
        snprintf(text, size, "%.*g", s->kind == ZERO_KIND_REAL ? 15 : 17, x);
}

static int refuse(const zero_setting *s, const char *value) {
    char range[64] = "";
    if (s->preset < s->min) snprintf(range, sizeof range, "%.15g, or ", s->preset);
    size_t used = strlen(range);
    snprintf(range + used, sizeof range - used, "%.15g to %.15g", s->min, s->max);
    for (int i = used = 0; s->words[i]; i++)
        used += (size_t)snprintf(range + used, sizeof range - used, "%s%s", i ? ", " : "", s->words[i]);
    return zero_refuse(s->name, " %s: must be %s (%s)", value, range, s->help);
}

int zero_setting_set(const zero_setting *s, zero_config *config, const char *text) {
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end || *s->words || (s->kind != ZERO_KIND_REAL && x != floor(x))) x = NAN;
    for (int i = 0; s->words[i]; i++)
        if (!strcmp(text, s->words[i])) x = i;
    if (s->kind == ZERO_KIND_TEXT)
        *(const char **)(void *)((char *)config + s->offset) = text;
    else if (in_range(s, x))
        setting_put(s, config, x);
    else
        return refuse(s, text);
    return 0;
}

// Replaces -1 with `on` if the variable is 1, and with 0 if it is 0.
static int take_variable(const char *variable, int *setting, int on) {
    const char *v = getenv(variable);
    if (*setting >= 0 || !v || !*v) return 0;
    if (strcmp(v, "0") && strcmp(v, "1"))
        return zero_fail(ZERO_ERR_ARGUMENT, "%s=%s in the environment: must be 0 or 1", variable, v);
    *setting = *v == '1' ? on : 0;
    return 0;
}

int zero_settings_from_env(zero_config *config) {
    ZERO_TRY(settings_check_size(config));
    ZERO_TRY(take_variable("ZERO_POISON", &config->debug.poison, 1));
    return take_variable("ZERO_CHECK", &config->debug.check_steps, INT_MAX);
}

static int check_ranges(const zero_config *c) {
    char value[64];
    for (const zero_setting *s = settings; s < settings + SETTINGS; s++) {
        if (in_range(s, setting_get(s, c))) continue;
        zero_setting_text(s, c, value, sizeof value);
        return refuse(s, value);
    }
    return 0;
}

// -------- combinations of settings

// names: the settings at fault, separated by spaces. Their values end the message.
static int refuse_combination(const zero_config *c, const char *names, const char *why) {
    char given[160] = "", name[48], value[64];
    for (const char *at = names; *at; at += strcspn(at, " "), at += *at == ' ') {
        const size_t used = strlen(given);
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, " "), at);
        zero_setting_text(zero_setting_named(name), c, value, sizeof value);
        snprintf(given + used, sizeof given - used, "%s%s %s", used ? ", " : "", name, value);
    }
    return zero_refuse(names, "%s (%s)", why, given);
}

static int check_rules(const zero_config *c) {
    const zero_offload_config *o = &c->offload;
    const int all_off_device = o->optimizer && o->optimizer_ratio >= 1;
    const int has_masters = !c->numbers.no_master && (c->numbers.dtype != ZERO_F32 || o->delayed_update);
    const struct {
        int broken;
        const char *settings, *why;
    } rules[] = {
        { c->debug.naive && c->stage, "debug.naive stage",
          ": the naive path is plain data parallelism, without ZeRO: use stage 0" },
        { c->debug.naive && c->device == ZERO_CUDA, "debug.naive device",
          ": the naive path computes on the CPU: set device to cpu" },
        { c->debug.naive && c->inference, "debug.naive inference",
          ": the naive path only trains: use inference 0" },
        { c->debug.naive && c->accumulate_layers, "debug.naive accumulate_layers",
          ": the naive path sums after backward: use accumulate_layers 0" },
        { c->numbers.no_master && c->numbers.dtype != ZERO_BF16, "numbers.no_master numbers.dtype",
          ": only bf16 parameters can be rounded stochastically" },
        { c->device == ZERO_CPU && (c->comm.nccl > 0 || c->comm.reduce_nccl), "comm.nccl device",
          ": NCCL is for CUDA devices: set device to cuda" },
        { !c->update_with && c->update_states != 2, "update_states",
          ": AdamW has 2 states; other numbers need a function in update_with" },
        { c->update_with && c->device == ZERO_CUDA && c->numbers.no_master && !all_off_device,
          "device numbers.no_master offload.optimizer offload.optimizer_ratio",
          ": on a CUDA device update_with needs master weights; use no_master 0, or move the optimizer's "
          "states off the device" },
        { o->optimizer && !c->update_states && !has_masters, "offload.optimizer update_states numbers.dtype",
          ": the optimizer has no states to offload" },
        { c->comm.reduce_nccl && c->comm.nccl != 1, "comm.reduce_nccl", " needs comm.nccl 1" },
        { c->comm.nccl_memory && c->comm.nccl != 1, "comm.nccl_memory", " needs comm.nccl 1" },
        // Only states that are sharded at this stage can leave the device.
        { o->params && c->stage < 3, "offload.params stage",
          ": parameters are whole on every device below stage 3; use stage 3" },
        { o->optimizer && c->stage < 1, "offload.optimizer stage",
          ": stage 0 does not shard the optimizer's states; use stage 1, 2 or 3" },
        { o->gradients && c->stage < 2, "offload.gradients stage",
          ": gradients are whole on every device below stage 2; use stage 2 or 3" },
        { o->gradients > o->optimizer, "offload.gradients offload.optimizer",
          ": gradients cannot be farther from the device than the optimizer states; set offload.optimizer "
          "to the same tier" },
        { c->param_group && c->stage < 3, "param_group stage",
          ": parameters are whole on every rank below stage 3; use stage 3, or param_group 0" },
        { o->delayed_update && c->numbers.no_master, "offload.delayed_update numbers.no_master",
          ": a delayed update keeps the new parameters in the master weights, so it needs them" },
        { o->delayed_update && !o->optimizer, "offload.delayed_update offload.optimizer",
          ": an update on the device cannot be delayed; set offload.optimizer to cpu or nvme" },
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].broken) return refuse_combination(c, rules[i].settings, rules[i].why);
    return 0;
}

static int check_folders(const zero_offload_config *o) {
    const int wanted = o->params == ZERO_NVME || o->optimizer == ZERO_NVME || o->gradients == ZERO_NVME;
    const char *names = o->nvme ? o->nvme : "";
    if (!*names && wanted)
        return zero_refuse("offload.nvme",
                           ": no folder is given; model states on NVMe need one on each disk");
    if (*names == ',' || strstr(names, ",,") || (*names && names[strlen(names) - 1] == ','))
        return zero_refuse("offload.nvme", " '%s': a folder name is empty", names);
    if (o->nvme_block_bytes % 4096)
        return zero_refuse("offload.nvme_block_bytes", " %lld: must be a multiple of 4096",
                           (long long)o->nvme_block_bytes);
    return 0;
}

int settings_check_size(const zero_config *c) {
    if (c && c->size == sizeof *c) return 0;
    return zero_fail(
        ZERO_ERR_ARGUMENT,
        "zero_config.size is not that of this library: start from zero_defaults() and the same zero.h");
}

static int check_update_name(const char *name) {
    for (const char *at = name; at && *at; at++)
        if (*at < ' ' || *at > '~')
            return zero_fail(ZERO_ERR_ARGUMENT, "update_name: only printable ASCII characters are allowed");
    return 0;
}

int settings_check(const zero_config *c) {
    ZERO_TRY(settings_check_size(c));
    ZERO_TRY(check_ranges(c));
    ZERO_TRY(check_rules(c));
    ZERO_TRY(check_update_name(c->update_name));
    return check_folders(&c->offload);
}
