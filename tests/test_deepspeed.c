// What becomes of each key of a DeepSpeed file: the settings of offload, values as leniently as DeepSpeed
// reads them, files as tutorials have them, DeepSpeed's traps, and all refusals at once.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "../llmc_zero/zero.h"
#include "../llmc_zero/settings/settings.h"

static char file[] = "/tmp/test_deepspeed_XXXXXX";
static zero_deepspeed said;
static zero_config config;

#define Z(inner) "{\"zero_optimization\": {" inner "}}"
#define Z3(inner) Z("\"stage\": 3, " inner)
#define OPTIMIZER(inner) Z3("\"offload_optimizer\": {" inner "}")
#define PARAM(inner) Z3("\"offload_param\": {" inner "}")
#define AIO(inner) "{\"aio\": {" inner "}}"

static int read_text(const char *text) {
    FILE *f = fopen(file, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
    config = zero_defaults();
    return zero_deepspeed_read(&config, &said, file);
}

static void must_read(const char *text) {
    int rc = read_text(text);
    if (rc) fail_msg("%s: %d, %s", text, rc, zero_last_error());
}

static const zero_deepspeed_key *key_of(const char *text, const char *key) {
    for (int i = 0; i < said.n; i++)
        if (!strcmp(said.keys[i].key, key)) return &said.keys[i];
    fail_msg("%s: nothing is said of %s", text, key);
    return NULL;
}

static void must_say(const char *text, const char *key, zero_key_fate fate, const char *remark) {
    const zero_deepspeed_key *k = key_of(text, key);
    if (k->fate != fate || !strstr(k->remark, remark))
        fail_msg("%s: %s has fate %d and \"%s\", not %d and \"%s\"", text, key, (int)k->fate, k->remark,
                 (int)fate, remark);
}

// -------- offload

#define CHECK_OFFLOAD(text, condition)                           \
    do {                                                         \
        must_read(text);                                         \
        const zero_offload_config *o = &config.offload;          \
        if (!(condition)) fail_msg("%s: not " #condition, text); \
        assert_int_equal(settings_check(&config), 0);            \
    } while (0)

static void test_offload(void **state) {
    (void)state;
    CHECK_OFFLOAD("{}", !o->params && !o->optimizer && !o->gradients);
    CHECK_OFFLOAD(OPTIMIZER("\"device\": \"none\""), !o->optimizer && !o->gradients);
    CHECK_OFFLOAD(OPTIMIZER(""), !o->optimizer);
    CHECK_OFFLOAD(OPTIMIZER("\"device\": \"cpu\", \"pin_memory\": true"),
                  o->optimizer == ZERO_HOST && o->gradients == ZERO_HOST && !o->params);
    CHECK_OFFLOAD(OPTIMIZER("\"device\": \"nvme\", \"nvme_path\": \"/local_nvme\""),
                  o->optimizer == ZERO_NVME && o->gradients == ZERO_HOST && !strcmp(o->nvme, "/local_nvme"));
    CHECK_OFFLOAD(PARAM("\"device\": \"cpu\""), o->params == ZERO_HOST && !o->optimizer && !o->gradients);
    CHECK_OFFLOAD(PARAM("\"device\": \"nvme\", \"nvme_path\": \"/a,/b\", \"max_in_cpu\": 2e8"),
                  o->params == ZERO_NVME && !strcmp(o->nvme, "/a,/b") && o->params_in_host == 200000000);
    CHECK_OFFLOAD(Z("\"stage\": 1, \"offload_optimizer\": {\"device\": \"cpu\"}"),
                  o->optimizer == ZERO_HOST && !o->gradients);
    CHECK_OFFLOAD(Z("\"stage\": 2, \"cpu_offload\": true"), o->optimizer == ZERO_HOST && o->gradients);
    CHECK_OFFLOAD(Z("\"stage\": 2, \"cpu_offload\": false"), !o->optimizer);
    CHECK_OFFLOAD(Z3("\"cpu_offload_param\": true"), o->params == ZERO_HOST);
    CHECK_OFFLOAD(Z3("\"cpu_offload_params\": \"yes\""), o->params == ZERO_HOST);
    CHECK_OFFLOAD(OPTIMIZER("\"device\": \"cpu\", \"ratio\": 0.25"), o->optimizer_ratio == 0.25);
    CHECK_OFFLOAD(Z("\"sub_group_size\": 1e8"), o->sub_group_size == 100000000);
    CHECK_OFFLOAD(AIO("\"block_size\": 8388608, \"queue_depth\": 128, \"intra_op_parallelism\": 8"),
                  o->nvme_block_bytes == 8388608 && o->nvme_depth == 128 && o->nvme_threads == 8);
}

static void test_two_folders(void **state) {
    (void)state;
    const char *text = Z3("\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/a\"}, "
                          "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/b\"}");
    must_read(text);
    assert_string_equal(config.offload.nvme, "/a,/b");
    must_say(text, "zero_optimization.offload_param.nvme_path", ZERO_KEY_HONOURED, "alternate");
    text = Z3("\"offload_param\": {\"device\": \"cpu\", \"nvme_path\": \"/a\"}, "
              "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/b\"}");
    must_read(text);
    assert_string_equal(config.offload.nvme, "/b");
    must_say(text, "zero_optimization.offload_param.nvme_path", ZERO_KEY_NO_EFFECT, "not nvme");
}

// -------- values

static void test_lenient_values(void **state) {
    (void)state;
    static const char *const sizes[] = { "2e8",           "200000000", "2.0e8",
                                         "\"200000000\"", "\"2e8\"",   "200000000.0" };
    static const char *const yes[] = { "true", "1", "1.0", "\"true\"", "\"On\"", "\"yes\"", "\"1\"" };
    static const char *const no[] = { "false", "0", "\"False\"", "\"off\"", "\"no\"", "\"n\"" };
    char text[200];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(text, sizeof text, Z("\"reduce_bucket_size\": %s"), sizes[i]);
        must_read(text);
        if (config.reduce_bucket_size != 200000000) fail_msg("%s is not 2e8", sizes[i]);
    }
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) {
        snprintf(text, sizeof text, Z("\"stage\": 2, \"cpu_offload\": %s"), yes[i]);
        must_read(text);
        if (config.offload.optimizer != ZERO_HOST) fail_msg("%s is not true", yes[i]);
    }
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        snprintf(text, sizeof text, Z("\"stage\": 2, \"cpu_offload\": %s"), no[i]);
        must_read(text);
        if (config.offload.optimizer != ZERO_DEVICE) fail_msg("%s is not false", no[i]);
    }
}

