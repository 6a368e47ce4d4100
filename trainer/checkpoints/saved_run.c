#include "saved_run.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "../../gpt2/gpt2_error.h"
#include "../../gpt2/fingerprint.h"
#include "../running/inputs.h"
#include "../running/machine.h"
#include "../options/options.h"
#include "../running/run.h"

enum { VALUE = 300, SHARD_BLOCKS = 4 };
#define MOST (INT64_C(1) << 40)  // of tokens per step, and of a position

// -------- writing

// Without the value that failed to allocate, the checkpoint would be incomplete, so this ends the run.
static void out_of_text(void) { die("out of memory for the checkpoint's description of the run"); }

static void append(json_t *values, json_t *value) {
    if (json_array_append_new(values, value)) out_of_text();
}

static void set(json_t *settings, const char *name, json_t *value) {
    if (json_object_set_new(settings, name, value)) out_of_text();
}

static json_t *describe_outliers(const OutlierDetector *d) {
    json_t *values = json_array();
    for (int i = 0; i < OUTLIER_WINDOW; i++) append(values, json_real(d->buffer[i]));
    return json_pack("{s:i, s:i, s:f, s:f, s:o}", "count", d->count, "index", d->index, "sum", d->sum,
                     "sum_sq", d->sum_sq, "values", values);
}

// Returns one fingerprint per shard, ordered by name. They are computed only once.
static const json_t *describe_data(const DataLoader *l) {
    static json_t *shards;
    char print[FINGERPRINT];
    if (shards) return shards;
    shards = json_array();
    for (size_t i = 0; i < l->files.gl_pathc; i++) {
        gpt2_check(fingerprint_of_file(l->files.gl_pathv[i], SHARD_BLOCKS, print));
        append(shards, json_string(print));
    }
    return shards;
}

// Returns the options that change a run's results or their last bits, and the values chosen for "auto".
static json_t *describe_settings(const GPT2 *model) {
    json_t *settings = json_object();
    char value[VALUE];
    for (const Option *o = option_table; o < option_table + num_options; o++) {
        if (!o->bits) continue;
        option_text(o, &opt, value, sizeof value);
        set(settings, o->name, json_string(value));
    }
    set(settings, "--dtype", json_string(dtype_name(model->dtype)));
    set(settings, "--device", json_string(run.layers->device));
    set(settings, "ranks", json_sprintf("%d", run.ranks));
    if (on_cuda()) return settings;
    set(settings, "--threads", json_sprintf("%d", run.threads));
    fingerprint_of_processor(value);
    set(settings, "instruction set", json_string(value));
    return settings;
}

char *saved_run_write(const GPT2 *model, const TrainingData *data, const TrainerState *s) {
    const GPT2Config *c = &model->config;
    const DataPosition *p = &s->position;
    json_t *root =
        json_pack("{s:s, s:i, s:i, s:{s:I, s:I, s:I}, s:{s:i, s:i, s:i, s:i, s:i, s:i},"
                  " s:O, s:I, s:i, s:o, s:o, s:o}",
                  "program", "train_gpt2_zero", "step", s->step, "overflows", s->overflows, "position",
                  "epoch", (json_int_t)p->epoch, "row", (json_int_t)p->row, "rows", (json_int_t)p->num_rows,
                  "model", "max_seq_len", c->max_seq_len, "vocab_size", c->vocab_size, "padded_vocab_size",
                  c->padded_vocab_size, "num_layers", c->num_layers, "num_heads", c->num_heads, "channels",
                  c->channels, "data", describe_data(&data->train), "tokens_a_step",
                  (json_int_t)(data->tokens_at_once * data->micro_batches), "row_tokens", model->T,
                  "settings", describe_settings(model), "loss_outliers", describe_outliers(&s->loss_outliers),
                  "norm_outliers", describe_outliers(&s->norm_outliers));
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (!text) out_of_text();
    return text;
}

// -------- reading

static int get_outliers(json_t *from, const char *name, OutlierDetector *d) {
    json_t *values = NULL;
    int bad = json_unpack(from, "{s:i, s:i, s:F, s:F, s:o}", "count", &d->count, "index", &d->index, "sum",
                          &d->sum, "sum_sq", &d->sum_sq, "values", &values);
    bad |= d->count < 0 || d->count > OUTLIER_WINDOW || d->index < 0 || d->index >= OUTLIER_WINDOW ||
           json_array_size(values) != OUTLIER_WINDOW;
    for (int i = 0; i < OUTLIER_WINDOW && !bad; i++) {
        bad = !json_is_number(json_array_get(values, i));
        d->buffer[i] = json_number_value(json_array_get(values, i));
    }
    return bad ? gpt2_fail("member \"%s\" is not what a run writes", name) : 0;
}

