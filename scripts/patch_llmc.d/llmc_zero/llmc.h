// ZeRO for llm.c's trainers: what train_gpt2.h and train_gpt2cu.h share. Before them, a trainer lists its
// tensors, as in its ParameterTensors: an enum of their numbers up to Z_TENSORS, and Z_TABLE, with the name
// of each, its unit, and whether its weights decay.
#include <glob.h>
#include <stdarg.h>
#include "zero.h"

enum { Z_EMBEDDING, Z_BLOCKS };  // the units: all tensors outside the layers; layer l is unit Z_BLOCKS + l
static const struct {
    const char *name;
    int unit, decay;
} z_table[Z_TENSORS] = { Z_TABLE };

static zero *z;

// Ends all ranks after an error; one of them prints the message.
static void z_refuse(const char *format, ...) {
    char message[1200];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    zero_end_job(z, 1, message);
}
static void z_check(int rc) {
    if (rc != 0) z_refuse("%s", zero_last_error());
}

// Pointers to parameters and gradients, by their offset in a tensor of all layers, which must begin a layer.
// llm.c's functions only read parameters, but many take pointers without const.
static size_t z_elems[Z_TENSORS];  // of one layer
static int z_layers[Z_TENSORS];
static int z_layer(int tensor, size_t offset) {
    if (offset % z_elems[tensor] != 0)
        z_refuse("%s + %zu: is not the start of a layer, which has %zu elements", z_table[tensor].name,
                 offset, z_elems[tensor]);
    return (int)(offset / z_elems[tensor]);
}
static z_type *z_param(int tensor, size_t offset) {
    z_type *param = (z_type *)zero_param(z, tensor, z_layer(tensor, offset));
    z_check(param == NULL);
    return param;
}
static z_type *z_grad(int tensor, size_t offset) {
    z_type *grad = (z_type *)zero_grad(z, tensor, z_layer(tensor, offset));
    z_check(grad == NULL);
    return grad;
}

static void z_print_memory(int stage) {
    static const char *const classes[] = { "model states", "working", "activations" };
    zero_memory_line line;
    zero_job job;
    double states = zero_memory_bytes(z, ZERO_STATES) / 1048576.0;
    double working = zero_memory_bytes(z, ZERO_WORKING) / 1048576.0;
    zero_job_info(z, &job);
    printf("ZeRO stage %d on %d ranks by %s; memory per rank without activations:\n", stage, zero_ranks(z),
           job.comm);
    for (int i = 0; zero_memory(z, i, &line); i++) {
        printf("  %-12s  %-28s %8.1f MiB\n", classes[line.class_], line.purpose, line.bytes / 1048576.0);
    }
    printf("  model states %.1f, working %.1f, together %.1f MiB\n", states, working, states + working);
}
static void z_create_model(zero_config *config, const size_t *sizes, int L) {
    zero_tensor tensors[Z_TENSORS];
    zero_unit *units = (zero_unit *)mallocCheck((Z_BLOCKS + L) * sizeof(zero_unit));
    // two uses, by the encoder and the LM head; the encoder's backward reads no parameters
    zero_unit embedding = { "embedding", 2, 2, 1 }, block = { "block", 1, 1, 0 };
    for (int t = 0; t < Z_TENSORS; t++) {
        z_layers[t] = z_table[t].unit == Z_BLOCKS ? L : 1;
        z_elems[t] = sizes[t] / z_layers[t];
        zero_tensor tensor = { z_table[t].name,  1, { (int64_t)z_elems[t] }, z_layers[t], z_table[t].unit,
                               z_table[t].decay, 0 };
        tensors[t] = tensor;
    }
    units[Z_EMBEDDING] = embedding;
    if (getenv("ZERO_CHECK") == NULL) config->debug.check_steps = 2;  // ZERO_CHECK=1: all steps, 0: none
    for (int l = 0; l < L; l++) {
        units[Z_BLOCKS + l] = block;
    }
    z_check(zero_create(&z, config, tensors, Z_TENSORS, units, Z_BLOCKS + L));
    free(units);
    if (zero_rank(z) == 0) z_print_memory(config->stage);
}

// The plugin has something to say after the first step, for example about a gradient that is 0.
static void z_print_note(const zero_step_result *result) {
    if (result->note != NULL && zero_rank(z) == 0) fprintf(stderr, "note: %s\n", result->note);
}

