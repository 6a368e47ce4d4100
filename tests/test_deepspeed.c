// What becomes of each key of a DeepSpeed file: the settings of offload, values as leniently as DeepSpeed
// reads them, its traps, files as tutorials have them, and all refusals at once.
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

#define Z(inner) "{'zero_optimization': {" inner "}}"
#define Z3(inner) Z("'stage': 3, " inner)
#define OPTIMIZER(inner) Z3("'offload_optimizer': {" inner "}")
#define PARAM(inner) Z3("'offload_param': {" inner "}")
#define TRAINERS                                                                                        \
    "{'train_batch_size': 32, 'train_micro_batch_size_per_gpu': 4, 'gradient_accumulation_steps': 2, "  \
    "'gradient_clipping': 0.5, 'activation_checkpointing': {'cpu_checkpointing': true, "                \
    "'number_checkpoints': null}, 'optimizer': {'type': 'Adam', 'params': {'lr': 5e-5, 'betas': [0.8, " \
    "0.99], "                                                                                           \
    "'eps': 1e-7, 'weight_decay': 0.01}}}"
#define AIO(inner) "{'aio': {" inner "}}"

// The texts in this file have ' for ".
static int read_text(const char *text) {
    FILE *f = fopen(file, "wb");
    assert_non_null(f);
    for (; *text; text++) fputc(*text == '\'' ? '"' : *text, f);
    assert_int_equal(fclose(f), 0);
    config = zero_defaults();
    return zero_deepspeed_read(&config, &said, file);
}

static void must_read(const char *text) {
    int rc = read_text(text);
    if (rc) fail_msg("%s: %d, %s", text, rc, zero_last_error());
}

static const zero_deepspeed_key *key_of(const char *text, const char *key, size_t n) {
    for (int i = 0; i < said.n; i++)
        if (strlen(said.keys[i].key) == n && !memcmp(said.keys[i].key, key, n)) return &said.keys[i];
    fail_msg("%s: nothing is said of %s", text, key);
    return NULL;
}

// about: "=key remark" for a key that is done as asked, "-key remark" for one without effect, "!key remark".
static void must_say(const char *text, const char *about) {
    static const char fates[] = "=-!";
    const size_t n = strcspn(about + 1, " ");
    const zero_deepspeed_key *k = key_of(text, about + 1, n);
    if (*about != fates[k->fate] || !strstr(k->remark, about + 1 + n + (about[1 + n] == ' ')))
        fail_msg("%s: not '%s', but fate %c and '%s'", text, about, fates[k->fate], k->remark);
}

// What a setting is now; of the trainer's, what the file has asked for.
static void value_now(const char *name, char *now, size_t size) {
    const zero_setting *s = zero_setting_named(name);
    *now = 0;
    if (s) zero_setting_text(s, &config, now, size);
    for (int i = 0; !s && i < said.n; i++)
        if (!strcmp(said.keys[i].setting, name)) snprintf(now, size, "%s", said.keys[i].value);
}

// wanted: "stage=3 offload.nvme=/a"
static void must_set(const char *text, const char *wanted) {
    char name[64], value[64], now[64];
    for (int n; sscanf(wanted, " %63[^=]=%63s%n", name, value, &n) == 2; wanted += n) {
        value_now(name, now, sizeof now);
        if (strcmp(now, value)) fail_msg("%s: %s is %s, not %s", text, name, now, value);
    }
    assert_int_equal(settings_check(&config), 0);
}

// -------- what is taken: the settings, and what is said of a key

