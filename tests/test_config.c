// The configuration from a DeepSpeed file and from the environment: what each text sets, and what the errors
// name when a text is refused.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "../llmc_zero/zero_settings.h"

static char file[] = "/tmp/test_config_XXXXXX";

static void write_bytes(const char *bytes, size_t n) {
    FILE *f = fopen(file, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

// The texts in this file have ' for ".
static char *quoted(const char *text) {
    static char with_quotes[4096];
    snprintf(with_quotes, sizeof with_quotes, "%s", text);
    for (char *c = with_quotes; *c; c++)
        if (*c == '\'') *c = '"';
    return with_quotes;
}

static void write_file(const char *text) {
    char *with_quotes = quoted(text);
    write_bytes(with_quotes, strlen(with_quotes));
}

// Settings with values that most texts do not ask for, so that a missing change is found too.
static zero_config start(void) {
    zero_config c = zero_defaults();
    c.stage = 2;
    c.micro_batches = 3;
    c.reduce_bucket_size = 777;
    c.prefetch = 4;
    c.overlap = 7;
    c.comm.reduce_fp32 = 9;
    return c;
}

// wanted: "stage=3 micro_batches=2": what has changed since start(). Nothing else has.
static void check_settings(const char *text, const zero_config *c, const char *wanted) {
    char name[64], value[64];
    zero_config want = start();
    for (int n; sscanf(wanted, " %63[^=]=%63s%n", name, value, &n) == 2; wanted += n)
        assert_int_equal(zero_setting_set(zero_setting_named(name), &want, value), 0);
    int n;
    for (const zero_setting *s = zero_settings(&n), *end = s + n; s < end; s++) {
        zero_setting_text(s, c, name, sizeof name);
        zero_setting_text(s, &want, value, sizeof value);
        if (strcmp(name, value)) fail_msg("%s: %s is %s, not %s", text, s->name, name, value);
    }
}

static void check_error(const char *text, int rc, int want, const char *words) {
    if (rc != want) fail_msg("%s returns %d, not %d", text, rc, want);
    for (char *word = strtok(quoted(words), "|"); word; word = strtok(NULL, "|"))
        if (!strstr(zero_last_error(), word))
            fail_msg("%s: the error '%s' does not have '%s'", text, zero_last_error(), word);
}

// -------- what is taken

#define Z(inner) "{'zero_optimization': {" inner "}}"

static const struct {
    const char *text, *wanted;
} good[] = {
    { "{}", "" },
    { Z(""), "" },
    { Z("'stage': 0"), "stage=0" },
    { Z("'stage': 3"), "stage=3" },
    { Z("'stage': 1.0"), "stage=1" },
    { "{'zero_optimization': true}", "stage=1" },
    { "{'zero_optimization': false}", "stage=0" },
    { Z("'reduce_bucket_size': 5e8"), "reduce_bucket_size=500000000" },
    { Z("'reduce_bucket_size': 1048576"), "reduce_bucket_size=1048576" },
    { Z("'reduce_bucket_size': 0"), "reduce_bucket_size=1" },
    { Z("'overlap_comm': true"), "overlap=1" },
    { Z("'overlap_comm': false"), "overlap=0" },
    { Z("'overlap_comm': 'True'"), "overlap=1" },
    { Z("'overlap_comm': 0"), "overlap=0" },
    { Z("'overlap_comm': null"), "" },
    { Z("'stage3_prefetch_bucket_size': 0"), "prefetch=0" },
    { Z("'stage3_prefetch_bucket_size': 5e7"), "" },
    { Z("'prefetch_bucket_size': 0"), "prefetch=0" },
    { "{'bf16': {'enabled': true}}", "numbers.dtype=bf16" },
    { "{'bf16': {'enabled': false}}", "" },
    { "{'gradient_accumulation_steps': 8}", "micro_batches=8" },
    { "{'gradient_accumulation_steps': 1e1}", "micro_batches=10" },
    // "auto" and null leave a key out, blocks too
    { "{'gradient_accumulation_steps': 'auto', 'train_batch_size': 'auto', 'scheduler': null, 'bf16': null}",
      "" },
    { Z("'stage': 'auto', 'reduce_bucket_size': 'auto', 'offload_param': null, 'zenflow': null"), "" },
    { "{'optimizer': {'type': 'adamw', 'params': {'lr': 'auto', 'betas': 'auto', 'adam_w_mode': true}}}",
      "" },
    // features that the plugin always has, and features that are switched off
    { Z("'contiguous_gradients': true, 'reduce_scatter': true, 'allgather_partitions': false, "
        "'sub_group_size': 1e9"),
      "" },
    { Z("'offload_optimizer': {'device': 'none', 'pin_memory': true}, 'offload_param': {'device': 'none'}"),
      "" },
    { Z("'zero_hpz_partition_size': 1, 'mics_shard_size': -1, 'zero_quantized_weights': false"), "" },
    { Z("'stage3_max_live_parameters': 1e9, 'max_reuse_distance': 0, 'stage3_param_persistence_threshold': "
        "1e5"),
      "" },
    { "{'fp16': {'enabled': false, 'loss_scale': 0}, 'comet': {'enabled': 'false'}, 'amp': {'enabled': "
      "'auto'}}",
      "" },
    { "{'steps_per_print': 2000, 'wall_clock_breakdown': false, 'aio': {'queue_depth': 8}, 'timers': 0}",
      "offload.nvme_depth=8" },
    { "{'data_types': {'grad_accum_dtype': 'fp32'}, 'checkpoint': {'tag_validation': 'Warn'}}", "" },
    // fp16, in any order of its keys and those of bf16
    { "{'fp16': {'enabled': true}, 'bf16': {'enabled': false}}", "numbers.dtype=fp16" },
    { "{'bf16': {'enabled': true}, 'fp16': {'enabled': false}}", "numbers.dtype=bf16" },
    { "{'fp16': true}", "numbers.dtype=fp16" },
    // comments and commas; quotes inside comments, comments inside strings
    { "// it's 'mine'\n{ # one\n'zero_optimization': /* two ' { */ { 'stage' : 1,  /* three */ }, }",
      "stage=1" },
    { "/*a*//*b*/{'log_level': '// /* # ,}', 'comet': {'enabled': false, 'list': [1, 2 , # end\n]}}// last",
      "" },
    { "{'log_level': [['a', 'b'], [1, 2], {'c': 3, 'd': 4}]}", "" },
    { "{'log_level': '\\'#\\\\', 'gradient_accumulation_steps': 2}", "micro_batches=2" },
    // the Hugging Face trainer's example for stage 3, without offload and scheduler
    { "{'fp16': {'enabled': 'auto', 'loss_scale': 0, 'initial_scale_power': 16}, 'bf16': {'enabled': "
      "'auto'},'optimizer': {'type': 'AdamW', 'params': {'lr': 'auto', 'betas': 'auto', 'eps': "
      "'auto'}},'zero_optimization': {'stage': 3, 'overlap_comm': true, 'contiguous_gradients': "
      "true,'sub_group_size': 1e9, 'reduce_bucket_size': 'auto', 'stage3_prefetch_bucket_size': "
      "'auto','stage3_param_persistence_threshold': 'auto', 'stage3_max_live_parameters': 1e9, "
      "'stage3_max_reuse_distance': 1e9,'stage3_gather_16bit_weights_on_model_save': true}, "
      "'gradient_accumulation_steps': 'auto', 'gradient_clipping': 'auto','steps_per_print': 2000, "
      "'train_batch_size': 'auto', 'train_micro_batch_size_per_gpu': 'auto'}",
      "stage=3 overlap=1" },
    { "{'fp16': {'enabled': true, 'loss_scale': 128, 'initial_scale_power': 12, 'loss_scale_window': 500, "
      "'hysteresis': 3, 'consecutive_hysteresis': true, 'min_loss_scale': 4}}",
      "numbers.dtype=fp16 numbers.loss_scale=128 numbers.initial_scale_power=12 "
      "numbers.loss_scale_window=500 numbers.hysteresis=3 numbers.consecutive_hysteresis=1 "
      "numbers.min_loss_scale=4" },
};

static void test_taken(void **state) {
    (void)state;
    for (int i = 0; i < (int)(sizeof good / sizeof *good); i++) {
        zero_config c = start();
        write_file(good[i].text);
        int rc = zero_config_from_file(&c, file);
        if (rc) fail_msg("%s: %d, %s", good[i].text, rc, zero_last_error());
        check_settings(good[i].text, &c, good[i].wanted);
    }
}

// A look-ahead in elements means at least one unit if the program had none.
static void test_prefetch_at_least_one(void **state) {
    (void)state;
    zero_config c = zero_defaults();
    c.prefetch = 0;
    write_file(Z("'stage3_prefetch_bucket_size': 5e7"));
    assert_int_equal(zero_config_from_file(&c, file), 0);
    assert_int_equal(c.prefetch, 1);
}

// -------- what is refused

static const struct {
    const char *text, *words;
} bad[] = {
    // values
    { Z("'stage': 4"), ":1: zero_optimization.stage: 4: |from 0 to 3" },
    { Z("'stage': -1"), "zero_optimization.stage: -1" },
    { Z("'stage': 1.5"), "zero_optimization.stage: 1.5" },
    { Z("'stage': true"), "zero_optimization.stage: true" },
    { Z("'reduce_bucket_size': 0.5"), "reduce_bucket_size: 0.5|whole number" },
    { Z("'reduce_bucket_size': 1e19"), "reduce_bucket_size: 1" },
    { Z("'sub_group_size': []"), "sub_group_size: []|whole number" },
    { Z("'overlap_comm': 2"), "overlap_comm: 2|true or false" },
    { Z("'overlap_comm': 'maybe'"), "overlap_comm: 'maybe'|true or false" },
    { "{'gradient_accumulation_steps': 0}", "gradient_accumulation_steps: 0|from 1 to 2147483647" },
    { "{'gradient_accumulation_steps': 3e9}", "gradient_accumulation_steps: 3" },
    { "{'zero_optimization': 3}", "zero_optimization: 3" },
    { "{'bf16': true}", "bf16: true|must be a block" },
    // the trainer's
    { "{'train_batch_size': 32}", "train_batch_size: 32|the trainer|'auto'" },
    { "{'train_micro_batch_size_per_gpu': 4}", "train_micro_batch_size_per_gpu: 4|the trainer" },
    { "{'gradient_clipping': 1.0}", "gradient_clipping: 1|the trainer" },
    { "{'optimizer': {'params': {'lr': 0.001}}}", "optimizer.params.lr: 0.001|the trainer" },
    { "{'optimizer': {'type': 'Lion'}}", "optimizer.type: 'Lion'|AdamW" },
    { "{'optimizer': {'params': {'adam_w_mode': false}}}", "adam_w_mode: false" },
    { "{'scheduler': {'type': 'WarmupLR'}}", "scheduler: {'type':'WarmupLR'}|the trainer" },
    // features that the plugin does not have
    { "{'fp16': {'enabled': true}, 'bf16': {'enabled': true}}", "bf16.enabled: true|exclude each other" },
    { "{'bf16': {'enabled': true}, 'fp16': {'enabled': true}}", "fp16.enabled: true|exclude each other" },
    { "{'fp16': {'enable': false}}", "fp16.enable: unknown key|fp16.enabled" },
    { "{'fp16': 3}", "fp16: 3|true or false" },
    { "{'fp16': {'enabled': true, 'hysteresis': 0}}", "fp16.hysteresis: 0|from 1" },
    { "{'fp16': {'enabled': true, 'initial_scale_power': 127}}", "fp16.initial_scale_power: 127|to 126" },
    { "{'fp16': {'enabled': true, 'loss_scale': -1}}", "fp16.loss_scale: -1|from 0" },
    { "{'fp16': {'enabled': true, 'consecutive_hysteresis': 7}}",
      "fp16.consecutive_hysteresis: 7|true or false" },
    { "{'fp16': {'enabled': true, 'auto_cast': true}}", "fp16.auto_cast: true|not built" },
    { Z("'offload_param': {'device': 0}"), "offload_param.device: 0" },
    { Z("'zero_hpz_partition_size': 8"), "zero_hpz_partition_size: 8|hpZ|write 1" },
    { Z("'zero_hpz_partition_size': true"), "zero_hpz_partition_size: true" },
    { Z("'zero_quantized_weights': true"), "zero_quantized_weights: true|not built" },
    { Z("'zero_quantized_gradients': 1"), "zero_quantized_gradients: 1|not built" },
    { Z("'mics_shard_size': 4"), "mics_shard_size: 4|MiCS" },
    { Z("'reduce_scatter': false"), "reduce_scatter: false" },
    { Z("'contiguous_gradients': 0"), "contiguous_gradients: 0" },
    { Z("'zenflow': {'topk_ratio': 0.1}"), "zenflow: {|not built" },
    { Z("'legacy_stage1': true"), "legacy_stage1" },
    { Z("'grad_hooks': true"), "grad_hooks" },
    { "{'communication_data_type': 'int8'}",
      "communication_data_type: 'int8'|fp32, bf16 or fp16|write 'fp32'" },
    { "{'communication_data_type': 32}", "communication_data_type: 32|fp32, bf16 or fp16" },
    { "{'wall_clock_breakdown': true}", "wall_clock_breakdown: true|not built" },
    { "{'elasticity': {'enabled': true}}", "elasticity.enabled: true|not built" },
    { "{'data_types': {'grad_accum_dtype': 'bf16'}}", "data_types.grad_accum_dtype: 'bf16'|fp32" },
    // unknown keys: the nearest known one, in the right block
    { Z("'stge': 3"), "zero_optimization.stge: unknown key|zero_optimization.stage" },
    { Z("'overlap_com': true"), "nearest known one is zero_optimization.overlap_comm" },
    { "{'zero_optimisation': {'stage': 3}}", "zero_optimisation: unknown key|is zero_optimization" },
    { "{'stage': 3}", "stage: unknown key|zero_optimization.stage" },
    { Z("'gradient_clipping': 1"), "zero_optimization.gradient_clipping: unknown key|is gradient_clipping" },
    { "{'optimizer': {'params': {'learning_rate': 1}}}", "optimizer.params.learning_rate: unknown key" },
    { "{'xyzzy': 3}", "xyzzy: unknown key; remove it" },
    { "{'': 3}", "unknown key; remove it" },
    { Z("'max_live_parameters': 1e9, 'stage3_max_live_parameters': 1e9"),
      ".max_live_parameters: is also here as stage3_max_live" },
    // usual mistakes
    // the line of the key, after any text before it
    { "{\n/* a\n b */ 'comet': {'enabled': false,\n 'stage': 1},\n # 'stage': "
      "1\n'zero_optimization':\n{\n'stage'\n: 9}}",
      ":8: zero_optimization.stage: 9" },
    { "{'log_level': '\\'stage\\':',\n'zero_optimization': {'stge': 1}}", ":2: zero_optimization.stge" },
    { "{'log_level': 'bf16',\n'bf16': 4}", ":2: bf16: 4" },
    { "{'timers': false,\n'tensorboard': {'enabled': false, 'x': [{'bf16':\n1}]},\n'bf16': 4}",
      ":4: bf16: 4" },
    // not JSON: line and column as in the file
    { "", ":1:0: not JSON" },
    { "[]", "must be a block" },
    { "3", "not JSON" },
    { "{'zero_optimization': {\n /* x */ 'stage': oops}}", ":2:22: not JSON: |oops" },
    { "{\n'steps_per_print': 1,\n'steps_per_print': 2}", ":3:|duplicate|steps_per_print" },
    { Z("'stage': 1, 'stage': 2"), "duplicate" },
    { "{'stage' /* never closed\n : 3}", ":1:10: not JSON" },
    { "{'steps_per_print': 1,,}", "not JSON" },
    { "{'steps_per_print': 1} {}", "not JSON" },
    { "{'log_level': '\\", "not JSON" },
    { "{'log_level': '", "not JSON" },
    { "{'steps_per_print': 1e999}", "not JSON" },
};

static void test_refused(void **state) {
    (void)state;
    for (int i = 0; i < (int)(sizeof bad / sizeof *bad); i++) {
        zero_config c = start();
        write_file(bad[i].text);
        int rc = zero_config_from_file(&c, file);
        check_error(bad[i].text, rc, ZERO_ERR_ARGUMENT, bad[i].words);
        check_error(bad[i].text, rc, ZERO_ERR_ARGUMENT, file);
        check_settings(bad[i].text, &c, "");
    }
}

// Settings that stand before the mistake are not taken over either.
static void test_all_or_nothing(void **state) {
    (void)state;
    const char *text = "{'gradient_accumulation_steps': 8, 'bf16': {'enabled': true}, 'zero_optimization': "
                       "{'stage': 3, 'stge': 3}}";
    zero_config c = start();
    write_file(text);
    check_error(text, zero_config_from_file(&c, file), ZERO_ERR_ARGUMENT, "stge");
    check_settings(text, &c, "");
}

// -------- how gradients travel

// Gradients have the parameters' type. Sums over micro-batches, which are sent at stages 0 and 1, are fp32.
static void check_wire(zero_dtype dtype, int stage, int micro_batches, zero_dtype wanted, int first) {
    static const char *const names[] = { "fp32", "bf16", "fp16" }, *const is[] = { "false", "true" };
    char key[64], others[200], text[2 * sizeof others + 5], words[120];
    zero_config c = start();
    zero_dtype own = stage < 2 && micro_batches > 1 ? ZERO_F32 : dtype;
    int taken = wanted == ZERO_F32 || wanted == own;
    snprintf(key, sizeof key, "'communication_data_type': '%s'", names[wanted]);
    snprintf(others, sizeof others,
             "'zero_optimization': {'stage': %d}, 'gradient_accumulation_steps': %d, 'fp16': {'enabled': "
             "%s}, 'bf16': {'enabled': %s}",
             stage, micro_batches, is[dtype == ZERO_F16], is[dtype == ZERO_BF16]);
    snprintf(text, sizeof text, "{%s, %s}", first ? key : others, first ? others : key);
    write_file(text);
    snprintf(words, sizeof words,
             taken ? "" : "communication_data_type: '%s'|are sent as %s|%s would round|write '%s'",
             names[wanted], names[own], names[wanted], names[own]);
    check_error(text, zero_config_from_file(&c, file), taken ? 0 : ZERO_ERR_ARGUMENT, words);
    int want = !taken ? start().comm.reduce_fp32 : wanted == ZERO_F32;
    if (c.comm.reduce_fp32 != want)
        fail_msg("%s gives reduce_fp32 %d, not %d", text, c.comm.reduce_fp32, want);
}

static void test_wire(void **state) {
    (void)state;
    for (zero_dtype dtype = ZERO_F32; dtype <= ZERO_F16; dtype++)
        for (int stage = 0; stage < 4; stage++)
            for (int micro_batches = 1; micro_batches < 3; micro_batches++)
                for (zero_dtype wanted = ZERO_F32; wanted <= ZERO_F16; wanted++)
                    for (int first = 0; first < 2; first++)
                        check_wire(dtype, stage, micro_batches, wanted, first);
}

static void test_files(void **state) {
    (void)state;
    zero_config c = start();
    check_error("no file", zero_config_from_file(&c, "/nowhere/ds.json"), ZERO_ERR_IO,
                "/nowhere/ds.json|No such file");
    check_error("a folder", zero_config_from_file(&c, "/"), ZERO_ERR_IO, "/: |irectory");
    check_error("NULL", zero_config_from_file(&c, NULL), ZERO_ERR_ARGUMENT, "path");
    c.size--;
    check_error("size", zero_config_from_file(&c, file), ZERO_ERR_ARGUMENT, "zero_defaults()");
    check_error("size", zero_config_from_env(&c), ZERO_ERR_ARGUMENT, "zero_defaults()");
    c = start();
    write_bytes("{}\0{}", 5);
    check_error("a byte 0", zero_config_from_file(&c, file), ZERO_ERR_ARGUMENT, "not JSON");
    size_t mib = 1 << 20;
    char *large = malloc(mib + 1);
    assert_non_null(large);
    memset(large, ' ', mib + 1);
    large[0] = '{';
    large[mib - 1] = '}';
    write_bytes(large, mib);
    assert_int_equal(zero_config_from_file(&c, file), 0);
    write_bytes(large, mib + 1);
    check_error("1 MiB and a byte", zero_config_from_file(&c, file), ZERO_ERR_ARGUMENT, "1 MiB");
    free(large);
    check_settings("files", &c, "");
}

// -------- the environment

static void test_environment(void **state) {
    (void)state;
    static const struct {
        const char *stage, *text;
        int rc;
        const char *want, *words;
    } rows[] = {
        { NULL, NULL, 0, "", "" },
        { "", NULL, 0, "", "" },
        { "0", NULL, 0, "stage=0", "" },
        { "3", NULL, 0, "stage=3", "" },
        { NULL, Z("'stage': 1"), 0, "stage=1", "" },
        { NULL, "{}", 0, "", "" },
        { "1", Z("'stage': 1"), 0, "stage=1", "" },
        { "3", "{}", 0, "stage=3", "" },
        { "3", Z("'stage': 'auto'"), 0, "stage=3", "" },
        { "3", "{'zero_optimization': null}", 0, "stage=3", "" },
        { "3", Z("'stage': 1"), ZERO_ERR_ARGUMENT, "", ":1: zero_optimization.stage: stage 1|ZERO_STAGE=3" },
        { "0", "{'zero_optimization': true}", ZERO_ERR_ARGUMENT, "", "stage 1|ZERO_STAGE=0" },
        { "3", Z("'stge': 1"), ZERO_ERR_ARGUMENT, "", "stge" },
        { "4", NULL, ZERO_ERR_ARGUMENT, "", "ZERO_STAGE=4|0, 1, 2 and 3" },
        { "-1", NULL, ZERO_ERR_ARGUMENT, "", "ZERO_STAGE=-1" },
        { "2x", NULL, ZERO_ERR_ARGUMENT, "", "ZERO_STAGE=2x" },
        { "x", "{}", ZERO_ERR_ARGUMENT, "", "ZERO_STAGE=x" },
    };
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        zero_config c = start();
        if (rows[i].text) write_file(rows[i].text);
        assert_int_equal(rows[i].stage ? setenv("ZERO_STAGE", rows[i].stage, 1) : unsetenv("ZERO_STAGE"), 0);
        assert_int_equal(rows[i].text ? setenv("ZERO_CONFIG", file, 1) : unsetenv("ZERO_CONFIG"), 0);
        check_error(rows[i].stage ? rows[i].stage : "unset", zero_config_from_env(&c), rows[i].rc,
                    rows[i].words);
        check_settings(rows[i].stage ? rows[i].stage : "unset", &c, rows[i].want);
    }
    assert_int_equal(setenv("ZERO_CONFIG", "/nowhere/ds.json", 1) | unsetenv("ZERO_STAGE"), 0);
    zero_config c = start();
    check_error("no file", zero_config_from_env(&c), ZERO_ERR_IO, "/nowhere/ds.json");
    assert_int_equal(unsetenv("ZERO_CONFIG"), 0);
}

static int make_file(void **state) {
    (void)state;
    int fd = mkstemp(file);
    return fd < 0 || close(fd);
}
static int remove_file(void **state) {
    (void)state;
    return unlink(file);
}

int main(void) {
    const struct CMUnitTest config_tests[] = {
        cmocka_unit_test(test_taken),       cmocka_unit_test(test_prefetch_at_least_one),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_all_or_nothing),
        cmocka_unit_test(test_wire),        cmocka_unit_test(test_files),
        cmocka_unit_test(test_environment),
    };
    return cmocka_run_group_tests(config_tests, make_file, remove_file) != 0;
}
