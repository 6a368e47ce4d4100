#include "export.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../gpt2/error.h"
#include "../gpt2/hf.h"
#include "checkpoint.h"
#include "die.h"
#include "inputs.h"
#include "machine.h"
#include "options.h"
#include "run.h"

static struct {
    const char *path;   // what --export names, or the newest checkpoint in it
    int is_checkpoint;  // one of zero_save
    GPT2Stored stored;  // else
} from;

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

// --------
// options

// Every other option would have no effect.
static void check_options(void) {
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
    if (ends_with(opt.export_to, ".bin") && (!access(opt.export_to, F_OK) || errno != ENOENT))
        die("option --to %s: is there already; nothing is written over it", opt.export_to);
}

// --------
// from

static void find_checkpoint(GPT2 *model) {
    char *text;
    zero_check(zero_checkpoint_text(from.path, &text));
    if (saved_run_config(text, &model->config)) die("%s: %s", from.path, gpt2_last_error());
    free(text);
}

void export_find(GPT2 *model) {
    check_options();
    from.path = opt.export_from;
    if (is_folder(from.path) && !has_manifest(from.path) && !hf_is_folder(from.path)) {
        from.path = checkpoint_in(opt.export_from);
        if (!from.path)
            die("option --export %s: there is no complete checkpoint in this folder, and no "
                "model.safetensors",
                opt.export_from);
    }
    from.is_checkpoint = has_manifest(from.path);
    if (from.is_checkpoint)
        find_checkpoint(model);
    else {
        gpt2_check(ends_with(from.path, ".bin") && checkpoint_check_model(from.path) < 0);
        gpt2_check(gpt2_stored_open(from.path, &from.stored));
        model->config = from.stored.config;
    }
    gpt2_tensors(&model->config, model->tensors);
}

static int get_master(void *ctx, int tensor, int layer, int64_t offset, int64_t n, float *values) {
    int rc = zero_checkpoint_get(ctx, ZERO_MASTER, tensor, layer, offset, n, values);
    return rc ? gpt2_fail("%s", zero_last_error()) : 0;
}

static void open_checkpoint(const GPT2 *model) {
    const PluginTables *t = &model->tables;
    zero_checkpoint *c;
    zero_check(zero_checkpoint_open(&c, from.path, t->tensors, NUM_PARAMETER_TENSORS, t->units, t->n_units));
    from.stored = (GPT2Stored){ .config = model->config, .get = get_master, .ctx = c };
}

static void close_source(void) {
    if (from.is_checkpoint) zero_checkpoint_close(from.stored.ctx);
    gpt2_stored_close(&from.stored);
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

static int write_folder(gpt2_dtype dtype) {
    Tokenizer tokenizer = { 0 };
    HfModel m = { from.stored.config, dtype, from.stored.get, from.stored.ctx, NULL };
    if (has_tokenizer(&tokenizer, m.config.vocab_size)) m.tokenizer = &tokenizer;
    int failed = hf_write(opt.export_to, &m);
    tokenizer_free(&tokenizer);
    return failed;
}

void export_write(const GPT2 *model) {
    const GPT2Config *c = &model->config;
    const gpt2_dtype dtype = strcmp(opt.dtype, "bf16") ? GPT2_F32 : GPT2_BF16;
    if (from.is_checkpoint) open_checkpoint(model);
    gpt2_check(ends_with(opt.export_to, ".bin")
                   ? gpt2_file_write(opt.export_to, c, dtype, from.stored.get, from.stored.ctx, 1)
                   : write_folder(dtype));
    close_source();
    print0("%s: %s in %s, %lld parameters, L %d, NH %d, C %d, V %d, longest sequence %d\n", opt.export_to,
           from.path, dtype_name(dtype), (long long)gpt2_num_parameters(c), c->num_layers, c->num_heads,
           c->channels, c->vocab_size, c->max_seq_len);
}