static const struct {
    const char *text, *settings, *about;
} taken[] = {
    // offload
    { "{}", "offload.params=none offload.optimizer=none offload.gradients=none", "" },
    { OPTIMIZER("'device': 'none'"), "offload.optimizer=none offload.gradients=none", "" },
    { OPTIMIZER(""), "offload.optimizer=none", "" },
    { OPTIMIZER("'device': 'cpu', 'pin_memory': true"),
      "offload.optimizer=cpu offload.gradients=cpu offload.params=none", "" },
    { OPTIMIZER("'device': 'nvme', 'nvme_path': '/local_nvme'"),
      "offload.optimizer=nvme offload.gradients=cpu offload.nvme=/local_nvme", "" },
    { PARAM("'device': 'cpu'"), "offload.params=cpu offload.optimizer=none offload.gradients=none", "" },
    { PARAM("'device': 'nvme', 'nvme_path': '/a,/b', 'max_in_cpu': 2e8"),
      "offload.params=nvme offload.nvme=/a,/b offload.params_in_host=200000000", "" },
    { Z("'stage': 1, 'offload_optimizer': {'device': 'cpu'}"), "offload.optimizer=cpu offload.gradients=none",
      "" },
    { Z("'stage': 2, 'cpu_offload': true"), "offload.optimizer=cpu offload.gradients=cpu", "" },
    { Z("'stage': 2, 'cpu_offload': false"), "offload.optimizer=none", "" },
    { Z3("'cpu_offload_param': true"), "offload.params=cpu", "" },
    { Z3("'cpu_offload_params': 'yes'"), "offload.params=cpu", "" },
    { Z("'sub_group_size': 1e8"), "offload.sub_group_size=100000000", "" },
    { AIO("'block_size': 8388608, 'queue_depth': 128, 'intra_op_parallelism': 8"),
      "offload.nvme_block_bytes=8388608 offload.nvme_depth=128 offload.nvme_threads=8",
      "=aio.intra_op_parallelism io_uring" },
    { Z3("'offload_param': {'device': 'nvme', 'nvme_path': '/a'}, 'offload_optimizer': {'device': 'nvme', "
         "'nvme_path': '/b'}"),
      "offload.nvme=/a,/b", "=zero_optimization.offload_param.nvme_path alternate" },
    { Z3("'offload_param': {'device': 'cpu', 'nvme_path': '/a'}, 'offload_optimizer': {'device': 'nvme', "
         "'nvme_path': '/b'}"),
      "offload.nvme=/b", "-zero_optimization.offload_param.nvme_path not nvme" },
    // The file is Hjson: comments and trailing commas.
    { "# a\n{ // b\n'zero_optimization': { /* c\n' */ 'stage': 2, }, }", "stage=2", "" },
    // aio's threads have three names, of which DeepSpeed reads one.
    { AIO("'thread_count': 6"), "offload.nvme_threads=6",
      "=aio.thread_count DeepSpeed itself does not read" },
    { AIO("'num_threads': 6"), "offload.nvme_threads=6", "=aio.num_threads DeepSpeed itself does not read" },
    // aio inside of zero_optimization, where DeepSpeed refuses it
    { Z("'aio': {'queue_depth': 9}"), "offload.nvme_depth=9", "=zero_optimization.aio top level" },
    // Blocks smaller than the paper's least, as most files have them
    { AIO("'block_size': 262144"), "offload.nvme_block_bytes=524288", "=aio.block_size instead of 262144" },
    { AIO("'block_size': 1000000"), "offload.nvme_block_bytes=1003520", "" },
    // Keys that change nothing
    { OPTIMIZER("'pin_memory': false"), "", "-zero_optimization.offload_optimizer.pin_memory always pinned" },
    { OPTIMIZER("'device': 'cpu', 'super_offload': true"), "",
      "-zero_optimization.offload_optimizer.super_offload clipping" },
    { OPTIMIZER("'device': 'cpu', 'buffer_size': 1e8, 'buffer_count': 5"), "",
      "-zero_optimization.offload_optimizer.buffer_size" },
    { "{'bf16': {'enabled': true, 'check_grad_overflow': true}}", "numbers.dtype=bf16",
      "=bf16.check_grad_overflow" },
    { "{'disable_allgather': true}", "", "-disable_allgather does not read" },
    { Z("'allgather_partitions': false"), "", "-zero_optimization.allgather_partitions does not read" },
    { Z("'allgather_bucket_size': 2e8"), "", "-zero_optimization.allgather_bucket_size ignore" },
    // NVMe below stage 3 is NVMe, not host memory.
    { Z("'stage': 2, 'offload_optimizer': {'device': 'nvme', 'nvme_path': '/n'}"), "offload.optimizer=nvme",
      "=zero_optimization.offload_optimizer.device DeepSpeed keeps it in host" },
    // ratio is exact, whatever sub_group_size is; 1e9 is DeepSpeed's default and no wish.
    { Z3("'sub_group_size': 1e9, 'offload_optimizer': {'device': 'cpu', 'ratio': 0.3}"),
      "offload.optimizer_ratio=0.3 offload.sub_group_size=4194304",
      "=zero_optimization.offload_optimizer.ratio exactly" },
    { Z("'sub_group_size': 1e9"), "", "-zero_optimization.sub_group_size 4194304" },
    // what the trainer is asked
    { TRAINERS,
      "trainer.rows_a_step=32 trainer.rows=4 micro_batches=2 trainer.lr=5e-05 trainer.beta1=0.8 "
      "trainer.beta2=0.99 trainer.eps=1e-07 trainer.weight_decay=0.01 trainer.grad_clip=0.5 "
      "trainer.offload_activations=1",
      "=optimizer.params.weight_decay DeepSpeed decays every parameter" },
    // NVMe for both, as in DeepSpeed's tutorial of ZeRO-Infinity, with remarks
    { "{ // ZeRO-Infinity\n"
      " 'train_batch_size': 16, /* rows */ 'gradient_clipping': 1.0, 'steps_per_print': 1,\n"
      " 'zero_optimization': { 'stage': 3, 'contiguous_gradients': true, 'stage3_max_live_parameters': 1e9,\n"
      "  'stage3_max_reuse_distance': 1e9, 'stage3_prefetch_bucket_size': 1e7,\n"
      "  'stage3_param_persistence_threshold': 1e5, 'reduce_bucket_size': 1e7, 'sub_group_size': 1e9,\n"
      "  'offload_optimizer': { 'device': 'nvme', 'nvme_path': '/local_nvme', 'pin_memory': true,\n"
      "   'buffer_count': 4, 'fast_init': false, 'pipeline_read': false, 'pipeline_write': false },\n"
      "  'offload_param': { 'device': 'nvme', # the same disk\n"
      "   'nvme_path': '/local_nvme', 'pin_memory': true, 'buffer_count': 5, 'buffer_size': 1e8,\n"
      "   'max_in_cpu': 1e9, }, },\n"
      " 'aio': {'block_size': 262144, 'queue_depth': 32, 'thread_count': 1, 'single_submit': false,\n"
      "  'overlap_events': true},\n"
      " 'fp16': {'enabled': true, 'loss_scale': 0, 'loss_scale_window': 1000, 'hysteresis': 2}, }\n",
      "stage=3 offload.params=nvme offload.optimizer=nvme offload.nvme=/local_nvme "
      "reduce_bucket_size=10000000 "
      "offload.nvme_depth=32 numbers.dtype=fp16",
      "" },
    // ZeRO-Offload at stage 2, with 2e8
    { Z("'stage': 2, 'offload_optimizer': {'device': 'cpu', 'pin_memory': true}, 'allgather_partitions': "
        "true, "
        "'allgather_bucket_size': 2e8, 'overlap_comm': true, 'reduce_scatter': true, 'reduce_bucket_size': "
        "2e8, "
        "'contiguous_gradients': true"),
      "offload.optimizer=cpu reduce_bucket_size=200000000 overlap=1", "" },
    // Hugging Face's, all "auto"
    { "{'bf16': {'enabled': 'auto'}, 'zero_optimization': {'stage': 3, 'offload_optimizer': {'device': "
      "'cpu', "
      "'pin_memory': true}, 'offload_param': {'device': 'cpu', 'pin_memory': true}, 'overlap_comm': true, "
      "'contiguous_gradients': true, 'sub_group_size': 1e9, 'reduce_bucket_size': 'auto', "
      "'stage3_prefetch_bucket_size': 'auto', 'stage3_param_persistence_threshold': 'auto', "
      "'stage3_max_live_parameters': 1e9, 'stage3_max_reuse_distance': 1e9, "
      "'stage3_gather_16bit_weights_on_model_save': true}, 'gradient_accumulation_steps': 'auto', "
      "'gradient_clipping': 'auto', 'steps_per_print': 2000, 'train_batch_size': 'auto', "
      "'train_micro_batch_size_per_gpu': 'auto', 'wall_clock_breakdown': false}",
      "offload.params=cpu offload.optimizer=cpu overlap=1 trainer.rows_a_step=auto",
      "=zero_optimization.reduce_bucket_size the largest unit" },
    // What ds_nvme_tune prints: booleans as strings, and the name that nobody reads
    { AIO("'single_submit': 'false', 'overlap_events': 'true', 'num_threads': 8, 'queue_depth': 32, "
          "'block_size': 1048576"),
      "offload.nvme_threads=8 offload.nvme_depth=32 offload.nvme_block_bytes=1048576", "" },
};

