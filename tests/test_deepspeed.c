// Tests DeepSpeed's configuration file and the environment: the settings, remarks about keys, and errors.
#include "unit.h"
#include "../llmc_zero/settings/settings.h"

static char file[] = "/tmp/test_deepspeed_XXXXXX";
static zero_deepspeed report;
static zero_config config;

static void write_bytes(const char *bytes, size_t n) {
    FILE *f = fopen(file, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

// Replaces ' with ". The texts in this file use ' for readability.
static char *quoted(const char *text) {
    static char with_quotes[1 << 16];
    snprintf(with_quotes, sizeof with_quotes, "%s", text);
    for (char *c = with_quotes; *c; c++)
        if (*c == '\'') *c = '"';
    return with_quotes;
}

static void write_file(const char *text) {
    char *with_quotes = quoted(text);
    write_bytes(with_quotes, strlen(with_quotes));
}

// Unusual values, two of them out of range, so that the test notices if a text leaves a setting unchanged.
static zero_config start(void) {
    zero_config c = zero_defaults();
    c.stage = 2;
    c.micro_batches = 3;
    c.reduce_bucket_size = 777;
    c.prefetch = 4;
    c.overlap = 7;
    c.numbers.dtype = ZERO_F16;
    c.comm.reduce_fp32 = 9;
    return c;
}

static int read_text(const char *text) {
    write_file(text);
    config = start();
    return zero_deepspeed_read(&config, &report, file);
}

static const zero_deepspeed_key *key_of(const char *text, const char *key, size_t n) {
    for (int i = 0; i < report.n; i++)
        if (strlen(report.keys[i].key) == n && !memcmp(report.keys[i].key, key, n)) return &report.keys[i];
    fail_msg("%s: %s is not reported", text, key);
    return NULL;
}

// about: "=key remark" for a key that is honoured, "-key" for one without effect, "!key" for a refused one.
static void check_key(const char *text, const char *about) {
    static const char fates[] = "=-!";
    const size_t n = strcspn(about + 1, " ");
    const zero_deepspeed_key *k = key_of(text, about + 1, n);
    if (*about != fates[k->fate] || !strstr(k->remark, about + 1 + n + (about[1 + n] == ' ')))
        fail_msg("%s: expected '%s', got fate %c and '%s'", text, about, fates[k->fate], k->remark);
}

static void check_trainer(const char *text, const char *setting, const char *value) {
    for (int i = 0; i < report.n; i++)
        if (!strcmp(report.keys[i].setting, setting) && !strcmp(report.keys[i].value, value)) return;
    fail_msg("%s: %s is not reported as %s", text, setting, value);
}

// wanted, as "stage=3 trainer.rows=2": all settings that the file changes from start(), and the trainer's.
static void check_settings(const char *text, const zero_config *c, const char *wanted) {
    char name[64], values[16][64], value[64];
    zero_config want = start();
    for (int n, i = 0; sscanf(wanted, " %63[^=]=%63s%n", name, values[i], &n) == 2; wanted += n) {
        const zero_setting *s = zero_setting_named(name);
        if (s)
            WORKS(zero_setting_set(s, &want, values[i++]));
        else
            check_trainer(text, name, values[i]);
    }
    int n;
    for (const zero_setting *s = zero_settings(&n), *end = s + n; s < end; s++) {
        zero_setting_text(s, c, name, sizeof name);
        zero_setting_text(s, &want, value, sizeof value);
        if (strcmp(name, value)) fail_msg("%s: %s is %s, not %s", text, s->name, name, value);
    }
}

// words: parts that the error must contain, separated by |
static void check_error(const char *text, int rc, int want, const char *words) {
    if (rc != want) fail_msg("%s returns %d, not %d", text, rc, want);
    for (char *word = strtok(quoted(words), "|"); word; word = strtok(NULL, "|"))
        if (!strstr(zero_last_error(), word))
            fail_msg("%s: the error '%s' does not contain '%s'", text, zero_last_error(), word);
}

// -------- accepted texts: the settings, and the remark about one key

#define Z(inner) "{'zero_optimization': {" inner "}}"
#define Z3(inner) Z("'stage': 3, " inner)
#define OPTIMIZER(inner) Z("'offload_optimizer': {" inner "}")
#define PARAM(inner) Z3("'offload_param': {" inner "}")
#define TRAINERS                                                                                        \
    "{'train_batch_size': 32, 'train_micro_batch_size_per_gpu': 4, 'gradient_accumulation_steps': 2, "  \
    "'gradient_clipping': 0.5, 'activation_checkpointing': {'cpu_checkpointing': true, "                \
    "'number_checkpoints': null}, 'optimizer': {'type': 'Adam', 'params': {'lr': 5e-5, 'betas': [0.8, " \
    "0.99], "                                                                                           \
    "'eps': 1e-7, 'weight_decay': 0.01}}}"
#define SCHEDULER(type, params) "{'scheduler': {'type': '" type "', 'params': {" params "}}}"
#define LR_AND_SCHEDULER(type, params) \
    "{'optimizer': {'params': {'lr': 1e-3}}, 'scheduler': {'type': '" type "', 'params': {" params "}}}"
#define AIO(inner) "{'aio': {" inner "}}"

static const struct {
    const char *text, *settings, *about;
} accepted[] = {
    { "{}", "", "" },
    { Z(""), "", "" },
    { Z("'stage': 1.0"), "stage=1", "" },
    { Z("'reduce_bucket_size': 5e8"), "reduce_bucket_size=500000000", "" },
    { Z("'overlap_comm': true"), "overlap=1", "" },
    { Z("'overlap_comm': false"), "overlap=0", "" },
    { Z("'overlap_comm': null"), "", "" },
    { Z("'stage3_prefetch_bucket_size': 0"), "prefetch=0", "" },
    { Z("'stage3_prefetch_bucket_size': 5e7"), "", "" },
    { Z3("'zero_hpz_partition_size': 8"), "stage=3 param_group=8",
      "=zero_optimization.zero_hpz_partition_size copy" },
    { Z3("'zero_hpz_partition_size': 0"), "stage=3", "=zero_optimization.zero_hpz_partition_size" },
    { Z("'stage': 2, 'zero_hpz_partition_size': 8"), "stage=2",
      "-zero_optimization.zero_hpz_partition_size needs stage 3" },
    { "{'bf16': {'enabled': false}}", "numbers.dtype=fp32", "" },
    { "{'bf16': {'enabled': 'auto'}, 'fp16': null}", "", "" },
    { "{'train_batch_size': 1, 'train_micro_batch_size_per_gpu': 1}", "trainer.rows_a_step=1 trainer.rows=1",
      "" },
    { "{'gradient_accumulation_steps': 1e1}", "micro_batches=10", "" },
    // "auto" and null mean absent, for blocks too
    { "{'gradient_accumulation_steps': 'auto', 'train_batch_size': 'auto', 'scheduler': null, 'bf16': null}",
      "", "" },
    { Z("'stage': 'auto', 'reduce_bucket_size': 'auto', 'offload_param': null, 'zenflow': null, "
        "'stage3_prefetch_bucket_size': 'auto', 'stage3_param_persistence_threshold': 'auto', "
        "'stage3_gather_16bit_weights_on_model_save': true"),
      "", "" },
    { "{'optimizer': {'type': 'adamw', 'params': {'lr': 'auto', 'betas': 'auto', 'adam_w_mode': true}}}",
      "trainer.lr=auto trainer.beta1=auto trainer.beta2=auto", "" },
    // features that the plugin always provides, and disabled features
    { Z("'contiguous_gradients': true, 'reduce_scatter': true, 'allgather_partitions': false, "
        "'sub_group_size': 1e9"),
      "", "" },
    { Z("'offload_optimizer': {'device': 'none', 'pin_memory': true}, 'offload_param': {'device': 'none'}"),
      "", "" },
    { Z("'zero_hpz_partition_size': 1, 'mics_shard_size': -1, 'zero_quantized_weights': false"), "", "" },
    { Z("'stage3_max_live_parameters': 1e9, 'stage3_max_reuse_distance': 0, "
        "'stage3_param_persistence_threshold': "
        "1e5"),
      "", "" },
    { "{'fp16': {'enabled': false, 'loss_scale': 0}, 'comet': {'enabled': 'false'}, 'amp': {'enabled': "
      "'auto'}}",
      "numbers.dtype=fp32", "" },
    { "{'steps_per_print': 2000, 'wall_clock_breakdown': false, 'aio': {'queue_depth': 8}, 'timers': 0}",
      "offload.nvme_depth=8", "" },
    { "{'data_types': {'grad_accum_dtype': 'fp32'}, 'checkpoint': {'tag_validation': 'Warn'}}", "", "" },
    // fp16 and bf16 in either order
    { "{'fp16': {'enabled': true}, 'bf16': {'enabled': false}}", "numbers.dtype=fp16", "" },
    { "{'bf16': {'enabled': true}, 'fp16': {'enabled': false}}", "numbers.dtype=bf16", "" },
    // comments and commas; quotes inside comments, comments inside strings
    { "// it's 'mine'\n{ # one\n'zero_optimization': /* two ' { */ { 'stage' : 1,  /* three */ }, }",
      "stage=1", "" },
    { "/*a*//*b*/{'log_level': '// /* # ,}', 'comet': {'enabled': false, 'list': [1, 2 , # end\n]}}// last",
      "", "" },
    { "{'log_level': [['a', 'b'], [1, 2], {'c': 3, 'd': 4}]}", "", "" },
    { "{'log_level': '\\'#\\\\', 'gradient_accumulation_steps': 2}", "micro_batches=2", "" },
    { "{'fp16': {'enabled': true, 'loss_scale': 128, 'initial_scale_power': 12, 'loss_scale_window': 500, "
      "'hysteresis': 3, 'consecutive_hysteresis': true, 'min_loss_scale': 4}}",
      "numbers.dtype=fp16 numbers.loss_scale=128 numbers.initial_scale_power=12 "
      "numbers.loss_scale_window=500 numbers.hysteresis=3 numbers.consecutive_hysteresis=1 "
      "numbers.min_loss_scale=4",
      "" },
    // offload
    { OPTIMIZER("'device': 'none'"), "offload.optimizer=none offload.gradients=none", "" },
    { OPTIMIZER(""), "offload.optimizer=none", "" },
    { OPTIMIZER("'device': 'cpu', 'pin_memory': true"),
      "offload.optimizer=cpu offload.gradients=cpu offload.params=none", "" },
    { OPTIMIZER("'device': 'nvme', 'nvme_path': '/local_nvme'"),
      "offload.optimizer=nvme offload.gradients=cpu offload.nvme=/local_nvme", "" },
    { PARAM("'device': 'cpu'"), "stage=3 offload.params=cpu", "" },
    { PARAM("'device': 'nvme', 'nvme_path': '/a,/b', 'max_in_cpu': 2e8"),
      "stage=3 offload.params=nvme offload.nvme=/a,/b offload.params_in_host=200000000", "" },
    { Z("'stage': 1, 'offload_optimizer': {'device': 'cpu'}"), "stage=1 offload.optimizer=cpu", "" },
    { Z("'sub_group_size': 1e8"), "offload.sub_group_size=100000000", "" },
    { Z("'sub_group_size': 2048"), "offload.sub_group_size=2048", "" },
    { AIO("'block_size': 8388608, 'queue_depth': 128, 'intra_op_parallelism': 8"),
      "offload.nvme_block_bytes=8388608 offload.nvme_depth=128 offload.nvme_threads=8", "" },
    { Z3("'offload_param': {'device': 'nvme', 'nvme_path': '/a'}, 'offload_optimizer': {'device': 'nvme', "
         "'nvme_path': '/a'}"),
      "stage=3 offload.params=nvme offload.optimizer=nvme offload.gradients=cpu offload.nvme=/a", "" },
    { AIO("'thread_count': 6"), "", "-aio.thread_count DeepSpeed does not read" },
    // a block size below the minimum, as in most files
    { AIO("'block_size': 262144"), "offload.nvme_block_bytes=524288", "=aio.block_size at least 524288" },
    { AIO("'block_size': 1000000"), "offload.nvme_block_bytes=1003520", "" },
    // keys without effect
    { OPTIMIZER("'pin_memory': false"), "", "-zero_optimization.offload_optimizer.pin_memory always pins" },
    { OPTIMIZER("'device': 'cpu', 'buffer_size': 1e8, 'buffer_count': 5"),
      "offload.optimizer=cpu offload.gradients=cpu", "-zero_optimization.offload_optimizer.buffer_size" },
    { "{'bf16': {'enabled': true, 'check_grad_overflow': true}}", "numbers.dtype=bf16",
      "=bf16.check_grad_overflow" },
    { Z("'allgather_partitions': false"), "", "-zero_optimization.allgather_partitions does not read" },
    { Z("'allgather_bucket_size': 2e8"), "", "-zero_optimization.allgather_bucket_size sizes its buffers" },
    // values that need a remark, and common ones that do not
    { "{'prescale_gradients': true}", "", "-prescale_gradients sums are fp32" },
    { "{'fp16': {'enabled': true, 'auto_cast': true}}", "numbers.dtype=fp16", "-fp16.auto_cast inputs" },
    { Z("'sub_group_size': 0"), "", "-zero_optimization.sub_group_size overlap" },
    { Z("'sub_group_size': 2047"), "", "-zero_optimization.sub_group_size overlap" },
    { "{'compile': {'deepcompile': true}}", "", "-compile PyTorch" },
    // Unknown keys far from any known one have no effect where DeepSpeed ignores them.
    { "{'comms_config': {'verbose': false}, 'monitor_config': {'enabled': true, 'tag': 'x'}}", "",
      "-comms_config DeepSpeed ignores it too" },
    { "{'_comment': 'text', 'cuda_visible_devices': 0, 'xyzzy': 3, '': 1}", "", "-_comment ignores it too" },
    { AIO("'unheard_of': 3"), "", "-aio.unheard_of ignores it too" },
    // Offload settings that the stage does not support also have no effect.
    { Z("'offload_param': {'device': 'cpu', 'pin_memory': true}, 'stage': 2"), "",
      "-zero_optimization.offload_param.device needs stage 3" },
    { Z("'stage': 0, 'offload_param': {'device': 'nvme', 'nvme_path': '/n'}"), "stage=0",
      "-zero_optimization.offload_param.nvme_path no states are on NVMe" },
    { Z("'stage': 0, 'offload_optimizer': {'device': 'cpu'}"), "stage=0",
      "-zero_optimization.offload_optimizer.device needs stage 1, 2 or 3" },
    // Below stage 3, DeepSpeed uses host memory for NVMe; the plugin uses NVMe.
    { Z("'stage': 2, 'offload_optimizer': {'device': 'nvme', 'nvme_path': '/n'}"),
      "offload.optimizer=nvme offload.gradients=cpu offload.nvme=/n",
      "=zero_optimization.offload_optimizer.device DeepSpeed keeps it in host" },
    // ratio is exact with any sub_group_size; 1e9 has no effect, because it is DeepSpeed's default.
    { Z("'sub_group_size': 1e9, 'offload_optimizer': {'device': 'cpu', 'ratio': 0.3}"),
      "offload.optimizer=cpu offload.gradients=cpu offload.optimizer_ratio=0.3", "" },
    { Z("'sub_group_size': 1e9"), "", "-zero_optimization.sub_group_size overlap" },
    // keys for the trainer
    { TRAINERS,
      "trainer.rows_a_step=32 trainer.rows=4 micro_batches=2 trainer.lr=5e-05 trainer.beta1=0.8 "
      "trainer.beta2=0.99 trainer.eps=1e-07 trainer.weight_decay=0.01 trainer.grad_clip=0.5 "
      "trainer.offload_activations=1",
      "" },
    { "{'communication_data_type': 'fp32'}", "comm.reduce_fp32=1", "" },
    // schedulers, with the parameters given, absent or "auto"
    { SCHEDULER("WarmupLR", "'warmup_min_lr': 0, 'warmup_max_lr': 1e-5, 'warmup_num_steps': 10"),
      "trainer.schedule=linear trainer.lr_final=1 trainer.lr=1e-05 trainer.warmup=10",
      "=scheduler.type logarithmic unless" },
    { "{'scheduler': {'type': 'WarmupLR'}}", "trainer.schedule=linear trainer.lr_final=1 trainer.warmup=1000",
      "" },
    { SCHEDULER("WarmupDecayLR", "'total_num_steps': 500, 'warmup_type': 'linear'"),
      "trainer.schedule=linear trainer.lr_final=0 trainer.warmup=1000 trainer.steps=500 trainer.lr=0.001",
      "=scheduler.params.warmup_type" },
    { SCHEDULER("WarmupCosineLR", "'total_num_steps': 500, 'warmup_num_steps': 20, 'cos_min_ratio': 0.1"),
      "trainer.schedule=cosine trainer.lr_final=0.1 trainer.warmup=20 trainer.steps=500", "" },
    { SCHEDULER("warmupcosinelr", "'total_num_steps': 'auto', 'warmup_num_steps': 'auto'"),
      "trainer.schedule=cosine trainer.lr_final=0.0001 trainer.warmup=auto trainer.steps=auto", "" },
    { LR_AND_SCHEDULER("WarmupLR", "'warmup_max_lr': 1e-4"), "trainer.lr=0.0001",
      "-optimizer.params.lr warmup_max_lr replaces it" },
    { LR_AND_SCHEDULER("WarmupLR", "'warmup_max_lr': 1e-3"), "trainer.lr=0.001", "=optimizer.params.lr" },
    { LR_AND_SCHEDULER("WarmupLR", "'warmup_max_lr': 'auto'"), "trainer.lr=0.001", "=optimizer.params.lr" },
    { LR_AND_SCHEDULER("WarmupDecayLR", "'total_num_steps': 9"), "trainer.lr=0.001", "=optimizer.params.lr" },
    { "{'scheduler': {'params': {'warmup_num_steps': 5}}}", "",
      "-scheduler.params scheduler.type is missing" },
    // NVMe for parameters and optimizer, as in DeepSpeed's ZeRO-Infinity tutorial, with comments
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
      "stage=3 offload.params=nvme offload.optimizer=nvme offload.gradients=cpu offload.nvme=/local_nvme "
      "offload.params_in_host=1000000000 offload.nvme_block_bytes=524288 offload.nvme_depth=32 "
      "reduce_bucket_size=10000000 numbers.dtype=fp16 trainer.rows_a_step=16 "
      "trainer.grad_clip=1",
      "" },
    { "{'train_batch_size': 'auto', 'train_micro_batch_size_per_gpu': 'auto', 'gradient_clipping': 'auto'}",
      "trainer.rows_a_step=auto", "" },
    // as printed by ds_nvme_tune: booleans are strings
    { AIO("'single_submit': 'false', 'overlap_events': 'true', 'num_threads': 8, 'queue_depth': 32, "
          "'block_size': 1048576"),
      "offload.nvme_depth=32 offload.nvme_block_bytes=1048576", "" },
};

// zero_config_from_file must give the same settings, but it refuses files with keys for the trainer.
static void test_accepted(void **state) {
    for (size_t i = 0; i < ROWS(accepted); i++) {
        const char *text = accepted[i].text;
        zero_config alone = start();
        int rc = read_text(text);
        if (rc) fail_msg("%s: %d, %s", text, rc, zero_last_error());
        check_settings(text, &config, accepted[i].settings);
        if (*accepted[i].about) check_key(text, accepted[i].about);
        config.overlap &= 1;
        config.comm.reduce_fp32 &= 1;
        WORKS(settings_check(&config));
        if (strstr(accepted[i].settings, "trainer.")) continue;
        WORKS(zero_config_from_file(&alone, file));
        check_settings(text, &alone, accepted[i].settings);
    }
}

// Checks that each value gives the wanted settings when placed between `before` and `after`.
static void all_mean(const char *before, const char *const values[], const char *after, const char *wanted) {
    char text[200];
    for (; *values; values++) {
        snprintf(text, sizeof text, "%s%s%s", before, *values, after);
        WORKS(read_text(text));
        check_settings(text, &config, wanted);
    }
}

static void test_lenient_values(void **state) {
    static const char *const sizes[] = { "2e8",   "200000000",   "2.0e8", "'200000000'",
                                         "'2e8'", "200000000.0", NULL };
    static const char *const yes[] = { "true", "1", "1.0", "'true'", "'On'", "'yes'", "'1'", NULL };
    static const char *const no[] = { "false", "0", "'False'", "'off'", "'no'", "'n'", NULL };
    all_mean("{'zero_optimization': {'reduce_bucket_size': ", sizes, "}}", "reduce_bucket_size=200000000");
    all_mean("{'zero_optimization': {'overlap_comm': ", yes, "}}", "overlap=1");
    all_mean("{'zero_optimization': {'overlap_comm': ", no, "}}", "overlap=0");
}

// A nonzero prefetch size in elements enables prefetching of one unit if the program had disabled it.
static void test_prefetch_at_least_one(void **state) {
    zero_config c = zero_defaults();
    c.prefetch = 0;
    write_file(Z("'stage3_prefetch_bucket_size': 5e7"));
    assert_int_equal(zero_config_from_file(&c, file), 0);
    assert_int_equal(c.prefetch, 1);
}

// -------- refused texts

static const struct {
    const char *text, *words;
} refused[] = {
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
    // keys for the trainer
    { TRAINERS, "8 keys cannot be honoured" },
    { "{'train_batch_size': 32}", "train_batch_size: 32|the trainer|'auto'" },
    { "{'gradient_clipping': 1.0}", "gradient_clipping: 1|the trainer" },
    { "{'optimizer': {'params': {'lr': 0.001}}}", "optimizer.params.lr: 0.001|the trainer" },
    { "{'optimizer': {'type': 'Lion'}}", "optimizer.type: 'Lion'|built-in update is AdamW|update_with" },
    { "{'optimizer': {'params': {'adam_w_mode': false}}}", "adam_w_mode: false" },
    { "{'scheduler': {'type': 'WarmupLR'}}", ":1: scheduler.type: linear: the trainer" },
    { SCHEDULER("OneCycle", "'cycle_min_lr': 1"),
      "scheduler.type: 'OneCycle': must be one of 'WarmupLR', 'WarmupDecayLR', 'WarmupCosineLR'" },
    { SCHEDULER("WarmupCosineLR", "'cos_min_ratio': 2"), "cos_min_ratio: 2: must be a number from 0 to 1" },
    { SCHEDULER("WarmupLR", "'warmup_min_lr': 1e-5"), "warmup_min_lr: 1e-5: the warm-up starts near 0" },
    { SCHEDULER("WarmupLR", "'warmup_type': 'exp'"), "warmup_type: 'exp': the warm-up is linear" },
    { SCHEDULER("WarmupLR", "'warmup_steps': 5"), "warmup_steps: unknown key|is scheduler.params.warmup" },
    // features that the plugin lacks
    { "{'fp16': {'enabled': true}, 'bf16': {'enabled': true}}", "bf16.enabled: true|exclude each other" },
    { "{'bf16': {'enabled': true}, 'fp16': {'enabled': true}}", "fp16.enabled: true|exclude each other" },
    { "{'fp16': {'enable': false}}", "fp16.enable: unknown key|fp16.enabled" },
    { "{'compression_training': {'a': {'enabled': true}}}", "compression_training: {'a'|not built" },
    { "{'fp16': {'enabled': true, 'hysteresis': 0}}", "fp16.hysteresis: 0|from 1" },
    { "{'fp16': {'enabled': true, 'initial_scale_power': 127}}", "fp16.initial_scale_power: 127|to 126" },
    { "{'fp16': {'enabled': true, 'loss_scale': -1}}", "fp16.loss_scale: -1|at least 0" },
    { "{'fp16': {'enabled': true, 'consecutive_hysteresis': 7}}",
      "fp16.consecutive_hysteresis: 7|true or false" },
    { "{'fp16': {'enabled': true, 'fp16_master_weights_and_grads': true}}",
      "fp16.fp16_master_weights_and_grads: true|not built" },
    { Z("'zero_hpz_partition_size': true"), "zero_hpz_partition_size: true" },
    { Z("'zero_hpz_partition_size': -1"), "zero_hpz_partition_size: -1|from 0" },
    { Z("'zero_quantized_weights': true"), "zero_quantized_weights: true|not built" },
    { Z("'mics_shard_size': 4"), "mics_shard_size: 4: not built; remove it or write -1" },
    { Z("'reduce_scatter': false"), "reduce_scatter: false" },
    { Z("'zenflow': {'topk_ratio': 0.1}"), "zenflow: {|not built" },
    { "{'communication_data_type': 'int8'}", "communication_data_type: 'int8'|own type|write 'fp32'" },
    { "{'communication_data_type': 32}", "communication_data_type: 32|own type" },
    { "{'wall_clock_breakdown': true}", "wall_clock_breakdown: true|not built" },
    { "{'elasticity': {'enabled': true}}", "elasticity.enabled: true|not built" },
    { "{'data_types': {'grad_accum_dtype': 'bf16'}}", "data_types.grad_accum_dtype: 'bf16'|fp32" },
    // unknown keys: the error suggests the nearest known key, with its block
    { Z("'stge': 3"), "zero_optimization.stge: unknown key|zero_optimization.stage" },
    { Z("'overlap_com': true"), "nearest known one is zero_optimization.overlap_comm" },
    { "{'zero_optimisation': {'stage': 3}}", "zero_optimisation: unknown key|is zero_optimization" },
    { "{'stage': 3}", "stage: unknown key|zero_optimization.stage" },
    { Z("'gradient_clipping': 1"), "zero_optimization.gradient_clipping: unknown key|is gradient_clipping" },
    { "{'optimizer': {'params': {'learning_rate': 1}}}", "optimizer.params.learning_rate: unknown key" },
    { Z("'xyzzy': 3"), "xyzzy: unknown key; remove it" },
    { Z("'': 3"), "unknown key; remove it" },
    { "{'fp61': {'enabled': true}}", "fp61: unknown key|is fp16" },
    { AIO("'queue_dept': 3"), "aio.queue_dept: unknown key|is aio.queue_depth" },
    // the error has the key's line, whatever text comes before it
    { "{\n/* a\n b */ 'comet': {'enabled': false,\n 'stage': 1},\n # 'stage': "
      "1\n'zero_optimization':\n{\n'stage'\n: 9}}",
      ":8: zero_optimization.stage: 9" },
    { "{'log_level': '\\'stage\\':',\n'zero_optimization': {'stge': 1}}", ":2: zero_optimization.stge" },
    { "{'log_level': 'bf16',\n'bf16': 4}", ":2: bf16: 4" },
    { "{'timers': false,\n'tensorboard': {'enabled': false, 'x': [{'bf16':\n1}]},\n'bf16': 4}",
      ":4: bf16: 4" },
    // invalid JSON: the error has the file's line and column
    { "", ":1:0: not JSON" },
    { "[]", "must be a block" },
    { "3", "not JSON" },
    { "{'zero_optimization': {\n /* x */ 'stage': oops}}", ":2:22: not JSON: |oops" },
    { "{\n'steps_per_print': 1,\n'steps_per_print': 2}", ":3:|duplicate|steps_per_print" },
    { Z("'stage': 1, 'stage': 2"), "duplicate" },
    { "{'stage' /* never closed\n : 3}", ":1:10: not JSON" },
    { "{'steps_per_print': 1,,}", "not JSON" },
    { "{,}", ":1:2: not JSON" },
    { Z(","), "not JSON" },
    { "{'optimizer': {'params': {'betas': [,]}}}", "not JSON" },
    { "{'steps_per_print': 1} {}", "not JSON" },
    { "{'log_level': '\\", "not JSON" },
    { "{'log_level': '", "not JSON" },
    { "{'steps_per_print': 1e999}", "not JSON" },
    { Z("'reduce_bucket_size': '5e8x'"), "reduce_bucket_size: '5e8x'" },
    { Z("'reduce_bucket_size': ' 5'"), "whole number" },
    { Z("'reduce_bucket_size': ''"), "whole number" },
    { Z("'sub_group_size': 1e30"), "sub_group_size: 1e30: must be a whole number from 0 to 1e+18" },
    { Z("'sub_group_size': -1"), "sub_group_size: -1: must be a whole number of at least 0" },
    { OPTIMIZER("'device': 'gpu'"), "offload_optimizer.device: 'gpu': must be one of 'none', 'cpu', 'nvme'" },
    { OPTIMIZER("'device': 1"), "offload_optimizer.device: 1" },
    { OPTIMIZER("'ratio': 1.5"), "ratio: 1.5: must be a number from 0 to 1" },
    { OPTIMIZER("'nvme_path': 3"), "nvme_path: 3: must be a folder" },
    { OPTIMIZER("'pin_memry': true"),
      "unknown key; the nearest known one is zero_optimization.offload_optimizer.pin_memory" },
    { Z("'offload_param': true"), "offload_param: true: must be a block" },
    { Z("'cpu_offload': true"), "cpu_offload: true: an old name; write the block offload_optimizer" },
    { Z3("'offload_param': {'device': 'cpu', 'nvme_path': '/a'}, 'offload_optimizer': {'device': 'nvme', "
         "'nvme_path': '/b'}"),
      "offload_optimizer.nvme_path: '/b': must be the same as zero_optimization.offload_param.nvme_path" },
    { AIO("'queue_depth': 0"), "aio.queue_depth: 0" },
    { AIO("'use_gds': true"), "aio.use_gds: true: not built" },
    { "{'activation_checkpointing': {'profile': true}}", "activation_checkpointing.profile: true" },
    { "{'optimizer': {'params': {'betas': [0.9]}}}", "betas: [0.9]: must be a list of two" },
    { "{'optimizer': {'params': {'max_grad_norm': 1}}}",
      "max_grad_norm: 1: an old name; write gradient_clipping" },
    { "{'bf16': {'check_grad_overflow': false}}", "check_grad_overflow: false: cannot be disabled" },
    { "{'bfloat16': {'enabled': true}}", "bfloat16.enabled: true: an old name; write bf16" },
    { Z("'aio': {'queue_depth': 8}"), "zero_optimization.aio: unknown key; the nearest known one is aio" },
    { "{'gradient_clipping': 1e308}", "gradient_clipping: 1e308: must be a number from 0 to 1e+18" },
    { "{'gradient_clipping': -1}", "gradient_clipping: -1: must be a number of at least 0" },
    // Settings before the mistake must not be applied either.
    { "{'gradient_accumulation_steps': 8, 'bf16': {'enabled': true}, 'zero_optimization': {'stage': 3, "
      "'stge': 3}}",
      "stge" },
};

static void test_refused(void **state) {
    for (size_t i = 0; i < ROWS(refused); i++) {
        zero_config c = start();
        write_file(refused[i].text);
        int rc = zero_config_from_file(&c, file);
        check_error(refused[i].text, rc, ZERO_ERR_ARGUMENT, refused[i].words);
        check_error(refused[i].text, rc, ZERO_ERR_ARGUMENT, file);
        check_settings(refused[i].text, &c, "");
    }
}

static void test_all_at_once(void **state) {
    const char *text = "{\n"
                       "'zero_optimization': {'stage': 7,\n"
                       "'overlap_com': true, // misspelt\n"
                       "'zero_quantized_weights': true},\n"
                       "'scheduler': {'type': 'OneCycle', 'params': {'stage': 1}},\n"
                       "'gradient_clipping': 'much'}";
    assert_int_equal(read_text(text), ZERO_ERR_ARGUMENT);
    assert_int_equal(report.n, 6);  // a refused key is not applied too
    char want[sizeof file + 4];
    for (int line = 2; line <= 6; line++) {
        snprintf(want, sizeof want, "%s:%d: ", file, line);
        assert_non_null(strstr(zero_last_error(), want));
    }
    assert_ptr_equal(strstr(zero_last_error(), "5 keys cannot be honoured:\n"), zero_last_error());
    check_key(text, "!zero_optimization.overlap_com nearest known one is zero_optimization.overl");
    assert_string_equal(key_of(text, "scheduler.type", strlen("scheduler.type"))->setting,
                        "trainer.schedule");
    assert_string_equal(key_of(text, "zero_optimization.stage", strlen("zero_optimization.stage"))->setting,
                        "stage");
    // The error also counts the keys that do not fit into it, whatever their lengths.
    for (int length = 1; length < 60; length++) {
        char many[4096];
        int n = sprintf(many, "{'zero_optimization': {'a%0*d': 1", length, 0);
        for (int i = 1; i < 60; i++) n += sprintf(many + n, ", 'unknown_%d': 1", i);
        strcat(many, "}}");
        assert_int_equal(read_text(many), ZERO_ERR_ARGUMENT);
        assert_int_equal(report.n, 60);
        const char *error = zero_last_error(), *rest = strstr(error, "\n  and ");
        assert_ptr_equal(strstr(error, "60 keys cannot be honoured:\n"), error);
        assert_non_null(rest);
        assert_string_equal(error + strlen(error) - 5, " more");
    }
    // A file with too many keys must fill the report, not overflow it.
    char *endless = malloc(1 << 16);
    assert_non_null(endless);
    int n = sprintf(endless, "{'a0': 1");
    for (int i = 0; i < 1000; i++) n += sprintf(endless + n, ", 'unknown_%d': 1", i);
    strcat(endless, "}");
    assert_int_equal(read_text(endless), ZERO_ERR_ARGUMENT);
    assert_int_equal(report.n, ZERO_DEEPSPEED_KEYS);
    assert_string_equal(report.keys[ZERO_DEEPSPEED_KEYS - 1].remark, "the file has too many keys");
    free(endless);
}

static void test_files(void **state) {
    zero_config c = start();
    check_error("no file", zero_config_from_file(&c, "/nowhere/ds.json"), ZERO_ERR_IO,
                "/nowhere/ds.json|No such file");
    check_error("a folder", zero_config_from_file(&c, "/"), ZERO_ERR_IO, "/: |not a regular file");
    check_error("NULL", zero_config_from_file(&c, NULL), ZERO_ERR_ARGUMENT, "path");
    c.size--;
    check_error("size", zero_config_from_file(&c, file), ZERO_ERR_ARGUMENT, "zero_defaults()");
    check_error("size", zero_config_from_env(&c), ZERO_ERR_ARGUMENT, "zero_defaults()");
    c = start();
    write_bytes("{}\0{}", 5);
    check_error("a zero byte", zero_config_from_file(&c, file), ZERO_ERR_ARGUMENT, "not JSON");
    size_t mib = 1 << 20;
    char *large = malloc(mib + 1);
    assert_non_null(large);
    memset(large, ' ', mib + 1);
    large[0] = '{';
    large[mib - 1] = '}';
    write_bytes(large, mib);
    assert_int_equal(zero_config_from_file(&c, file), 0);
    write_bytes(large, mib + 1);
    check_error("1 MiB plus one byte", zero_config_from_file(&c, file), ZERO_ERR_IO, "1 MiB");
    free(large);
    check_settings("files", &c, "");
}

// -------- the environment

static void test_environment(void **state) {
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
        { "3", Z("'stage': 1"), ZERO_ERR_ARGUMENT, "", ":1: zero_optimization.stage: 1: but|ZERO_STAGE=3" },
        { "3", Z("'stge': 1"), ZERO_ERR_ARGUMENT, "", "stge" },
        { "4", NULL, ZERO_ERR_ARGUMENT, "", "ZERO_STAGE=4|0, 1, 2 and 3" },
        { "-1", NULL, ZERO_ERR_ARGUMENT, "", "ZERO_STAGE=-1" },
        { "2x", NULL, ZERO_ERR_ARGUMENT, "", "ZERO_STAGE=2x" },
        { "x", "{}", ZERO_ERR_ARGUMENT, "", "ZERO_STAGE=x" },
    };
    for (int i = 0; i < (int)ROWS(rows); i++) {
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
    int fd = mkstemp(file);
    return fd < 0 || close(fd);
}
static int remove_file(void **state) { return unlink(file); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted),    cmocka_unit_test(test_prefetch_at_least_one),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_lenient_values),
        cmocka_unit_test(test_files),       cmocka_unit_test(test_all_at_once),
        cmocka_unit_test(test_environment),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file) != 0;
}
