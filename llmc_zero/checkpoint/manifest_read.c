#include "manifest.h"
#define XXH_INLINE_ALL
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

// -------- the text

enum { LARGEST_MANIFEST = 256 << 20 };

static int read_open(int fd, const char *path, char *text, int64_t bytes) {
    int64_t done = 0;
    while (done < bytes) {
        ssize_t n = pread(fd, text + done, bytes - done, done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return zero_fail(ZERO_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
        if (n == 0) return zero_fail(ZERO_ERR_IO, "%s: ends at byte %lld", path, (long long)done);
        done += n;
    }
    return 0;
}

// *text is the caller's to free. O_NONBLOCK: opening a pipe must not wait for its writer.
static int read_text(const char *path, char **text, int64_t *bytes) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC), rc;
    if (fd < 0) return zero_fail(ZERO_ERR_IO, "%s: %s", path, strerror(errno));
    if (fstat(fd, &st))
        rc = zero_fail(ZERO_ERR_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode) || st.st_size > LARGEST_MANIFEST)
        rc = zero_fail(ZERO_ERR_IO, "%s: not a file, or larger than %d MiB, so no manifest", path,
                       LARGEST_MANIFEST >> 20);
    else if (!(*text = malloc(st.st_size + 1)))
        rc = zero_fail(ZERO_ERR_MEMORY, "%s: out of memory for its %lld bytes", path, (long long)st.st_size);
    else
        rc = read_open(fd, path, *text, *bytes = st.st_size);
    close(fd);  // nothing was written
    if (!rc) (*text)[*bytes] = 0;
    return rc;
}

// The last lines are the digest of everything above them, so any changed byte is found.
static int check_text(manifest *m, const char *text, int64_t bytes) {
    char end[48];
    int n = snprintf(end, sizeof end, ",\n\"xxh3\": \"%016x\"\n}\n", 0);
    if (bytes < n) return zero_fail(ZERO_ERR_IO, "%s: has %lld bytes: cut short", m->path, (long long)bytes);
    m->digest = XXH3_64bits(text, bytes - n);
    snprintf(end, sizeof end, ",\n\"xxh3\": \"%016llx\"\n}\n", (unsigned long long)m->digest);
    if (!memcmp(text + bytes - n, end, n)) return 0;
    return zero_fail(ZERO_ERR_IO, "%s: damaged: the checksum at offset %lld is not that of what is before it",
                     m->path, (long long)bytes - n);
}

json_t *manifest_parse(const char *text, size_t bytes, json_error_t *e) {
    json_t *first = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, e);
    json_t *second = first ? json_loadb(text, bytes, JSON_REJECT_DUPLICATES, e) : NULL;
    int same = second && json_equal(first, second);
    json_decref(second);
    if (same) return first;
    if (second) snprintf(e->text, sizeof e->text, "out of memory");
    json_decref(first);
    return NULL;
}

