// Tests what the trainer's ranks compare: almost all options, the model and the data, and the contents of
// files rather than their paths. Calls must_be_same twice in one process, as two ranks would. mpi_same and
// trainer.sh test the comparison itself and its messages.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include "../trainer/running/inputs.h"
#include "../trainer/running/run.h"
#include "../trainer/options/options.h"

static char folder[] = "/tmp/test_unlike.XXXXXX";
static Options usual;
static GPT2 model;

static const char *path_of(const char *name) {
    static char paths[8][256];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

enum { TOKENS = 1000 };

// Writes a shard of the usual tokens, except that token number `other` differs; -1: none differs.
static void write_shard(const char *name, int tokens, int other) {
    int32_t header[256] = { 20240520, 1, tokens };
    FILE *f = fopen(path_of(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(header, sizeof header, 1, f), 1);
    for (int i = 0; i < tokens; i++) {
        uint16_t token = (uint16_t)(i % 7 + (i == other));
        assert_int_equal(fwrite(&token, sizeof token, 1, f), 1);
    }
    assert_int_equal(fclose(f), 0);
}

static char *text_now(void) {
    DataLoader train, val;
    gpt2_check(dataloader_init(&train, opt.train_data, 2, 16, 257, 0, 1, 1, 42));
    gpt2_check(dataloader_init(&val, opt.val_data, 2, 16, 257, 0, 1, 0, 0));
    char *text = must_be_same(&model, -1, &train, &val);
    dataloader_free(&train);
    dataloader_free(&val);
    return text;
}

// Returns the first line in which the current settings differ from the usual ones, or "".
static const char *difference(void) {
    static char line[512];
    Options now = opt;
    GPT2 other = model;
    char *b = text_now(), *p = b, *q;
    opt = usual;
    gpt2_config_from_descriptor(&model.config, usual.model);
    model.dtype = GPT2_F32;
    char *a = q = text_now();
    for (; *p && *p == *q; p++) q++;
    int same = !*p && !*q;
    while (p > b && p[-1] != '\n') p--;
    snprintf(line, sizeof line, "%.*s", same ? 0 : (int)strcspn(p, "\n"), p);
    free(a);
    free(b);
    opt = now;
    model = other;
    return line;
}

static int begin(void **state) {
    opt = usual;
    model.dtype = GPT2_F32;
    gpt2_check(gpt2_config_from_descriptor(&model.config, opt.model));
    assert_string_equal(difference(), "");
    return 0;
}

static void named(const char *line) {
    const char *found = difference();
    if (strncmp(found, line, strlen(line))) fail_msg("'%s' does not begin with '%s'", found, line);
}

// --------

// Ranks may differ in these options.
static int is_free(const char *name) {
    static const char *const names[] = {
        "-i",        "-j",         "-o",     "--tokenizer", "--zero-config", "--threads",
        "--overlap", "--progress", "--nvme", "--resume",    "-pi",           "-pn",
        "-pr",       "-pg",        "-ps",    "-pf",         "--verify",      "--hellaswag"
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) return 1;
    return 0;
}

// Every option in the table, including future ones, must be compared unless is_free lists it.
static void test_options(void **state) {
    int compared = 0;
    for (const Option *o = option_table; o < option_table + num_options; o++) {
        char line[64];
        int files = !strcmp(o->name, "-i") || !strcmp(o->name, "-j");
        begin(state);
        if (o->kind == TEXT && !files)
            *(const char **)o->value = strcmp(o->name, "--prompts") ? "other" : usual.val_data;  // any file
        else if (o->kind == WIDE)
            *(int64_t *)o->value = (int64_t)fmax((double)*(int64_t *)o->value, o->min) + 1;
        else if (o->kind == INT || o->kind == CHOICE)
            *(int *)o->value += 1;
        else if (o->kind == REAL)
            // A value below the minimum means that the option was not given.
            *(double *)o->value = fmax(*(double *)o->value, o->min) + 1e-3;
        else
            continue;
        snprintf(line, sizeof line, "%s = ", o->name);
        if (is_free(o->name))
            assert_string_equal(difference(), "");
        else
            named(line);
        compared += !is_free(o->name);
    }
    assert_true(compared > 40);
}

static void test_values(void **state) {
    opt.lr = 1e-4;
    assert_string_equal(difference(), "-l = 0.0001");
    opt.lr = usual.lr;
    opt.zero.stage = 2;
    assert_string_equal(difference(), "-z = 2");
    opt.zero.stage = usual.zero.stage;
    opt.schedule = "linear";
    assert_string_equal(difference(), "-k = linear");
}

// The ranks compare the dtype chosen for "auto".
static void test_chosen_dtype(void **state) {
    model.dtype = GPT2_BF16;
    assert_string_equal(difference(), "--dtype auto = bf16");
    model.dtype = GPT2_F32;
}

static void test_model(void **state) {
    model.config.num_heads = 8;  // the plugin's tables do not depend on it
    assert_string_equal(difference(), "model = L 4, NH 8, C 128, V 257, longest sequence 64");
    begin(state);
    opt.model = "l4h4c128v257t64 ";
    named("-e = l4h4c128v257t64 ");
    begin(state);
    write_shard("model.bin", TOKENS, -1);  // any file
    opt.model = path_of("model.bin");
    named("-e = a file of 3024 bytes, digest ");
    char first[512];
    snprintf(first, sizeof first, "%s", difference());
    write_shard("copy.bin", TOKENS, -1);
    opt.model = path_of("copy.bin");
    assert_string_equal(difference(), first);
    write_shard("copy.bin", TOKENS, 999);
    assert_string_not_equal(difference(), first);
    named("-e = a file of 3024 bytes, digest ");
}

static void test_hellaswag(void **state) {
    write_shard("other.bin", TOKENS, 999);
    opt.hellaswag = 1;
    named("-h = 1");
    usual.hellaswag = 1;
    opt.hellaswag_data = path_of("other.bin");
    named("--hellaswag = a file of 3024 bytes, digest ");
    usual.hellaswag = 0;
}

static void test_data(void **state) {
    static const struct {
        const char *file;
        int tokens, other;
        const char *line;
    } cases[] = {
        { "same/train_1.bin", TOKENS, -1, "" },
        { "same/train_1.bin", TOKENS, 0, "-i, shard 1 = train_1.bin, 3024 bytes, digest " },
        { "same/train_1.bin", TOKENS, TOKENS - 1, "-i, shard 1 = train_1.bin, 3024 bytes, digest " },
        { "same/train_1.bin", TOKENS + 1, -1, "-i, shard 1 = train_1.bin, 3026 bytes, digest " },
        { "same/train_3.bin", TOKENS, -1, "-i, number of shards = 4" },
        { "same/val.bin", TOKENS, 500, "-j, shard 0 = val.bin, 3024 bytes, digest " },
    };
    assert_int_equal(mkdir(path_of("same"), 0777), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(state);
        write_shard("same/train_0.bin", TOKENS, -1);
        write_shard("same/train_1.bin", TOKENS, -1);
        write_shard("same/train_2.bin", TOKENS, -1);
        write_shard("same/val.bin", TOKENS, -1);
        write_shard(cases[i].file, cases[i].tokens, cases[i].other);
        opt.train_data = path_of("same/train_*.bin");
        opt.val_data = path_of("same/val.bin");
        if (*cases[i].line)
            named(cases[i].line);
        else
            assert_string_equal(difference(), "");
        unlink(path_of("same/train_3.bin"));
    }
    begin(state);
    assert_int_equal(rename(path_of("same/train_2.bin"), path_of("same/train_2b.bin")), 0);
    opt.train_data = path_of("same/train_*.bin");
    named("-i, shard 2 = train_2b.bin, 3024 bytes");
    opt.val_every = 0;  // then the validation data is not read
    opt.val_data = path_of("train_0.bin");
    named("-v = 0");
}

int main(void) {
    char command[64];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_options, begin),      cmocka_unit_test_setup(test_values, begin),
        cmocka_unit_test_setup(test_chosen_dtype, begin), cmocka_unit_test_setup(test_model, begin),
        cmocka_unit_test_setup(test_data, begin),         cmocka_unit_test_setup(test_hellaswag, begin),
    };
    if (!mkdtemp(folder)) return 1;
    for (int i = 0; i < 3; i++)
        write_shard((const char *[]){ "train_0.bin", "train_1.bin", "train_2.bin" }[i], TOKENS, -1);
    write_shard("val.bin", TOKENS, -1);
    parse_options(0, NULL);
    usual = opt;
    usual.train_data = strdup(path_of("train_*.bin"));
    usual.val_data = strdup(path_of("val.bin"));
    usual.hellaswag_data = usual.val_data;  // any file
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) || failed;
}