static const struct {
    const char *text, *words;
} refused[] = {
    { Z("\"reduce_bucket_size\": 0.9"), "reduce_bucket_size: 0.9: must be a whole number" },
    { Z("\"reduce_bucket_size\": \"5e8x\""), "reduce_bucket_size: \"5e8x\"" },
    { Z("\"reduce_bucket_size\": \" 5\""), "whole number" },
    { Z("\"reduce_bucket_size\": \"\""), "whole number" },
    { Z("\"sub_group_size\": 1000"), "sub_group_size: 1000: must be a whole number from 65536" },
    { OPTIMIZER("\"device\": \"gpu\""),
      "offload_optimizer.device: \"gpu\": must be one of \"none\", \"cpu\", \"nvme\"" },
    { OPTIMIZER("\"device\": 1"), "offload_optimizer.device: 1" },
    { OPTIMIZER("\"ratio\": 1.5"), "ratio: 1.5: must be a number from 0 to 1" },
    { OPTIMIZER("\"nvme_path\": 3"), "nvme_path: 3: must be a folder" },
    { OPTIMIZER("\"nvme_path\": \"\""), "nvme_path: \"\": must be a folder" },
    { OPTIMIZER("\"pin_memry\": true"), "unknown key; the nearest known one is "
                                        "zero_optimization.offload_optimizer.pin_memory" },
    { Z("\"offload_param\": true"), "offload_param: true: must be a block" },
    { Z("\"stage\": 2, \"cpu_offload\": true, \"offload_optimizer\": {\"device\": \"cpu\"}"),
      "cpu_offload: true: is the old name of offload_optimizer" },
    { AIO("\"queue_depth\": 0"), "aio.queue_depth: 0" },
    { AIO("\"thread_count\": 1, \"num_threads\": 2"),
      "aio.num_threads: 2: is aio.thread_count by another name" },
    { AIO("\"use_gds\": true"), "aio.use_gds: true: GPUDirect" },
    { "{\"aio\": {}, \"zero_optimization\": {\"aio\": {\"queue_depth\": 8}}}",
      "zero_optimization.aio: stands at the top level" },
    { "{\"bf16\": {}, \"bfloat16\": {\"enabled\": true}}", "bfloat16: stands at the top level as bf16 too" },
    { "{\"activation_checkpointing\": {\"profile\": true}}", "activation_checkpointing.profile: true" },
    { "{\"optimizer\": {\"params\": {\"betas\": [0.9]}}}", "betas: [0.9]: must be a list of two" },
    { "{\"optimizer\": {\"params\": {\"max_grad_norm\": 1}}}", "max_grad_norm: 1: gradient_clipping does" },
    { "{\"gradient_clipping\": -1}", "gradient_clipping: -1: must be a number from 0" },
};