static int parse_text(manifest *m, const char *text, int64_t bytes) {
    json_error_t e;
    ZERO_TRY(check_text(m, text, bytes));
    m->root = manifest_parse(text, bytes, &e);
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

static int get_array(const manifest *m, const json_t *from, const char *where, const char *key, int most,
                     const json_t **array) {
    *array = json_object_get(from, key);
    if (json_is_array(*array) && json_array_size(*array) <= (size_t)most) return 0;
    return wrong(m, where, key, "an array, and not a longer one than there can be");
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
    // `bytes` may be wrong, so the length of the string decides how much is allocated
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
    for (int i = 0; i < SAVED; i++) {
        const int64_t last = f->bytes - p->elems * (int64_t)sizeof(float);
        ZERO_TRY(get_count(m, row, where, saved_names[i], 0, last, &p->at[i]));
        if (p->at[i] % (int64_t)sizeof(float)) return wrong(m, where, saved_names[i], "a multiple of 4");
    }
    return 0;
}

static int get_parts(const manifest *m, const json_t *row, const char *where, manifest_file *f) {
    const json_t *parts;
    char place[FILE_NAME + 64];
    ZERO_TRY(get_array(m, row, where, "parts", INT32_MAX, &parts));
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
    ZERO_TRY(get_count(m, m->root, "", "block_bytes", SMALLEST_BLOCK, LARGEST_BLOCK, &m->block_bytes));
    if (m->block_bytes % SMALLEST_BLOCK) return wrong(m, "", "block_bytes", "a multiple of 4096");
    ZERO_TRY(get_array(m, m->root, "", "files", INT32_MAX, &files));
    m->n_files = (int)json_array_size(files);
    m->files = calloc(m->n_files + 1, sizeof *m->files);
    if (!m->files) return zero_fail(ZERO_ERR_MEMORY, "%s: out of memory", m->path);
    for (int i = 0; i < m->n_files; i++) ZERO_TRY(get_file(m, i, &m->files[i]));
    return 0;
}

static int check_all(manifest *m) {
    ZERO_TRY(check_format(m));
    ZERO_TRY(get_dtype(m));
    ZERO_TRY(get_scale(m));
    ZERO_TRY(get_files(m));
    if (json_is_object(json_object_get(m->root, "trainer"))) return 0;
    return wrong(m, "", "trainer", "an object");
}

int manifest_read(manifest *m, const char *folder) {
    char *text = NULL;
    int64_t bytes = 0;
    *m = (manifest){ .n_files = 0 };
    ZERO_TRY(folder_path(m->path, folder, MANIFEST));
    int rc = read_text(m->path, &text, &bytes);
    if (!rc) rc = parse_text(m, text, bytes);
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
    json_decref(m->root);
    m->files = NULL;
    m->root = NULL;
}

// -------- the model

static int differs(const manifest *m, const char *what, int64_t here, int64_t there) {
    return zero_fail(ZERO_ERR_ARGUMENT, "%s: belongs to another model: %s is %lld here and %lld there",
                     m->path, what, (long long)here, (long long)there);
}

static int same_number(const manifest *m, const json_t *row, const char *what, const char *key,
                       int64_t here) {
    const json_t *v = json_object_get(row, key);
    char name[200];
    if (json_is_integer(v) && json_integer_value(v) == here) return 0;
    snprintf(name, sizeof name, "%s of %.150s", key, what);
    return differs(m, name, here, json_integer_value(v));
}

static int same_name(const manifest *m, const json_t *row, const char *what, int number, const char *here) {
    const char *there = json_string_value(json_object_get(row, "name"));
    if (there && !strcmp(there, here)) return 0;
    return zero_fail(ZERO_ERR_ARGUMENT,
                     "%s: belongs to another model: %s %d is \"%.100s\" here and \"%.100s\" there", m->path,
                     what, number, here, there ? there : "");
}

static int same_tensor(const manifest *m, const json_t *row, int number, const zero_tensor *t) {
    const json_t *dims = json_object_get(row, "dims");
    char what[200];
    ZERO_TRY(same_name(m, row, "tensor", number, t->name));
    snprintf(what, sizeof what, "number of dimensions of %.150s", t->name);
    if (json_array_size(dims) != (size_t)t->n_dims)
        return differs(m, what, t->n_dims, (int64_t)json_array_size(dims));
    for (int i = 0; i < t->n_dims; i++) {
        int64_t there = json_integer_value(json_array_get(dims, i));
        snprintf(what, sizeof what, "dimension %d of %.150s", i, t->name);
        if (there != t->dims[i]) return differs(m, what, t->dims[i], there);
    }
    ZERO_TRY(same_number(m, row, t->name, "layers", t->layers));
    return same_number(m, row, t->name, "unit", t->unit);
}

// Tensor offsets give a unit's elements their meaning, so they must match.
static int same_places(const manifest *m, const json_t *row, const layout *l, const layout_unit *u) {
    const json_t *places = json_object_get(row, "tensors");
    char what[200];
    snprintf(what, sizeof what, "the number of tensors of %.150s", u->name);
    if (json_array_size(places) != (size_t)u->n_places)
        return differs(m, what, u->n_places, (int64_t)json_array_size(places));
    for (int i = 0; i < u->n_places; i++) {
        const layout_place *here = &l->places[u->first_place + i];
        const json_t *there = json_array_get(places, i);
        snprintf(what, sizeof what, "place %d of %.150s", i, u->name);
        ZERO_TRY(same_number(m, there, what, "tensor", here->tensor));
        ZERO_TRY(same_number(m, there, what, "layer", here->layer));
        ZERO_TRY(same_number(m, there, what, "offset", here->offset));
    }
    return 0;
}

static int same_tables(const manifest *m, const layout *l) {
    const json_t *tensors = json_object_get(m->root, "tensors"), *units = json_object_get(m->root, "units");
    const int there = (int)json_array_size(tensors);
    for (int i = 0; i < l->n_tensors && i < there; i++)
        ZERO_TRY(same_tensor(m, json_array_get(tensors, i), i, &l->tensors[i]));
    if (there != l->n_tensors) return differs(m, "the number of tensors", l->n_tensors, there);
    if (json_array_size(units) != (size_t)l->n_units)
        return differs(m, "the number of units", l->n_units, (int64_t)json_array_size(units));
    for (int u = 0; u < l->n_units; u++) {
        const json_t *row = json_array_get(units, u);
        ZERO_TRY(same_name(m, row, "unit", u, l->units[u].name));
        ZERO_TRY(same_number(m, row, l->units[u].name, "elems", layout_extent(l, u)));
        ZERO_TRY(same_places(m, row, l, &l->units[u]));
    }
    return 0;
}

// The parts of a unit follow each other in the order of the files, without a gap. have (n_units): counts the
// elements found.
static int count_parts(const manifest *m, const layout *l, int64_t *have) {
    for (const manifest_file *f = m->files; f < m->files + m->n_files; f++)
        for (const saved_part *p = f->parts; p < f->parts + f->n_parts; p++) {
            if (p->unit >= l->n_units || p->from != have[p->unit] ||
                p->elems > layout_extent(l, p->unit) - p->from)
                return zero_fail(ZERO_ERR_IO,
                                 "%s: file %s: the part of unit %d that begins at element %lld does not "
                                 "follow the one before",
                                 m->path, f->name, p->unit, (long long)p->from);
            have[p->unit] += p->elems;
        }
    for (int u = 0; u < l->n_units; u++)
        if (have[u] != layout_extent(l, u))
            return zero_fail(ZERO_ERR_IO, "%s: unit %d (%s): the files have %lld of its %lld elements",
                             m->path, u, l->units[u].name, (long long)have[u],
                             (long long)layout_extent(l, u));
    return 0;
}

int manifest_check_model(const manifest *m, const layout *l) {
    ZERO_TRY(same_tables(m, l));
    int64_t *have = calloc(l->n_units, sizeof *have);
    int rc = have ? count_parts(m, l, have) : zero_fail(ZERO_ERR_MEMORY, "%s: out of memory", m->path);
    free(have);
    return rc;
}
