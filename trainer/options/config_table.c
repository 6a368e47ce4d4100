#include "config_table.h"
#include <string.h>
#include "../planning/fit.h"
#include "../running/machine.h"
#include "../running/run.h"
#include "zero_file.h"

enum { VALUE = ZERO_DEEPSPEED_VALUE, REASON = 400 };

// -------- the reasons

typedef struct {
    const char *name, *note;
} Note;

static const Note of_defaults[] = {
    { "reduce_bucket_size", "default: 0 means the size of the largest block" },
    { "comm.window_bytes", "default: 0 means as needed" },
    { "comm.nccl", "default: -1 means NCCL if it can be used" },
    { "debug.poison", "default: -1 means only with ZERO_POISON=1" },
    { "debug.check_steps", "default: -1 means all with ZERO_CHECK=1, else a quick check of the first" },
    { "trainer.steps", "default: -1 means one epoch" },
    { NULL, "default" },
};

// Defaults of settings that the file leaves out, if DeepSpeed's differ.
static const Note beside_deepspeed[] = {
    { "trainer.grad_clip", "default; DeepSpeed's own default has been 1 since 2026, and was 0 before" },
    { "trainer.lr", "default; DeepSpeed's own default is 1e-3" },
    { "trainer.beta2", "default; DeepSpeed's own default is 0.999" },
    { "trainer.schedule", "default; without a scheduler DeepSpeed's learning rate is constant" },
    { NULL, NULL },
};

static const char *note_of(const Note *notes, const char *name) {
    while (notes->name && strcmp(notes->name, name)) notes++;
    return notes->note;
}

// Returns the source of a value that neither the file nor an option sets, or NULL for a default.
static const char *derivation(const char *name) {
    const zero_config *c = effective_settings();
    const char *overlaps = on_cuda() ? "collectives have separate streams" : "there is a spare core";
    if (c->offload.params == ZERO_NVME) overlaps = "the progress thread mostly waits for files";
    if (!strcmp(name, "inference") && opt.prompts) return "option --prompts";
    if (!strcmp(name, "overlap")) return run.overlap ? overlaps : "no spare core for a progress thread";
    if (!strcmp(name, "debug.poison") && c->debug.poison >= 0) return "ZERO_POISON in the environment";
    if (!strcmp(name, "debug.check_steps") && c->debug.check_steps >= 0)
        return c->debug.check_steps ? "ZERO_CHECK in the environment: all steps"
                                    : "ZERO_CHECK in the environment";
    if (!strcmp(name, "device")) return on_cuda() ? "there is a usable CUDA device" : "no usable CUDA device";
    if (!strcmp(name, "numbers.dtype") && c->numbers.dtype == ZERO_BF16)
        return zero_file()
                   ? "the hardware multiplies bf16; DeepSpeed computes in fp32 if a file enables neither "
                     "bf16 nor fp16"
                   : "the hardware multiplies bf16";
    if (!strcmp(name, "numbers.dtype")) return "the hardware does not multiply bf16";
    if (!strcmp(name, "micro_batches") && opt.rows_a_step) return "train_batch_size / (rows x ranks)";
    if (!strcmp(name, "trainer.rows") && opt.rows_a_step) return "train_batch_size / (ranks x micro-batches)";
    if (!strcmp(name, "offload.gradients") && c->offload.optimizer && c->stage >= 2)
        return "follows the optimizer states, but not to NVMe";
    return zero_file() && !zero_file_key(name) ? note_of(beside_deepspeed, name) : NULL;
}

// Writes the file's name and the key's line.
static void write_place(const zero_deepspeed_key *k, char *text, size_t size) {
    snprintf(text, size, "%s:%d", basename(opt.zero_config), k->line);
}

// Returns 1 if the value was derived from something else.
static int write_reason(const char *name, const Option *o, char *text) {
    const zero_deepspeed_key *k = zero_file_key(name);
    const char *derived = derivation(name);
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
    snprintf(text, REASON, "%s%s%s", k ? place : "", k ? " is auto: " : "",
             derived ? derived : note_of(of_defaults, name));
    return derived != NULL;
}

// -------- the settings

typedef struct {
    const char *name;  // as in zero_config, or "trainer.lr"; NULL after the last
    int is_text;
    char value[VALUE], reason[REASON];
    int is_special;  // 1: not the default, or derived
} Setting;

