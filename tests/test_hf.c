// Tests Hugging Face folders, written by gpt2/ and by other programs. test_damage.c damages the files.
#include "gpt2_files.h"
#include "../gpt2/disk.h"
#include "../gpt2/hf.h"
#include "../gpt2/safetensors.h"
#include "../gpt2/transpose.h"
#include "../llmc_zero/device/numbers.h"

static void test_round_trip(void **state) {
    // In the second, wte is longer than a piece, and no dimension is a multiple of SQUARE in transpose.c.
    static const char *const descriptors[] = { "l2h2c8v257t5", "l1h3c303v1000t70", "l1h1c1v1t1" };
    for (size_t i = 0; i < COUNT(descriptors); i++)
        for (gpt2_dtype dtype = GPT2_F32; dtype <= GPT2_BF16; dtype++) {
            Made m = made(descriptors[i]);
            const HfModel to = { m.config, dtype, give, &m, NULL };
            must(hf_write(in_folder("written/"), &to));
            assert_int_equal(files_in(in_folder("written")), 3);
            check_reads(in_folder("written"), &m, dtype);
            empty_folder(NULL);
        }
}

// Sets each element to its own index, and counts the elements requested.
static int give_number(void *ctx, int tensor, int layer, int64_t offset, int64_t n, float *values) {
    int64_t *asked = ctx;
    *asked += n;
    for (int64_t i = 0; i < n; i++) values[i] = (float)(offset + i);
    return 0;
}

// The matrix needs two panels, and some of the requested parts start in the middle.
static void test_transposer(void **state) {
    enum { ROWS = 5000, COLS = 1700, N = 3001 };  // indices below 2^24, so fp32 holds them exactly
    Transposer t;
    int64_t asked = 0;
    float *values = malloc(N * sizeof *values);
    must(transposer_begin(&t, give_number, &asked));
    for (int64_t at = 0; at < (int64_t)ROWS * COLS; at += N) {
        const int64_t left = (int64_t)ROWS * COLS - at, n = left < N ? left : N;
        must(transposer_get(&t, 0, 0, ROWS, COLS, at, n, values));
        for (int64_t i = 0; i < n; i++)
            assert_true(values[i] == (float)((at + i) % ROWS * COLS + (at + i) / ROWS));
    }
    assert_int_equal(asked, (int64_t)ROWS * COLS);  // it requested each element exactly once
    must(transposer_get(&t, 0, 0, ROWS, COLS, 3, 1, values));
    assert_true(values[0] == 3 * COLS);
    must(transposer_get(&t, 0, 0, 3, 2, 1, 4, values));  // the same tensor with another shape
    transposer_end(&t);
    free(values);
}

// -------- folders as other programs write them

enum { SHARDS = 2 };
typedef struct {
    const char *prefix;  // of the tensors' names
    const char *dtype;
    int shards;   // 0: one file
    int buffers;  // 1: has attn.bias and attn.masked_bias
    int head;     // 1: has lm_head.weight; 2: has one that differs from wte.weight in one value
} Foreign;

static const char config_text[] =
    "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 2, \"n_embd\": 4, \"vocab_size\": 5, "
    "\"n_positions\": 3, \"n_inner\": null, \"activation_function\": \"gelu_new\", \"layer_norm_epsilon\": "
    "1e-05, \"scale_attn_weights\": true, \"tie_word_embeddings\": true, \"anything\": [1]}";

static void put_value(FILE *f, const char *dtype, float x) {
    const uint16_t half = strcmp(dtype, "F16") ? bf16_round(x) : fp16_round(x);
    if (!strcmp(dtype, "F32"))
        fwrite(&x, sizeof x, 1, f);
    else
        fwrite(&half, sizeof half, 1, f);
}

// A file being built: its header as text, and its values.
typedef struct {
    FILE *header, *values;
    char *header_text, *value_bytes;
    size_t header_size, value_size;
} Pieces;

static void pieces_begin(Pieces *p) {
    p->header = open_memstream(&p->header_text, &p->header_size);
    p->values = open_memstream(&p->value_bytes, &p->value_size);
    fprintf(p->header, "8 bytes.{\"__metadata__\":{\"format\":\"pt\"}");
}

static void pieces_end(Pieces *p, const char *path) {
    fprintf(p->header, "}");
    fclose(p->header);
    fclose(p->values);
    const uint64_t length = p->header_size - sizeof length;
    memcpy(p->header_text, &length, sizeof length);
    if (path) write_bytes(path, p->header_text, p->header_size, p->value_bytes, p->value_size);
    free(p->header_text);
    free(p->value_bytes);
}

// The tensors' names in transformers, without "h.0." and so on. It stores the layers' matrices as (in, out).
static const char *const theirs[NUM_PARAMETER_TENSORS] = {
    "wte.weight",         "wpe.weight",       "ln_1.weight",        "ln_1.bias",
    "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
    "ln_2.weight",        "ln_2.bias",        "mlp.c_fc.weight",    "mlp.c_fc.bias",
    "mlp.c_proj.weight",  "mlp.c_proj.bias",  "ln_f.weight",        "ln_f.bias",
};