// A training pass is announced before gpt2_forward(); every other call of it is an evaluation, on all ranks.
static int z_training;
static void z_begin_train(int micro_batch, int of, const void *inputs, size_t bytes) {
    z_check(zero_check_batch(z, inputs, bytes));
    z_check(zero_begin_train(z, micro_batch, of));
    z_training = 1;
}
static void z_begin_pass(void) {
    if (!z_training) z_check(zero_begin_eval(z));
    z_training = 0;
}

// The ranks compare their inputs: all parameters, and the name and first 64 KiB of each data file, which
// include the header with the file's size.
static uint64_t z_params_read;                                            // a digest
static void z_digest(uint64_t *digest, const void *data, size_t words) {  // FNV-1a, 4 bytes at a time
    for (size_t i = 0; i < words; i++) {
        uint32_t word;
        memcpy(&word, (const char *)data + i * sizeof(word), sizeof(word));
        *digest = (*digest ^ word) * 0x100000001b3;
    }
}
static void z_same_data(const char *name, size_t B, size_t T, const char *pattern) {
    static uint32_t block[1 << 14];
    char line[1024];
    glob_t files;
    if (glob(pattern, 0, NULL, &files) != 0) z_refuse("%s: the data file no longer exists", pattern);
    snprintf(line, sizeof(line), "parameters = digest %016llx\n%s = B %zu, T %zu, %zu data files",
             (unsigned long long)z_params_read, name, B, T, (size_t)files.gl_pathc);
    z_check(zero_require_same(z, line));
    for (size_t i = 0; i < files.gl_pathc; i++) {
        const char *path = files.gl_pathv[i], *slash = strrchr(path, '/');
        uint64_t first = 0;
        FILE *file = fopenCheck(path, "rb");
        memset(block, 0, sizeof(block));
        if (fread(block, 1, sizeof(block), file) == 0) z_refuse("%s: cannot be read", path);
        fcloseCheck(file);
        z_digest(&first, block, sizeof(block) / sizeof(*block));
        snprintf(line, sizeof(line), "%s, file %zu = %.255s, digest %016llx", name, i,
                 slash ? slash + 1 : path, (unsigned long long)first);
        z_check(zero_require_same(z, line));
    }
    globfree(&files);
}

// Visits all parameters in the order of llm.c's model files, in pieces, so that no rank ever holds the model.
typedef void z_visit(void *with, int t, int l, int64_t at, int64_t n);
static void z_each_piece(z_visit *visit, void *with) {
    for (int t = 0; t < Z_TENSORS; t++) {
        int64_t elems = (int64_t)z_elems[t];
        for (int l = 0; l < z_layers[t]; l++) {
            for (int64_t at = 0; at < elems; at += Z_PIECE) {
                visit(with, t, l, at, elems - at < Z_PIECE ? elems - at : (int64_t)Z_PIECE);
            }
        }
    }
}
static z_type z_raw[Z_PIECE];
static float z_values[Z_PIECE];
static void z_set_piece(int t, int l, int64_t at, int64_t n, const z_type *from) {
    for (int64_t i = 0; i < n; i++) {
        z_values[i] = (float)from[i];
    }
    z_digest(&z_params_read, z_values, n);
    z_check(zero_set(z, ZERO_PARAM, t, l, at, n, z_values));
}
static void z_read_piece(void *file, int t, int l, int64_t at, int64_t n) {
    freadCheck(z_raw, sizeof(z_type), n, (FILE *)file);
    z_set_piece(t, l, at, n, z_raw);
}
static void z_read_params(FILE *file) { z_each_piece(z_read_piece, file); }

static void z_copy_piece(void *from, int t, int l, int64_t at, int64_t n) {
    const z_type **next = (const z_type **)from;
    z_set_piece(t, l, at, n, *next);
    *next += n;
}
static void z_set_params(const z_type *from) { z_each_piece(z_copy_piece, &from); }
static void z_write_piece(void *file, int t, int l, int64_t at, int64_t n) {
    z_check(zero_get(z, ZERO_PARAM, t, l, at, n, z_values));
    for (int64_t i = 0; i < n; i++) {
        z_raw[i] = (z_type)z_values[i];
    }
    if (fwrite(z_raw, sizeof(z_type), n, (FILE *)file) != (size_t)n) z_refuse("cannot write the parameters");
}
static void z_write_params(FILE *file) { z_each_piece(z_write_piece, file); }

static void z_finish(void) {
    char hash[17];
    z_check(zero_hash(z, 0, hash));
    if (zero_rank(z) == 0) printf("params_hash %s\n", hash);
    zero_destroy(z);
    z = NULL;
}
