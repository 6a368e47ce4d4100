// Tests gpt2/ except the layers: random numbers, descriptors, initialisation, model files, the data loader,
// the tokenizer, schedules, outliers, text files and fingerprints. test_damage.c damages the files.
#include <math.h>
#include "gpt2_files.h"
#include "../gpt2/dataloader.h"
#include "../gpt2/disk.h"
#include "../gpt2/fingerprint.h"
#include "../gpt2/rand.h"
#include "../gpt2/learning_rate.h"

static off_t size_of(const char *path) {
    struct stat st;
    assert_return_code(stat(path, &st), errno);
    return st.st_size;
}

// -------- random numbers

static void test_mt19937(void **state) {  // torch.manual_seed(137), as PyTorch prints it
    static const uint32_t first[] = { 4053805790u, 2173880614u, 380293709u, 1237255315u, 2986595568u };
    static const float few[] = { 0.7947664f,  1.4369317f,  -0.2292192f, 0.4755633f,
                                 -0.6334411f, -0.5791954f, -0.0925705f, -0.8659197f };
    static const float block[] = { -1.2813878f, -2.6463957f, -0.0656950f, 0.2180829f,
                                   -0.4653617f, -0.3310841f, 2.5485482f,  0.1042537f,
                                   0.8460661f,  0.9462448f,  -0.2913765f, 0.3431381f,
                                   -1.1186705f, -0.1830533f, -2.3153160f, 0.3961988f };
    mt19937 rng;
    float values[16];
    uint32_t p[100], in_place = 0;
    mt_seed(&rng, 137);
    for (size_t i = 0; i < COUNT(first); i++) assert_int_equal(mt_u32(&rng), first[i]);
    mt_normal(&rng, values, 8, 0, 1);
    for (int i = 0; i < 8; i++) assert_float_equal(values[i], few[i], 1e-6);
    assert_int_equal(mt_u32(&rng), 2186503452u);
    mt_normal(&rng, values, 16, 0, 1);
    for (int i = 0; i < 16; i++) assert_float_equal(values[i], block[i], 1e-6);
    assert_int_equal(mt_u32(&rng), 2756748748u);
    mt_permutation(&rng, p, 100);  // test_shuffle tests that it has each number once
    for (uint32_t i = 0; i < 100; i++) in_place += p[i] == i;
    assert_true(in_place < 10);
}

