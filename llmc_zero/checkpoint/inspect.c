// Checkpoints without a plugin: reading the trainer's text and the tensors, verifying every byte, removal.
#include "../device/numbers.h"
#include "../layout.h"
#include "blocks.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int zero_checkpoint_text(const char *path, char **text) {
    manifest m;
    int rc = manifest_read(&m, path);
    if (!rc) rc = manifest_text(&m, text);
    manifest_free(&m);
    return rc;
}

// -------- the tensors

struct zero_checkpoint {
    layout layout;
    manifest m;
    block_reader from;
};

static int open_all(zero_checkpoint *c, const char *path, const zero_tensor *tensors, int n_tensors,
                    const zero_unit *units, int n_units) {
    ZERO_TRY(layout_init(&c->layout, 1, 0, tensors, n_tensors, units, n_units));
    ZERO_TRY(manifest_read(&c->m, path));
    ZERO_TRY(manifest_check_model(&c->m, &c->layout));
    return blocks_begin(&c->from, &c->m, NULL);
}

int zero_checkpoint_open(zero_checkpoint **c, const char *path, const zero_tensor *tensors, int n_tensors,
                         const zero_unit *units, int n_units) {
    *c = calloc(1, sizeof **c);
    if (!*c) return zero_fail(ZERO_ERR_MEMORY, "%s: out of memory to open it", path);
    (*c)->from.file = -1;
    int rc = open_all(*c, path, tensors, n_tensors, units, n_units);
    if (!rc) return 0;
    zero_checkpoint_close(*c);
    *c = NULL;
    return rc;
}

static int saved_number(zero_value what) {
    int i = SAVED - 1;
    if (what == ZERO_PARAM) what = ZERO_MASTER;
    while (i >= 0 && saved_values[i] != what) i--;
    return i;
}

static void round_to(zero_dtype dtype, float *x, int64_t n) {
    for (int64_t i = 0; i < n && dtype != ZERO_F32; i++)
        x[i] = dtype == ZERO_BF16 ? bf16_widen(bf16_round(x[i])) : fp16_widen(fp16_round(x[i]));
}

zero_dtype zero_checkpoint_dtype(const zero_checkpoint *c) { return c->m.dtype; }

int zero_checkpoint_get(zero_checkpoint *c, zero_value what, int tensor, int layer, int64_t offset, int64_t n,
                        float *values) {
    const int saved = saved_number(what);
    const layout_place *p = layout_find(&c->layout, tensor, layer);
    if (!p) return ZERO_ERR_MISUSE;
    if (saved < 0 || saved > c->m.update_states)
        return zero_fail(ZERO_ERR_MISUSE,
                         "zero_checkpoint_get: this checkpoint has only masters, from which parameters are "
                         "computed, and %d moments",
                         c->m.update_states);
    if (offset < 0 || n < 0 || n > p->elems || offset > p->elems - n)
        return zero_fail(ZERO_ERR_MISUSE,
                         "zero_checkpoint_get: %s has %lld elements, not [%lld, %lld + %lld)",
                         c->layout.tensors[tensor].name, (long long)p->elems, (long long)offset,
                         (long long)offset, (long long)n);
    if (saved && p->unit >= c->layout.n_units)
        return zero_fail(ZERO_ERR_MISUSE, "zero_checkpoint_get: %s is frozen, so it has parameters only",
                         c->layout.tensors[tensor].name);
    ZERO_TRY(blocks_read_unit(&c->from, p->unit, saved, p->offset + offset, n, values));
    if (what == ZERO_PARAM) round_to(c->m.dtype, values, n);
    return 0;
}

void zero_checkpoint_close(zero_checkpoint *c) {
    if (!c) return;
    blocks_end(&c->from);
    manifest_free(&c->m);
    layout_free(&c->layout);
    free(c);
}

// -------- verification

static int verify_files(const manifest *m, zero_verified told, void *ctx) {
    block_reader b;
    int rc = blocks_begin(&b, m, NULL);
    for (int i = 0; i < m->n_files && !rc; i++) {
        rc = blocks_check_file(&b, i);
        if (!rc && told) told(ctx, b.path, m->files[i].bytes);
    }
    blocks_end(&b);
    return rc;
}

int zero_checkpoint_verify(const char *path, zero_verified told, void *ctx) {
    manifest m;
    int rc = manifest_read(&m, path);
    if (!rc && told) told(ctx, m.path, m.bytes);
    if (!rc) rc = verify_files(&m, told, ctx);
    manifest_free(&m);
    return rc;
}

// -------- removal

int zero_checkpoint_remove(const char *path) {
    char manifest[PATH_MAX];
    if (access(path, F_OK) && errno == ENOENT) return 0;
    ZERO_TRY(folder_path(manifest, path, MANIFEST));
    if (unlink(manifest) && errno != ENOENT)
        return zero_fail(ZERO_ERR_IO, "%s: cannot be removed: %s", manifest, strerror(errno));
    ZERO_TRY(folder_sync(path));  // from now on it is not a checkpoint, whatever happens
    ZERO_TRY(folder_clean(path, NULL));
    if (rmdir(path)) return zero_fail(ZERO_ERR_IO, "%s: cannot be removed: %s", path, strerror(errno));
    return 0;
}
