#include "zero_file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../running/machine.h"
#include "options.h"
#include "../running/run.h"

static zero_deepspeed contents;
static int is_read;

const zero_deepspeed *zero_file(void) { return is_read ? &contents : NULL; }

zero_deepspeed_key *zero_file_key(const char *setting) {
    for (int i = 0; is_read && i < contents.n; i++) {
        zero_deepspeed_key *k = &contents.keys[i];
        if (k->fate == ZERO_KEY_HONOURED && !strcmp(k->setting, setting)) return k;
    }
    return NULL;
}

// -------- the list of keys that end the run

static Text refusals;  // a line for each
static int n_refused;

static void refuse(const zero_deepspeed_key *k, const char *remark) {
    char value[70], options[64] = "";
    snprintf(value, sizeof value, strlen(k->value) < 64 ? "%s" : "%.60s...", k->value);
    if (k->fate == ZERO_KEY_REFUSED) options_of_settings(k->setting, options, sizeof options);
    if (!refusals.f) text_begin(&refusals);
    fprintf(refusals.f, "\n  %s:%d: %s: %s%s%s%s%s%s", opt.zero_config, k->line, k->key, value,
            *value ? ": " : "", remark, *options ? " (option " : "", options, *options ? ")" : "");
    n_refused++;
}

void end_if_refused(int settings_shown) {
    if (!n_refused || (opt.print_config && !settings_shown)) return;
    const char *lines = text_end(&refusals);
    if (n_refused == 1) die("option --zero-config: %s", lines + strlen("\n  "));
    die("option --zero-config: %d keys cannot be honoured:%s", n_refused, lines);
}

// -------- from keys to options

// Takes a batch setting, which no option sets, since -d counts tokens. Returns 0 for any other setting.
static int takes_batch(const zero_deepspeed_key *k) {
    if (!strcmp(k->setting, "trainer.rows_a_step")) opt.rows_a_step = atoi(k->value);
    if (!strcmp(k->setting, "micro_batches")) opt.micro_batches = atoi(k->value);
    return !strcmp(k->setting, "trainer.rows_a_step") || !strcmp(k->setting, "micro_batches");
}

// Only --dtype overrides the file, so that a file with fp16 can be tried on a CPU.
static void contradict(zero_deepspeed_key *k, const Option *o, const char *now) {
    char remark[ZERO_DEEPSPEED_VALUE + 80];
    if (!strcmp(k->setting, "numbers.dtype")) {
        k->fate = ZERO_KEY_NO_EFFECT;
        snprintf(k->remark, sizeof k->remark, "option %s %.100s overrides it", o->name, now);
        return;
    }
    snprintf(remark, sizeof remark, "option %s is %s; remove one of them", o->name, now);
    refuse(k, remark);
}

static void take_key(zero_deepspeed_key *k) {
    char now[ZERO_DEEPSPEED_VALUE], range[80], remark[160];
    const Option *o = option_of_setting(k->setting);
    const zero_setting *of_plugin = zero_setting_named(k->setting);
    if (takes_batch(k)) return;
    if (!o) {
        if (of_plugin)
            zero_setting_set(of_plugin, &opt.zero, k->value);
        else if (strcmp(k->value, "0"))
            refuse(k, "this trainer does not support it");
        return;
    }
    option_text(o, &opt, now, sizeof now);
    const int is_number = option_is_number(o) || o->kind == FLAG;
    const int same = is_number ? strtod(now, NULL) == strtod(k->value, NULL) : !strcmp(now, k->value);
    if (same) return;
    if (option_is_given(o)) {
        contradict(k, o, now);
    } else if (!option_can_be(o, k->value)) {
        option_range(o, range, sizeof range);
        snprintf(remark, sizeof remark, "it sets option %s, which takes %s", o->name, range);
        refuse(k, remark);
    } else {
        option_set(o, k->value);
    }
}

void take_zero_file(void) {
    if (!opt.zero_config) return;
    zero_config config = settings_of(&opt);
    if (zero_deepspeed_read(&config, &contents, opt.zero_config) && !contents.n)
        die("option --zero-config: %s", zero_last_error());
    is_read = 1;
    n_refused = 0;
    zero_deepspeed_key *const end = contents.keys + contents.n;
    for (const zero_deepspeed_key *k = contents.keys; k < end; k++)
        if (k->fate == ZERO_KEY_REFUSED) refuse(k, k->remark);
    for (zero_deepspeed_key *k = contents.keys; k < end; k++)
        if (k->fate == ZERO_KEY_HONOURED && *k->setting && strcmp(k->value, "auto")) take_key(k);
}

// -------- the batch

// DeepSpeed's rule: train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * ranks,
// in rows. Any of the first three may be omitted.
static void settle_batch(const zero_deepspeed_key *rows_a_step) {
    const zero_deepspeed_key *rows = zero_file_key("trainer.rows");
    const int has_rows = rows && strcmp(rows->value, "auto");
    const long long parts = (long long)run.ranks * (opt.micro_batches ? opt.micro_batches : 1);
    char remark[240];
    if (!has_rows && !option_is_given(option_named("-b"))) {
        if (opt.rows_a_step % parts) {
            snprintf(remark, sizeof remark, "not a multiple of %d ranks x %lld micro-batches", run.ranks,
                     parts / run.ranks);
            refuse(rows_a_step, remark);
            return;
        }
        opt.B = (int)(opt.rows_a_step / parts);
    }
    const long long at_once = (long long)opt.B * run.ranks;
    if (opt.rows_a_step % at_once || (opt.micro_batches && opt.rows_a_step != opt.B * parts)) {
        snprintf(remark, sizeof remark,
                 "train_micro_batch_size_per_gpu (or -b) %d x gradient_accumulation_steps %lld x "
                 "ranks %d = %lld; start as many ranks as the file is for",
                 opt.B, parts / run.ranks, run.ranks, opt.B * parts);
        refuse(rows_a_step, remark);
        return;
    }
    opt.micro_batches = (int)(opt.rows_a_step / at_once);
}

void settle_zero_file(void) {
    const zero_deepspeed_key *dtype = zero_file_key("numbers.dtype");
    if (dtype && !strcmp(dtype->value, "fp16") && !on_cuda())
        refuse(dtype, "needs a CUDA device, but this run is on the CPU; --dtype bf16 or fp32 overrides it");
    if (opt.rows_a_step) settle_batch(zero_file_key("trainer.rows_a_step"));
    end_if_refused(0);
}

// The options and the ranks decide the number of micro-batches, and the file's batch must agree.
void check_zero_file(int micro_batches) {
    const long long rows = (long long)opt.B * run.ranks * micro_batches;
    const zero_deepspeed_key *micro = zero_file_key("micro_batches");
    char remark[160];
    if (!opt.zero_config || n_refused) return;
    snprintf(remark, sizeof remark, "-d, -b, -t and the ranks give %d micro-batches, %lld rows per step",
             micro_batches, rows);
    if (micro && strcmp(micro->value, "auto") && atoi(micro->value) != micro_batches) refuse(micro, remark);
    if (opt.rows_a_step && opt.rows_a_step != rows) refuse(zero_file_key("trainer.rows_a_step"), remark);
    end_if_refused(0);
}
