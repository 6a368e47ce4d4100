#include "manifest.h"
#include "../base/text_file.h"
#include "../settings/settings.h"
#define XXH_INLINE_ALL
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// -------- writing

// Drops the whole array if a row cannot be allocated: without that row it would describe another model.
static json_t *append(json_t *rows, json_t *row) {
    if (!json_array_append_new(rows, row)) return rows;
    json_decref(rows);
    return NULL;
}

static json_t *tensor_row(const zero_tensor *t) {
    json_t *dims = json_array();
    for (int i = 0; i < t->n_dims; i++) dims = append(dims, json_integer(t->dims[i]));
    return json_pack("{s:s, s:o, s:i, s:i, s:o*, s:b, s:o*}", "name", t->name, "dims", dims, "layers",
                     t->layers, "unit", t->unit, "unit_step",
                     t->unit_step > 1 ? json_integer(t->unit_step) : NULL, "decay", t->decay != 0, "frozen",
                     t->frozen ? json_true() : NULL);
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
    const int unit = (int)(u - l->units);
    return json_pack("{s:s, s:I, s:o, s:o*}", "name", u->name, "elems", (json_int_t)layout_extent(l, unit),
                     "tensors", places, "frozen", u->of != unit ? json_true() : NULL);
}

static json_t *all_units(const layout *l) {
    json_t *rows = json_array();
    for (int i = 0; i < l->n_stored; i++) rows = append(rows, unit_row(l, &l->units[i]));
    return rows;
}

static json_t *part_row(const saved_part *p) {
    json_t *row = json_pack("{s:i, s:I, s:I}", "unit", p->unit, "from", (json_int_t)p->from, "elems",
                            (json_int_t)p->elems);
    for (int i = 0; i < SAVED && row; i++) {
        if (p->at[i] < 0 || !json_object_set_new(row, saved_names[i], json_integer(p->at[i]))) continue;
        json_decref(row);
        row = NULL;
    }
    return row;
}

static json_t *all_parts(const manifest_file *f) {
    json_t *rows = json_array();
    for (const saved_part *p = f->parts; p < f->parts + f->n_parts; p++) rows = append(rows, part_row(p));
    return rows;
}

// Returns the digests of the blocks, 16 hex digits each, in one string. NULL: out of memory.
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

static json_t *all_files(const manifest *m) {
    json_t *rows = json_array();
    for (const manifest_file *f = m->files; f < m->files + m->n_files; f++)
        rows = append(rows, json_pack("{s:s, s:I, s:o, s:o}", "name", f->name, "bytes", (json_int_t)f->bytes,
                                      "parts", all_parts(f), "xxh3", all_digests(f)));
    return rows;
}

static json_t *scale_of(const loss_scale *s) {
    return json_pack("{s:f, s:I, s:I, s:i}", "value", s->value, "steps", (json_int_t)s->steps,
                     "last_overflow", (json_int_t)s->last_overflow, "left", s->left);
}

static json_t *describe(const zero *z, const manifest *m) {
    const layout *l = &z->layout;
    return json_pack("{s:s, s:i, s:s, s:s, s:b, s:i, s:s*, s:i, s:i, s:o, s:o, s:o, s:o, s:O}", "format",
                     MANIFEST_FORMAT, "version", MANIFEST_VERSION, "library", ZERO_VERSION, "dtype",
                     dtype_name(z->config.numbers.dtype), "masters", rank_state(z, ZERO_MASTER)->kept,
                     "update_states", m->update_states, "update", settings_update(&z->config), "ranks",
                     l->ranks, "block_bytes", (int)BLOCK_BYTES, "loss_scale", scale_of(&m->scale), "tensors",
                     all_tensors(l), "units", all_units(l), "files", all_files(m), "trainer", m->root);
}

// Prints one member per line, and a non-empty array with one element per line.
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