static void test_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        int rc = read_text(refused[i].text);
        if (rc != ZERO_ERR_ARGUMENT) fail_msg("%s returns %d", refused[i].text, rc);
        if (!strstr(zero_last_error(), refused[i].words))
            fail_msg("%s: \"%s\" lacks \"%s\"", refused[i].text, zero_last_error(), refused[i].words);
        zero_config before = zero_defaults();
        assert_memory_equal(&config, &before, sizeof config);
    }
}

// -------- all refusals at once

static void test_all_at_once(void **state) {
    (void)state;
    const char *text = "{\n"
                       "\"zero_optimization\": {\"stage\": 7,\n"
                       "\"overlap_com\": true, // misspelt\n"
                       "\"zero_quantized_weights\": true},\n"
                       "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"stage\": 1}},\n"
                       "\"gradient_clipping\": \"much\"}";
    assert_int_equal(read_text(text), ZERO_ERR_ARGUMENT);
    char want[sizeof file + 4];
    for (int line = 2; line <= 6; line++) {
        snprintf(want, sizeof want, "%s:%d: ", file, line);
        assert_non_null(strstr(zero_last_error(), want));
    }
    assert_ptr_equal(strstr(zero_last_error(), "5 keys cannot be honoured:\n"), zero_last_error());
    must_say(text, "zero_optimization.overlap_com", ZERO_KEY_REFUSED,
             "nearest known one is zero_optimization.overl");
    assert_string_equal(key_of(text, "scheduler")->setting, "trainer.schedule");
    assert_string_equal(key_of(text, "zero_optimization.stage")->setting, "stage");
    // What an error has no room for is counted.
    char many[4096] = "{\"a0\": 1";
    for (int i = 1; i < 60; i++) sprintf(many + strlen(many), ", \"unknown_%d\": 1", i);
    strcat(many, "}");
    assert_int_equal(read_text(many), ZERO_ERR_ARGUMENT);
    assert_int_equal(said.n, 60);
    assert_ptr_equal(strstr(zero_last_error(), "60 keys cannot be honoured:\n"), zero_last_error());
    assert_non_null(strstr(zero_last_error(), "\n  and "));
    // A file without end fills the list once.
    char *endless = malloc(1 << 16);
    assert_non_null(endless);
    strcpy(endless, "{\"a\": 1");
    for (int i = 0, n = 7; i < 1000; i++) n += sprintf(endless + n, ", \"unknown_%d\": 1", i);
    strcat(endless, "}");
    assert_int_equal(read_text(endless), ZERO_ERR_ARGUMENT);
    assert_int_equal(said.n, ZERO_DEEPSPEED_KEYS);
    free(endless);
}