static void test_taken(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        must_read(taken[i].text);
        must_set(taken[i].text, taken[i].settings);
        if (*taken[i].about) must_say(taken[i].text, taken[i].about);
    }
}

// Each value, in its place in the text, makes the setting the same.
static void all_mean(const char *before, const char *const values[], const char *after, const char *wanted) {
    char text[200];
    for (; *values; values++) {
        snprintf(text, sizeof text, "%s%s%s", before, *values, after);
        must_read(text);
        must_set(text, wanted);
    }
}

static void test_lenient_values(void **state) {
    (void)state;
    static const char *const sizes[] = { "2e8",   "200000000",   "2.0e8", "'200000000'",
                                         "'2e8'", "200000000.0", NULL };
    static const char *const yes[] = { "true", "1", "1.0", "'true'", "'On'", "'yes'", "'1'", NULL };
    static const char *const no[] = { "false", "0", "'False'", "'off'", "'no'", "'n'", NULL };
    all_mean("{'zero_optimization': {'reduce_bucket_size': ", sizes, "}}", "reduce_bucket_size=200000000");
    all_mean("{'zero_optimization': {'stage': 2, 'cpu_offload': ", yes, "}}", "offload.optimizer=cpu");
    all_mean("{'zero_optimization': {'stage': 2, 'cpu_offload': ", no, "}}", "offload.optimizer=none");
}