char *manifest_write(const zero *z, const manifest *m) {
    char *text = NULL;
    size_t bytes = 0;
    json_t *root = describe(z, m);
    FILE *f = root ? open_memstream(&text, &bytes) : NULL;
    int failed = !f || print_all(f, root) || fflush(f);
    if (!failed) fprintf(f, ",\n\"xxh3\": \"%016llx\"\n}\n", (unsigned long long)XXH3_64bits(text, bytes));
    if (f && fclose(f)) failed = 1;
    json_decref(root);
    if (!failed) return text;
    free(text);
    return NULL;
}

// -------- reading: the text

enum { LARGEST_MANIFEST = 256 << 20 };

// Checks the digest in the last lines. It covers everything above them.
static int check_text(manifest *m, const char *text) {
    char end[48];
    const int64_t bytes = m->bytes;
    int n = snprintf(end, sizeof end, ",\n\"xxh3\": \"%016x\"\n}\n", 0);
    if (bytes < n) return zero_fail(ZERO_ERR_IO, "%s: has %lld bytes: cut short", m->path, (long long)bytes);
    m->digest = XXH3_64bits(text, bytes - n);
    snprintf(end, sizeof end, ",\n\"xxh3\": \"%016llx\"\n}\n", (unsigned long long)m->digest);
    if (!memcmp(text + bytes - n, end, n)) return 0;
    return zero_fail(ZERO_ERR_IO,
                     "%s: damaged: the checksum at offset %lld does not match the text before it", m->path,
                     (long long)bytes - n);
}

static int parse_text(manifest *m, const char *text) {
    json_error_t e;
    ZERO_TRY(check_text(m, text));
    m->root = json_loadb(text, m->bytes, JSON_REJECT_DUPLICATES, &e);
    if (m->root && json_is_object(m->root)) return 0;
    return zero_fail(ZERO_ERR_IO, "%s:%d:%d: not a JSON object: %s", m->path, e.line, e.column,
                     m->root ? "another value" : e.text);
}

// -------- members

static int wrong(const manifest *m, const char *where, const char *key, const char *must) {
    return zero_fail(ZERO_ERR_IO, "%s: %s\"%s\" must be %s", m->path, where, key, must);
}

static int get_count(const manifest *m, const json_t *from, const char *where, const char *key, int64_t least,
                     int64_t most, int64_t *n) {
    const json_t *v = json_object_get(from, key);
    char must[96];
    *n = json_integer_value(v);
    if (json_is_integer(v) && *n >= least && *n <= most) return 0;
    snprintf(must, sizeof must, "a whole number of %lld to %lld", (long long)least, (long long)most);
    return wrong(m, where, key, must);
}

// The number of rows fits an int, because a manifest has less than INT32_MAX bytes.
static int get_array(const manifest *m, const json_t *from, const char *where, const char *key,
                     const json_t **array) {
    *array = json_object_get(from, key);
    return json_is_array(*array) ? 0 : wrong(m, where, key, "an array");
}

static int check_format(const manifest *m) {
    const char *format = json_string_value(json_object_get(m->root, "format"));
    int64_t version;
    if (!format || strcmp(format, MANIFEST_FORMAT))
        return zero_fail(ZERO_ERR_ARGUMENT, "%s: not the manifest of a checkpoint: \"format\" must be \"%s\"",
                         m->path, MANIFEST_FORMAT);
    ZERO_TRY(get_count(m, m->root, "", "version", 0, INT32_MAX, &version));
    if (version == MANIFEST_VERSION) return 0;
    return zero_fail(ZERO_ERR_ARGUMENT, "%s: version %lld; this library reads version %d", m->path,
                     (long long)version, MANIFEST_VERSION);
}

static int get_dtype(manifest *m) {
    const char *name = json_string_value(json_object_get(m->root, "dtype"));
    for (zero_dtype t = ZERO_F32; name && t <= ZERO_F16; t++) {
        m->dtype = t;
        if (!strcmp(name, dtype_name(t))) return 0;
    }
    return wrong(m, "", "dtype", "fp32, bf16 or fp16");
}