static void test_sampler(void **state) {
    uint64_t seed = 1337;
    for (int i = 0; i < 1000; i++) {
        float x = random_f32(&seed);
        assert_true(x >= 0 && x < 1);
    }
    const float logits[] = { 0, logf(2), logf(5) };  // 1/8, 2/8, 5/8
    static const struct {
        float coin;
        int index;
    } cases[] = {
        { 0, 0 }, { 0.12f, 0 }, { 0.13f, 1 }, { 0.37f, 1 }, { 0.38f, 2 }, { 0.999999f, 2 },
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_int_equal(sample_softmax(logits, 3, cases[i].coin), cases[i].index);
    const float large[] = { 1000, -1000, 1001 };
    assert_int_equal(sample_softmax(large, 3, 0.1f), 0);
    assert_int_equal(sample_softmax(large, 3, 0.9f), 2);
}

// -------- models

static void test_descriptors(void **state) {
    static const struct {
        const char *descriptor;
        GPT2Config c;
        int64_t parameters;
    } good[] = {
        { "d6", { 1024, 50257, 50304, 6, 6, 384 }, 0 },
        { "d12", { 1024, 50257, 50304, 12, 12, 768 }, 124475904 },
        { "gpt2:d12", { 1024, 50257, 50304, 12, 12, 768 }, 124475904 },
        { "d48", { 1024, 50257, 50304, 48, 25, 1600 }, 1557686400 },
        { "gpt2:d84", { 1024, 50257, 50304, 84, 36, 3456 }, 0 },
        { "gpt3:c384", { 2048, 50257, 50304, 6, 6, 384 }, 0 },
        { "gpt3:c1536", { 2048, 50257, 50304, 24, 16, 1536 }, 0 },
        { "gpt3:c2560", { 2048, 50257, 50304, 32, 32, 2560 }, 0 },
        { "gpt3:c12288", { 2048, 50257, 50304, 96, 96, 12288 }, 0 },
        { "l4h4c128v512t64", { 64, 512, 512, 4, 4, 128 }, 0 },
        { "l1h1c1v129t1", { 1, 129, 256, 1, 1, 1 }, 284 },
    };
    static const struct {
        const char *descriptor, *error;
    } bad[] = { { "", "is unknown" },
                { "x12", "is unknown" },
                { "gpt2:12", "is unknown" },
                { "gpt3:d12", "is unknown" },
                { "d", "depth" },
                { "d13", "depth 13" },
                { "d12x", "12x" },
                { "d-12", "-12" },
                { "d 12", "depth" },
                { "d012", "012" },
                { "D12", "is unknown" },
                { "d99999999999999999999", "99999" },
                { "gpt2:d", "depth" },
                { "gpt3:c5140", "heads" },
                { "gpt3:c512", "512" },
                { "gpt3:c", "channels" },
                { "l4h4c128v512", "'t'" },
                { "l4h4c128v512t", "'t'" },
                { "l4h4c128v512t64x", "\"x\"" },
                { "h4l4c128v512t64", "is unknown" },
                { "l4c128h4v512t64", "'h'" },
                { "l0h4c128v512t64", "'l'" },
                { "l4h3c128v512t64", "3 heads" },
                { "l4h4c-128v512t64", "'c'" },
                { "l4h4c128v2147483647t64", "vocabulary" },
                { "l4h4c128v2147483648t64", "'v'" },
                { "l4 h4c128v512t64", "'h'" } };
    GPT2Config c;
    for (size_t i = 0; i < COUNT(good); i++) {
        must(gpt2_config_from_descriptor(&c, good[i].descriptor));
        assert_memory_equal(&c, &good[i].c, sizeof c);
        if (good[i].parameters) assert_int_equal(gpt2_num_parameters(&c), good[i].parameters);
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_error(gpt2_config_from_descriptor(&c, bad[i].descriptor), bad[i].error);
        assert_non_null(strstr(gpt2_last_error(), bad[i].descriptor));
    }
}

// Keeps wte; ctx: all its elements, NaN until they are given.
static int take_wte(void *ctx, int tensor, int layer, int64_t offset, int64_t n, const float *values) {
    assert_in_range(n, 1, GPT2_PIECE);
    if (tensor == WTE) memcpy((float *)ctx + offset, values, n * sizeof *values);
    return 0;
}

// A sink that fails after *ctx pieces.
static int full(void *ctx, int tensor, int layer, int64_t offset, int64_t n, const float *values) {
    int *left = ctx;
    return (*left)-- ? 0 : gpt2_fail("the sink is full");
}

// llm.c draws wte in one call; gpt2_init draws the same in pieces. The padding is zero. test_gradients
// compares all values with PyTorch's, and counts how often each is written.
static void test_init(void **state) {
    static const char *const descriptors[] = { "l1h1c1v262144t1", "l1h1c1v262149t1", "l1h1c1v262160t1",
                                               "l1h1c3v200001t1" };
    for (size_t i = 0; i < COUNT(descriptors); i++) {
        const Made m = made(descriptors[i]);
        const int64_t n = (int64_t)m.config.vocab_size * m.config.channels, all = m.tensors[WTE].elems;
        float *wte = malloc(all * sizeof *wte), *whole = calloc(all, sizeof *whole);
        mt19937 rng;
        int pieces = 3;
        assert_true(wte && whole);
        memset(wte, 0xff, all * sizeof *wte);
        must(gpt2_init(&m.config, take_wte, wte));
        mt_seed(&rng, 42);
        mt_normal(&rng, whole, n, 0, 0.02f);
        assert_memory_equal(wte, whole, all * sizeof *wte);
        assert_error(gpt2_init(&m.config, full, &pieces), "full");
        free(whole);
        free(wte);
    }
}

static int read_file(const char *path, gpt2_sink sink, void *ctx) {
    GPT2Stored stored;
    if (gpt2_file_open(path, &stored)) return -1;
    int failed = gpt2_stored_read(&stored, sink, ctx);
    gpt2_stored_close(&stored);
    return failed;
}

// Sets every element to a value that bf16 must round.
static int third(void *ctx, int tensor, int layer, int64_t offset, int64_t n, float *values) {
    for (int64_t i = 0; i < n; i++) values[i] = 1.0f / 3;
    return 0;
}
static int is_third(void *ctx, int tensor, int layer, int64_t offset, int64_t n, const float *values) {
    for (int64_t i = 0; i < n; i++) assert_true(values[i] == bf16_to_f32(f32_to_bf16(1.0f / 3)));
    return 0;
}

static void test_model_file(void **state) {
    Made m = made("l3h2c96v4000t24");  // wte is longer than a piece
    const char *path = in_folder("model.bin");
    int pieces = 5;
    for (gpt2_dtype dtype = GPT2_F32; dtype <= GPT2_BF16; dtype++) {
        must(gpt2_file_write(path, &m.config, dtype, give, &m));
        assert_int_equal(size_of(path),
                         1024 + gpt2_num_parameters(&m.config) * (int64_t)gpt2_dtype_size(dtype));
        check_reads(path, &m, dtype);
        must(gpt2_file_compare(path, &m.config, dtype, give, &m));
    }
    must(gpt2_file_write(path, &m.config, GPT2_BF16, third, NULL));
    must(read_file(path, is_third, NULL));
    assert_error(read_file(path, full, &pieces), "full");
    assert_int_equal(files_in(folder), 1);
}

// Files are unbuffered, because exit() would flush a buffer that another thread may be writing to.
static void test_file_without_buffer(void **state) {
    disk_file d;
    assert_int_equal(disk_create(&d, in_folder("unbuffered")), 0);
    assert_int_equal(disk_write(&d, "12345", 5), 0);
    assert_int_equal(size_of(d.temporary), 5);
    assert_int_equal(disk_finish(&d, -1), -1);
}

static void test_failing_model_write(void **state) {
    Made m = made("l2h2c64v100t8");
    const char *path = in_folder("kept.bin");
    write_bytes(path, "old", 3, "", 0);
    m.fails_after = 7000;
    assert_error(gpt2_file_write(path, &m.config, GPT2_F32, give, &m), "dry");
    m.fails_after = 0;
    limit_files(20000);
    int result = gpt2_file_write(path, &m.config, GPT2_F32, give, &m);
    limit_files(0);
    assert_error(result, "File too large");
    assert_int_equal(size_of(path), 3);
    assert_int_equal(files_in(folder), 1);
    assert_error(gpt2_file_write(in_folder("none/model.bin"), &m.config, GPT2_F32, give, &m),
                 "cannot create");
}

// -------- the data loader

// Writes a shard of n tokens counting up from `first`, so that a row's first token identifies the row.
static void write_shard(const char *name, uint32_t first, uint32_t n) {
    uint32_t header[256] = { 20240520, 1, n };
    uint16_t tokens[2000];
    assert_true(n <= COUNT(tokens));
    for (uint32_t i = 0; i < n; i++) tokens[i] = (uint16_t)(first + i);
    write_bytes(in_folder(name), header, sizeof header, tokens, n * sizeof *tokens);
}

static void write_three_shards(void) {
    empty_folder(NULL);
    write_shard("s_02.shard", 101, 72);  // 7 rows of 10, at 101 111 ... 161, and one unused token
    write_shard("s_01.shard", 0, 101);   // 10 rows, at 0 10 ... 90
    // 5 rows, at 200 210 ... 240: the last token of a sixth would have no target
    write_shard("s_03.shard", 200, 60);
}

enum { T = 10, V = 2000, ROWS = 22 };

// Reads the first tokens of the rows that `ranks` ranks with batch size B get, in global order.
static void read_rows(int ranks, int B, int shuffle, uint32_t seed, int skip, int *rows, int n) {
    for (int rank = 0; rank < ranks; rank++) {
        DataLoader l;
        must(dataloader_init(&l, in_folder("*.shard"), B, T, V, rank, ranks, shuffle, seed));
        assert_int_equal(l.num_rows, ROWS);
        assert_int_equal(l.num_tokens, 101 + 72 + 60);
        must(dataloader_seek(&l, (DataPosition){ skip / ROWS, skip % ROWS, ROWS }));
        for (int at = rank * B; at < n; at += ranks * B) {
            must(dataloader_next(&l));
            for (int b = 0; b < B && at + b < n; b++) {
                rows[at + b] = l.inputs[b * T];
                for (int t = 0; t < T; t++) {
                    assert_int_equal(l.inputs[b * T + t], rows[at + b] + t);
                    assert_int_equal(l.targets[b * T + t], rows[at + b] + t + 1);
                }
            }
        }
        dataloader_free(&l);
    }
}

static const int in_order[ROWS] = {
    0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 101, 111, 121, 131, 141, 151, 161, 200, 210, 220, 230, 240,
};

static void test_shuffle(void **state) {
    enum { EPOCHS = 3 };
    int rows[EPOCHS * ROWS], other[ROWS];
    write_three_shards();
    read_rows(1, 1, 1, 42, 0, rows, EPOCHS * ROWS);
    for (int e = 0; e < EPOCHS; e++)
        for (int i = 0; i < ROWS; i++) {  // each row occurs once per epoch
            int times = 0;
            for (int j = 0; j < ROWS; j++) times += rows[e * ROWS + j] == in_order[i];
            assert_int_equal(times, 1);
        }
    assert_memory_not_equal(rows, in_order, sizeof in_order);
    assert_memory_not_equal(rows, rows + ROWS, sizeof in_order);
    int order[2][10];  // the order of one shard's ten rows in two epochs
    for (int e = 0; e < 2; e++)
        for (int i = 0, n = 0; i < ROWS; i++)
            if (rows[e * ROWS + i] < 100) order[e][n++] = rows[e * ROWS + i];
    assert_memory_not_equal(order[0], order[1], sizeof order[0]);
    read_rows(1, 1, 1, 43, 0, other, ROWS);
    assert_memory_not_equal(rows, other, sizeof other);
}

static void test_ranks_see_one_stream(void **state) {
    static const struct {
        int ranks, B;
    } cases[] = {
        { 1, 2 }, { 2, 1 }, { 2, 2 }, { 4, 1 }, { 3, 3 }, { 5, 4 }, { 1, ROWS }, { ROWS, 1 },
    };
    enum { N = 3 * ROWS };
    int one[N], many[N];
    write_three_shards();
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        read_rows(1, 1, shuffle, 42, 0, one, N);
        for (int epoch = 0; epoch < 3 && !shuffle; epoch++)
            assert_memory_equal(one + epoch * ROWS, in_order, sizeof in_order);
        for (size_t i = 0; i < COUNT(cases); i++) {
            read_rows(cases[i].ranks, cases[i].B, shuffle, 42, 0, many, N);
            assert_memory_equal(one, many, sizeof one);
            read_rows(cases[i].ranks, cases[i].B, shuffle, 42, 7, many, N - 7);  // starts in the middle
            assert_memory_equal(one + 7, many, sizeof one - 7 * sizeof *one);
        }
    }
}