// plugin: the plugin's setting; NULL: a setting of the trainer; the option gives its value.
static void set_row(Setting *row, const char *name, const zero_setting *plugin) {
    const zero_config presets = settings_of(&default_options);
    const Option *o = option_of_setting(name);
    char preset[VALUE];
    row->name = name;
    if (plugin) {
        zero_setting_text(plugin, effective_settings(), row->value, VALUE);
        zero_setting_text(plugin, &presets, preset, VALUE);
        row->is_text = *plugin->words || plugin->kind == ZERO_KIND_TEXT;
    } else {
        option_text(o, &opt, row->value, VALUE);
        option_text(o, &default_options, preset, VALUE);
        row->is_text = o->kind == TEXT;
    }
    row->is_special = write_reason(name, o, row->reason) || strcmp(row->value, preset);
}

// Returns all settings except "start.", which differ between ranks.
static const Setting *table(void) {
    static const char *const of_trainer[] = {
        "trainer.rows",     "trainer.lr",           "trainer.schedule",  "trainer.warmup",
        "trainer.lr_final", "trainer.steps",        "trainer.beta1",     "trainer.beta2",
        "trainer.eps",      "trainer.weight_decay", "trainer.grad_clip", "trainer.offload_activations"
    };
    static Setting rows[200];
    int n;
    Setting *row = rows;
    for (const zero_setting *s = zero_settings(&n), *end = s + n; s < end; s++)
        if (strncmp(s->name, "start.", 6)) set_row(row++, s->name, s);
    for (size_t i = 0; i < sizeof of_trainer / sizeof *of_trainer; i++) set_row(row++, of_trainer[i], NULL);
    return rows;
}

// -------- printing

// Prints the keys without effect, and remarks on keys that set no row of the table. end_if_refused prints the
// refused ones.
static void print_notes(void) {
    const zero_deepspeed *file = zero_file();
    const zero_config *c = effective_settings();
    char place[128];
    for (int i = 0; file && i < file->n; i++) {
        const zero_deepspeed_key *k = &file->keys[i];
        const int no_effect = k->fate == ZERO_KEY_NO_EFFECT;
        if (!*k->remark || (*k->setting && !no_effect) || k->fate == ZERO_KEY_REFUSED) continue;
        write_place(k, place, sizeof place);
        print0("%s  %s: %s: %s\n", no_effect ? "no effect" : "noted    ", place, k->key, k->remark);
    }
    if (!on_cuda() && (c->offload.params == ZERO_HOST || c->offload.optimizer == ZERO_HOST))
        print0("noted      this run computes in host memory, which is the cpu tier, so nothing moves\n");
    if (!on_cuda() && c->numbers.dtype == ZERO_F16)
        print0("noted      fp16 needs a CUDA device; this run would be refused\n");
}

void print_config(const GPT2 *model, int micro_batches) {
    const zero_config config = plugin_settings(model->dtype, micro_batches);
    print0("config     every setting, its value and the reason; nothing is started or allocated\n");
    for (const Setting *s = table(); s->name; s++)
        print0("  %-30s %-12s %s\n", s->name, *s->value ? s->value : "-", s->reason);
    print_notes();
    fflush(stdout);
    const zero_plan plan = plan_of(model, &config);
    print_buckets(&plan);
}

void print_buckets(const zero_plan *plan) {
    print0("buckets    %lld elements, %.1f MiB; slots %d\n", (long long)plan->bucket_elems,
           mib(plan->bucket_bytes), plan->slots);
}

const char *reason_of(const char *name) {
    const Setting *s = table();
    while (strcmp(s->name, name)) s++;
    return s->reason;
}

void print_config_lines(void) {
    for (const Setting *s = table(); s->name; s++) {
        if (!strcmp(s->name, "trainer.steps")) continue;  // the line about the batch shows it
        if (!strcmp(s->name, "overlap")) continue;        // the line about ZeRO shows it
        if (s->is_special) print0("config     %s %s (%s)\n", s->name, *s->value ? s->value : "-", s->reason);
    }
    print_notes();
}

void write_config(FILE *f) {
    const char *before = " \"config\": {";
    for (const Setting *s = table(); s->name; s++) {
        fprintf(f, "%s\n  \"%s\": {\"value\": ", before, s->name);
        if (s->is_text)
            write_json_text(f, s->value);
        else
            fprintf(f, "%s", s->value);
        fprintf(f, ", \"reason\": ");
        write_json_text(f, s->reason);
        fprintf(f, "}");
        before = ",";
    }
    fprintf(f, "}");
}