static int get_scale(manifest *m) {
    const json_t *s = json_object_get(m->root, "loss_scale"), *value = json_object_get(s, "value");
    int64_t left;
    m->scale.value = json_number_value(value);
    if (!json_is_number(value) || !(m->scale.value > 0) || !isfinite(m->scale.value))
        return wrong(m, "loss_scale: ", "value", "a number above 0");
    ZERO_TRY(get_count(m, s, "loss_scale: ", "steps", 0, INT64_MAX / 2, &m->scale.steps));
    ZERO_TRY(get_count(m, s, "loss_scale: ", "last_overflow", -1, m->scale.steps, &m->scale.last_overflow));
    ZERO_TRY(get_count(m, s, "loss_scale: ", "left", 0, INT32_MAX, &left));
    m->scale.left = (int)left;
    return 0;
}

// -------- files

static int is_printable(const char *name) {
    while (*name >= ' ' && *name <= '~') name++;
    return !*name;
}

static int get_name(const manifest *m, const json_t *row, const char *where, manifest_file *f) {
    const json_t *v = json_object_get(row, "name");
    const char *name = json_string_value(v);
    if (!name || !*name || *name == '.' || json_string_length(v) >= FILE_NAME ||
        strlen(name) != json_string_length(v) || strchr(name, '/') || !is_printable(name))
        return wrong(m, where, "name", "the name of a file in the folder");
    strcpy(f->name, name);
    return 0;
}

static int get_digests(const manifest *m, const json_t *row, const char *where, manifest_file *f) {
    const json_t *v = json_object_get(row, "xxh3");
    const char *hex = json_string_value(v);
    f->n_blocks = manifest_blocks(f->bytes, m->block_bytes);
    // `bytes` may be wrong, so the string's length must limit the allocation
    if (!hex || json_string_length(v) / 16 != (uint64_t)f->n_blocks || json_string_length(v) % 16 ||
        strspn(hex, "0123456789abcdef") != json_string_length(v))
        return wrong(m, where, "xxh3", "16 hexadecimal digits for each block of the file");
    f->digests = malloc(f->n_blocks * sizeof *f->digests + 1);
    if (!f->digests) return zero_fail(ZERO_ERR_MEMORY, "%s: out of memory", m->path);
    for (int64_t i = 0; i < f->n_blocks; i++) {
        char digits[17] = "";
        memcpy(digits, hex + 16 * i, 16);
        f->digests[i] = strtoull(digits, NULL, 16);
    }
    return 0;
}

static int get_part(const manifest *m, const json_t *row, const char *where, const manifest_file *f,
                    saved_part *p) {
    int64_t unit, most = f->bytes / (int64_t)sizeof(float);
    ZERO_TRY(get_count(m, row, where, "unit", 0, INT32_MAX, &unit));
    p->unit = (int)unit;
    ZERO_TRY(get_count(m, row, where, "from", 0, INT64_MAX / 8, &p->from));
    ZERO_TRY(get_count(m, row, where, "elems", 1, most, &p->elems));
    const json_t *of = json_array_get(json_object_get(m->root, "units"), unit);
    const int saved = json_is_true(json_object_get(of, "frozen")) ? 1 : 1 + m->update_states;
    for (int i = 0; i < SAVED; i++) p->at[i] = -1;
    for (int i = 0; i < saved; i++) {
        const int64_t last = f->bytes - p->elems * (int64_t)sizeof(float);
        ZERO_TRY(get_count(m, row, where, saved_names[i], 0, last, &p->at[i]));
        if (p->at[i] % (int64_t)sizeof(float)) return wrong(m, where, saved_names[i], "a multiple of 4");
    }
    return 0;
}