static void test_tell_and_seek(void **state) {
    DataLoader l;
    int first[4], later[4];
    write_three_shards();
    must(dataloader_init(&l, in_folder("*.shard"), 4, T, V, 0, 1, 1, 42));
    must(dataloader_next(&l));
    for (int b = 0; b < 4; b++) first[b] = l.inputs[b * T];
    for (int i = 0; i < 8; i++) must(dataloader_next(&l));
    DataPosition p = dataloader_tell(&l);
    assert_int_equal(p.epoch, 1);
    assert_int_equal(p.row, 36 - ROWS);
    must(dataloader_next(&l));
    for (int b = 0; b < 4; b++) later[b] = l.inputs[b * T];
    must(dataloader_reset(&l));
    must(dataloader_next(&l));
    for (int b = 0; b < 4; b++) assert_int_equal(l.inputs[b * T], first[b]);
    must(dataloader_seek(&l, p));
    must(dataloader_next(&l));
    for (int b = 0; b < 4; b++) assert_int_equal(l.inputs[b * T], later[b]);
    assert_error(dataloader_seek(&l, (DataPosition){ 0, 0, ROWS + 1 }), "23 rows");
    assert_error(dataloader_seek(&l, (DataPosition){ 0, ROWS, ROWS }), "row 22");
    assert_error(dataloader_seek(&l, (DataPosition){ -1, 0, ROWS }), "epoch -1");
    dataloader_free(&l);
    dataloader_free(&l);
}