// -------- what the trainer is asked

static void test_trainers_keys(void **state) {
    (void)state;
    static const struct {
        const char *setting, *value;
    } want[] = {
        { "trainer.rows_a_step", "32" }, { "trainer.rows", "4" },
        { "micro_batches", "2" },        { "trainer.lr", "5e-05" },
        { "trainer.beta1", "0.8" },      { "trainer.beta2", "0.99" },
        { "trainer.eps", "1e-07" },      { "trainer.weight_decay", "0.01" },
        { "trainer.grad_clip", "0.5" },  { "trainer.offload_activations", "1" },
    };
    const char *text =
        "{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4, "
        "\"gradient_accumulation_steps\": 2, \"gradient_clipping\": 0.5, "
        "\"activation_checkpointing\": {\"cpu_checkpointing\": true, \"number_checkpoints\": null},"
        "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 5e-5, \"betas\": [0.8, 0.99], "
        "\"eps\": 1e-7, \"weight_decay\": 0.01}}}";
    must_read(text);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        int found = 0;
        for (int j = 0; j < said.n; j++)
            found |= !strcmp(said.keys[j].setting, want[i].setting) &&
                     !strcmp(said.keys[j].value, want[i].value);
        if (!found) fail_msg("nobody is asked for %s %s", want[i].setting, want[i].value);
    }
    must_say(text, "optimizer.params.weight_decay", ZERO_KEY_HONOURED, "DeepSpeed decays every parameter");
    // Without a trainer that takes them they are refused, all at once.
    assert_int_equal(zero_config_from_file(&config, file), ZERO_ERR_ARGUMENT);
    assert_non_null(strstr(zero_last_error(), "9 keys cannot be honoured"));
}

// -------- DeepSpeed's traps

