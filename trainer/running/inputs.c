#include "inputs.h"
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../../gpt2/fingerprint.h"
#include "../../gpt2/gpt2_error.h"
#include "../../gpt2/hf.h"
#include "machine.h"
#include "../options/options.h"
#include "run.h"
#include "../checkpoints/saved_model.h"
#include "../checkpoints/saving.h"
#include "../options/zero_file.h"

// -------- missing files

// Returns the command that makes files with such a name, or NULL.
static const char *command_for(const char *path) {
    static const struct {
        const char *start, *command;
    } commands[] = {
        { "stories_", "make data" },
        { "demo_", "make demo TEXT=my.txt" },
        { "tiny_shakespeare_", "scripts/download.sh tinyshakespeare" },
        { "tinystories_", "scripts/download.sh tinystories" },
        { "fineweb_", "scripts/download.sh fineweb" },
        { "edu_fineweb_", "scripts/download.sh fineweb-edu" },
        { "hellaswag_val.bin", "scripts/download.sh hellaswag" },
        { "gpt2_tokenizer.bin", "scripts/download.sh tokenizer" },
        { "gpt2_124M.bin", "scripts/download.sh gpt2:124M" },
        { "gpt2_124M_bf16.bin", "scripts/download.sh gpt2:124M_bf16" },
    };
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strncmp(basename(path), commands[i].start, strlen(commands[i].start)))
            return commands[i].command;
    return NULL;
}

void require_file(const char *option, const char *path) {
    const char *command = command_for(path);
    if (!access(path, F_OK) || errno != ENOENT) return;
    if (command) die("option %s %s: no such file; %s creates it in data/", option, path, command);
    die("option %s %s: no such file or folder", option, path);
}

static void require_shards(const char *option, const char *pattern) {
    const char *command = command_for(pattern);
    glob_t found;
    const int missing = glob(pattern, GLOB_NOSORT, NULL, &found) == GLOB_NOMATCH;
    globfree(&found);
    if (missing && command)
        die("option %s %s: no file matches; %s creates it in data/", option, pattern, command);
    if (missing)
        die("option %s %s: no file matches; build/make_tokens makes shards from text, and "
            "scripts/download.sh downloads some (docs/reference/data.md)",
            option, pattern);
}

// -------- the model and its tokenizer

// If -e is a folder of checkpoints, uses the model file of the newest one.
static void find_model(void) {
    GPT2Config config;
    if (gpt2_is_stored(opt.model) || !gpt2_config_from_descriptor(&config, opt.model)) return;
    if (!is_folder(opt.model)) {
        if (!access(opt.model, F_OK))
            die("option -e %s: a model file's name must end in .bin, as llm.c's do", opt.model);
        if (strchr(opt.model, '/') || !strpbrk(opt.model, "0123456789"))
            die("option -e %s: no file or folder of this name, nor a known model: d12, gpt2:d12, gpt3:c768 "
                "or a "
                "form like l4h4c128v512t64",
                opt.model);
        return;  // its sizes are wrong
    }
    if (is_checkpoint(opt.model))
        die("option -e %s: this is a checkpoint; -e takes the model_NNNNNNNN.bin beside it, and --export %s "
            "--to NAME.bin writes one",
            opt.model, opt.model);
    const char *path = model_file_in(opt.model);
    if (!path)
        die("option -e %s: this folder has neither a complete checkpoint nor model.safetensors", opt.model);
    opt.model = path;
}

static void check_rows(const GPT2Config *c) {
    const int C = c->channels, Vp = c->padded_vocab_size, wanted = LAYERS_CUDA_ROWS;
    int next = C;
    while (next % wanted || next % c->num_heads) next++;
    if (C % wanted)
        die("option -e %s: %d channels; CUDA needs a multiple of %d: use %d, or --device cpu", opt.model, C,
            wanted, next);
    if (Vp % wanted)
        die("option -e %s: a padded vocabulary of %d; CUDA needs a multiple of %d: pad it to %d, or use "
            "--device cpu",
            opt.model, Vp, wanted, gpt2_padded_vocab(Vp));
}

void check_model_file(const char *option, const char *path) {
    const model_state is = model_file_check(path);
    gpt2_check(is == MODEL_DAMAGED ? -1 : 0);
    if (is == MODEL_UNCOMPARED)
        note0("warning: option %s %s: not compared with its checkpoint: %s\n", option, path,
              gpt2_last_error());
}

static void refuse_length(const GPT2 *model, int is_new) {
    const GPT2Config *c = &model->config;
    char longer[120] = "";
    if (is_new)
        snprintf(longer, sizeof longer, ", or a model for longer ones, -e l%dh%dc%dv%dt%d", c->num_layers,
                 c->num_heads, c->channels, c->vocab_size, model->T);
    die("option -t %d: the model's longest sequence is %d tokens; use -t %d or less%s", model->T,
        c->max_seq_len, c->max_seq_len, longer);
}