static void refuse_shards(const char *pattern, int B, int length, int rank, int ranks, const char *error) {
    DataLoader l;
    assert_error(dataloader_init(&l, pattern, B, length, V, rank, ranks, 1, 42), error);
}

static void test_refused_shards(void **state) {
    DataLoader l;
    write_three_shards();
    refuse_shards(in_folder("none*"), 1, T, 0, 1, "no file matches");
    refuse_shards(folder, 1, T, 0, 1, "not a regular file");
    refuse_shards(in_folder("*.shard"), 1, 60, 0, 1, "60 tokens");
    refuse_shards(in_folder("*.shard"), 8, T, 0, 3, "22 rows");
    refuse_shards(in_folder("*.shard"), 0, T, 0, 1, "positive");
    refuse_shards(in_folder("*.shard"), 1, T, 2, 2, "rank 2");
    assert_return_code(symlink("nowhere", in_folder("s_00.shard")), errno);
    refuse_shards(in_folder("*.shard"), 1, T, 0, 1, "s_00.shard");

    // files that are damaged after the loader opened them
    write_three_shards();
    must(dataloader_init(&l, in_folder("*.shard"), 10, T, 200, 0, 1, 0, 42));
    must(dataloader_next(&l));
    assert_error(dataloader_next(&l), "token 0 is 200, outside the vocabulary of 200");
    assert_non_null(strstr(gpt2_last_error(), "s_03.shard"));
    must(dataloader_reset(&l));
    assert_return_code(unlink(in_folder("s_01.shard")), errno);
    assert_error(dataloader_next(&l), "No such file");
    write_shard("s_01.shard", 0, 51);
    assert_error(dataloader_next(&l), "now has 51 tokens");
    dataloader_free(&l);
}

