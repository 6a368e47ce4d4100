// llm.c's model files: a header, then the tensors in order with all layers of each.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "disk.h"
#include "gpt2_error.h"
#include "model.h"

enum { MAGIC = 20240326, VERSION_F32 = 3, VERSION_BF16 = 5, HEADER = 256 * sizeof(int32_t) };

// -------- reading

typedef struct {
    char *path;
    int fd;
    gpt2_dtype dtype;
    GPT2Tensor tensors[NUM_PARAMETER_TENSORS];
    int64_t begin[NUM_PARAMETER_TENSORS];  // in the file, bytes
} ModelFile;

int64_t gpt2_file_bytes(const GPT2Config *config, gpt2_dtype dtype) {
    return HEADER + gpt2_num_parameters(config) * (int64_t)gpt2_dtype_size(dtype);
}

// Checks everything except the values.
static int check_file(const char *path, int fd, int64_t bytes, GPT2Config *config, gpt2_dtype *dtype) {
    int32_t header[256];
    if (disk_read_header(fd, path, bytes, "model file", MAGIC, header)) return -1;
    if (header[1] != VERSION_F32 && header[1] != VERSION_BF16)
        return gpt2_fail("%s: model version %d, expected %d (fp32) or %d (bf16)", path, header[1],
                         VERSION_F32, VERSION_BF16);
    *dtype = header[1] == VERSION_F32 ? GPT2_F32 : GPT2_BF16;
    *config = (GPT2Config){ .max_seq_len = header[2],
                            .vocab_size = header[3],
                            .num_layers = header[4],
                            .num_heads = header[5],
                            .channels = header[6],
                            .padded_vocab_size = header[7] };
    if (gpt2_config_check(config, path)) return -1;
    int64_t expected = gpt2_file_bytes(config, *dtype);
    if (bytes == expected) return 0;
    return gpt2_fail("%s: %lld bytes, but its header describes %lld: the file is %s", path, (long long)bytes,
                     (long long)expected, bytes < expected ? "cut short" : "too long");
}

static int get_values(void *ctx, int tensor, int layer, int64_t offset, int64_t n, float *values) {
    const ModelFile *m = ctx;
    const int64_t size = (int64_t)gpt2_dtype_size(m->dtype);
    const int64_t at = m->begin[tensor] + (layer * m->tensors[tensor].elems + offset) * size;
    return gpt2_read_values(m->fd, m->path, at, m->dtype, n, values);
}

static void close_file(void *ctx) {
    ModelFile *m = ctx;
    if (m->fd >= 0) close(m->fd);  // nothing was written
    free(m->path);
    free(m);
}

static void place_tensors(ModelFile *m, const GPT2Config *config) {
    int64_t at = HEADER;
    gpt2_tensors(config, m->tensors);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        const int layers = m->tensors[i].per_layer ? config->num_layers : 1;
        m->begin[i] = at;
        at += layers * m->tensors[i].elems * (int64_t)gpt2_dtype_size(m->dtype);
    }
}

int gpt2_file_open(const char *path, GPT2Stored *stored) {
    int64_t bytes;
    ModelFile *m = calloc(1, sizeof *m);
    *stored = (GPT2Stored){ 0 };
    if (!m) return gpt2_fail("%s: no memory to open it", path);
    *m = (ModelFile){ .path = strdup(path), .fd = -1 };
    *stored = (GPT2Stored){ .get = get_values, .close = close_file, .ctx = m };
    int failed = m->path ? disk_open(path, &m->fd, &bytes) : gpt2_fail("%s: no memory to open it", path);
    if (!failed) failed = check_file(path, m->fd, bytes, &stored->config, &m->dtype);
    if (!failed) place_tensors(m, &stored->config);
    stored->dtype = m->dtype;
    if (failed) gpt2_stored_close(stored);
    return failed;
}

// -------- writing a file, or comparing it with what would be written

typedef struct {
    const char *path;
    disk_file file;  // being written
    int fd;          // of the file compared; -1: none
    int64_t at;      // bytes so far
    gpt2_dtype dtype;
    gpt2_source source;
    void *ctx;
    float *values;  // (GPT2_PIECE)
    char *there;    // (GPT2_PIECE) values of the file compared
} Output;

static int compare(Output *o, const char *bytes, size_t size) {
    if (disk_read(o->fd, o->path, o->at, size, o->there)) return -1;
    for (size_t i = 0; i < size; i++, o->at++)
        if (o->there[i] != bytes[i])
            return gpt2_fail("%s: damaged, or not the file of its checkpoint: offset %lld has %02x, but the "
                             "checkpoint has %02x",
                             o->path, (long long)o->at, o->there[i] & 0xff, bytes[i] & 0xff);
    return 0;
}

static int put(Output *o, const void *bytes, size_t size) {
    return o->fd >= 0 ? compare(o, bytes, size) : disk_write(&o->file, bytes, size);
}

static int put_piece(void *ctx, int tensor, int layer, int64_t offset, int64_t n) {
    Output *o = ctx;
    if (o->source(o->ctx, tensor, layer, offset, n, o->values)) return -1;
    return put(o, o->values, gpt2_to_dtype(o->dtype, o->values, n));
}

static int put_all(Output *o, const GPT2Config *c) {
    int32_t header[256] = { MAGIC,          o->dtype == GPT2_BF16 ? VERSION_BF16 : VERSION_F32,
                            c->max_seq_len, c->vocab_size,
                            c->num_layers,  c->num_heads,
                            c->channels,    c->padded_vocab_size };
    o->values = malloc(GPT2_PIECE * sizeof *o->values);
    o->there = malloc(GPT2_PIECE * sizeof *o->values);
    int failed = o->values && o->there ? 0 : gpt2_fail("%s: no memory for its pieces", o->path);
    if (!failed) failed = put(o, header, sizeof header);
    if (!failed) failed = gpt2_each_piece(c, put_piece, o);
    free(o->values);
    free(o->there);
    return failed;
}

int gpt2_file_write(const char *path, const GPT2Config *config, gpt2_dtype dtype, gpt2_source source,
                    void *ctx) {
    Output o = { .path = path, .fd = -1, .dtype = dtype, .source = source, .ctx = ctx };
    if (disk_create(&o.file, path)) return -1;
    return disk_finish(&o.file, put_all(&o, config));
}

int gpt2_file_compare(const char *path, const GPT2Config *config, gpt2_dtype dtype, gpt2_source source,
                      void *ctx) {
    Output o = { .path = path, .dtype = dtype, .source = source, .ctx = ctx };
    int64_t bytes, expected = gpt2_file_bytes(config, dtype);
    if (disk_open(path, &o.fd, &bytes)) return -1;
    int failed = 0;
    if (bytes != expected)
        failed = gpt2_fail("%s: damaged, or not the file of its checkpoint: %lld bytes, but the checkpoint "
                           "has %lld",
                           path, (long long)bytes, (long long)expected);
    if (!failed) failed = put_all(&o, config);
    close(o.fd);  // nothing was written
    return failed;
}