static void put_tensor(Pieces *p, const Foreign *how, const Made *m, const char *name, int tensor, int layer,
                       int other) {
    const GPT2Tensor *t = &m->tensors[tensor];
    const int matrix = t->n_dims == 2, turned = matrix && t->per_layer;
    const int rows = tensor == WTE ? m->config.vocab_size : (int)t->dims[turned];
    const int columns = matrix ? (int)t->dims[!turned] : 1;
    const long begins = ftell(p->values);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) {
            const int64_t at = turned ? (int64_t)c * rows + r : (int64_t)r * columns + c;
            put_value(p->values, how->dtype, value_of(tensor, layer, at) + (other && at == 7));
        }
    fprintf(p->header,
            matrix ? ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%d,%d]"
                   : ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%d]",
            name, how->dtype, rows, columns);
    fprintf(p->header, ",\"data_offsets\":[%ld,%ld]}", begins, ftell(p->values));
}

static void put_buffer(Pieces *p, const char *prefix, const char *name, const char *dtype, int bytes) {
    const long begins = ftell(p->values);
    for (int i = 0; i < bytes; i++) fputc(i, p->values);
    fprintf(p->header, ",\"%sh.1.%s\":{\"dtype\":\"%s\",\"shape\":[1,1,3,3],\"data_offsets\":[%ld,%ld]}",
            prefix, name, dtype, begins, ftell(p->values));
}

static void put_all(Pieces p[SHARDS], FILE *map, const Foreign *how, const Made *m) {
    char name[64];
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++)
        for (int l = 0; l < (m->tensors[i].per_layer ? 2 : 1); l++) {
            const int shard = how->shards ? i % how->shards : 0;
            int n = snprintf(name, sizeof name, "%s", how->prefix);
            if (m->tensors[i].per_layer) n += snprintf(name + n, sizeof name - n, "h.%d.", l);
            snprintf(name + n, sizeof name - n, "%s", theirs[i]);
            put_tensor(&p[shard], how, m, name, i, l, 0);
            fprintf(map, "%s\"%s\":\"part%d.safetensors\"", i || l ? "," : "", name, shard);
        }
    if (how->buffers) {
        put_buffer(&p[0], how->prefix, "attn.bias", "BOOL", 9);
        put_buffer(&p[0], how->prefix, "attn.masked_bias", "F8_E4M3", 4);  // an unknown dtype
    }
    if (how->head) put_tensor(&p[0], how, m, "lm_head.weight", WTE, 0, how->head == 2);
}

static void write_foreign(const char *folder, const Foreign *how) {
    char path[400], *text;
    size_t bytes;
    Pieces p[SHARDS];
    const Made m = made("l2h2c4v5t3");
    FILE *map = open_memstream(&text, &bytes);
    mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/" HF_CONFIG, folder);
    must(text_file_write(path, config_text));
    fprintf(map, "{\"metadata\":{},\"weight_map\":{");
    for (int i = 0; i < SHARDS; i++) pieces_begin(&p[i]);
    put_all(p, map, how, &m);
    fprintf(map, "}}");
    fclose(map);
    for (int i = 0; i < SHARDS; i++) {
        snprintf(path, sizeof path, how->shards ? "%s/part%d.safetensors" : "%s/model.safetensors", folder,
                 i);
        pieces_end(&p[i], how->shards || !i ? path : NULL);
    }
    snprintf(path, sizeof path, "%s/" HF_INDEX, folder);
    if (how->shards) must(text_file_write(path, text));
    free(text);
}

static void test_foreign(void **state) {
    static const Foreign cases[] = {
        { "", "F32", 0, 0, 0 },
        { "transformer.", "F32", 0, 0, 0 },
        { "transformer.", "BF16", 0, 1, 1 },
        { "", "F16", 0, 1, 0 },
        { "", "F32", 2, 0, 0 },
        { "transformer.", "F16", 2, 0, 0 },
    };
    static const gpt2_dtype dtypes[] = { GPT2_F32, GPT2_F32, GPT2_BF16, GPT2_F16, GPT2_F32, GPT2_F16 };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Made m = made("l2h2c4v5t3");
        write_foreign(in_folder("foreign"), &cases[i]);
        assert_true(hf_is_folder(in_folder("foreign")));
        check_reads(in_folder("foreign"), &m, dtypes[i]);
        empty_folder(NULL);
    }
    GPT2Stored stored;
    Made m = made("l2h2c4v5t3");
    write_foreign(in_folder("foreign"), &(Foreign){ "", "F32", 0, 0, 2 });
    must(gpt2_stored_open(in_folder("foreign"), &stored));
    assert_error(gpt2_stored_read(&stored, compare, &m),
                 "lm_head.weight differs from wte.weight from element 7");
    gpt2_stored_close(&stored);
}

// -------- writing