// -------- the tokenizer

static void write_tokenizer(uint32_t version, uint32_t vocab, uint32_t eot, const void *body, size_t size) {
    uint32_t header[256] = { 20240328, version, vocab, eot };
    write_bytes(in_folder("tokenizer.bin"), header, sizeof header, body, size);
}

static void test_tokenizer(void **state) {
    static const char body[] = "\1a\2bc\4\xc3\xa9\7\n\5<eot>";
    Tokenizer t;
    int length;
    write_tokenizer(2, 4, 3, body, sizeof body - 1);
    must(tokenizer_init(&t, in_folder("tokenizer.bin")));
    assert_int_equal(t.vocab_size, 4);
    assert_int_equal(t.eot_token, 3);
    assert_memory_equal(tokenizer_decode(&t, 1, &length), "bc", 2);
    assert_int_equal(length, 2);
    assert_memory_equal(tokenizer_decode(&t, 3, &length), "<eot>", 5);
    assert_null(tokenizer_decode(&t, 4, &length));
    char text[32] = { 0 };
    FILE *f = fmemopen(text, sizeof text, "w");
    assert_non_null(f);
    for (uint32_t i = 0; i < 6; i++) tokenizer_print(&t, f, i);  // omits the bell, but not the newline
    assert_int_equal(fclose(f), 0);
    assert_string_equal(text, "abc\xc3\xa9\n<eot>");
    tokenizer_free(&t);
    tokenizer_free(&t);
}

// -------- schedules and outliers

