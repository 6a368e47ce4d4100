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

static FILE *refusals;  // a line for each
static int n_refused;

static void refuse(const zero_deepspeed_key *k, const char *remark, const char *options) {
    char value[70];
    snprintf(value, sizeof value, strlen(k->value) < 64 ? "%s" : "%.60s...", k->value);
    fprintf(refusals, "\n  %s:%d: %s: %s%s%s%s%s%s", opt.zero_config, k->line, k->key, value,
            *value ? ": " : "", remark, *options ? " (option " : "", options, *options ? ")" : "");
    n_refused++;
}

// --------
// from keys to options

// Returns 1 if the key sets an option. "auto" does not, nor does a wire dtype other than fp32.
static int sets_an_option(const zero_deepspeed_key *k) {
    if (k->fate != ZERO_KEY_HONOURED || !*k->setting || !strcmp(k->value, "auto")) return 0;
    return strcmp(k->setting, "comm.reduce_fp32") || !strcmp(k->value, "fp32");
}

// Takes a batch setting, which no option sets, since -d counts tokens. Returns 0 for any other setting.
static int takes_batch(const zero_deepspeed_key *k) {
    if (!strcmp(k->setting, "trainer.rows_a_step")) opt.rows_a_step = atoi(k->value);
    if (!strcmp(k->setting, "micro_batches")) opt.micro_batches = atoi(k->value);
    return !strcmp(k->setting, "trainer.rows_a_step") || !strcmp(k->setting, "micro_batches");
}

static void take_key(const zero_deepspeed_key *k) {
    char now[ZERO_DEEPSPEED_VALUE], remark[ZERO_DEEPSPEED_VALUE + 80];
    const Option *o = option_of_setting(k->setting);
    const zero_setting *of_plugin = zero_setting_named(k->setting);
    if (takes_batch(k)) return;
    if (!o) {
        if (of_plugin)
            zero_setting_set(of_plugin, &opt.zero, k->value);
        else if (strcmp(k->value, "0"))
            refuse(k, "this trainer does not support it", "");
        return;
    }
    option_text(o, &opt, now, sizeof now);
    const int is_number = option_is_number(o) || o->kind == FLAG;
    const int same = is_number ? strtod(now, NULL) == strtod(k->value, NULL) : !strcmp(now, k->value);
    if (same) return;
    if (option_is_given(o)) {
        snprintf(remark, sizeof remark, "option %s is %s; remove one of them", o->name, now);
        refuse(k, remark, "");
    } else if (!option_can_be(o, k->value)) {
        snprintf(remark, sizeof remark, "it sets option %s, which takes %g to %g", o->name, o->min, o->max);
        refuse(k, remark, "");
    } else {
        option_set(o, k->value);
    }
}

void take_zero_file(void) {
    char options[64], *text = NULL;
    size_t bytes;
    if (!opt.zero_config) return;
    zero_config config = settings_of(&opt);
    config.micro_batches = 0;  // not known yet
    if (zero_deepspeed_read(&config, &contents, opt.zero_config) && !contents.n) zero_check(-1);
    is_read = 1;
    n_refused = 0;
    refusals = open_memstream(&text, &bytes);
    if (!refusals) die("out of memory for the keys of %s", opt.zero_config);
    for (int i = 0; i < contents.n; i++) {
        const zero_deepspeed_key *k = &contents.keys[i];
        if (sets_an_option(k)) take_key(k);
        if (k->fate != ZERO_KEY_REFUSED) continue;
        options_of_settings(k->setting, options, sizeof options);
        refuse(k, k->remark, options);
    }
    // A wire dtype other than fp32 contradicts --comm-type fp32.
    const zero_deepspeed_key *wire = zero_file_key("comm.reduce_fp32");
    if (wire && !sets_an_option(wire) && strcmp(wire->value, "auto") && !strcmp(opt.comm_type, "fp32"))
        refuse(wire, "option --comm-type is fp32; remove one of them", "");

    if (fclose(refusals)) die("out of memory for the keys of %s", opt.zero_config);
    if (n_refused == 1) die("option --zero-config: %s", text + strlen("\n  "));
    if (n_refused) die("option --zero-config: %d keys cannot be honoured:%s", n_refused, text);
    free(text);
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
