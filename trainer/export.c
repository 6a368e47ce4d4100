#include "export.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../gpt2/gpt2_error.h"
#include "../gpt2/hf.h"
#include "checkpoint.h"
#include "checkpoint_stored.h"
#include "inputs.h"
#include "machine.h"
#include "options.h"
#include "run.h"

static int ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

static int is_folder(const char *path) {
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

static int has_manifest(const char *folder) {
    char path[PATH_MAX];
    return !hf_path(path, sizeof path, folder, "manifest.json") && !access(path, F_OK);
}

static int is_file_to_write(void) { return ends_with(opt.export_to, ".bin"); }

// --------
// options

// All other options would have no effect.
static void check_options(void) {
    struct stat st;
    static const char *const used[] = { "--export", "--to", "--dtype", "--tokenizer" };
    for (const Option *o = option_table; o < option_table + num_options; o++) {
        int known = o->kind == HEADING || !option_is_given(o);
        for (size_t i = 0; i < sizeof used / sizeof *used; i++) known |= !strcmp(o->name, used[i]);
        if (!known) die("option %s: it has no meaning with --export", o->name);
    }
    if (!opt.export_from) die("option --to %s: add --export and the model to write", opt.export_to);
    if (!opt.export_to)
        die("option --export %s: add --to and a name: NAME.bin for llm.c, any other one for a folder",
            opt.export_from);
    if (run.ranks > 1)
        die("option --export: one process writes, so start it without mpirun or srun (%d ranks)", run.ranks);
    if (!strcmp(opt.dtype, "fp16")) die("option --dtype fp16: an export is in fp32 or bf16");
    if (is_file_to_write() && opt.tokenizer)
        die("option --tokenizer %s: %s is llm.c's file, which has no tokenizer; a folder has", opt.tokenizer,
            opt.export_to);
    if (is_file_to_write() && (!lstat(opt.export_to, &st) || errno != ENOENT))
        die("option --to %s: is there already; nothing is written over it", opt.export_to);
}

// --------
// from

static int is_run(const char *path) { return is_folder(path) && !has_manifest(path) && !hf_is_folder(path); }

// The path of --export, or the newest checkpoint in it.
static const char *find_source(void) {
    if (!is_run(opt.export_from)) return opt.export_from;
    const char *path = checkpoint_in(opt.export_from);
    if (!path)
        die("option --export %s: there is no complete checkpoint in this folder, and no model.safetensors",
            opt.export_from);
    return path;
}

static int open_source(const char *path, GPT2Stored *from) {
    if (has_manifest(path)) return checkpoint_stored_open(path, ZERO_MASTER, from);
    if (ends_with(path, ".bin") && checkpoint_check_model(path) < 0) return -1;
    return gpt2_stored_open(path, from);
}

// --------
// to

static int has_tokenizer(Tokenizer *t, int V) {
    const char *path = opt.tokenizer ? opt.tokenizer : usual_tokenizer(V);
    if (!strcmp(path, "none")) return 0;
    if (!opt.tokenizer && access(path, F_OK)) {
        print0("no tokenizer is written: there is no %s; --tokenizer names one\n", path);
        return 0;
    }
    open_tokenizer(t, V);
    return 1;
}

static int write_folder(const GPT2Stored *from, gpt2_dtype dtype) {
    Tokenizer tokenizer = { 0 };
    HfModel m = { from->config, dtype, from->get, from->ctx, NULL };
    if (has_tokenizer(&tokenizer, m.config.vocab_size)) m.tokenizer = &tokenizer;
    int failed = hf_write(opt.export_to, &m);
    tokenizer_free(&tokenizer);
    return failed;
}

static int export_one(const char *path) {
    const gpt2_dtype dtype = strcmp(opt.dtype, "bf16") ? GPT2_F32 : GPT2_BF16;
    GPT2Stored from;
    if (open_source(path, &from)) return -1;
    const GPT2Config *c = &from.config;
    int failed = is_file_to_write() ? gpt2_file_write(opt.export_to, c, dtype, from.get, from.ctx)
                                    : write_folder(&from, dtype);
    if (!failed)
        print0("%s: %s in %s, %lld parameters, L %d, NH %d, C %d, V %d, longest sequence %d\n", opt.export_to,
               path, dtype_name(dtype), (long long)gpt2_num_parameters(c), c->num_layers, c->num_heads,
               c->channels, c->vocab_size, c->max_seq_len);
    gpt2_stored_close(&from);
    return failed;
}

// A run saving in this folder may remove the newest one meanwhile; then a newer one exists.
void export_model(void) {
    check_options();
    const char *path = find_source();
    while (export_one(path)) {
        gpt2_check(!is_run(opt.export_from) || has_manifest(path) ? -1 : 0);
        print0("%s: removed meanwhile; looking for a newer checkpoint\n", path);
        path = find_source();
    }
}
