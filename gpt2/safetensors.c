#include "safetensors.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "disk.h"
#include "gpt2_error.h"
#include "model.h"

static const struct {
    const char *name;
    int bytes, readable;
    gpt2_dtype dtype;
} dtypes[] = {
    { "F32", 4, 1, GPT2_F32 }, { "BF16", 2, 1, GPT2_BF16 }, { "F16", 2, 1, GPT2_F16 }, { "F64", 8, 0, 0 },
    { "I64", 8, 0, 0 },        { "U64", 8, 0, 0 },          { "I32", 4, 0, 0 },        { "U32", 4, 0, 0 },
    { "I16", 2, 0, 0 },        { "U16", 2, 0, 0 },          { "I8", 1, 0, 0 },         { "U8", 1, 0, 0 },
    { "BOOL", 1, 0, 0 },
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

// -------- JSON

// Parses `bytes` bytes of a file, from `at` on.
static json_t *parse_object(int fd, const char *path, int64_t at, int64_t bytes) {
    json_error_t e;
    json_t *root = NULL;
    char *text = malloc((size_t)bytes + 1);
    if (!text)
        gpt2_fail("%s: no memory for %lld bytes of JSON", path, (long long)bytes);
    else if (!disk_read(fd, path, at, (size_t)bytes, text)) {
        root = json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES, &e);
        if (!root)
            gpt2_fail("%s: line %d, column %d of its JSON: %s", path, e.line, e.column, e.text);
        else if (!json_is_object(root)) {
            gpt2_fail("%s: its JSON is not an object", path);
            json_decref(root);
            root = NULL;
        }
    }
    free(text);
    return root;
}

json_t *safe_json(const char *path, int64_t most) {
    int fd;
    int64_t bytes;
    if (disk_open(path, &fd, &bytes)) return NULL;
    json_t *root = NULL;
    if (bytes > most)
        gpt2_fail("%s: has %lld bytes, more than the limit of %lld", path, (long long)bytes, (long long)most);
    else
        root = parse_object(fd, path, 0, bytes);
    close(fd);  // nothing was written
    return root;
}

// -------- reading a header

const char *safe_shape(char text[SAFE_SHAPE], const int64_t *dims, int n_dims) {
    size_t used = (size_t)snprintf(text, SAFE_SHAPE, "[");
    for (int i = 0; i < n_dims; i++)
        used += (size_t)snprintf(text + used, SAFE_SHAPE - used, "%s%lld", i ? ", " : "", (long long)dims[i]);
    snprintf(text + used, SAFE_SHAPE - used, "]");
    return text;
}

static int wrong(const SafeFile *f, const SafeTensor *t, const char *what) {
    return gpt2_fail("%s: tensor \"%.200s\": %s", f->path, t->name, what);
}

static int get_dtype(const SafeFile *f, const json_t *row, SafeTensor *t, int *bytes) {
    t->dtype_name = json_string_value(json_object_get(row, "dtype"));
    if (!t->dtype_name) return wrong(f, t, "\"dtype\" must be a string");
    *bytes = 0;
    for (int i = 0; i < DTYPES; i++) {
        if (strcmp(t->dtype_name, dtypes[i].name)) continue;
        *bytes = dtypes[i].bytes;
        t->readable = dtypes[i].readable;
        t->dtype = dtypes[i].dtype;
    }
    return 0;
}

// *elems: the product of the shape, or an error if it overflows.
static int get_shape(const SafeFile *f, const json_t *row, SafeTensor *t, int64_t *elems) {
    const json_t *shape = json_object_get(row, "shape");
    if (!json_is_array(shape) || json_array_size(shape) > SAFE_DIMS)
        return wrong(f, t, "\"shape\" must be an array of at most 8 numbers");
    t->n_dims = (int)json_array_size(shape);
    *elems = 1;
    for (int i = 0; i < t->n_dims; i++) {
        const json_t *v = json_array_get(shape, (size_t)i);
        t->dims[i] = json_integer_value(v);
        if (!json_is_integer(v) || t->dims[i] < 0)
            return wrong(f, t, "\"shape\" must have whole numbers from 0 on");
        if (__builtin_mul_overflow(*elems, t->dims[i], elems))
            return wrong(f, t, "\"shape\" has more elements than a file can hold");
    }
    return 0;
}

