#include "config_table.h"
#include <string.h>
#include "fit.h"
#include "machine.h"
#include "run.h"
#include "zero_file.h"

// --------
// the settings

typedef struct {
    const char *name;            // as in zero_config, or "trainer.lr"
    const zero_setting *plugin;  // NULL: of the trainer, and the value is that of the option
} Setting;

enum { MOST_SETTINGS = 200, VALUE = ZERO_DEEPSPEED_VALUE, REASON = 400 };

// Returns all settings, and a name NULL. How ranks find each other is left out: each of them has its own.
static const Setting *table(void) {
    static const char *const of_trainer[] = { "trainer.rows",      "trainer.lr",
                                              "trainer.beta1",     "trainer.beta2",
                                              "trainer.eps",       "trainer.weight_decay",
                                              "trainer.grad_clip", "trainer.offload_activations" };
    static Setting rows[MOST_SETTINGS];
    int n;
    Setting *row = rows;
    for (const zero_setting *s = zero_settings(&n), *end = s + n; s < end; s++)
        if (strncmp(s->name, "start.", 6)) *row++ = (Setting){ s->name, s };
    for (size_t i = 0; i < sizeof of_trainer / sizeof *of_trainer; i++)
        *row++ = (Setting){ of_trainer[i], NULL };
    return rows;
}

static void write_value_in(const Setting *s, const zero_config *config, const Options *options, char *text) {
    if (s->plugin)
        zero_setting_text(s->plugin, config, text, VALUE);
    else
        option_text(option_of_setting(s->name), options, text, VALUE);
}

static void write_value(const Setting *s, char *text) { write_value_in(s, effective_settings(), &opt, text); }

static int is_default(const Setting *s, const char *value) {
    char text[VALUE];
    zero_config config = settings_of(&default_options);
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
    const char *derived = derivation(s);
    const Option *o = option_of_setting(s->name);
    char place[128];
    if (k) write_place(k, place, sizeof place);
    if (k && strcmp(k->value, "auto")) {
        snprintf(text, REASON, "%s%s%s", place, *k->remark ? ": " : "", k->remark);
        return *k->remark != '\0';
    }
    if (o && option_is_given(o)) {
        snprintf(text, REASON, "option %s", o->name);
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

void print_config(const GPT2 *model, int micro_batches) {
    const zero_config config = plugin_settings(model->dtype, micro_batches);
    char value[VALUE], reason[REASON];
    print0("config     every setting, its value and the reason; nothing is started or allocated\n");
    for (const Setting *s = table(); s->name; s++) {
        write_value(s, value);
        write_reason(s, reason);
        print0("  %-30s %-12s %s\n", s->name, *value ? value : "-", reason);
    }
    print_notes();
    fflush(stdout);
    const zero_plan plan = plan_of(model, &config);
    print_buckets(&plan);
}

void print_buckets(const zero_plan *plan) {
    print0("buckets    %lld elements, %.1f MiB; slots %d\n", (long long)plan->bucket_elems,
           mib(plan->bucket_bytes), plan->slots);
}

// "stage 3 (option -z), overlap 0 (derived: ..)", in as many lines as it takes.
void print_config_lines(void) {
    enum { WIDTH = 110, INDENT = 11 };
    char value[VALUE], reason[REASON], item[VALUE + REASON + 64];
    int column = 0;
    for (const Setting *s = table(); s->name; s++) {
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
    const char *before = " \"config\": {";
    for (const Setting *s = table(); s->name; s++) {
        write_value(s, value);
        write_reason(s, reason);
        fprintf(f, "%s\n  \"%s\": {\"value\": ", before, s->name);
        before = ",";
        if (s->plugin && (*s->plugin->words || s->plugin->kind == ZERO_KIND_TEXT))
            write_text(f, value);
        else
            fprintf(f, "%s", value);
        fprintf(f, ", \"reason\": ");
        write_text(f, reason);
        fprintf(f, "}");
    }
    fprintf(f, "}");
}
