// Shared by the tests of gpt2/: a temporary folder for files, and models with computed values.
#ifndef TESTS_GPT2_FILES_H
#define TESTS_GPT2_FILES_H
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include "files.h"
#include "unit.h"
#include "../gpt2/model.h"
#include "../gpt2/text_file.h"
#include "../gpt2/tokenizer.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

// -------- the folder

static char folder[] = "/tmp/test_gpt2.XXXXXX";

static const char *in_folder(const char *name) {  // valid until the fourth call after this one
    static char paths[4][256];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(paths[turn], sizeof paths[turn], "%s/%s", folder, name);
    return paths[turn];
}

static int make_folder(void **state) { return mkdtemp(folder) ? 0 : -1; }

static int empty_folder(void **state) { return remove_tree(folder) || mkdir(folder, 0700); }

static int remove_folder(void **state) { return rmdir(folder); }

static void write_bytes(const char *path, const void *header, size_t header_size, const void *body,
                        size_t size) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(header, 1, header_size, f), header_size);
    assert_int_equal(fwrite(body, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

// Limits the size of files that the process writes from now on; 0 removes the limit.
static void limit_files(rlim_t bytes) {
    static rlim_t usual;
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    assert_return_code(getrlimit(RLIMIT_FSIZE, &limit), errno);
    if (!usual) usual = limit.rlim_cur;
    limit.rlim_cur = bytes ? bytes : usual;
    assert_return_code(setrlimit(RLIMIT_FSIZE, &limit), errno);
}

// -------- models

// Returns a value that is exact in every 16-bit format. Neighbours in a row or a column differ.
static float value_of(int tensor, int layer, int64_t i) {
    return (float)((int64_t)((uint64_t)(i + 1) * (uint64_t)(2654435761u + 97 * tensor + layer) >> 7 & 127) -
                   64) /
           32;
}

typedef struct {
    GPT2Config config;
    GPT2Tensor tensors[NUM_PARAMETER_TENSORS];
    int64_t fails_after;  // `give` fails after this many values; 0: it never fails
    int64_t compared;     // values compared so far
} Made;

static Made made(const char *descriptor) {
    Made m = { .fails_after = 0 };
    must(gpt2_config_from_descriptor(&m.config, descriptor));
    gpt2_tensors(&m.config, m.tensors);
    return m;
}

static float value_in(const Made *m, int tensor, int layer, int64_t i) {
    const int padding = tensor == WTE && i >= (int64_t)m->config.vocab_size * m->config.channels;
    return padding ? 0 : value_of(tensor, layer, i);
}

static int give(void *ctx, int tensor, int layer, int64_t offset, int64_t n, float *values) {
    Made *m = ctx;
    assert_true(offset >= 0 && n >= 0 && offset + n <= m->tensors[tensor].elems);
    for (int64_t i = 0; i < n; i++) values[i] = value_in(m, tensor, layer, offset + i);
    if (!m->fails_after) return 0;
    m->fails_after -= n;
    return m->fails_after > 0 ? 0 : gpt2_fail("the source is dry");
}

static int compare(void *ctx, int tensor, int layer, int64_t offset, int64_t n, const float *values) {
    Made *m = ctx;
    assert_in_range(n, 1, GPT2_PIECE);
    for (int64_t i = 0; i < n; i++)
        if (values[i] != value_in(m, tensor, layer, offset + i))
            return gpt2_fail("tensor %d of layer %d: element %lld is %g, expected %g", tensor, layer,
                             (long long)(offset + i), values[i], value_in(m, tensor, layer, offset + i));
    m->compared += n;
    return 0;
}

// Checks that the file or folder contains this model, and that reading it returns each value once.
static void check_reads(const char *path, Made *m, gpt2_dtype dtype) {
    GPT2Stored stored;
    must(gpt2_stored_open(path, &stored));
    assert_memory_equal(&stored.config, &m->config, sizeof m->config);
    assert_int_equal(stored.dtype, dtype);
    m->compared = 0;
    must(gpt2_stored_read(&stored, compare, m));
    assert_int_equal(m->compared, gpt2_num_parameters(&m->config));
    gpt2_stored_close(&stored);
}
#endif
