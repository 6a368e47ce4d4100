#include "manifest.h"
#define XXH_INLINE_ALL
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

// If a row cannot be allocated the whole array is dropped: without it the array would describe another model.
static json_t *append(json_t *rows, json_t *row) {
    if (!json_array_append_new(rows, row)) return rows;
    json_decref(rows);
    return NULL;
}

static json_t *tensor_row(const zero_tensor *t) {
    json_t *dims = json_array();
    for (int i = 0; i < t->n_dims; i++) dims = append(dims, json_integer(t->dims[i]));
    return json_pack("{s:s, s:o, s:i, s:i, s:b}", "name", t->name, "dims", dims, "layers", t->layers, "unit",
                     t->unit, "decay", t->decay != 0);
}

static json_t *all_tensors(const layout *l) {
    json_t *rows = json_array();
    for (int i = 0; i < l->n_tensors; i++) rows = append(rows, tensor_row(&l->tensors[i]));
    return rows;
}

static json_t *unit_row(const layout *l, const layout_unit *u) {
    json_t *places = json_array();
    for (int i = u->first_place; i < u->first_place + u->n_places; i++) {
        const layout_place *p = &l->places[i];
        places = append(places, json_pack("{s:i, s:i, s:I}", "tensor", p->tensor, "layer", p->layer, "offset",
                                          (json_int_t)p->offset));
    }
    return json_pack("{s:s, s:I, s:o}", "name", u->name, "elems",
                     (json_int_t)layout_extent(l, (int)(u - l->units)), "tensors", places);
}

static json_t *all_units(const layout *l) {
    json_t *rows = json_array();
    for (int i = 0; i < l->n_units; i++) rows = append(rows, unit_row(l, &l->units[i]));
    return rows;
}

static json_t *part_row(const saved_part *p) {
    json_t *row = json_pack("{s:i, s:I, s:I}", "unit", p->unit, "from", (json_int_t)p->from, "elems",
                            (json_int_t)p->elems);
    for (int i = 0; i < SAVED; i++) {
        if (!json_object_set_new(row, saved_names[i], json_integer(p->at[i]))) continue;
        json_decref(row);
        return NULL;
    }
    return row;
}

static json_t *all_parts(const manifest_file *f) {
    json_t *rows = json_array();
    for (const saved_part *p = f->parts; p < f->parts + f->n_parts; p++) rows = append(rows, part_row(p));
    return rows;
}

// The digests of the blocks, 16 hex digits each, in one string. NULL: out of memory.
static json_t *all_digests(const manifest_file *f) {
    char *hex = malloc(16 * f->n_blocks + 1);
    if (!hex) return NULL;
    *hex = 0;
    for (int64_t i = 0; i < f->n_blocks; i++)
        sprintf(hex + 16 * i, "%016llx", (unsigned long long)f->digests[i]);
    json_t *text = json_string(hex);
    free(hex);
    return text;
}

static json_t *all_files(const manifest_file *files, int n) {
    json_t *rows = json_array();
    for (const manifest_file *f = files; f < files + n; f++)
        rows = append(rows, json_pack("{s:s, s:I, s:o, s:o}", "name", f->name, "bytes", (json_int_t)f->bytes,
                                      "parts", all_parts(f), "xxh3", all_digests(f)));
    return rows;
}

static json_t *scale_of(const loss_scale *s) {
    return json_pack("{s:f, s:I, s:I, s:i}", "value", s->value, "steps", (json_int_t)s->steps,
                     "last_overflow", (json_int_t)s->last_overflow, "left", s->left);
}

static json_t *describe(const zero *z, const manifest_file *files, const loss_scale *scale,
                        const json_t *trainer) {
    const layout *l = &z->layout;
    return json_pack("{s:s, s:i, s:s, s:s, s:b, s:i, s:i, s:o, s:o, s:o, s:o, s:O}", "format",
                     MANIFEST_FORMAT, "version", MANIFEST_VERSION, "library", ZERO_VERSION, "dtype",
                     dtype_name(z->config.numbers.dtype), "masters", states_get(z, ZERO_MASTER)->kept,
                     "ranks", l->ranks, "block_bytes", (int)BLOCK_BYTES, "loss_scale", scale_of(scale),
                     "tensors", all_tensors(l), "units", all_units(l), "files", all_files(files, l->ranks),
                     "trainer", trainer);
}

// Each member is on a line, and so is each element of an array of objects.
static int print_member(FILE *f, const char *key, const json_t *value) {
    const size_t flags = JSON_COMPACT | JSON_ENCODE_ANY;
    const size_t n = json_array_size(value);
    fprintf(f, "\"%s\": ", key);
    if (!n) return json_dumpf(value, f, flags);
    for (size_t i = 0; i < n; i++) {
        fprintf(f, "%s", i ? ",\n " : "[\n ");
        if (json_dumpf(json_array_get(value, i), f, flags)) return -1;
    }
    fprintf(f, "\n]");
    return 0;
}

static int print_all(FILE *f, json_t *root) {
    const char *key, *before = "{\n";
    json_t *value;
    json_object_foreach(root, key, value) {
        fprintf(f, "%s", before);
        if (print_member(f, key, value)) return -1;
        before = ",\n";
    }
    return ferror(f);
}

char *manifest_write(const zero *z, const manifest_file *files, const loss_scale *scale,
                     const json_t *trainer) {
    char *text = NULL;
    size_t bytes = 0;
    json_t *root = describe(z, files, scale, (json_t *)trainer);
    FILE *f = root ? open_memstream(&text, &bytes) : NULL;
    int failed = !f || print_all(f, root) || fflush(f);
    if (!failed) fprintf(f, ",\n\"xxh3\": \"%016llx\"\n}\n", (unsigned long long)XXH3_64bits(text, bytes));
    if (f && fclose(f)) failed = 1;
    json_decref(root);
    if (!failed) return text;
    free(text);
    return NULL;
}
