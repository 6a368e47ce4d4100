// Reads the tensors of a checkpoint without a plugin, for tools that convert or inspect checkpoints.
#include "../device/numbers.h"
#include "../layout.h"
#include "block_sums.h"
#include <stdlib.h>

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

static void round_to(zero_dtype dtype, float *values, int64_t n) {
    if (dtype == ZERO_BF16)
        for (int64_t i = 0; i < n; i++) values[i] = bf16_widen(bf16_round(values[i]));
    if (dtype == ZERO_F16)
        for (int64_t i = 0; i < n; i++) values[i] = fp16_widen(fp16_round(values[i]));
}

zero_dtype zero_checkpoint_dtype(const zero_checkpoint *c) { return c->m.dtype; }

int zero_checkpoint_get(zero_checkpoint *c, zero_value what, int tensor, int layer, int64_t offset, int64_t n,
                        float *values) {
    const int saved = saved_number(what);
    const layout_place *p = layout_find(&c->layout, tensor, layer);
    if (!p) return ZERO_ERR_MISUSE;
    if (saved < 0)
        return zero_fail(ZERO_ERR_MISUSE,
                         "zero_checkpoint_get: a checkpoint has masters, from which parameters follow, and "
                         "both moments");
    if (offset < 0 || n < 0 || n > p->elems || offset > p->elems - n)
        return zero_fail(ZERO_ERR_MISUSE,
                         "zero_checkpoint_get: %s has %lld elements, not [%lld, %lld + %lld)",
                         c->layout.tensors[tensor].name, (long long)p->elems, (long long)offset,
                         (long long)offset, (long long)n);
    ZERO_TRY(blocks_read_unit(&c->from, layout_unit_of(&c->layout, p), saved, p->offset + offset, n, values));
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