// -------- what is refused

static const struct {
    const char *text, *words;
} refused[] = {
    { Z("'reduce_bucket_size': 0.9"), "reduce_bucket_size: 0.9: must be a whole number" },
    { Z("'reduce_bucket_size': '5e8x'"), "reduce_bucket_size: '5e8x'" },
    { Z("'reduce_bucket_size': ' 5'"), "whole number" },
    { Z("'reduce_bucket_size': ''"), "whole number" },
    { Z("'sub_group_size': 1000"), "sub_group_size: 1000: must be a whole number from 65536" },
    { OPTIMIZER("'device': 'gpu'"), "offload_optimizer.device: 'gpu': must be one of 'none', 'cpu', 'nvme'" },
    { OPTIMIZER("'device': 1"), "offload_optimizer.device: 1" },
    { OPTIMIZER("'ratio': 1.5"), "ratio: 1.5: must be a number from 0 to 1" },
    { OPTIMIZER("'nvme_path': 3"), "nvme_path: 3: must be a folder" },
    { OPTIMIZER("'nvme_path': ''"), "nvme_path: '': must be a folder" },
    { OPTIMIZER("'pin_memry': true"),
      "unknown key; the nearest known one is zero_optimization.offload_optimizer.pin_memory" },
    { Z("'offload_param': true"), "offload_param: true: must be a block" },
    { Z("'stage': 2, 'cpu_offload': true, 'offload_optimizer': {'device': 'cpu'}"),
      "cpu_offload: true: is the old name of offload_optimizer" },
    { AIO("'queue_depth': 0"), "aio.queue_depth: 0" },
    { AIO("'thread_count': 1, 'num_threads': 2"), "aio.num_threads: 2: is another name of aio.thread_count" },
    { AIO("'use_gds': true"), "aio.use_gds: true: GPUDirect" },
    { "{'aio': {}, 'zero_optimization': {'aio': {'queue_depth': 8}}}",
      "zero_optimization.aio: is also at the top level" },
    { "{'bf16': {}, 'bfloat16': {'enabled': true}}", "bfloat16: is also at the top level as bf16" },
    { "{'activation_checkpointing': {'profile': true}}", "activation_checkpointing.profile: true" },
    { "{'optimizer': {'params': {'betas': [0.9]}}}", "betas: [0.9]: must be a list of two" },
    { "{'optimizer': {'params': {'max_grad_norm': 1}}}", "max_grad_norm: 1: gradient_clipping does" },
    { "{'bf16': {'check_grad_overflow': false}}",
      "check_grad_overflow: false: infinities are checked at every stage" },
    // Keys that DeepSpeed refuses too, or ignores at this stage
    { Z("'legacy_stage1': true"), "legacy_stage1: true: DeepSpeed refuses it too" },
    { Z("'grad_hooks': true"), "grad_hooks: true: DeepSpeed has no such key" },
    { Z("'offload_param': {'device': 'cpu'}, 'stage': 2"), "offload_param.device: 'cpu': needs stage 3" },
    { Z("'stage': 0, 'offload_optimizer': {'device': 'cpu'}"),
      "offload_optimizer.device: 'cpu': needs stage 1, 2 or 3" },
    { "{'gradient_clipping': -1}", "gradient_clipping: -1: must be a number from 0" },
};