static int get_parts(const manifest *m, const json_t *row, const char *where, manifest_file *f) {
    const json_t *parts;
    char place[FILE_NAME + 64];
    ZERO_TRY(get_array(m, row, where, "parts", &parts));
    f->n_parts = (int)json_array_size(parts);
    f->parts = calloc(f->n_parts + 1, sizeof *f->parts);
    if (!f->parts) return zero_fail(ZERO_ERR_MEMORY, "%s: out of memory", m->path);
    for (int i = 0; i < f->n_parts; i++) {
        snprintf(place, sizeof place, "%spart %d: ", where, i);
        ZERO_TRY(get_part(m, json_array_get(parts, i), place, f, &f->parts[i]));
    }
    return 0;
}

static int get_file(const manifest *m, int number, manifest_file *f) {
    const json_t *row = json_array_get(json_object_get(m->root, "files"), number);
    char where[FILE_NAME + 32];
    snprintf(where, sizeof where, "file %d: ", number);
    ZERO_TRY(get_name(m, row, where, f));
    ZERO_TRY(get_count(m, row, where, "bytes", 0, INT64_MAX / 2, &f->bytes));
    ZERO_TRY(get_digests(m, row, where, f));
    return get_parts(m, row, where, f);
}

static int get_files(manifest *m) {
    const json_t *files;
    int64_t states = 2;  // older checkpoints do not have the member
    ZERO_TRY(get_count(m, m->root, "", "block_bytes", SMALLEST_BLOCK, LARGEST_BLOCK, &m->block_bytes));
    if (m->block_bytes % SMALLEST_BLOCK) return wrong(m, "", "block_bytes", "a multiple of 4096");
    ZERO_TRY(get_array(m, m->root, "", "files", &files));
    if (json_object_get(m->root, "update_states"))
        ZERO_TRY(get_count(m, m->root, "", "update_states", 0, SAVED - 1, &states));
    m->update_states = (int)states;
    m->n_files = (int)json_array_size(files);
    m->files = calloc(m->n_files + 1, sizeof *m->files);
    if (!m->files) return zero_fail(ZERO_ERR_MEMORY, "%s: out of memory", m->path);
    for (int i = 0; i < m->n_files; i++) ZERO_TRY(get_file(m, i, &m->files[i]));
    return 0;
}

// Unnamed updates and older checkpoints have no name.
static int get_update(manifest *m) {
    const json_t *name = json_object_get(m->root, "update");
    m->update = json_string_value(name);
    return !name || m->update ? 0 : wrong(m, "", "update", "a string");
}

static int check_all(manifest *m) {
    ZERO_TRY(check_format(m));
    ZERO_TRY(get_dtype(m));
    ZERO_TRY(get_scale(m));
    ZERO_TRY(get_files(m));
    ZERO_TRY(get_update(m));
    if (json_is_object(json_object_get(m->root, "trainer"))) return 0;
    return wrong(m, "", "trainer", "an object");
}

int manifest_read(manifest *m, const char *folder) {
    char *text = NULL;
    *m = (manifest){ .n_files = 0 };
    ZERO_TRY(folder_path(m->path, folder, MANIFEST));
    int rc = zero_read_text(m->path, LARGEST_MANIFEST, "a manifest", &text, &m->bytes);
    if (!rc) rc = parse_text(m, text);
    if (!rc) rc = check_all(m);
    free(text);
    return rc;
}

void manifest_free(manifest *m) {
    for (int i = 0; m->files && i < m->n_files; i++) {
        free(m->files[i].digests);
        free(m->files[i].parts);
    }
    free(m->files);
    free(m->stretches);
    json_decref(m->root);
}

int manifest_text(const manifest *m, char **text) {
    *text = json_dumps(json_object_get(m->root, "trainer"), JSON_COMPACT);
    return *text ? 0 : zero_fail(ZERO_ERR_MEMORY, "%s: out of memory for the trainer's text", m->path);
}

// -------- comparison with the model

