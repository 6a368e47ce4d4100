// llm.c's model files, read and written as a stream: a header, then the tensors in order with all layers of
// each.
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "error.h"
#include "model.h"

enum { MAGIC = 20240326, VERSION_F32 = 3, VERSION_BF16 = 5, HEADER = 256 * sizeof(int32_t) };

typedef struct {
    const char *path;
    FILE *file;  // NULL: this rank writes nothing
    gpt2_dtype dtype;
    gpt2_sink sink;      // reading
    gpt2_source source;  // writing
    void *ctx;
    float *values;     // (GPT2_PIECE)
    uint16_t *halves;  // (GPT2_PIECE), bf16 as it is in the file
    int failed;
} Stream;

typedef int (*Piece)(Stream *s, int tensor, int layer, int64_t offset, int64_t n);

// Visits every piece of the file, in order.
static int for_each_piece(Stream *s, const GPT2Config *config, Piece piece) {
    GPT2Tensor tensors[NUM_PARAMETER_TENSORS];
    gpt2_tensors(config, tensors);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        int layers = tensors[i].per_layer ? config->num_layers : 1;
        for (int l = 0; l < layers; l++) {
            for (int64_t at = 0; at < tensors[i].elems; at += GPT2_PIECE) {
                int64_t rest = tensors[i].elems - at;
                if (piece(s, i, l, at, rest < GPT2_PIECE ? rest : GPT2_PIECE)) return -1;
            }
        }
    }
    return 0;
}

static int stream_buffers(Stream *s) {
    s->values = malloc(GPT2_PIECE * sizeof *s->values);
    s->halves = malloc(GPT2_PIECE * sizeof *s->halves);
    return s->values && s->halves ? 0 : gpt2_fail("%s: no memory for its pieces", s->path);
}

static void stream_free(Stream *s) {
    free(s->values);
    free(s->halves);
}

// --------
// reading

static int parse_header(const char *path, const int32_t *header, GPT2Config *config, gpt2_dtype *dtype) {
    if (header[0] != MAGIC)
        return gpt2_fail("%s: not a model file: its first number is %d, expected %d", path, header[0], MAGIC);
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
    return gpt2_config_check(config, path);
}

// Opens the file, checks all that does not need the values, and leaves the position after the header.
static FILE *open_model(const char *path, GPT2Config *config, gpt2_dtype *dtype) {
    struct stat st;
    int32_t header[256];
    FILE *f = fopen(path, "rb");
    if (!f) {
        gpt2_fail("%s: cannot open the model: %s", path, strerror(errno));
        return NULL;
    }
    if (fstat(fileno(f), &st))
        gpt2_fail("%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        gpt2_fail("%s: not a regular file", path);
    else if (st.st_size < HEADER)
        gpt2_fail("%s: %lld bytes cannot be a model file, which has a header of %d", path,
                  (long long)st.st_size, (int)HEADER);
    else if (fread(header, sizeof header, 1, f) != 1)
        gpt2_fail("%s: cannot read the header: %s", path, strerror(errno));
    else if (!parse_header(path, header, config, dtype)) {
        int64_t expected = HEADER + gpt2_num_parameters(config) * (int64_t)gpt2_dtype_size(*dtype);
        if (st.st_size == expected) return f;
        gpt2_fail("%s: %lld bytes, but its header asks for %lld: the file is %s", path, (long long)st.st_size,
                  (long long)expected, st.st_size < expected ? "cut short" : "too long");
    }
    fclose(f);  // nothing was written, and the error is known
    return NULL;
}

int gpt2_file_read_header(const char *path, GPT2Config *config, gpt2_dtype *dtype) {
    FILE *f = open_model(path, config, dtype);
    if (!f) return -1;
    return fclose(f) ? gpt2_fail("%s: %s", path, strerror(errno)) : 0;
}

static int read_piece(Stream *s, int tensor, int layer, int64_t offset, int64_t n) {
    int bf16 = s->dtype == GPT2_BF16;
    errno = 0;
    if (fread(bf16 ? (void *)s->halves : s->values, gpt2_dtype_size(s->dtype), n, s->file) != (size_t)n)
        return gpt2_fail("%s: reading stopped before the end: %s", s->path,
                         errno ? strerror(errno) : "the file was cut short meanwhile");
    if (bf16)
        for (int64_t i = 0; i < n; i++) s->values[i] = bf16_to_f32(s->halves[i]);
    return s->sink(s->ctx, tensor, layer, offset, n, s->values);
}

int gpt2_file_read(const char *path, gpt2_sink sink, void *ctx) {
    GPT2Config config;
    Stream s = { .path = path, .sink = sink, .ctx = ctx };
    s.file = open_model(path, &config, &s.dtype);
    if (!s.file) return -1;
    int failed = stream_buffers(&s) || for_each_piece(&s, &config, read_piece) ? -1 : 0;
    if (fclose(s.file) && !failed) failed = gpt2_fail("%s: %s", path, strerror(errno));
    stream_free(&s);
    return failed;
}

// --------
// writing

// A failed write does not end the walk, because the other ranks wait in the source.
static void write_bytes(Stream *s, const void *bytes, size_t size) {
    if (s->failed || fwrite(bytes, 1, size, s->file) == size) return;
    s->failed = gpt2_fail("%s: cannot write: %s", s->path, strerror(errno));
}

static int write_piece(Stream *s, int tensor, int layer, int64_t offset, int64_t n) {
    if (s->source(s->ctx, tensor, layer, offset, n, s->values)) return -1;
    if (!s->file) return 0;
    int bf16 = s->dtype == GPT2_BF16;
    if (bf16)
        for (int64_t i = 0; i < n; i++) s->halves[i] = f32_to_bf16(s->values[i]);
    write_bytes(s, bf16 ? (void *)s->halves : s->values, n * gpt2_dtype_size(s->dtype));
    return 0;
}

// A rename is safe on disk only once its directory is synchronised.
static int sync_directory_of(const char *path) {
    char *copy = strdup(path);
    if (!copy) return gpt2_fail("%s: no memory", path);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY);
    int failed = 0;
    if (fd < 0 || fsync(fd))
        failed = gpt2_fail("%s: written, but its directory cannot be synchronised: %s", path,
                           strerror(errno));
    if (fd >= 0) close(fd);  // nothing was written through it
    free(copy);
    return failed;
}