void describe_model(GPT2 *model, int resume_step) {
    model->dtype = settle_dtype();
    if (resume_step < 0 && gpt2_is_stored(opt.model)) require_file("-e", opt.model);
    if (resume_step < 0 && gpt2_is_stored(opt.model) && !opt.plan && !opt.print_config)
        check_model_file("-e", opt.model);
    if (resume_step < 0) find_model();
    if (resume_step >= 0)
        model->config = checkpoint_saved()->config;
    else
        gpt2_check(gpt2_config_named(opt.model, &model->config));
    if (on_cuda()) check_rows(&model->config);
    gpt2_tensors(&model->config, model->tensors);
    model->B = opt.B;
    model->T = opt.T ? opt.T : model->config.max_seq_len;
    model->micro_batches = 1;
    model->by_layers = !strcmp(opt.accumulate, "layers");
    model->units_a_block = !strcmp(opt.units, "matrix") ? 4 : 1;
    model->recompute = opt.recompute;
    model->inputs_on_host = opt.cpu_checkpointing && on_cuda();
    if (model->T > model->config.max_seq_len)
        refuse_length(model, resume_step < 0 && !gpt2_is_stored(opt.model));
    model->cache_rows = opt.sample_every > 0;
    model->cache_T = opt.sample_tokens <= model->T ? opt.sample_tokens - 1 : model->T;
    model->cache_positions = model->cache_rows * layers_cache_positions(model->cache_T);
}

static int receive_values(void *ctx, int tensor, int layer, int64_t offset, int64_t n, const float *values) {
    int rc = zero_set(run.z, ZERO_PARAM, tensor, layer, offset, n, values);
    return rc ? gpt2_fail("%s", zero_last_error()) : 0;
}

void load_values(const GPT2 *model) {
    GPT2Stored stored;
    if (!gpt2_is_stored(opt.model)) {
        gpt2_check(gpt2_init(&model->config, receive_values, NULL));
        if (is_answering(&opt))
            note0("note: the model %s is untrained: its parameters are random; -e takes a model file or a "
                  "run's folder\n",
                  opt.model);
        return;
    }
    gpt2_check(gpt2_stored_open(opt.model, &stored));
    if (memcmp(&stored.config, &model->config, sizeof stored.config))
        die("option -e %s: the model's sizes have changed since the run started", opt.model);
    gpt2_check(gpt2_stored_read(&stored, receive_values, NULL));
    gpt2_stored_close(&stored);
}

static const char *usual_tokenizer(int V) {
    const char *path = "gpt2_tokenizer.bin";
    if (V == 257) return "data/stories_tokenizer.bin";
    if (access(path, F_OK)) path = "data/gpt2_tokenizer.bin";  // scripts/download.sh puts it there
    return path;
}

// Returns the tokenizer next to a model file or a checkpoint; NULL: there is none.
static const char *tokenizer_beside(const char *model) {
    static char path[OUTPUT_PATH];
    size_t end;
    snprintf(path, sizeof path, "%.*s%s", (int)last_name(model, &end), model, TOKENIZER_FILE);
    return file_is_there(path) ? path : NULL;
}

const char *open_tokenizer(Tokenizer *tokenizer, int V, const char *model, const char *consequence) {
    if (!model) model = checkpoint_chosen();
    if (!model && gpt2_is_stored(opt.model)) model = opt.model;
    const char *path = opt.tokenizer ? opt.tokenizer : model ? tokenizer_beside(model) : NULL;
    if (!path) path = usual_tokenizer(V);
    int without = opt.tokenizer && !strcmp(opt.tokenizer, "none");
    if (without || (!opt.tokenizer && access(path, F_OK))) {
        const char *command = command_for(path);
        if (!without && consequence)
            print0("tokenizer  no %s: %s%s%s%s\n", path, consequence, command ? " (" : "",
                   command ? command : "", command ? " creates it)" : "");
        tokenizer->eot_token = V - 1;  // as in GPT-2's vocabulary
        return NULL;
    }
    require_file("--tokenizer", path);
    gpt2_check(tokenizer_init(tokenizer, path));
    if ((int)tokenizer->vocab_size != V && !opt.tokenizer && !consequence) {
        tokenizer_free(tokenizer);  // wanted only for the copy, but it belongs to another model
        tokenizer->eot_token = V - 1;
        return NULL;
    }
    if ((int)tokenizer->vocab_size != V)
        die("option --tokenizer: %s has %u tokens, but the model has %d; name the model's tokenizer, or "
            "none to print token numbers",
            path, tokenizer->vocab_size, V);
    return path;
}