static int get_members(SavedRun *saved) {
    GPT2Config *c = &saved->config;
    TrainerState *s = &saved->state;
    json_error_t e;
    json_t *losses, *norms;
    json_int_t epoch, row, rows, tokens;
    if (json_unpack_ex(saved->root, &e, 0,
                       "{s:i, s:i, s:{s:I, s:I, s:I}, s:{s:i, s:i, s:i, s:i, s:i, s:i}, s:I, s:i, s:o, s:o}",
                       "step", &s->step, "overflows", &s->overflows, "position", "epoch", &epoch, "row", &row,
                       "rows", &rows, "model", "max_seq_len", &c->max_seq_len, "vocab_size", &c->vocab_size,
                       "padded_vocab_size", &c->padded_vocab_size, "num_layers", &c->num_layers, "num_heads",
                       &c->num_heads, "channels", &c->channels, "tokens_a_step", &tokens, "row_tokens",
                       &saved->row_tokens, "loss_outliers", &losses, "norm_outliers", &norms))
        return gpt2_fail("%s", e.text);
    s->position = (DataPosition){ .epoch = epoch, .row = row, .num_rows = rows };
    saved->tokens_a_step = tokens;
    if (s->step < 0 || s->overflows < 0 || s->overflows > s->step || epoch < 0 || epoch > MOST || row < 0 ||
        row > MOST || rows < 1 || rows > MOST || tokens < 1 || tokens > MOST)
        return gpt2_fail("step, overflows, position or tokens_a_step is out of range");
    return get_outliers(losses, "loss_outliers", &s->loss_outliers) ||
           get_outliers(norms, "norm_outliers", &s->norm_outliers) || gpt2_config_check(c, "the checkpoint");
}

int saved_run_read(SavedRun *saved, const char *text, const char *where) {
    json_error_t e;
    *saved = (SavedRun){ .root = json_loads(text, 0, &e) };
    if (!saved->root)
        return gpt2_fail("%s: the checkpoint's description of the run is not JSON: %s", where, e.text);
    return get_members(saved) ? gpt2_fail("%s: %s", where, gpt2_last_error()) : 0;
}

int saved_run_of(SavedRun *saved, const char *folder) {
    char *text = NULL;
    *saved = (SavedRun){ .root = NULL };
    if (zero_checkpoint_text(folder, &text)) return gpt2_fail("%s", zero_last_error());
    int failed = saved_run_read(saved, text, folder);
    free(text);
    return failed;
}

void saved_run_free(SavedRun *saved) {
    json_decref(saved->root);
    saved->root = NULL;
}

// -------- comparing

// Ends the run because of a difference that makes resuming meaningless. With --resume-anyway only prints it.
#define REFUSE(fmt, ...)                                                   \
    (opt.resume_anyway ? print0("resuming anyway: " fmt "\n", __VA_ARGS__) \
                       : die(fmt "; --resume-anyway resumes regardless", __VA_ARGS__))

static void compare_model(const GPT2Config *saved, const char *where) {
    GPT2Config asked;
    // The run may have begun with a file that no longer exists; resuming does not need it.
    if (!option_is_given(option_named("-e")) || gpt2_config_named(opt.model, &asked)) return;
    if (asked.num_layers == saved->num_layers && asked.num_heads == saved->num_heads &&
        asked.channels == saved->channels && asked.vocab_size == saved->vocab_size &&
        asked.max_seq_len == saved->max_seq_len)
        return;
    REFUSE("option -e %s: %s belongs to another model, %s", opt.model, where, sizes_of(saved));
}

static void compare_data(const json_t *root, const char *where, const TrainingData *data) {
    const json_t *saved = json_object_get(root, "data");
    const json_t *now = describe_data(&data->train);
    if (json_array_size(saved) != json_array_size(now))
        REFUSE("option -i %s: it has %zu shards, but the run of %s had %zu", opt.train_data,
               json_array_size(now), where, json_array_size(saved));
    for (size_t i = 0; i < json_array_size(now) && i < json_array_size(saved); i++) {
        const char *a = json_string_value(json_array_get(now, i)),
                   *b = json_string_value(json_array_get(saved, i));
        if (b && !strcmp(a, b)) continue;
        REFUSE("option -i %s: shard %zu (%s) has %s, but that of %s had %s", opt.train_data, i,
               data->train.files.gl_pathv[i], a, where, b ? b : "nothing");
        break;
    }
}

static void compare_batch(const SavedRun *saved, const char *where, const GPT2 *model,
                          const TrainingData *data) {
    const long long now = data->tokens_at_once * data->micro_batches, tokens = saved->tokens_a_step;
    if (saved->row_tokens != model->T)
        REFUSE("option -t %d: the rows of %s have %d tokens", model->T, where, saved->row_tokens);
    if (tokens != now) REFUSE("option -d %lld: the steps of %s have %lld tokens", now, where, tokens);
}

static void compare_settings(const json_t *root, const char *where, const GPT2 *model) {
    json_t *now = describe_settings(model), *value;
    const json_t *saved = json_object_get(root, "settings");
    const char *name;
    json_object_foreach(now, name, value) {
        const char *a = json_string_value(value), *b = json_string_value(json_object_get(saved, name));
        if (b && strcmp(a, b)) print0("changed since %s: %s %s -> %s\n", where, name, b, a);
    }
    json_decref(now);
}

void saved_run_compare(const SavedRun *saved, const char *where, const GPT2 *model,
                       const TrainingData *data) {
    compare_model(&saved->config, where);
    compare_data(saved->root, where, data);
    compare_batch(saved, where, model, data);
    compare_settings(saved->root, where, model);
}
