#include "alike.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../gpt2/fingerprint.h"
#include "../gpt2/hf.h"
#include "checkpoint.h"
#include "die.h"
#include "inputs.h"
#include "machine.h"
#include "options.h"
#include "run.h"

enum { FILE_BLOCKS = 64 };  // read of a file or of all shards: 1 MiB

// Options that may differ between ranks: paths, since the files' contents are compared instead, and options
// that change neither results nor how ranks work together.
static int may_differ(const Option *o) {
    static const char *const own[] = { "-i",        "-j",        "-e",         "--tokenizer",
                                       "-o",        "--trace",   "--tune",     "--zero-config",
                                       "--threads", "--overlap", "--progress", "--nvme",
                                       "--prompts", "--resume",  "--verify" };
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!strcmp(o->name, own[i])) return 1;
    return !strncmp(o->name, "-p", 2);  // these tell ranks how to find each other, which is done by now
}

static void describe_option(FILE *f, const Option *o) {
    char value[PATH_MAX];
    if (may_differ(o) || o->kind == FLAG || !o->value) return;
    option_text(o, &opt, value, sizeof value);
    const int given = option_is_number(o) ? strtod(value, NULL) >= o->min : *value;
    fprintf(f, "%s = %s\n", o->name, given ? value : "not given");
}

static void describe_file(FILE *f, const char *what, const char *name, const char *path) {
    char print[FINGERPRINT];
    gpt2_check(fingerprint_of_file(path, FILE_BLOCKS, print));
    fprintf(f, "%s%s = a file of %s\n", what, name, print);
}

// A model file is compared by its contents, whatever its name; a folder by those of its files.
static void describe_stored(FILE *f) {
    GPT2Stored stored;
    if (!hf_is_folder(opt.model)) {
        describe_file(f, "-e", "", model_path());
        return;
    }
    gpt2_check(gpt2_stored_open(opt.model, &stored));
    for (char *const *path = stored.files; *path; path++)
        describe_file(f, "-e, ", strrchr(*path, '/') + 1, *path);
    gpt2_stored_close(&stored);
}

static void describe_model_source(FILE *f, int resume_step) {
    char print[FINGERPRINT];
    if (resume_step >= 0) {
        const char *path = checkpoint_evidence();
        gpt2_check(fingerprint_of_file(path, FILE_BLOCKS, print));
        fprintf(f, "checkpoint to resume = step %d\n", resume_step);
        fprintf(f, "its %s = a file of %s\n", strrchr(path, '/') + 1, print);
        return;
    }
    fprintf(f, "checkpoint to resume = %s\n", opt.resume ? "none" : "not looked for");
    if (gpt2_is_stored(opt.model))
        describe_stored(f);
    else
        fprintf(f, "-e = %s\n", opt.model);
}

static void describe_prompts(FILE *f) {
    char print[FINGERPRINT] = "";
    if (opt.prompts) gpt2_check(fingerprint_of_file(opt.prompts, FILE_BLOCKS, print));
    fprintf(f, "--prompts = %s%s\n", opt.prompts ? "a file of " : "not given", print);
}

static void describe_shards(FILE *f, const char *option, const DataLoader *l) {
    int n = (int)l->files.gl_pathc, blocks = FILE_BLOCKS / n > 1 ? FILE_BLOCKS / n : 1;
    char print[FINGERPRINT];
    fprintf(f, "%s, number of shards = %d\n", option, n);
    for (int i = 0; i < n; i++) {
        const char *path = l->files.gl_pathv[i], *slash = strrchr(path, '/');
        gpt2_check(fingerprint_of_file(path, blocks, print));
        fprintf(f, "%s, shard %d = %s, %s\n", option, i, slash ? slash + 1 : path, print);
    }
}

char *must_be_same(const GPT2 *model, int resume_step, const DataLoader *train, const DataLoader *val) {
    const GPT2Config *c = &model->config;
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    if (!f) die("out of memory for what the ranks compare");
    for (int i = 0; i < num_options; i++) describe_option(f, &option_table[i]);
    fprintf(f, "--device %s = %s\n", opt.device, run.layers->device);
    fprintf(f, "--dtype %s = %s\n", opt.dtype, dtype_name(model->dtype));
    describe_model_source(f, resume_step);
    fprintf(f, "model = L %d, NH %d, C %d, V %d, longest sequence %d\n", c->num_layers, c->num_heads,
            c->channels, c->vocab_size, c->max_seq_len);
    fprintf(f, "--tune = %s\n", opt.tune ? "a file, of rank 0" : "not given");
    describe_prompts(f);
    if (!opt.prompts) describe_shards(f, "-i", train);
    if (!opt.prompts && opt.val_every) describe_shards(f, "-j", val);
    int failed = ferror(f);
    if (fclose(f) || failed) die("out of memory for what the ranks compare");
    return text;
}

// Warns if this line differs between ranks.
static void note_difference(const char *what, const char *value) {
    char line[FINGERPRINT + 32];
    snprintf(line, sizeof line, "%s = %s", what, value);
    int rc = zero_require_same(run.z, line);
    if (rc == ZERO_ERR_ARGUMENT)
        print0("warning: %s; the last bits of the results depend on it\n", zero_last_error());
    else
        zero_check(rc);
}

void note_differences(void) {
    char text[FINGERPRINT];
    if (fingerprint_of_file("/proc/self/exe", FILE_BLOCKS, text)) strcpy(text, "unknown");
    note_difference("program", text);

    if (on_cuda()) {
        zero_job job;
        zero_job_info(run.z, &job);
        snprintf(text, sizeof text, "%s", job.device);
        note_difference("device", text);
        return;
    }
    fingerprint_of_processor(text);
    note_difference("instruction set", text);
    snprintf(text, sizeof text, "%d", run.threads);
    note_difference("threads", text);
}