// Returns the largest batch of at most m->B rows that divides the tokens of a step; 1 if none does.
static int rows_that_divide(const GPT2 *m, long long tokens_a_step) {
    int B = m->B;
    while (B > 1 && tokens_a_step % ((long long)B * m->T * run.ranks)) B--;
    return B;
}

static void refuse_batch(const GPT2 *m, long long tokens_a_step, int of_checkpoint) {
    const long long row = (long long)m->T * run.ranks, at_once = m->B * row;
    const long long below = tokens_a_step - tokens_a_step % at_once;
    char other_d[120] = "another -d with --resume-anyway, or other ranks", other_b[24] = "";
    const int B = rows_that_divide(m, tokens_a_step);
    if (tokens_a_step % (B * row) == 0) snprintf(other_b, sizeof other_b, "-b %d, ", B);
    if (!of_checkpoint && below)
        snprintf(other_d, sizeof other_d, "-d %lld or -d %lld", below, below + at_once);
    else if (!of_checkpoint)
        snprintf(other_d, sizeof other_d, "%s-d %lld", *other_b ? "or " : "", at_once);
    die("option -d %lld%s: not a multiple of B x T x ranks = %d x %d x %d = %lld; use %s%s", tokens_a_step,
        of_checkpoint ? ", which the checkpoint was saved with" : "", m->B, m->T, run.ranks, at_once, other_b,
        other_d);
}

// Returns the largest power of two of at most n.
static int power_below(int n) {
    int power = 1;
    while (power <= n / 2) power *= 2;
    return power;
}

// The ranks' sums are subtrees of the same tree over all micro-batches only if there are powers of two of
// both.
static void check_any_ranks(int micro_batches, long long tokens_at_once) {
    const int ranks = power_below(run.ranks), few = power_below(micro_batches);
    if (ranks < run.ranks)
        die("option --any-ranks 1: %d ranks; it needs a power of two: start %d or %d", run.ranks, ranks,
            2 * ranks);
    if (few < micro_batches)
        die("option --any-ranks 1: %d micro-batches per step on each rank; it needs a power of two: use -d "
            "%lld or -d %lld",
            micro_batches, few * tokens_at_once, 2LL * few * tokens_at_once);
}

void data_divide(TrainingData *d, GPT2 *m) {
    if (opt.fit && opt.total_batch > 0 && !option_is_given(option_named("-b")))
        m->B = rows_that_divide(m, opt.total_batch);  // the search tries others
    d->tokens_at_once = (long long)m->B * m->T * run.ranks;
    long long of_file = d->tokens_at_once * (opt.micro_batches ? opt.micro_batches : 1);
    const SavedRun *saved = opt.micro_batches ? NULL : checkpoint_saved();
    long long tokens_a_step = opt.total_batch > 0 ? opt.total_batch : saved ? saved->tokens_a_step : of_file;
    if (tokens_a_step % d->tokens_at_once) refuse_batch(m, tokens_a_step, opt.total_batch <= 0 && saved);
    if (tokens_a_step / d->tokens_at_once > INT32_MAX)
        die("option -d %lld: needs %lld micro-batches per step, which is too many; raise -b", tokens_a_step,
            tokens_a_step / d->tokens_at_once);
    d->micro_batches = m->micro_batches = (int)(tokens_a_step / d->tokens_at_once);
    if (opt.any_ranks) check_any_ranks(d->micro_batches, d->tokens_at_once);
    check_zero_file(d->micro_batches);
}

// Returns the number of batches per validation. The default -m takes fewer if the data has fewer.
static int count_val_batches(const DataLoader *val, const GPT2 *m) {
    const int64_t there = val->num_rows / ((int64_t)m->B * run.ranks);
    if (opt.val_batches >= 0 && opt.val_batches <= there) return opt.val_batches;
    if (opt.val_batches > there && option_named("-m")->given)
        die("option -m %d: %s has only %lld batches of B x T x ranks = %d x %d x %d tokens; lower -m, or "
            "set it to -1 for all of them",
            opt.val_batches, opt.val_data, (long long)there, m->B, m->T, run.ranks);
    return there < INT_MAX ? (int)there : INT_MAX;
}

void data_open(TrainingData *d, const GPT2 *m) {
    const int B = m->B, T = m->T, V = m->config.vocab_size;
    require_shards("-i", opt.train_data);
    // By layers, a rank's micro-batches of a step follow each other in the data: together they are one batch.
    const int rows = m->by_layers ? B * d->micro_batches : B;
    gpt2_check(dataloader_init(&d->train, opt.train_data, rows, T, V, run.rank, run.ranks, opt.shuffle,
                               (uint32_t)opt.seed));
    d->steps = (int)(d->train.num_tokens / (d->tokens_at_once * d->micro_batches));
    if (opt.max_steps >= 0) d->steps = opt.max_steps;
    if (opt.val_every) {
        require_shards("-j", opt.val_data);
        gpt2_check(dataloader_init(&d->val, opt.val_data, B, T, V, run.rank, run.ranks, 0, 0));
        d->val_batches = count_val_batches(&d->val, m);
    }
    if (opt.hellaswag) {
        require_file("--hellaswag", opt.hellaswag_data);
        gpt2_check(hellaswag_open(&d->hellaswag, opt.hellaswag_data, B, T, V, run.rank, run.ranks));
    }
    if (opt.sample_every || opt.output)
        d->tokenizer_file = open_tokenizer(&d->tokenizer, V, NULL, opt.sample_every ? AS_NUMBERS : NULL);
}