static void test_schedules(void **state) {
    static const struct {
        const char *kind;
        int step;
        float lr;
    } cases[] = {
        // the first 10 of 110 steps are warm-up; then the rate falls from 1 to 0.1
        { "cosine", 0, 0.1f },   { "cosine", 9, 1 },      { "cosine", 10, 1 },   { "cosine", 60, 0.55f },
        { "cosine", 110, 0.1f }, { "cosine", 200, 0.1f }, { "linear", 0, 0.1f }, { "linear", 9, 1 },
        { "linear", 60, 0.55f }, { "linear", 110, 0.1f }, { "constant", 0, 1 },  { "constant", 110, 1 },
        { "wsd", 4, 0.5f },      { "wsd", 9, 1 },         { "wsd", 87, 1 },      { "wsd", 88, 1 },
        { "wsd", 110, 0.1f },
    };
    Schedule s;
    for (size_t i = 0; i < COUNT(cases); i++) {
        must(schedule_init(&s, cases[i].kind, 1, 10, 110, 0.1f));
        assert_float_equal(schedule_lr(&s, cases[i].step), cases[i].lr, 1e-6);
    }
    must(schedule_init(&s, "cosine", 3e-4f, 0, 1, 0));
    assert_float_equal(schedule_lr(&s, 0), 3e-4f, 0);
    must(schedule_init(&s, "cosine", 1, 100, 50, 0));  // the run ends during its warm-up
    assert_float_equal(schedule_lr(&s, 49), 0.5, 1e-6);
    assert_error(schedule_init(&s, "cosin", 1, 0, 10, 0), "cosin");
    assert_error(schedule_init(&s, "cosine", -1, 0, 10, 0), "-1");
    assert_error(schedule_init(&s, "cosine", NAN, 0, 10, 0), "nan");
    assert_error(schedule_init(&s, "cosine", 1, -3, 10, 0), "-3");
    assert_error(schedule_init(&s, "cosine", 1, 0, 0, 0), "0 steps");
    assert_error(schedule_init(&s, "cosine", 1, 0, 10, 1.5f), "1.5");
}

static void test_outliers(void **state) {
    OutlierDetector d;
    outlier_init(&d);
    for (int i = 0; i < OUTLIER_WINDOW; i++) assert_true(isnan(outlier_update(&d, i % 2 ? 1 : -1)));
    assert_float_equal(outlier_update(&d, -1), -1, 0.05);
    double z = outlier_update(&d, 100);  // the window includes the value itself, so z is at most sqrt(n - 1)
    assert_true(z > 11 && z < 11.3);
    for (int i = 0; i < OUTLIER_WINDOW; i++) outlier_update(&d, 5);
    assert_float_equal(outlier_update(&d, 5), 0, 1e-3);  // with no variance nothing is an outlier
}

// A text file is written completely or not at all, and no temporary file remains.
static void test_text_files(void **state) {
    const char *path = in_folder("some.txt");
    char *text = text_file_read(path), *longer = malloc(100001);
    assert_string_equal(text, "");  // the file does not exist yet
    free(text);
    memset(longer, 'x', 100000);
    longer[100000] = 0;
    const char *texts[] = { "one line\n", longer, "" };
    for (size_t i = 0; i < COUNT(texts); i++) {
        must(text_file_write(path, texts[i]));
        text = text_file_read(path);
        assert_string_equal(text, texts[i]);
        free(text);
    }
    must(text_file_write(path, "kept\n"));
    limit_files(5000);
    int rc = text_file_write(path, longer);
    limit_files(0);
    assert_error(rc, "some.txt: cannot write: File too large");
    text = text_file_read(path);
    assert_string_equal(text, "kept\n");
    assert_int_equal(files_in(folder), 1);
    assert_error(text_file_write(in_folder("nowhere/some.txt"), "x"), "No such file");
    assert_error(text_file_read(folder) ? 0 : -1, "not a regular file");
    FILE *f = fopen(path, "w");
    fwrite("a\0b", 1, 3, f);
    fclose(f);
    assert_error(text_file_read(path) ? 0 : -1, "not a text file");
    free(text);
    free(longer);
}

// -------- fingerprints: equal for equal contents at any path; different if any part that is read differs

static const char *print_of(const char *name, const char *bytes, size_t n, int blocks) {
    static char text[FINGERPRINT];
    write_bytes(in_folder(name), bytes, n, "", 0);
    must(fingerprint_of_file(in_folder(name), blocks, text));
    return text;
}