// A failed write leaves no files behind, and existing files are never overwritten.
static void test_failing_writes(void **state) {
    Made m = made("l2h2c64v257t64");
    const HfModel to = { m.config, GPT2_F32, give, &m, NULL };
    m.fails_after = 100000;
    assert_error(hf_write(in_folder("out"), &to), "dry");
    assert_int_equal(files_in(folder), 0);

    m.fails_after = 0;
    limit_files(50000);
    const int rc = hf_write(in_folder("out"), &to);
    limit_files(0);
    assert_error(rc, "File too large");
    assert_int_equal(files_in(folder), 0);

    must(hf_write(in_folder("out"), &to));
    assert_error(hf_write(in_folder("out"), &to), "already exists and is not empty");
    assert_error(hf_write(in_folder("out/config.json"), &to), "cannot be a new folder");
    assert_error(hf_write(in_folder("none/out"), &to), "No such file");
    assert_int_equal(files_in(folder), 1);
    check_reads(in_folder("out"), &m, GPT2_F32);
}

static int ignore(void *ctx, int tensor, int layer, int64_t offset, int64_t n, const float *values) {
    return 0;
}

// Exports a model of 100 MiB from a sparse file and reads it back, using at most 64 MiB of extra memory.
static void test_memory(void **state) {
    struct rusage before, after;
    Made m = made("l4h8c720v2000t64");
    int32_t header[256] = { 20240326, 3, 64, 2000, 4, 8, 720, 2048 };
    GPT2Stored stored;
    const off_t bytes = 1024 + 4 * gpt2_num_parameters(&m.config);
    assert_true(bytes > 100 << 20);
    write_bytes(in_folder("large.bin"), (char *)header, sizeof header, "", 0);
    assert_return_code(truncate(in_folder("large.bin"), bytes), errno);
    getrusage(RUSAGE_SELF, &before);
    must(gpt2_stored_open(in_folder("large.bin"), &stored));
    HfModel to = { stored.config, GPT2_F32, stored.get, stored.ctx, NULL };
    must(hf_write(in_folder("large"), &to));
    gpt2_stored_close(&stored);
    must(gpt2_stored_open(in_folder("large"), &stored));
    must(gpt2_stored_read(&stored, ignore, NULL));
    gpt2_stored_close(&stored);
    getrusage(RUSAGE_SELF, &after);
    empty_folder(NULL);
    if (after.ru_maxrss - before.ru_maxrss > 64 << 10)
        fail_msg("used %ld KiB more than before", after.ru_maxrss - before.ru_maxrss);
}

// -------- the tokenizer

static void write_tokenizer(const char *extra, int n_extra) {
    const uint32_t header[256] = { 20240328, 2, (uint32_t)(257 + n_extra), (uint32_t)(256 + n_extra) };
    char *body;
    size_t bytes;
    FILE *f = open_memstream(&body, &bytes);
    for (int b = 0; b < 256; b++) fprintf(f, "\1%c", b);
    for (const char *p = extra; n_extra; n_extra--, p += strlen(p) + 1) fprintf(f, "%c%s", (int)strlen(p), p);
    fprintf(f, "\5<eot>");
    fclose(f);
    write_bytes(in_folder("tokenizer.bin"), header, sizeof header, body, bytes);
    free(body);
}

static int export_tokenizer(const char *extra, int n_extra) {
    Tokenizer t;
    const Made m = made("l2h2c4v5t3");
    write_tokenizer(extra, n_extra);
    must(tokenizer_init(&t, in_folder("tokenizer.bin")));
    int rc = hf_tokenizer_write(folder, &t, &m.config);
    tokenizer_free(&t);
    return rc;
}

static void test_tokenizer(void **state) {
    must(export_tokenizer("th\0he\0the\0 the\0\xc3\xa9\0", 5));
    char *text = text_file_read(in_folder("merges.txt"));
    assert_string_equal(text, "#version: 0.2\nt h\nh e\nth e\n\xc4\xa0 the\n\xc3\x83 \xc2\xa9\n");
    free(text);
    json_t *vocabulary = safe_json(in_folder("vocab.json"), 1 << 20);
    assert_int_equal(json_object_size(vocabulary), 262);
    assert_int_equal(json_integer_value(json_object_get(vocabulary, "\xc4\xa0the")), 259);
    assert_int_equal(json_integer_value(json_object_get(vocabulary, "\xc4\x80")), 0);
    assert_int_equal(json_integer_value(json_object_get(vocabulary, "\xc5\x83")), 0xad);
    assert_int_equal(json_integer_value(json_object_get(vocabulary, "<eot>")), 261);
    json_decref(vocabulary);
    assert_error(export_tokenizer("the\0", 1), "token 256 does not consist of two lower-numbered tokens");
    assert_error(export_tokenizer("th\0th\0", 2), "token 257 has the same bytes as another one");
}

#define TEST(f) cmocka_unit_test_teardown(f, empty_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_memory),  // first, because it measures the growth of peak memory
        TEST(test_round_trip), TEST(test_transposer),     TEST(test_foreign),
        TEST(test_tokenizer),  TEST(test_failing_writes),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
