#include "zero_file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "machine.h"
#include "options.h"
#include "run.h"

static zero_deepspeed contents;
static int is_read;

const zero_deepspeed *zero_file(void) { return is_read ? &contents : NULL; }

const zero_deepspeed_key *zero_file_key(const char *setting) {
    for (int i = 0; is_read && i < contents.n; i++) {
        const zero_deepspeed_key *k = &contents.keys[i];
        if (k->fate == ZERO_KEY_HONOURED && !strcmp(k->setting, setting)) return k;
    }
    return NULL;
}

// --------
// the list of keys that end the run

typedef struct {
    char text[12000];
    size_t used;
    int n;
} Refusals;

static void refuse(Refusals *list, const zero_deepspeed_key *k, const char *remark, const char *options) {
    char value[70];
    snprintf(value, sizeof value, strlen(k->value) < 64 ? "%s" : "%.60s...", k->value);
    int n = snprintf(list->text + list->used, sizeof list->text - list->used, "\n  %s:%d: %s: %s%s%s%s%s%s",
                     opt.zero_config, k->line, k->key, value, *value ? ": " : "", remark,
                     *options ? " (option " : "", options, *options ? ")" : "");
    list->used += (size_t)n;
    if (list->used >= sizeof list->text) list->used = sizeof list->text - 1;
    list->n++;
}

// --------
// from keys to options

// Returns 1 if the key sets an option. "auto" does not, nor does a wire dtype other than fp32.
static int sets_an_option(const zero_deepspeed_key *k) {
    if (k->fate != ZERO_KEY_HONOURED || !*k->setting || !strcmp(k->value, "auto")) return 0;
    return strcmp(k->setting, "comm.reduce_fp32") || !strcmp(k->value, "fp32");
}

// Settings that no option sets, since -d counts tokens.
static int takes_batch(const zero_deepspeed_key *k) {
    if (!strcmp(k->setting, "trainer.rows_a_step")) opt.rows_a_step = atoi(k->value);
    if (!strcmp(k->setting, "micro_batches")) opt.micro_batches = atoi(k->value);
    return !strcmp(k->setting, "trainer.rows_a_step") || !strcmp(k->setting, "micro_batches");
}

static void take_key(const zero_deepspeed_key *k, Refusals *list) {
    char now[ZERO_DEEPSPEED_VALUE], remark[ZERO_DEEPSPEED_VALUE + 80];
    const Option *o = option_of_setting(k->setting);
    const zero_setting *of_plugin = zero_setting_named(k->setting);
    if (takes_batch(k)) return;
    if (!o) {
        if (of_plugin)
            zero_setting_set(of_plugin, &opt.zero, k->value);
        else if (strcmp(k->value, "0"))
            refuse(list, k, "this trainer does not support it", "");
        return;
    }
    option_text(o, &opt, now, sizeof now);
    const int is_number = option_is_number(o) || o->kind == FLAG;
    const int same = is_number ? strtod(now, NULL) == strtod(k->value, NULL) : !strcmp(now, k->value);
    if (same) return;
    if (option_is_given(o)) {
        snprintf(remark, sizeof remark, "option %s is %s; remove one of them", o->name, now);
        refuse(list, k, remark, "");
    } else if (!option_can_be(o, k->value)) {
        snprintf(remark, sizeof remark, "it sets option %s, which takes %g to %g", o->name, o->min, o->max);
        refuse(list, k, remark, "");
    } else {
        option_set(o, k->value);
    }
}

// A wire dtype other than fp32 contradicts --comm-type fp32.
static void check_wire(Refusals *list) {
    const zero_deepspeed_key *k = zero_file_key("comm.reduce_fp32");
    if (!k || sets_an_option(k) || !strcmp(k->value, "auto") || strcmp(opt.comm_type, "fp32")) return;
    refuse(list, k, "option --comm-type is fp32; remove one of them", "");
}

void take_zero_file(void) {
    static Refusals list;
    char options[64];
    if (!opt.zero_config) return;
    zero_config config = settings_of(&opt);
    config.micro_batches = 0;  // not known yet
    if (zero_deepspeed_read(&config, &contents, opt.zero_config) && !contents.n) zero_check(-1);
    is_read = 1;
    for (int i = 0; i < contents.n; i++) {
        const zero_deepspeed_key *k = &contents.keys[i];
        if (sets_an_option(k)) take_key(k, &list);
        if (k->fate != ZERO_KEY_REFUSED) continue;
        options_of_settings(k->setting, options, sizeof options);
        refuse(&list, k, k->remark, options);
    }
    check_wire(&list);
    if (list.n == 1) die("option --zero-config: %s", list.text + strlen("\n  "));
    if (list.n) die("option --zero-config: %d keys cannot be honoured:%s", list.n, list.text);
}

// --------
// the batch

// DeepSpeed's rule: train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * ranks,
// in rows. Any of the first three may be omitted.
void settle_file_batch(void) {
    const zero_deepspeed_key *rows = zero_file_key("trainer.rows");
    const int has_rows = rows && strcmp(rows->value, "auto");
    const long long parts = (long long)run.ranks * (opt.micro_batches ? opt.micro_batches : 1);
    if (!opt.rows_a_step) return;
    if (!has_rows && !option_is_given(option_named("-b"))) {
        if (opt.rows_a_step % parts)
            die("option --zero-config %s: train_batch_size %d is not a multiple of %d ranks x %lld "
                "micro-batches",
                opt.zero_config, opt.rows_a_step, run.ranks, parts / run.ranks);
        opt.B = (int)(opt.rows_a_step / parts);
    }
    const long long at_once = (long long)opt.B * run.ranks;
    if (opt.rows_a_step % at_once || (opt.micro_batches && opt.rows_a_step != opt.B * parts))
        die("option --zero-config %s: train_batch_size is %d, but %d rows (train_micro_batch_size_per_gpu or "
            "-b) x %lld micro-batches (gradient_accumulation_steps) x %d ranks are %lld",
            opt.zero_config, opt.rows_a_step, opt.B, parts / run.ranks, run.ranks, opt.B * parts);
    opt.micro_batches = (int)(opt.rows_a_step / at_once);
}

void check_file_batch(int micro_batches) {
    if (opt.rows_a_step && opt.rows_a_step != opt.B * run.ranks * micro_batches)
        die("option --zero-config %s: train_batch_size is %d rows, but -d %d makes %d; remove one of them",
            opt.zero_config, opt.rows_a_step, opt.total_batch, opt.B * run.ranks * micro_batches);
}