static char *filled(size_t n) {
    char *bytes = malloc(n + 1);
    assert_non_null(bytes);
    for (size_t i = 0; i < n; i++) bytes[i] = (char)(i * 2654435761u >> 13);
    return bytes;
}

// Files of at most `blocks` blocks are read completely, and of larger ones always the first and last block.
static void test_fingerprints(void **state) {
    static const struct {
        size_t bytes;
        int blocks;
    } cases[] = { { 1, 1 },
                  { 7, 1 },
                  { 8, 64 },
                  { 9, 64 },
                  { FINGERPRINT_BLOCK, 1 },
                  { FINGERPRINT_BLOCK + 1, 2 },
                  { 3 * FINGERPRINT_BLOCK - 5, 3 },
                  { 10 * FINGERPRINT_BLOCK + 100, 2 },
                  { 10 * FINGERPRINT_BLOCK, 9 } };
    for (size_t c = 0; c < COUNT(cases); c++) {
        size_t n = cases[c].bytes;
        char *bytes = filled(n), first[FINGERPRINT], size[32];
        const size_t places[] = { 0, n / 2, n - 1 };
        int whole = n <= (size_t)cases[c].blocks * FINGERPRINT_BLOCK;
        snprintf(first, sizeof first, "%s", print_of("a", bytes, n, cases[c].blocks));
        snprintf(size, sizeof size, "%zu bytes, ", n);
        assert_int_equal(strncmp(first, size, strlen(size)), 0);
        assert_string_equal(print_of("another_name", bytes, n, cases[c].blocks), first);
        for (int i = 0; i < 3; i++) {
            if (i == 1 && !whole) continue;
            for (int bit = 0; bit < 8; bit++) {
                bytes[places[i]] ^= (char)(1 << bit);
                assert_string_not_equal(print_of("a", bytes, n, cases[c].blocks), first);
                bytes[places[i]] ^= (char)(1 << bit);
            }
        }
        free(bytes);
    }
}

// A plain sum of the words would miss other lengths of zeros, swapped words, and two changed high bits.
static void test_similar_fingerprints(void **state) {
    uint64_t a[] = { 1, 2, 3 }, b[] = { 2, 1, 3 }, c[] = { 1 | 1ull << 63, 2 | 1ull << 63, 3 };
    const char zeros[17] = { 0 };
    char seen[18][17], first[FINGERPRINT];
    for (size_t n = 0; n <= 17; n++) {
        const char *text = strstr(print_of("a", zeros, n, 1), "digest ");
        assert_non_null(text);
        snprintf(seen[n], sizeof seen[n], "%s", text + 7);
        for (size_t i = 0; i < n; i++) assert_string_not_equal(seen[i], seen[n]);
    }
    snprintf(first, sizeof first, "%s", print_of("a", (char *)a, sizeof a, 1));
    assert_string_not_equal(print_of("a", (char *)b, sizeof b, 1), first);
    assert_string_not_equal(print_of("a", (char *)c, sizeof c, 1), first);
    assert_error(fingerprint_of_file(in_folder("none"), 1, first), "none: cannot open: No such file");
    assert_error(fingerprint_of_file(folder, 1, first), folder);
}

static void test_fingerprint_of_processor(void **state) {
    char text[FINGERPRINT] = "", again[FINGERPRINT] = "";
    fingerprint_of_processor(text);
    fingerprint_of_processor(again);
    assert_non_null(strstr(text, "oneDNN"));
    assert_string_equal(text, again);
}

#define TEST(f) cmocka_unit_test_teardown(f, empty_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_init),      TEST(test_schedules),     TEST(test_refused_shards),
        TEST(test_mt19937),   TEST(test_model_file),    TEST(test_failing_model_write),
        TEST(test_sampler),   TEST(test_text_files),    TEST(test_file_without_buffer),
        TEST(test_shuffle),   TEST(test_descriptors),   TEST(test_ranks_see_one_stream),
        TEST(test_outliers),  TEST(test_fingerprints),  TEST(test_similar_fingerprints),
        TEST(test_tokenizer), TEST(test_tell_and_seek), TEST(test_fingerprint_of_processor),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