static void test_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        int rc = read_text(refused[i].text);
        if (rc != ZERO_ERR_ARGUMENT) fail_msg("%s returns %d", refused[i].text, rc);
        char *words = strdup(refused[i].words);
        for (char *quote = words; (quote = strchr(quote, '\''));) *quote = '"';
        if (!strstr(zero_last_error(), words))
            fail_msg("%s: '%s' lacks '%s'", refused[i].text, zero_last_error(), refused[i].words);
        free(words);
        zero_config before = zero_defaults();
        assert_memory_equal(&config, &before, sizeof config);
    }
}

// -------- all refusals at once

static void test_all_at_once(void **state) {
    (void)state;
    const char *text = "{\n"
                       "'zero_optimization': {'stage': 7,\n"
                       "'overlap_com': true, // misspelt\n"
                       "'zero_quantized_weights': true},\n"
                       "'scheduler': {'type': 'WarmupLR', 'params': {'stage': 1}},\n"
                       "'gradient_clipping': 'much'}";
    assert_int_equal(read_text(text), ZERO_ERR_ARGUMENT);
    char want[sizeof file + 4];
    for (int line = 2; line <= 6; line++) {
        snprintf(want, sizeof want, "%s:%d: ", file, line);
        assert_non_null(strstr(zero_last_error(), want));
    }
    assert_ptr_equal(strstr(zero_last_error(), "5 keys cannot be honoured:\n"), zero_last_error());
    must_say(text, "!zero_optimization.overlap_com nearest known one is zero_optimization.overl");
    assert_string_equal(key_of(text, "scheduler", strlen("scheduler"))->setting, "trainer.schedule");
    assert_string_equal(key_of(text, "zero_optimization.stage", strlen("zero_optimization.stage"))->setting,
                        "stage");
    // What an error has no room for is counted.
    char many[4096] = "{'a0': 1";
    for (int i = 1; i < 60; i++) sprintf(many + strlen(many), ", 'unknown_%d': 1", i);
    strcat(many, "}");
    assert_int_equal(read_text(many), ZERO_ERR_ARGUMENT);
    assert_int_equal(said.n, 60);
    assert_ptr_equal(strstr(zero_last_error(), "60 keys cannot be honoured:\n"), zero_last_error());
    assert_non_null(strstr(zero_last_error(), "\n  and "));
    // A file without end fills the list once.
    char *endless = malloc(1 << 16);
    assert_non_null(endless);
    strcpy(endless, "{'a': 1");
    for (int i = 0, n = 7; i < 1000; i++) n += sprintf(endless + n, ", 'unknown_%d': 1", i);
    strcat(endless, "}");
    assert_int_equal(read_text(endless), ZERO_ERR_ARGUMENT);
    assert_int_equal(said.n, ZERO_DEEPSPEED_KEYS);
    free(endless);
}

// Without a trainer that takes them, its keys are refused, all at once.
static void test_trainers_keys(void **state) {
    (void)state;
    must_read(TRAINERS);
    assert_int_equal(zero_config_from_file(&config, file), ZERO_ERR_ARGUMENT);
    assert_non_null(strstr(zero_last_error(), "9 keys cannot be honoured"));
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
        cmocka_unit_test(test_taken),         cmocka_unit_test(test_lenient_values),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_all_at_once),
        cmocka_unit_test(test_trainers_keys),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file) != 0;
}
