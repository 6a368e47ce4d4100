#include "config_table.h"
#include <stddef.h>
#include <string.h>
#include "die.h"
#include "machine.h"
#include "memory.h"
#include "options.h"
#include "run.h"
#include "setting_names.h"
#include "settings.h"
#include "zero_file.h"

// --------
// the settings

typedef enum { NUMBER, UNSIGNED, WIDE, FRACTION, WORDS, DTYPE, DEVICE, TIER, OF_TRAINER } SettingKind;

typedef struct {
    const char *name;  // as in zero_config, or "trainer.lr"
    SettingKind kind;  // OF_TRAINER: the value is that of the option
    size_t offset;     // in zero_config
} Setting;

#define SETTING(member, kind) \
    { #member, kind, offsetof(zero_config, member) }

// How ranks find each other is left out: each of them has its own.
static const Setting table[] = {
    SETTING(stage, NUMBER),
    SETTING(micro_batches, NUMBER),
    SETTING(device, DEVICE),
    SETTING(reduce_bucket_size, WIDE),
    SETTING(prefetch, NUMBER),
    SETTING(max_open, NUMBER),
    SETTING(async_save, NUMBER),
    SETTING(inference, NUMBER),
    SETTING(overlap, NUMBER),
    SETTING(numbers.dtype, DTYPE),
    SETTING(numbers.no_master, NUMBER),
    SETTING(numbers.rounding_seed, UNSIGNED),
    SETTING(numbers.loss_scale, FRACTION),
    SETTING(numbers.initial_scale_power, NUMBER),
    SETTING(numbers.loss_scale_window, NUMBER),
    SETTING(numbers.hysteresis, NUMBER),
    SETTING(numbers.consecutive_hysteresis, NUMBER),
    SETTING(numbers.min_loss_scale, FRACTION),
    SETTING(comm.window_bytes, WIDE),
    SETTING(comm.shared_window, NUMBER),
    SETTING(comm.nccl, NUMBER),
    SETTING(comm.reduce_nccl, NUMBER),
    SETTING(comm.reduce_fp32, NUMBER),
    SETTING(comm.timeout_s, FRACTION),
    SETTING(offload.params, TIER),
    SETTING(offload.optimizer, TIER),
    SETTING(offload.gradients, TIER),
    SETTING(offload.optimizer_ratio, FRACTION),
    SETTING(offload.params_in_host, WIDE),
    SETTING(offload.sub_group_size, WIDE),
    SETTING(offload.delayed_update, NUMBER),
    SETTING(offload.nvme, WORDS),
    SETTING(offload.nvme_block_bytes, WIDE),
    SETTING(offload.nvme_depth, NUMBER),
    SETTING(offload.nvme_threads, NUMBER),
    SETTING(offload.nvme_verify, NUMBER),
    SETTING(debug.naive, NUMBER),
    SETTING(debug.trace_events, NUMBER),
    { "trainer.rows", OF_TRAINER, 0 },
    { "trainer.lr", OF_TRAINER, 0 },
    { "trainer.beta1", OF_TRAINER, 0 },
    { "trainer.beta2", OF_TRAINER, 0 },
    { "trainer.eps", OF_TRAINER, 0 },
    { "trainer.weight_decay", OF_TRAINER, 0 },
    { "trainer.grad_clip", OF_TRAINER, 0 },
    { "trainer.offload_activations", OF_TRAINER, 0 },
};
enum { SETTINGS = sizeof table / sizeof *table, VALUE = ZERO_DEEPSPEED_VALUE, REASON = 400 };

static int is_word(const Setting *s) {
    return s->kind == WORDS || s->kind == DTYPE || s->kind == DEVICE || s->kind == TIER;
}

// Of a setting in `config`, or of an option in `options`.
static void write_value_in(const Setting *s, const zero_config *config, const Options *options, char *text) {
    static const char *const tiers[] = { [ZERO_DEVICE] = "none", [ZERO_HOST] = "cpu", [ZERO_NVME] = "nvme" };
    const void *at = (const char *)config + s->offset;
    const char *words = "";
    switch (s->kind) {
    case NUMBER:
        snprintf(text, VALUE, "%d", *(const int *)at);
        return;
    case UNSIGNED:
        snprintf(text, VALUE, "%u", *(const unsigned *)at);
        return;
    case WIDE:
        snprintf(text, VALUE, "%lld", (long long)*(const int64_t *)at);
        return;
    case FRACTION:
        snprintf(text, VALUE, "%.15g", *(const double *)at);
        return;
    case OF_TRAINER:
        option_text(option_named(option_of_setting(s->name)), options, text, VALUE);
        return;
    case WORDS:
        words = *(const char *const *)at ? *(const char *const *)at : "";
        break;
    case DTYPE:
        words = dtype_name((gpt2_dtype)(*(const zero_dtype *)at));
        break;
    case DEVICE:
        words = *(const zero_device *)at == ZERO_CUDA ? "cuda" : "cpu";
        break;
    case TIER:
        words = tiers[*(const zero_tier *)at];
        break;
    }
    snprintf(text, VALUE, "%s", words);
}

static void write_value(const Setting *s, char *text) { write_value_in(s, effective_settings(), &opt, text); }

static int is_default(const Setting *s, const char *value) {
    char text[VALUE];
    zero_config config = default_settings();
    write_value_in(s, &config, &default_options, text);
    return !strcmp(value, text);
}

// --------
// the reasons

static int is_named(const Setting *s, const char *name) { return !strcmp(s->name, name); }

// What a value follows from where neither the file nor an option has it, or NULL.
static const char *derivation(const Setting *s) {
    const zero_config *c = effective_settings();
    if (is_named(s, "overlap") && run.overlap && c->offload.params == ZERO_NVME)
        return "its thread mostly waits for files";
    if (is_named(s, "overlap") && run.overlap)
        return on_cuda() ? "collectives have streams of their own" : "there is a spare core";
    if (is_named(s, "overlap")) return "no spare core for a progress thread";
    if (is_named(s, "device")) return on_cuda() ? "there is a usable CUDA device" : "no usable CUDA device";
    if (is_named(s, "numbers.dtype"))
        return c->numbers.dtype == ZERO_BF16 ? "the hardware multiplies bf16"
                                             : "the hardware does not multiply bf16";
    if (is_named(s, "micro_batches") && opt.rows_a_step) return "train_batch_size / (rows x ranks)";
    if (is_named(s, "trainer.rows") && opt.rows_a_step) return "train_batch_size / (ranks x micro-batches)";
    if (is_named(s, "offload.gradients") && c->offload.optimizer && c->stage >= 2)
        return "beside the optimizer's states, in host memory at most";
    if (is_named(s, "trainer.grad_clip") && zero_file() && !zero_file_key(s->name))
        return "default; the file does not say, and DeepSpeed's default is 1 since 2026, 0 before";
    return NULL;
}

static const char *default_of(const Setting *s) {
    if (is_named(s, "reduce_bucket_size")) return "default: 0 is the largest unit used once";
    if (is_named(s, "comm.window_bytes")) return "default: 0 is as much as is needed";
    if (is_named(s, "comm.nccl")) return "default: -1 is NCCL where it can be used";
    return "default";
}

// The file's name and line.
static void write_place(const zero_deepspeed_key *k, char *text, size_t size) {
    const char *slash = strrchr(opt.zero_config, '/');
    snprintf(text, size, "%s:%d", slash ? slash + 1 : opt.zero_config, k->line);
}

// Returns 1 if the value was derived from something else.
static int write_reason(const Setting *s, char *text) {
    const zero_deepspeed_key *k = zero_file_key(s->name);
    const char *name = option_of_setting(s->name), *derived = derivation(s);
    const Option *o = name ? option_named(name) : NULL;
    char place[128];
    if (k) write_place(k, place, sizeof place);
    if (k && strcmp(k->value, "auto")) {
        snprintf(text, REASON, "%s%s%s", place, *k->remark ? ": " : "", k->remark);
        return *k->remark != '\0';
    }
    if (o && option_is_given(o)) {
        snprintf(text, REASON, "option %s", name);
        return 0;
    }
    if (k && *k->remark) derived = k->remark;
    snprintf(text, REASON, "%s%s%s", k ? place : "", k ? " says auto: " : "",
             derived ? derived : default_of(s));
    return derived != NULL;
}

// --------
// where they are shown

// Keys without effect, and what is to be known of keys that set nothing of the table.
static void print_notes(void) {
    const zero_deepspeed *file = zero_file();
    const zero_config *c = effective_settings();
    char place[128];
    for (int i = 0; file && i < file->n; i++) {
        const zero_deepspeed_key *k = &file->keys[i];
        const int no_effect = k->fate == ZERO_KEY_NO_EFFECT;
        if (!*k->remark || (*k->setting && !no_effect)) continue;
        write_place(k, place, sizeof place);
        print0("%s  %s: %s: %s\n", no_effect ? "no effect" : "noted    ", place, k->key, k->remark);
    }
    if (!on_cuda() && (c->offload.params == ZERO_HOST || c->offload.optimizer == ZERO_HOST))
        print0("noted      this run computes in the host's memory, where the tier cpu is: nothing moves "
               "there\n");
}

void print_config(const GPT2 *model) {
    char value[VALUE], reason[REASON];
    print0("config     every setting, its value and the reason; nothing is started or allocated\n");
    for (const Setting *s = table; s < table + SETTINGS; s++) {
        write_value(s, value);
        write_reason(s, reason);
        print0("  %-30s %-12s %s\n", s->name, *value ? value : "-", reason);
    }
    print_notes();
    fflush(stdout);
    const zero_plan_info plan = plan_of(model, effective_settings());
    print0("buckets    %lld elements, %.1f MiB; slots %d\n", (long long)plan.bucket_elems,
           mib(plan.bucket_bytes), plan.slots);
}

// "stage 3 (option -z), overlap 0 (derived: ..)", in as many lines as it takes.
void print_config_lines(void) {
    enum { WIDTH = 110, INDENT = 11 };
    char value[VALUE], reason[REASON], item[VALUE + REASON + 64];
    int column = 0;
    for (const Setting *s = table; s < table + SETTINGS; s++) {
        write_value(s, value);
        if (!write_reason(s, reason) && is_default(s, value)) continue;
        const int n = snprintf(item, sizeof item, "%s %s (%s)", s->name, *value ? value : "-", reason);
        const int fits = column + 2 + n < WIDTH;
        if (!column)
            print0("%-*s%s", INDENT, "config", item);
        else if (fits)
            print0(", %s", item);
        else
            print0(",\n%*s%s", INDENT, "", item);
        column = column && fits ? column + 2 + n : INDENT + n;
    }
    if (column) print0("\n");
    print_notes();
}

static void write_text(FILE *f, const char *text) {
    fputc('"', f);
    for (const char *s = text; *s; s++) {
        if (*s == '"' || *s == '\\') fputc('\\', f);
        if ((unsigned char)*s < ' ')
            fprintf(f, "\\u%04x", *s);
        else
            fputc(*s, f);
    }
    fputc('"', f);
}

void write_config(FILE *f) {
    char value[VALUE], reason[REASON];
    fprintf(f, " \"config\": {");
    for (const Setting *s = table; s < table + SETTINGS; s++) {
        write_value(s, value);
        write_reason(s, reason);
        fprintf(f, "%s\n  \"%s\": {\"value\": ", s > table ? "," : "", s->name);
        if (is_word(s))
            write_text(f, value);
        else
            fprintf(f, "%s", value);
        fprintf(f, ", \"reason\": ");
        write_text(f, reason);
        fprintf(f, "}");
    }
    fprintf(f, "}");
}