static int differs(const manifest *m, const char *where, const json_t *here, const json_t *there) {
    char *a = json_dumps(here, JSON_ENCODE_ANY), *b = json_dumps(there, JSON_ENCODE_ANY);
    int rc = zero_fail(ZERO_ERR_ARGUMENT, "%s: belongs to another model: %s is %.100s here and %.100s there",
                       m->path, where, a ? a : "nothing", b ? b : "nothing");
    free(a);
    free(b);
    return rc;
}

static int same(const manifest *m, const char *where, const json_t *here, const json_t *there);

// Messages identify a row by its number and, if it has one, its name.
static int same_rows(const manifest *m, const char *where, const json_t *here, const json_t *there) {
    char what[200];
    const size_t n = json_array_size(here), others = json_array_size(there);
    for (size_t i = 0; i < n && i < others; i++) {
        const json_t *row = json_array_get(here, i);
        const char *name = json_string_value(json_object_get(row, "name"));
        snprintf(what, sizeof what, "%.100s[%zu]%s%.60s", where, i, name ? " " : "", name ? name : "");
        ZERO_TRY(same(m, what, row, json_array_get(there, i)));
    }
    if (n == others) return 0;
    return zero_fail(ZERO_ERR_ARGUMENT, "%s: belongs to another model: %s has %zu rows here and %zu there",
                     m->path, where, n, others);
}

static int same(const manifest *m, const char *where, const json_t *here, const json_t *there) {
    const char *key;
    char what[200];
    json_t *value;
    if (json_is_array(here)) return same_rows(m, where, here, there);
    if (!json_is_object(here)) return json_equal(here, there) ? 0 : differs(m, where, here, there);
    json_object_foreach((json_t *)here, key, value) {
        // a run may change which tensors decay, and the division into units
        if (!strcmp(key, "decay") || !strcmp(key, "unit") || !strcmp(key, "unit_step")) continue;
        snprintf(what, sizeof what, "%.150s%s%s", where, *where ? ": " : "", key);
        ZERO_TRY(same(m, what, value, json_object_get(there, key)));
    }
    if (json_object_get(here, "frozen") || !json_object_get(there, "frozen")) return 0;
    snprintf(what, sizeof what, "%.150s: frozen", where);
    return differs(m, what, NULL, json_object_get(there, "frozen"));
}

// -------- the saved units

static const json_t *saved_unit(const manifest *m, int unit) {
    return json_array_get(json_object_get(m->root, "units"), unit);
}
static int n_saved_units(const manifest *m) {
    return (int)json_array_size(json_object_get(m->root, "units"));
}
static int64_t saved_extent(const manifest *m, int unit) {
    return json_integer_value(json_object_get(saved_unit(m, unit), "elems"));
}

// Finds a tensor's place in the model, and notes in found[place] where the saved unit has it.
static int find_place(const manifest *m, const layout *l, int unit, const json_t *row, const char *where,
                      saved_stretch *found) {
    int64_t tensor, layer, offset;
    ZERO_TRY(get_count(m, row, where, "tensor", 0, l->n_tensors - 1, &tensor));
    ZERO_TRY(get_count(m, row, where, "layer", 0, l->tensors[tensor].layers - 1, &layer));
    const layout_place *p = layout_find(l, (int)tensor, (int)layer);
    const int64_t last = saved_extent(m, unit) - p->elems;
    if (last < 0) return wrong(m, where, "elems", "at least the number of elements of its tensors");
    ZERO_TRY(get_count(m, row, where, "offset", 0, last, &offset));
    saved_stretch *s = &found[p - l->places];
    const int is_frozen = json_is_true(json_object_get(saved_unit(m, unit), "frozen"));
    if (s->elems || is_frozen != (p->unit >= l->n_units))
        return zero_fail(ZERO_ERR_IO, "%s: %slayer %d of tensor %s is %s", m->path, where, (int)layer,
                         l->tensors[tensor].name,
                         s->elems ? "in another unit too" : "frozen in only one of the two tables");
    *s = (saved_stretch){ p->unit, unit, p->offset, p->elems, offset };
    return 0;
}