// Renames the temporary file to the path, or removes it.
static int finish_file(Stream *s, const char *temporary, int failed) {
    if (!failed && (fflush(s->file) || fsync(fileno(s->file))))
        failed = gpt2_fail("%s: cannot write: %s", s->path, strerror(errno));
    if (fclose(s->file) && !failed) failed = gpt2_fail("%s: cannot close: %s", s->path, strerror(errno));
    if (!failed && rename(temporary, s->path))
        failed = gpt2_fail("%s: cannot rename %s to it: %s", s->path, temporary, strerror(errno));
    if (!failed) return sync_directory_of(s->path);
    unlink(temporary);
    return -1;
}

static void write_header(Stream *s, const GPT2Config *c) {
    int32_t header[256] = { MAGIC,          s->dtype == GPT2_BF16 ? VERSION_BF16 : VERSION_F32,
                            c->max_seq_len, c->vocab_size,
                            c->num_layers,  c->num_heads,
                            c->channels,    c->padded_vocab_size };
    write_bytes(s, header, sizeof header);
}

// Creates the temporary file with its header; the caller frees its name. NULL without memory for the name.
static char *create_file(Stream *s, const GPT2Config *config) {
    char *temporary = NULL;
    if (asprintf(&temporary, "%s.tmp", s->path) < 0) {
        s->failed = gpt2_fail("%s: no memory for its name", s->path);
        return NULL;
    }
    s->file = fopen(temporary, "wb");
    if (s->file)
        write_header(s, config);
    else
        s->failed = gpt2_fail("%s: cannot create: %s", temporary, strerror(errno));
    return temporary;
}

int gpt2_file_write(const char *path, const GPT2Config *config, gpt2_dtype dtype, gpt2_source source,
                    void *ctx, int writer) {
    Stream s = { .path = path, .dtype = dtype, .source = source, .ctx = ctx };
    char *temporary = NULL;
    if (stream_buffers(&s)) {
        stream_free(&s);
        return -1;
    }
    if (writer) temporary = create_file(&s, config);
    int failed = for_each_piece(&s, config, write_piece) || s.failed ? -1 : 0;
    if (s.file) failed = finish_file(&s, temporary, failed);
    free(temporary);
    stream_free(&s);
    return failed;
}
