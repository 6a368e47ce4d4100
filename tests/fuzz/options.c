// The command line, one argument per line, and the model that it describes; and DeepSpeed configuration
// files, read by the plugin and by the trainer.
#include "../../trainer/options/options.h"
#include "../../gpt2/model.h"
#include <string.h>
#include "../../trainer/running/run.h"
#include "../../llmc_zero/settings/settings.h"
#include "../../llmc_zero/zero.h"
#include "../../trainer/options/zero_file.h"
#include "fuzz.h"

enum { ARGUMENTS = 64 };
static Options defaults;

static void keep_defaults(void) {
    run.rank = 1;
    parse_options(0, NULL);
    defaults = opt;
}

static void give_seeds(void) {
    static const char *const lines[] = {
        "-e\nd12\n-i\ntrain_*.bin\n-b\n4\n-t\n1024\n-d\n524288\n-l\n0.0006\n-z\n3\n-n\n1000\n-o\nlog\n-y\n1",
        "--dtype\nfp16\n--offload-optimizer\nnvme\n--nvme\n/a,/b\n--sub-group-size\n4096\n--reduce\nranks",
        "-pi\nmpi\n-pn\n1\n-pr\n0\n-ps\n10.0.0.1:2000\n--overlap=0\n--plan\n--plan-ranks\n8",
    };
    fuzz_seed("resume", lines[0], strlen(lines[0]));
    fuzz_seed("nvme", lines[1], strlen(lines[1]));
    fuzz_seed("start", lines[2], strlen(lines[2]));
}

typedef struct {
    int argc;
    char *argv[ARGUMENTS + 1];
} Arguments;

static void parse(void *ctx) {
    Arguments *a = ctx;
    parse_options(a->argc, a->argv);
    settle_options();
}

// Checks that all numbers that an accepted command line changed are in range.
static void check_ranges(void) {
    char now[200], before[200];
    for (const Option *o = option_table; o < option_table + num_options; o++) {
        if (!option_is_number(o)) continue;
        option_text(o, &opt, now, sizeof now);
        option_text(o, &defaults, before, sizeof before);
        if (strcmp(now, before)) FUZZ_MUST(option_can_be(o, now));
    }
}

// These options would end the program.
static int is_left_out(const char *word) {
    return !strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "--version");
}

static const char *read_line(const uint8_t *bytes, size_t n) {
    char *text = fuzz_text(bytes, n), *rest = text;
    GPT2Config model;
    Arguments a = { .argc = 1, .argv = { "train_gpt2_zero" } };
    for (char *word = strsep(&rest, "\n"); word && a.argc < ARGUMENTS; word = strsep(&rest, "\n"))
        if (!is_left_out(word)) a.argv[a.argc++] = word;
    opt = defaults;
    const char *error = fuzz_survives(parse, &a);
    if (!error) check_ranges();
    if (!error && !gpt2_config_from_descriptor(&model, opt.model)) FUZZ_MUST(gpt2_num_parameters(&model) > 0);
    opt = defaults;
    free(text);
    return error;
}

FUZZ_DEFINE(options, keep_defaults, give_seeds, .is_text = 1, .read = read_line);

// -------- DeepSpeed files

static const char *const seeds[] = {
    "{\"train_batch_size\": 16, \"train_micro_batch_size_per_gpu\": 8, \"gradient_accumulation_steps\": 2,\n"
    " \"gradient_clipping\": 1.0, \"steps_per_print\": 10, // a comment\n \"bf16\": {\"enabled\": true},\n"
    " \"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": 5e8, \"overlap_comm\": true,\n"
    "  \"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true, \"ratio\": 0.5},\n"
    "  \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/a,/b\", \"max_in_cpu\": 2e8},\n"
    "  \"sub_group_size\": 1e9, \"stage3_prefetch_bucket_size\": 0, },\n"
    " \"aio\": {\"block_size\": 1048576, \"queue_depth\": 8, \"thread_count\": 1}}",
    "{\"fp16\": {\"enabled\": true, \"loss_scale\": 0, \"initial_scale_power\": 16, \"hysteresis\": 2,\n"
    "  \"loss_scale_window\": 1000, \"min_loss_scale\": 1}, \"communication_data_type\": \"fp32\",\n"
    " /* AdamW */ \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 3e-4, \"betas\": [0.9, 0.95],\n"
    "  \"eps\": 1e-8, \"weight_decay\": 0.1}}, \"zero_optimization\": {\"stage\": 2}}",
};

static void give_files(void) {
    fuzz_seed("offload.json", seeds[0], strlen(seeds[0]));
    fuzz_seed("fp16.json", seeds[1], strlen(seeds[1]));
}

static void check_keys(const zero_deepspeed *report) {
    FUZZ_MUST(report->n >= 0 && report->n <= ZERO_DEEPSPEED_KEYS);
    for (const zero_deepspeed_key *k = report->keys; k < report->keys + report->n; k++) {
        FUZZ_MUST(k->line > 0);
        FUZZ_MUST(memchr(k->key, 0, sizeof k->key) && memchr(k->setting, 0, sizeof k->setting));
        FUZZ_MUST(memchr(k->value, 0, sizeof k->value) && memchr(k->remark, 0, sizeof k->remark));
    }
}

static void take_options(void *path) {
    opt = defaults;
    opt.zero_config = path;
    take_zero_file();
    settle_zero_file();
    settle_options();
    check_zero_file(opt.micro_batches ? opt.micro_batches : 1);
}

static const char *read_file(const uint8_t *bytes, size_t n) {
    static zero_deepspeed report;
    zero_config config = zero_defaults(), other = zero_defaults();
    const char *path = fuzz_path("config.json");
    static char error[4096];
    const int failed = zero_deepspeed_read(&config, &report, path);
    snprintf(error, sizeof error, "%s", zero_last_error());
    if (!failed || report.n) check_keys(&report);
    // zero_config_from_file also refuses the trainer's keys.
    if (!zero_config_from_file(&other, path)) FUZZ_MUST(!failed);
    if (!failed) settings_check(&config);
    fuzz_survives(take_options, (void *)path);
    return failed ? error : NULL;
}

FUZZ_DEFINE(deepspeed, keep_defaults, give_files, .is_text = 1, .file = "config.json", .read = read_file);