static void test_traps(void **state) {
    (void)state;
    const char *text;
    // The file is Hjson: comments and trailing commas.
    must_read("# a\n{ // b\n\"zero_optimization\": { /* c */ \"stage\": 2, }, }");
    assert_int_equal(config.stage, 2);
    // aio's threads have three names, of which DeepSpeed reads one.
    static const char *const names[] = { "intra_op_parallelism", "thread_count", "num_threads" };
    for (int i = 0; i < 3; i++) {
        char aio[80], key[40];
        snprintf(aio, sizeof aio, AIO("\"%s\": 6"), names[i]);
        snprintf(key, sizeof key, "aio.%s", names[i]);
        must_read(aio);
        assert_int_equal(config.offload.nvme_threads, 6);
        must_say(aio, key, ZERO_KEY_HONOURED, i ? "DeepSpeed itself does not read" : "io_uring");
    }
    // aio inside of zero_optimization, where DeepSpeed refuses it.
    text = Z("\"aio\": {\"queue_depth\": 9}");
    must_read(text);
    must_say(text, "zero_optimization.aio", ZERO_KEY_HONOURED, "top level");
    assert_int_equal(config.offload.nvme_depth, 9);
    // Blocks smaller than the paper's least, as most files have them.
    text = AIO("\"block_size\": 262144");
    must_read(text);
    assert_int_equal(config.offload.nvme_block_bytes, 524288);
    must_say(text, "aio.block_size", ZERO_KEY_HONOURED, "in place of 262144");
    must_read(AIO("\"block_size\": 1000000"));
    assert_int_equal(config.offload.nvme_block_bytes, 1003520);
    // Defaults that changed: pin_memory has no effect either way; clipping is only what the file says.
    text = OPTIMIZER("\"pin_memory\": false");
    must_read(text);
    must_say(text, "zero_optimization.offload_optimizer.pin_memory", ZERO_KEY_NO_EFFECT, "always pinned");
    text = "{\"bf16\": {\"enabled\": true, \"check_grad_overflow\": true}}";
    must_read(text);
    must_say(text, "bf16.check_grad_overflow", ZERO_KEY_HONOURED, "at every stage");
    // Dead keys.
    text = "{\"disable_allgather\": true, \"zero_optimization\": {\"allgather_partitions\": false, "
           "\"allgather_bucket_size\": 2e8}}";
    must_read(text);
    must_say(text, "disable_allgather", ZERO_KEY_NO_EFFECT, "does not read");
    must_say(text, "zero_optimization.allgather_partitions", ZERO_KEY_NO_EFFECT, "does not read");
    must_say(text, "zero_optimization.allgather_bucket_size", ZERO_KEY_NO_EFFECT, "ignore");
    // Keys that DeepSpeed refuses.
    assert_int_equal(read_text(Z("\"legacy_stage1\": true, \"grad_hooks\": true")), ZERO_ERR_ARGUMENT);
    assert_int_equal(said.n, 2);
    // NVMe below stage 3 is NVMe, not host memory.
    text = Z("\"stage\": 2, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/n\"}");
    must_read(text);
    assert_int_equal(config.offload.optimizer, ZERO_NVME);
    must_say(text, "zero_optimization.offload_optimizer.device", ZERO_KEY_HONOURED,
             "DeepSpeed keeps it in host");
    // offload_param below stage 3 and offload_optimizer at stage 0 are not ignored.
    text = Z("\"offload_param\": {\"device\": \"cpu\"}, \"stage\": 2");
    assert_int_equal(read_text(text), ZERO_ERR_ARGUMENT);
    must_say(text, "zero_optimization.offload_param.device", ZERO_KEY_REFUSED, "needs stage 3");
    text = Z("\"stage\": 0, \"offload_optimizer\": {\"device\": \"cpu\"}");
    assert_int_equal(read_text(text), ZERO_ERR_ARGUMENT);
    must_say(text, "zero_optimization.offload_optimizer.device", ZERO_KEY_REFUSED, "needs stage 1, 2 or 3");
    // ratio is exact, whatever sub_group_size is; 1e9 is DeepSpeed's default and no wish.
    text = Z3("\"sub_group_size\": 1e9, \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.3}");
    must_read(text);
    assert_true(config.offload.optimizer_ratio == 0.3);
    assert_int_equal(config.offload.sub_group_size, zero_defaults().offload.sub_group_size);
    must_say(text, "zero_optimization.offload_optimizer.ratio", ZERO_KEY_HONOURED, "exactly");
    must_say(text, "zero_optimization.sub_group_size", ZERO_KEY_NO_EFFECT, "4194304");
    // super_offload
    text = OPTIMIZER("\"device\": \"cpu\", \"super_offload\": true");
    must_read(text);
    must_say(text, "zero_optimization.offload_optimizer.super_offload", ZERO_KEY_NO_EFFECT, "clipping");
    // buffer_size of offload_optimizer, which DeepSpeed refuses, stands in old files.
    must_read(OPTIMIZER("\"device\": \"cpu\", \"buffer_size\": 1e8, \"buffer_count\": 5"));
}

// -------- files as tutorials have them