void data_keep_tokenizer(const TrainingData *d) {
    if (run.rank == 0 && opt.output && d->tokenizer_file) copy_to_output(d->tokenizer_file, TOKENIZER_FILE);
}

void data_close(TrainingData *d) {
    dataloader_free(&d->train);
    if (opt.val_every) dataloader_free(&d->val);
    hellaswag_close(&d->hellaswag);
    tokenizer_free(&d->tokenizer);
}

// -------- what must be the same on all ranks

enum { FILE_BLOCKS = 64 };  // blocks read per file, or in total for all shards: 1 MiB

static const char *print_of(const char *path, int blocks) {
    static char print[FINGERPRINT];
    gpt2_check(fingerprint_of_file(path, blocks, print));
    return print;
}

static void describe_option(FILE *f, const Option *o) {
    char value[PATH_MAX];
    if (o->own || o->kind == FLAG || !o->value) return;
    option_text(o, &opt, value, sizeof value);
    const int given = option_is_number(o) ? strtod(value, NULL) >= o->min : *value;
    fprintf(f, "%s = %s\n", o->name, given ? value : "not given");
}

// A model file is compared by contents, whatever its name, and a folder by its files' contents.
static void describe_stored(FILE *f) {
    GPT2Stored stored;
    if (!hf_is_folder(opt.model)) {
        fprintf(f, "-e = a file of %s\n", print_of(opt.model, FILE_BLOCKS));
        return;
    }
    gpt2_check(gpt2_stored_open(opt.model, &stored));
    for (char *const *path = stored.files; *path; path++)
        fprintf(f, "-e, %s = a file of %s\n", basename(*path), print_of(*path, FILE_BLOCKS));
    gpt2_stored_close(&stored);
}

static void describe_model_source(FILE *f, int resume_step) {
    if (resume_step >= 0) {
        const char *manifest = in_folder(checkpoint_chosen(), "manifest.json");
        fprintf(f, "checkpoint to resume = step %d\n", resume_step);
        fprintf(f, "its manifest.json = a file of %s\n", print_of(manifest, FILE_BLOCKS));
        return;
    }
    fprintf(f, "checkpoint to resume = %s\n", opt.resume ? "none" : "not requested");
    if (gpt2_is_stored(opt.model))
        describe_stored(f);
    else
        fprintf(f, "-e = %s\n", opt.model);
}

static void describe_shards(FILE *f, const char *option, const DataLoader *l) {
    int n = (int)l->files.gl_pathc, blocks = FILE_BLOCKS / n > 1 ? FILE_BLOCKS / n : 1;
    fprintf(f, "%s, number of shards = %d\n", option, n);
    for (int i = 0; i < n; i++) {
        const char *path = l->files.gl_pathv[i];
        fprintf(f, "%s, shard %d = %s, %s\n", option, i, basename(path), print_of(path, blocks));
    }
}

char *must_be_same(const GPT2 *model, int resume_step, const DataLoader *train, const DataLoader *val) {
    Text t;
    text_begin(&t);
    FILE *f = t.f;
    for (int i = 0; i < num_options; i++) describe_option(f, &option_table[i]);
    fprintf(f, "--device %s = %s\n", opt.device, run.layers->device);
    fprintf(f, "--dtype %s = %s\n", opt.dtype, dtype_name(model->dtype));
    describe_model_source(f, resume_step);
    fprintf(f, "model = %s\n", sizes_of(&model->config));
    fprintf(f, "--tune = %s\n", opt.tune ? "a file, of rank 0" : "not given");
    struct stat st;
    const int is_file = opt.prompts && !stat(opt.prompts, &st) && S_ISREG(st.st_mode);
    fprintf(f, "--prompts = %s%s\n",
            is_file       ? "a file of "
            : opt.prompts ? "a pipe"
                          : "not given",
            is_file ? print_of(opt.prompts, FILE_BLOCKS) : "");
    if (!is_answering(&opt)) describe_shards(f, "-i", train);
    if (!is_answering(&opt) && opt.val_every) describe_shards(f, "-j", val);
    if (!is_answering(&opt) && opt.hellaswag)
        fprintf(f, "--hellaswag = a file of %s\n", print_of(opt.hellaswag_data, FILE_BLOCKS));
    return text_end(&t);
}
