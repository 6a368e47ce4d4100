#include "offline.h"
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "../../gpt2/gpt2_error.h"
#include "../../gpt2/hf.h"
#include "../../llmc_zero/zero.h"
#include "../running/inputs.h"
#include "../running/machine.h"
#include "../options/options.h"
#include "../running/run.h"
#include "saved_list.h"
#include "saved_model.h"
#include "saved_run.h"

// -------- --verify

static void print_good(void *ctx, const char *file, int64_t bytes) {
    print0("%s: good, %lld bytes\n", file, (long long)bytes);
}

static int print_bad(void) {
    print0("BAD %s\n", gpt2_last_error());
    return EXIT_FAILURE;
}

// Each of the next three returns 0, or -1 with gpt2_last_error().
static int verify_model(const char *path) {
    struct stat st;
    const model_state is = model_file_check(path);
    if (is == MODEL_ALONE) return gpt2_fail("%s: cannot be verified without its checkpoint", path);
    if (is != MODEL_GOOD) return -1;
    if (stat(path, &st)) return gpt2_fail("%s: %s", path, strerror(errno));
    print_good(NULL, path, st.st_size);
    return 0;
}

// A run does not resume from a checkpoint with a different step in its name. A name without a step is
// accepted.
static int verify_name(const char *states) {
    SavedRun saved;
    const int step = checkpoint_step_of(states);
    const int is_other = step >= 0 && !saved_run_of(&saved, states) && saved.state.step != step;
    if (step >= 0) saved_run_free(&saved);
    return is_other ? gpt2_fail("%s: was saved at step %d", states, saved.state.step) : 0;
}

// A checkpoint is complete without its model file, which a run may remove at any moment.
static int verify_both(const char *states) {
    char model[OUTPUT_PATH];
    if (zero_checkpoint_verify(states, print_good, NULL)) return gpt2_fail("%s", zero_last_error());
    if (verify_name(states)) return -1;
    if (checkpoint_model_of(model, states) || !file_is_there(model)) return 0;
    return verify_model(model) && file_is_there(model) ? -1 : 0;
}

// A run that saves in this folder may remove a checkpoint meanwhile. An incomplete checkpoint of a killed
// save is not reported as damaged.
static int verify_found(const Found *f, int *checked) {
    if (!f->complete && !f->damaged) {
        print0("%s: the save did not finish, so it is not a checkpoint\n", f->path);
        return 0;
    }
    const int bad = f->damaged ? checkpoint_is_damaged(f) : verify_both(f->path);
    if (bad && f->complete && !is_checkpoint(f->path)) {
        print0("%s: removed meanwhile\n", f->path);
        return 0;
    }
    *checked += 1;
    return bad ? print_bad() : 0;
}

static int verify_all(const char *path) {
    Listing l = checkpoints_in("--verify", path);
    int bad = 0, checked = 0;
    for (int i = 0; i < l.n; i++) bad |= verify_found(&l.found[i], &checked);
    free(l.found);
    if (checked) return bad;
    gpt2_fail("%s: has no complete checkpoint", path);
    return print_bad();
}

int verify(const char *path) {
    struct stat st;
    int bad;
    if (stat(path, &st))
        bad = gpt2_fail("%s: %s", path, strerror(errno));
    else if (S_ISREG(st.st_mode) && !fnmatch("model_*.bin", basename(path), 0))
        bad = verify_model(path);
    else if (!S_ISDIR(st.st_mode))
        bad = gpt2_fail("%s: neither a folder nor model_NNNNNNNN.bin", path);
    else if (is_checkpoint(path))
        bad = verify_both(path);
    else
        return verify_all(path);
    return bad ? print_bad() : EXIT_SUCCESS;
}

// -------- --export

static int ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

static int is_file_to_write(void) { return ends_with(opt.export_to, ".bin"); }

// Refuses all other options, since they would have no effect.
static void check_options(void) {
    struct stat st;
    static const char *const used[] = { "--export", "--to", "--dtype", "--tokenizer" };
    if (!opt.export_from) die("option --to %s: add --export and the model to write", opt.export_to);
    for (const Option *o = option_table; o < option_table + num_options; o++) {
        int known = o->kind == HEADING || !option_is_given(o);
        for (size_t i = 0; i < sizeof used / sizeof *used; i++) known |= !strcmp(o->name, used[i]);
        if (!known) die("option %s: cannot be used with --export", o->name);
    }
    if (!opt.export_to)
        die("option --export %s: add --to and a name: NAME.bin for llm.c, any other name for a folder",
            opt.export_from);
    if (run.ranks > 1)
        die("option --export: needs one process, so start it without mpirun or srun (%d ranks)", run.ranks);
    if (!strcmp(opt.dtype, "fp16")) die("option --dtype fp16: an export must be in fp32 or bf16");
    if (is_file_to_write() && opt.tokenizer)
        die("option --tokenizer %s: %s is in llm.c's file format, which holds no tokenizer; export to a "
            "folder",
            opt.tokenizer, opt.export_to);
    if (is_file_to_write() && (!lstat(opt.export_to, &st) || errno != ENOENT))
        die("option --to %s: already exists; nothing is overwritten", opt.export_to);
}

// Returns the path of --export, or of the newest checkpoint in it.
static const char *find_source(void) {
    static Listing l;
    const char *path = opt.export_from;
    require_file("--export", path);
    if (!is_folder(path) || is_checkpoint(path) || hf_is_folder(path)) return path;
    l = checkpoints_in("--export", path);
    if (!l.newest)
        die("option --export %s: this folder has neither a complete checkpoint nor model.safetensors", path);
    return l.newest->path;
}

static int open_source(const char *path, GPT2Stored *from) {
    if (is_checkpoint(path)) return saved_model_open(path, ZERO_MASTER, from);
    if (ends_with(path, ".bin")) check_model_file("--export", path);
    return gpt2_stored_open(path, from);
}

static int write_folder(const GPT2Stored *from, const char *path, gpt2_dtype dtype) {
    Tokenizer tokenizer = { 0 };
    open_tokenizer(&tokenizer, from->config.vocab_size, path, "none is exported; name one with --tokenizer");
    HfModel m = { from->config, dtype, from->get, from->ctx, tokenizer.vocab_size ? &tokenizer : NULL };
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
                                    : write_folder(&from, path, dtype);
    if (!failed)
        print0("%s: %s in %s, %lld parameters, %s\n", opt.export_to, path, dtype_name(dtype),
               (long long)gpt2_num_parameters(c), sizes_of(c));
    gpt2_stored_close(&from);
    return failed;
}

void export_model(void) {
    check_options();
    gpt2_check(export_one(find_source()));
}