static void test_tutorials(void **state) {
    (void)state;
    // NVMe for both, as in DeepSpeed's tutorial of ZeRO-Infinity, with remarks.
    must_read("{ // ZeRO-Infinity\n"
              "  \"train_batch_size\": 16, /* rows */ \"gradient_clipping\": 1.0, \"steps_per_print\": 1,\n"
              "  \"zero_optimization\": {\n"
              "    \"stage\": 3,\n"
              "    \"contiguous_gradients\": true,\n"
              "    \"stage3_max_live_parameters\": 1e9,\n"
              "    \"stage3_max_reuse_distance\": 1e9,\n"
              "    \"stage3_prefetch_bucket_size\": 1e7,\n"
              "    \"stage3_param_persistence_threshold\": 1e5,\n"
              "    \"reduce_bucket_size\": 1e7,\n"
              "    \"sub_group_size\": 1e9,\n"
              "    \"offload_optimizer\": {\n"
              "      \"device\": \"nvme\", \"nvme_path\": \"/local_nvme\", \"pin_memory\": true,\n"
              "      \"buffer_count\": 4, \"fast_init\": false, \"pipeline_read\": false, "
              "\"pipeline_write\": false\n"
              "    },\n"
              "    \"offload_param\": {\n"
              "      \"device\": \"nvme\", # the same disk\n"
              "      \"nvme_path\": \"/local_nvme\", \"pin_memory\": true, \"buffer_count\": 5, "
              "\"buffer_size\": 1e8,\n"
              "      \"max_in_cpu\": 1e9,\n"
              "    },\n"
              "  },\n"
              "  \"aio\": {\"block_size\": 262144, \"queue_depth\": 32, \"thread_count\": 1, "
              "\"single_submit\": false,\n"
              "           \"overlap_events\": true},\n"
              "  \"fp16\": {\"enabled\": true, \"loss_scale\": 0, \"loss_scale_window\": 1000, "
              "\"hysteresis\": 2},\n"
              "}\n");
    assert_true(config.stage == 3 && config.offload.params == ZERO_NVME &&
                config.offload.optimizer == ZERO_NVME);
    assert_string_equal(config.offload.nvme, "/local_nvme");
    assert_true(config.reduce_bucket_size == 10000000 && config.offload.nvme_depth == 32);
    assert_true(config.numbers.dtype == ZERO_F16);
    assert_int_equal(settings_check(&config), 0);
    // ZeRO-Offload at stage 2, with 2e8.
    must_read(Z("\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true}, "
                "\"allgather_partitions\": true, \"allgather_bucket_size\": 2e8, \"overlap_comm\": true, "
                "\"reduce_scatter\": true, \"reduce_bucket_size\": 2e8, \"contiguous_gradients\": true"));
    assert_true(config.offload.optimizer == ZERO_HOST && config.reduce_bucket_size == 200000000);
    // Hugging Face's, all "auto".
    const char *text =
        "{\"bf16\": {\"enabled\": \"auto\"}, \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": "
        "{\"device\": \"cpu\", \"pin_memory\": true}, \"offload_param\": {\"device\": \"cpu\", "
        "\"pin_memory\": "
        "true}, \"overlap_comm\": true, \"contiguous_gradients\": true, \"sub_group_size\": 1e9, "
        "\"reduce_bucket_size\": \"auto\", \"stage3_prefetch_bucket_size\": \"auto\", "
        "\"stage3_param_persistence_threshold\": \"auto\", \"stage3_max_live_parameters\": 1e9, "
        "\"stage3_max_reuse_distance\": 1e9, \"stage3_gather_16bit_weights_on_model_save\": true}, "
        "\"gradient_accumulation_steps\": \"auto\", \"gradient_clipping\": \"auto\", \"steps_per_print\": "
        "2000, "
        "\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\", "
        "\"wall_clock_breakdown\": false}";
    must_read(text);
    assert_true(config.offload.params == ZERO_HOST && config.offload.optimizer == ZERO_HOST &&
                config.overlap);
    must_say(text, "zero_optimization.reduce_bucket_size", ZERO_KEY_HONOURED, "the largest unit");
    assert_string_equal(key_of(text, "train_batch_size")->value, "auto");
    // What ds_nvme_tune prints: booleans as strings, and the name that nobody reads.
    must_read(AIO("\"single_submit\": \"false\", \"overlap_events\": \"true\", \"num_threads\": 8, "
                  "\"queue_depth\": 32, \"block_size\": 1048576"));
    assert_true(config.offload.nvme_threads == 8 && config.offload.nvme_depth == 32);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_offload),        cmocka_unit_test(test_two_folders),
        cmocka_unit_test(test_lenient_values), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_all_at_once),    cmocka_unit_test(test_trainers_keys),
        cmocka_unit_test(test_traps),          cmocka_unit_test(test_tutorials),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file) != 0;
}
