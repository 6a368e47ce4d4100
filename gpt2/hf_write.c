// Writes a GPT-2 as a transformers folder.
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "disk.h"
#include "gpt2_error.h"
#include "hf.h"
#include "safetensors.h"
#include "transpose.h"

// -------- the weights

// Visits the tensors in the file's order: layer by layer.
typedef int (*Visitor)(void *ctx, int tensor, int layer);
static int each_tensor(const GPT2Config *config, Visitor visit, void *ctx) {
    if (visit(ctx, WTE, 0) || visit(ctx, WPE, 0)) return -1;
    for (int l = 0; l < config->num_layers; l++)
        for (int i = LN1W; i <= FCPROJB; i++)
            if (visit(ctx, i, l)) return -1;
    return visit(ctx, LNFW, 0) || visit(ctx, LNFB, 0) ? -1 : 0;
}

typedef struct {
    const HfModel *m;
    SafeHeader header;
    disk_file file;
    Transposer transposer;
    float *values;  // (GPT2_PIECE)
} Weights;

static int add_to_header(void *ctx, int tensor, int layer) {
    Weights *w = ctx;
    char name[HF_NAME], full[HF_NAME + 16];
    int64_t dims[2];
    int n_dims;
    hf_name(name, tensor, layer);
    snprintf(full, sizeof full, "transformer.%s", name);
    hf_shape(&w->m->config, tensor, dims, &n_dims);
    return safe_header_add(&w->header, full, w->m->dtype, dims, n_dims);
}

static int write_header(Weights *w) {
    char *text = NULL;
    size_t bytes;
    if (safe_header_begin(&w->header)) return -1;
    int failed = each_tensor(&w->m->config, add_to_header, w);
    if (safe_header_end(&w->header, &text, &bytes)) failed = -1;
    if (!failed) failed = disk_write(&w->file, text, bytes);
    free(text);
    return failed;
}

static int write_tensor(void *ctx, int tensor, int layer) {
    Weights *w = ctx;
    int64_t dims[2] = { 1, 1 };
    int n_dims;
    hf_shape(&w->m->config, tensor, dims, &n_dims);
    const int64_t elems = n_dims == 2 ? dims[0] * dims[1] : dims[0];
    for (int64_t at = 0, n; at < elems; at += n) {
        n = elems - at < GPT2_PIECE ? elems - at : GPT2_PIECE;
        int failed = hf_is_transposed(tensor)
                         ? transposer_get(&w->transposer, tensor, layer, dims[1], dims[0], at, n, w->values)
                         : w->m->get(w->m->ctx, tensor, layer, at, n, w->values);
        if (failed || disk_write(&w->file, w->values, gpt2_to_dtype(w->m->dtype, w->values, n))) return -1;
    }
    return 0;
}

static int write_weights(const char *folder, const HfModel *m) {
    Weights w = { .m = m };
    char path[PATH_MAX];
    if (hf_path(path, sizeof path, folder, HF_WEIGHTS)) return -1;
    w.values = malloc(GPT2_PIECE * sizeof *w.values);
    int failed = w.values ? 0 : gpt2_fail("%s: no memory for its pieces", path);
    if (transposer_begin(&w.transposer, m->get, m->ctx)) failed = -1;
    if (!failed) failed = disk_create(&w.file, path);
    if (!failed) failed = write_header(&w);
    if (!failed) failed = each_tensor(&m->config, write_tensor, &w);
    if (w.file.f) failed = disk_finish(&w.file, failed);
    transposer_end(&w.transposer);
    free(w.values);
    return failed;
}

// -------- the folder

// Returns 0 if the folder does not exist or is empty.
static int check_free(const char *folder) {
    int entries = 0;
    struct stat st;
    if (!lstat(folder, &st) && S_ISLNK(st.st_mode))
        return gpt2_fail("%s: is a symlink; name the folder itself", folder);
    DIR *dir = opendir(folder);
    if (!dir && errno == ENOENT) return 0;
    if (!dir) return gpt2_fail("%s: cannot be a new folder: %s", folder, strerror(errno));
    for (struct dirent *e = readdir(dir); e; e = readdir(dir))
        entries += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
    closedir(dir);
    if (!entries) return 0;
    return gpt2_fail("%s: already exists and is not empty; nothing is overwritten", folder);
}

static void remove_folder(const char *folder) {
    char path[PATH_MAX];
    DIR *dir = opendir(folder);
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir)) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        if (!hf_path(path, sizeof path, folder, e->d_name)) unlink(path);
    }
    if (dir) closedir(dir);
    rmdir(folder);
}

// Without a tokenizer, takes the last token as the end of text, as in GPT-2's vocabulary.
static int write_files(const char *folder, const HfModel *m) {
    const int eot = m->tokenizer ? m->tokenizer->eot_token : m->config.vocab_size - 1;
    if (hf_config_write(folder, m, eot)) return -1;
    if (m->tokenizer && hf_tokenizer_write(folder, m->tokenizer, &m->config)) return -1;
    return write_weights(folder, m);
}

int hf_write(const char *name, const HfModel *m) {
    char folder[PATH_MAX], temporary[PATH_MAX];
    if (snprintf(folder, sizeof folder, "%s", name) >= (int)sizeof folder)
        return gpt2_fail("%.64s...: the name is too long", name);
    for (size_t n = strlen(folder); n > 1 && folder[n - 1] == '/'; n--) folder[n - 1] = 0;  // "out/" is "out"
    if (check_free(folder) || disk_temporary(temporary, folder)) return -1;
    if (mkdir(temporary, 0777)) return gpt2_fail("%s: cannot create: %s", temporary, strerror(errno));
    int failed = write_files(temporary, m);
    if (!failed && rename(temporary, folder))
        failed = gpt2_fail("%s: cannot rename %s to it: %s", folder, temporary, strerror(errno));
    if (!failed) return disk_sync_parent(folder);
    remove_folder(temporary);
    return failed;
}