// found: (n_places)
static int find_places(const manifest *m, const layout *l, saved_stretch *found) {
    for (int u = 0; u < n_saved_units(m); u++) {
        const json_t *rows;
        char where[40];
        int64_t elems;
        snprintf(where, sizeof where, "unit %d: ", u);
        ZERO_TRY(get_count(m, saved_unit(m, u), where, "elems", 0, INT64_MAX / 8, &elems));
        ZERO_TRY(get_array(m, saved_unit(m, u), where, "tensors", &rows));
        for (size_t i = 0; i < json_array_size(rows); i++)
            ZERO_TRY(find_place(m, l, u, json_array_get(rows, i), where, found));
    }
    for (int i = 0; i < l->n_places; i++)
        if (!found[i].elems)
            return zero_fail(ZERO_ERR_IO, "%s: no unit has layer %d of tensor %s", m->path,
                             l->places[i].layer, l->tensors[l->places[i].tensor].name);
    return 0;
}

// Joins neighbours that are also neighbours in the checkpoint, with their padding, to read them together.
static int join(saved_stretch *all, int n) {
    saved_stretch *last = all;
    for (const saved_stretch *s = all + 1; s < all + n; s++) {
        const int follows = s->unit == last->unit && s->saved_unit == last->saved_unit &&
                            s->saved_from - last->saved_from == s->from - last->from;
        if (follows)
            last->elems = s->from + s->elems - last->from;
        else
            *++last = *s;
    }
    return (int)(last - all) + 1;
}

static int find_stretches(manifest *m, const layout *l) {
    m->stretches = calloc(l->n_places, sizeof *m->stretches);
    if (!m->stretches) return zero_fail(ZERO_ERR_MEMORY, "%s: out of memory", m->path);
    ZERO_TRY(find_places(m, l, m->stretches));
    m->n_stretches = join(m->stretches, l->n_places);
    return 0;
}

// Checks that a saved unit's parts follow each other without gaps in the files' order. have: counts elements.
static int count_parts(const manifest *m, int n_units, int64_t *have) {
    for (const manifest_file *f = m->files; f < m->files + m->n_files; f++)
        for (const saved_part *p = f->parts; p < f->parts + f->n_parts; p++) {
            if (p->unit >= n_units || p->from != have[p->unit] ||
                p->elems > saved_extent(m, p->unit) - p->from)
                return zero_fail(ZERO_ERR_IO,
                                 "%s: file %s: the part of unit %d that begins at element %lld does not "
                                 "follow the previous one",
                                 m->path, f->name, p->unit, (long long)p->from);
            have[p->unit] += p->elems;
        }
    for (int u = 0; u < n_units; u++)
        if (have[u] != saved_extent(m, u))
            return zero_fail(ZERO_ERR_IO, "%s: unit %d: the files have %lld of its %lld elements", m->path, u,
                             (long long)have[u], (long long)saved_extent(m, u));
    return 0;
}

static int check_parts(const manifest *m) {
    const int n_units = n_saved_units(m);
    int64_t *have = calloc(n_units, sizeof *have);
    int rc = have ? count_parts(m, n_units, have) : zero_fail(ZERO_ERR_MEMORY, "%s: out of memory", m->path);
    free(have);
    return rc;
}

int manifest_check_model(manifest *m, const layout *l) {
    json_t *rows = all_tensors(l);
    int rc = rows ? same(m, "tensors", rows, json_object_get(m->root, "tensors"))
                  : zero_fail(ZERO_ERR_MEMORY, "%s: out of memory for the tables", m->path);
    json_decref(rows);
    if (!rc) rc = find_stretches(m, l);
    return rc ? rc : check_parts(m);
}