// room: the bytes of all values.
static int get_offsets(const SafeFile *f, const json_t *row, SafeTensor *t, int64_t room) {
    const json_t *at = json_object_get(row, "data_offsets");
    const json_t *begin = json_array_get(at, 0), *end = json_array_get(at, 1);
    if (!json_is_array(at) || json_array_size(at) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return wrong(f, t, "\"data_offsets\" must be two whole numbers");
    t->begin = json_integer_value(begin);
    t->end = json_integer_value(end);
    if (t->begin >= 0 && t->begin <= t->end && t->end <= room) return 0;
    return gpt2_fail("%s: tensor \"%.200s\": \"data_offsets\" [%lld, %lld] must be increasing and inside the "
                     "%lld bytes of values",
                     f->path, t->name, (long long)t->begin, (long long)t->end, (long long)room);
}

static int get_tensor(const SafeFile *f, const json_t *row, SafeTensor *t, int64_t room) {
    int size = 0;
    int64_t elems = 0, bytes;
    char shape[SAFE_SHAPE];
    if (!json_is_object(row)) return wrong(f, t, "must be an object");
    if (get_dtype(f, row, t, &size) || get_shape(f, row, t, &elems) || get_offsets(f, row, t, room))
        return -1;
    // The size of an unknown dtype cannot be checked.
    if (!size || (!__builtin_mul_overflow(elems, size, &bytes) && bytes == t->end - t->begin)) return 0;
    return gpt2_fail("%s: tensor \"%.200s\": %s of shape %s does not fill its %lld bytes", f->path, t->name,
                     t->dtype_name, safe_shape(shape, t->dims, t->n_dims), (long long)(t->end - t->begin));
}

static int by_place(const void *a, const void *b) {
    const SafeTensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

// Sorts the tensors by position. Their values must be contiguous and fill the file.
static int check_places(const SafeFile *f, int64_t room) {
    int64_t at = 0;
    qsort(f->tensors, (size_t)f->n, sizeof *f->tensors, by_place);
    for (const SafeTensor *t = f->tensors; t < f->tensors + f->n; t++) {
        if (t->begin != at)
            return gpt2_fail("%s: tensor \"%.200s\" begins at byte %lld of the values, but the previous one "
                             "ends at byte %lld: %s",
                             f->path, t->name, (long long)t->begin, (long long)at,
                             t->begin < at ? "they overlap" : "there is a gap");
        at = t->end;
    }
    if (at == room) return 0;
    return gpt2_fail("%s: has %lld bytes of values, but its tensors have %lld", f->path, (long long)room,
                     (long long)at);
}

static int get_tensors(SafeFile *f, int64_t data, int64_t room) {
    const char *name;
    json_t *row;
    f->tensors = calloc(json_object_size(f->header) + 1, sizeof *f->tensors);
    if (!f->tensors) return gpt2_fail("%s: no memory for %zu tensors", f->path, json_object_size(f->header));
    json_object_foreach(f->header, name, row) {
        if (!strcmp(name, "__metadata__")) continue;
        SafeTensor *t = &f->tensors[f->n++];
        t->name = name;
        if (get_tensor(f, row, t, room)) return -1;
    }
    if (check_places(f, room)) return -1;
    for (SafeTensor *t = f->tensors; t < f->tensors + f->n; t++) {
        t->begin += data;
        t->end += data;
    }
    return 0;
}

static int read_header(SafeFile *f, int64_t bytes) {
    unsigned char raw[8];
    uint64_t length = 0;
    if (bytes < 8)
        return gpt2_fail("%s: %lld bytes cannot be a safetensors file, which begins with the "
                         "8-byte length of its header",
                         f->path, (long long)bytes);
    if (disk_read(f->fd, f->path, 0, sizeof raw, raw)) return -1;
    for (int i = 7; i >= 0; i--) length = length << 8 | raw[i];
    if (length > SAFE_HEADER)
        return gpt2_fail(
            "%s: not a safetensors file: its header would have %llu bytes, more than the limit of %d",
            f->path, (unsigned long long)length, SAFE_HEADER);
    if ((int64_t)length > bytes - 8)
        return gpt2_fail("%s: cut short: its header has %llu bytes, but only %lld follow", f->path,
                         (unsigned long long)length, (long long)bytes - 8);
    f->header = parse_object(f->fd, f->path, 8, (int64_t)length);
    if (!f->header) return -1;
    return get_tensors(f, 8 + (int64_t)length, bytes - 8 - (int64_t)length);
}

int safe_open(SafeFile *f, const char *path) {
    int64_t bytes;
    *f = (SafeFile){ .fd = -1 };
    if (snprintf(f->path, sizeof f->path, "%s", path) >= (int)sizeof f->path)
        return gpt2_fail("%.64s...: the name is too long", path);
    if (disk_open(path, &f->fd, &bytes)) {
        f->fd = -1;
        return -1;
    }
    return read_header(f, bytes);
}

void safe_close(SafeFile *f) {
    if (f->fd >= 0) close(f->fd);  // nothing was written
    free(f->tensors);
    json_decref(f->header);
    *f = (SafeFile){ .fd = -1 };
}

int safe_read(const SafeFile *f, const SafeTensor *t, int64_t at, int64_t n, float *values) {
    const int64_t place = t->begin + at * (int64_t)gpt2_dtype_size(t->dtype);
    return gpt2_read_values(f->fd, f->path, place, t->dtype, n, values);
}

// -------- building a header

static const char *name_of(gpt2_dtype dtype) {
    int i = 0;
    while (dtypes[i].dtype != dtype) i++;
    return dtypes[i].name;
}

int safe_header_begin(SafeHeader *h) {
    *h = (SafeHeader){ .root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt") };
    return h->root ? 0 : gpt2_fail("no memory for a header");
}

int safe_header_add(SafeHeader *h, const char *name, gpt2_dtype dtype, const int64_t *dims, int n_dims) {
    json_t *shape = json_array();
    int64_t bytes = (int64_t)gpt2_dtype_size(dtype);
    int failed = !shape;
    for (int i = 0; i < n_dims; i++) {
        failed |= json_array_append_new(shape, json_integer(dims[i]));
        bytes *= dims[i];
    }
    json_t *row = json_pack("{s:s, s:o, s:[I, I]}", "dtype", name_of(dtype), "shape", shape, "data_offsets",
                            (json_int_t)h->bytes, (json_int_t)(h->bytes + bytes));
    h->bytes += bytes;
    failed |= json_object_set_new(h->root, name, row);
    return failed ? gpt2_fail("no memory for a header") : 0;
}

// Trailing spaces make the values begin at a multiple of 8.
int safe_header_end(SafeHeader *h, char **text, size_t *bytes) {
    const size_t length = json_dumpb(h->root, NULL, 0, JSON_COMPACT), padded = (length + 7) / 8 * 8;
    *bytes = 8 + padded;
    *text = malloc(*bytes);
    int failed = !length || !*text || json_dumpb(h->root, *text + 8, length, JSON_COMPACT) != length;
    if (!failed) {
        for (int i = 0; i < 8; i++) (*text)[i] = (char)(padded >> 8 * i);
        memset(*text + 8 + length, ' ', padded - length);
    }
    json_decref(h->root);
    h->root = NULL;
    return failed ? gpt2_fail("no memory for a header") : 0;
}
