// The command line, one argument per line, and the model that it describes.
#include "../../trainer/options/options.h"
#include "../../gpt2/model.h"
#include <string.h>
#include "../../trainer/running/run.h"
#include "fuzz.h"

enum { ARGUMENTS = 64 };
static Options defaults;

static void keep_defaults(void) {
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

const fuzz_target fuzz_options = {
    .name = "options", .is_text = 1, .begin = keep_defaults, .seeds = give_seeds, .read = read_line
};
