#include "options.h"
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../running/run.h"

Options opt;
Options default_options;

// A row that sets a plugin setting gets its help text, range and choices from the plugin (take_defaults).
#define CHOICES(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define KIND_OF(member) \
    _Generic(opt.zero.member, int : INT, int64_t : WIDE, double : REAL, const char * : TEXT, default : CHOICE)

#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
Option option_table[] = {
#define GROUP(title) { title, .kind = HEADING },
#define OPTION(name, kind, member, ...) { name, kind, &opt.member, __VA_ARGS__ },
#define SETTING(name, member, ...) \
    { name, KIND_OF(member), &opt.zero.member, .setting = #member, __VA_ARGS__ },
#define FLAG_SETTING(name, member, ...) { name, FLAG, &opt.zero.member, .setting = #member, __VA_ARGS__ },
#define NO_VALUE(name, kind, text) { name, kind, .help = text },
#include "options.def"
};
const int num_options = sizeof option_table / sizeof *option_table;

// -------- options and settings

// Returns 1 if the option sets this setting, the first `length` bytes of `name`.
static int decides(const Option *o, const char *name, size_t length) {
    for (const char *at = o->setting; at && *at; at += strspn(at, " ")) {
        const size_t n = strcspn(at, " ");
        if (n == length && !memcmp(at, name, n)) return 1;
        at += n;
    }
    return 0;
}

void options_of_settings(const char *settings, char *options, size_t size) {
    *options = 0;
    for (const char *name = settings; *name; name += strspn(name, " ")) {
        const size_t length = strcspn(name, " ");
        for (const Option *o = option_table; o < option_table + num_options; o++) {
            const size_t used = strlen(options);
            if (!decides(o, name, length)) continue;
            snprintf(options + used, size - used, "%s%s", used ? ", " : "", o->name);
        }
        name += length;
    }
}

const Option *option_of_setting(const char *setting) {
    for (const Option *o = option_table; o < option_table + num_options; o++)
        if (decides(o, setting, strlen(setting))) return o;
    return NULL;
}

// -------- --help

// Prints "none, cpu, nvme (default none)", unless the help text already has it.
static void print_default(const Option *o) {
    const char *line = strrchr(o->help, '\n');
    char value[64];
    if (strstr(o->help, "default") || o->kind == FLAG || !(o->preset || o->plugin)) return;
    option_text(o, &default_options, value, sizeof value);
    for (int i = 0; o->plugin && o->plugin->words[i]; i++)
        print0("%s%s", i ? ", " : ": ", o->plugin->words[i]);
    if (!*value) return;
    print0(strlen(line ? line : o->help) + strlen(value) > 70 ? "\n%17s(default %s)" : "%1s(default %s)", "",
           o->preset ? o->preset : value);
}

// Aligns further lines of a help text with the first. A long name gets a separate line.
static void print_help(const Option *o) {
    const char *line = o->help;
    print0(strlen(o->name) > 14 ? "  %s\n%17s" : "  %-14s %s", o->name, "");
    for (const char *end = strchr(line, '\n'); end; end = strchr(line, '\n')) {
        print0("%.*s\n%17s", (int)(end - line), line, "");
        line = end + 1;
    }
    print0("%s", line);
    print_default(o);
    print0("\n");
}

static void usage(void) {
    print0(
        "usage: [mpirun -np N] ./train_gpt2_zero [option value | option=value]...\n"
        "       ./train_gpt2_zero --help | -h | --version\n\n"
        "  ./train_gpt2_zero -x 200                        one rank, 200 steps of a small model on stories\n"
        "  mpirun -np 2 ./train_gpt2_zero -z 2             two ranks, ZeRO stage 2, one epoch\n"
        "  mpirun ./train_gpt2_zero -e d12 -i 'train_*.bin' -j 'val_*.bin' -o log124M -n 1000 -y 1\n"
        "                                                  GPT-2 124M; run again, it resumes\n\n"
        "llm.c's letters keep their meaning. Where a default differs from llm.c's, both are given.\n");
    for (const Option *o = option_table; o < option_table + num_options; o++) {
        if (o->kind == HEADING)
            print0("\n%s\n", o->name);
        else if (o->kind != NOTHING_HERE && *o->help)
            print_help(o);
    }
    print0("  without effect, but accepted:");
    for (const Option *o = option_table; o < option_table + num_options; o++)
        if (o->kind == NOTHING_HERE) print0(" %s", o->name);
    print0(
        "\n\n"
        "The bar's share of peak is (6 P + 12 L C T) x tokens/s, where P excludes the position embeddings,\n"
        "over the speed of matmuls in the run's dtype, measured on all ranks at the start.\n"
        "\n"
        "SIGTERM, SIGINT, SIGHUP or SIGUSR2, sent to any rank, stops the run after the current step. With\n"
        "-o it saves; the same command with -y 1 resumes it. A second signal ends the run at once. SIGUSR1\n"
        "saves and continues. mpirun forwards only SIGUSR1 and SIGUSR2: see docs/checkpoints.md.\n"
        "Exit status: 0 done, or stopped by a signal or --stop-after (only a finished run has\n"
        "summary.json); 1 failed; 2 failed before the ranks connected, for example on an invalid option;\n"
        "128 + N: ended by signal N.\n");
}

// -------- the command line

// Returns the least distance of `name` from the last parts of the option's settings, or `best` if that is
// less.
static int distance_from_settings(const Option *o, const char *name, size_t n, int best) {
    for (const char *at = o->setting; at && *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " ");
        const char *part = at, *dot = memchr(at, '.', length);
        if (dot) part = dot + 1;
        const int d = zero_edit_distance(name, n, part, (size_t)(at + length - part));
        if (d < best) best = d;
        at += length;
    }
    return best;
}

// Returns the option whose name or setting is nearest, so that --stage suggests -z; NULL: none is close.
static const Option *nearest_option(const char *name, size_t n) {
    const size_t dashes = strspn(name, "-");
    const Option *nearest = NULL;
    int best = (int)(n - dashes) / 3 + 1;
    for (const Option *o = option_table; o < option_table + num_options; o++) {
        const char *own = o->name + strspn(o->name, "-");
        if (o->kind == HEADING || o->kind == NOTHING_HERE) continue;
        int d = zero_edit_distance(name + dashes, n - dashes, own, strlen(own));
        d = distance_from_settings(o, name + dashes, n - dashes, d);
        if (d >= best) continue;
        best = d;
        nearest = o;
    }
    return nearest;
}

// Returns the option with this name, whose length is n.
static const Option *known_option(const char *name, size_t n) {
    for (const Option *o = option_table; o < option_table + num_options; o++)
        if (o->kind != HEADING && strlen(o->name) == n && !memcmp(o->name, name, n)) return o;
    const Option *nearest = nearest_option(name, n);
    if (!nearest) die("unknown option %.*s; --help lists them", (int)n, name);
    die("unknown option %.*s; the nearest is %s, and --help lists all", (int)n, name, nearest->name);
}

const Option *option_named(const char *name) { return known_option(name, strlen(name)); }

typedef struct {
    const Option *option;
    const char *value;
    int words;  // on the command line
} Argument;

// Reads an option and its value: "-z 3", "-z=3", "--prefetch 2".
static Argument argument_at(int argc, char **argv, int i) {
    const char *equals = strchr(argv[i], '=');
    const Option *o = known_option(argv[i], equals ? (size_t)(equals - argv[i]) : strlen(argv[i]));
    if (equals && o->kind == FLAG) die("option %s takes no value", o->name);
    if (equals) return (Argument){ o, equals + 1, 1 };
    if (o->kind == FLAG) return (Argument){ o, "1", 1 };
    if (i + 1 == argc) die("option %s needs a value", o->name);
    return (Argument){ o, argv[i + 1], 2 };
}

// Sixteen digits print 0.999999 as it is, and the largest whole limit, 1e15, without an exponent.
void option_range(const Option *o, char *text, size_t size) {
    snprintf(text, size, "%.16g to %.16g", o->min, o->max);
}

static double parse_number(const Option *o, const char *text) {
    char range[80], *end;
    errno = 0;
    const double x = strtod(text, &end);
    const int is_default = o->plugin ? x == o->plugin->preset : o->preset && !strcmp(text, o->preset);
    if (end == text || *end || errno || !isfinite(x)) die("option %s: '%s' is not a number", o->name, text);
    if (o->kind != REAL && x != floor(x)) die("option %s: '%s' is not a whole number", o->name, text);
    option_range(o, range, sizeof range);
    if ((x < o->min || x > o->max) && !is_default)
        die("option %s: %s is out of range, %s", o->name, text, range);
    return x;
}

static void must_be_one_of(const Option *o, const char *value) {
    char list[256] = "";
    for (int i = 0; o->choices && o->choices[i]; i++) {
        if (!strcmp(value, o->choices[i])) return;
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", o->choices[i]);
    }
    if (*list) die("option %s: '%s' is not one of %s", o->name, value, list);
}

void option_set(const Option *o, const char *text) {
    if (o->kind == TEXT || o->kind == CHOICE) must_be_one_of(o, text);
    if (o->kind == TEXT) *(const char **)o->value = text;
    if (o->kind == CHOICE) zero_setting_set(o->plugin, &opt.zero, text);
    if (o->kind == FLAG) *(int *)o->value = 1;
    if (o->kind == INT) *(int *)o->value = (int)parse_number(o, text);
    if (o->kind == WIDE) *(int64_t *)o->value = (int64_t)parse_number(o, text);
    if (o->kind == REAL) *(double *)o->value = parse_number(o, text);
    if (o->kind == NOTHING_HERE) print0("option %s %s: no effect (%s)\n", o->name, text, o->help);
}

// -------- values of options

int prompts_arrive(void) { return opt.prompt || (opt.prompts && !strcmp(opt.prompts, "-")); }

int option_is_given(const Option *o) {
    if (o->kind == TEXT && *(const char **)o->value && !strcmp(*(const char **)o->value, "auto")) return 0;
    return o->given;
}

void option_text(const Option *o, const Options *options, char *text, size_t size) {
    const void *at = (const char *)options + ((const char *)o->value - (const char *)&opt);
    const char *words = o->kind == TEXT ? *(const char *const *)at : NULL;
    *text = '\0';
    if (o->kind == CHOICE) zero_setting_text(o->plugin, &options->zero, text, size);
    if (words) snprintf(text, size, "%s", words);
    if (o->kind == INT || o->kind == FLAG) snprintf(text, size, "%d", *(const int *)at);
    if (o->kind == WIDE) snprintf(text, size, "%lld", (long long)*(const int64_t *)at);
    if (o->kind == REAL) snprintf(text, size, "%.15g", *(const double *)at);
}

int option_is_number(const Option *o) { return o->kind == INT || o->kind == WIDE || o->kind == REAL; }

int option_can_be(const Option *o, const char *text) {
    if (o->kind == TEXT || o->kind == CHOICE) return 1;
    double x = strtod(text, NULL);
    if (o->kind == FLAG) return x == 1;
    return option_is_number(o) && x >= o->min && x <= o->max;
}

// An empty prompt and a folder named 0 are texts like any other.
static int is_on(const Option *o) {
    char value[PATH_MAX];
    if (o->kind == TEXT && !o->choices) return *(const char **)o->value != NULL;
    option_text(o, &opt, value, sizeof value);
    return *value && strcmp(value, "0") && strcmp(value, "none");
}

// Returns 1 and the option's value unless it is the default or means off, and so asks for nothing.
static int asks(const Option *o, char value[PATH_MAX]) {
    char preset[PATH_MAX];
    option_text(o, &opt, value, PATH_MAX);
    option_text(o, &default_options, preset, sizeof preset);
    return strcmp(value, preset) && is_on(o);
}

// Notes the options that prompts ignore, so that they can be added to the command of a training run.
static void note_unused(void) {
    static const char *const unused[] = { "-i", "-j",  "-a",  "-b",           "-d",          "-x", "-l",
                                          "-k", "-u",  "-q",  "-c",           "-v",          "-m", "-h",
                                          "-s", "-sl", "-sg", "--stop-after", "--hash-every" };
    char value[PATH_MAX];
    int n = 0;
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++) {
        const Option *o = option_named(unused[i]);
        if (!o->given || !asks(o, value)) continue;
        note0("%s %s %s", n++ ? "," : "note: prompts train nothing and ignore", o->name, value);
    }
    if (n) note0("\n");
}

// Refuses an option if none of the options that it needs is set.
static void check_needs(const Option *o) {
    char value[PATH_MAX], now[PATH_MAX], wanted[32], missing[256] = "";
    if (!asks(o, value)) return;
    for (const char *at = o->needs; *at; at += strspn(at, " ")) {
        const int n = (int)strcspn(at, " "), name = (int)strcspn(at, " =");
        const Option *other = known_option(at, name);
        const size_t used = strlen(missing);
        option_text(other, &opt, now, sizeof now);
        snprintf(wanted, sizeof wanted, "%.*s", n - name, at + name);  // "=nvme", or ""
        if (*wanted ? !strcmp(wanted + 1, now) : is_on(other)) return;
        if (*wanted)
            *wanted = ' ';
        else if (other->kind == INT)
            strcpy(wanted, " above 0");
        snprintf(missing + used, sizeof missing - used, "%s%s%s", used ? " or " : "", other->name, wanted);
        at += n;
    }
    die("option %s%s%s: needs %s", o->name, o->kind == FLAG ? "" : " ", o->kind == FLAG ? "" : value,
        missing);
}

void settle_options(void) {
    if (opt.fit) opt.plan = 1;
    if (opt.cpu_checkpointing && opt.recompute >= 0 && opt.recompute != 3)
        die("option --cpu-checkpointing: it keeps the inputs of blocks on the host, so it needs -r 3, not "
            "-r %d",
            opt.recompute);
    if (opt.cpu_checkpointing && is_answering(&opt))
        die("option --cpu-checkpointing: no effect with --prompt or --prompts, which run no backward pass");
    if (is_answering(&opt) &&
        (opt.checkpoint_every > 0 || opt.resume || opt.resume_path || opt.zero.debug.naive))
        die("options --prompt and --prompts: nothing is trained, so leave out -n, -y, --resume and --naive; "
            "-e can name a folder of checkpoints");
    if (opt.machine && is_answering(&opt))
        die("option --machine %s: only training has a time; leave out --prompt and --prompts", opt.machine);
    if (opt.prompt && opt.prompts) die("option --prompt: leave out --prompts, which names other prompts");
    if (prompts_arrive() && opt.output)
        die("option -o: with --prompt and --prompts - nothing is written there; leave it out, or put the "
            "prompts into a file for --prompts");
    if (opt.hash_every && opt.zero.offload.delayed_update)
        die("option --hash-every %d: with --delayed-update a digest would end the update that runs during "
            "the next step, and so change that step's results; leave out one of the two",
            opt.hash_every);
    if (opt.any_ranks && option_is_given(option_named("--accumulate")) && strcmp(opt.accumulate, "layers"))
        die("option --any-ranks 1: it needs --accumulate layers, not %s", opt.accumulate);
    if (opt.any_ranks) opt.accumulate = "layers";
    if (opt.cpu_checkpointing && !strcmp(opt.units, "matrix") && !strcmp(opt.accumulate, "layers"))
        die("option --units matrix: with --accumulate layers each matrix passes all micro-batches before the "
            "next, so a block's input cannot go to the host; leave out --cpu-checkpointing, or use --units "
            "block or --accumulate batches");
    if (opt.hellaswag && !opt.val_batches)
        die("option -h 1: no effect with -m 0, because HellaSwag is scored after validation");
    for (const Option *o = option_table; o < option_table + num_options; o++)
        if (o->given && o->needs) check_needs(o);
    if (is_answering(&opt))
        note_unused();
    else if (!opt.val_every && opt.val_batches && option_named("-m")->given)
        print0("option -m %d: no effect with -v 0\n", opt.val_batches);
    if (!is_answering(&opt) && !opt.hellaswag && option_named("--hellaswag")->given)
        print0("option --hellaswag %s: no effect without -h 1\n", opt.hellaswag_data);
    if (opt.cpu_checkpointing) opt.recompute = 3;
    if (opt.overfit) {
        opt.train_data = opt.val_data;
        opt.shuffle = 0;
    }
}

// Completes the rows of the plugin's settings. The default stage is the trainer's, not the plugin's.
static void take_defaults(void) {
    const char *plugin = (const char *)&opt.zero;
    opt.zero = zero_defaults();
    opt.zero.stage = 3;
    for (Option *o = option_table; o < option_table + num_options; o++) {
        const char *at = o->value;
        if (o->preset) option_set(o, o->preset);
        if (at < plugin || at >= plugin + sizeof opt.zero) continue;
        o->plugin = zero_setting_named(o->setting);
        o->min = o->plugin->min;
        o->max = o->plugin->max;
        o->choices = o->plugin->words;
        if (!o->help) o->help = o->plugin->help;
    }
    default_options = opt;
}

// llm.c's -h takes a value, so -h asks for help only without one.
static int asks_for_help(int argc, char **argv, int i) {
    if (!strcmp(argv[i], "-h")) return i + 1 == argc || argv[i + 1][0] == '-';
    return !strcmp(argv[i], "--help");
}

static int given_argc;
static char **given_argv;  // the command line, for write_given_options

void parse_options(int argc, char **argv) {
    given_argc = argc;
    given_argv = argv;
    take_defaults();
    run.name_options = options_of_settings;
    for (int i = 1; i < argc;) {
        if (asks_for_help(argc, argv, i)) usage();
        if (!strcmp(argv[i], "--version")) print0("train_gpt2_zero %s\n", ZERO_VERSION);
        if (asks_for_help(argc, argv, i) || !strcmp(argv[i], "--version")) exit(EXIT_SUCCESS);
        const Argument a = argument_at(argc, argv, i);
        // A prompt may be empty. All other texts are names.
        if (a.option->kind == TEXT && !*a.value && strcmp(a.option->name, "--prompt"))
            die("option %s: its value is empty", a.option->name);
        option_table[a.option - option_table].given = 1;
        option_set(a.option, a.value);
        i += a.words;
    }
}

void write_given_options(FILE *f) {
    Text t;
    for (int i = 1, words; i < given_argc; i += words) {
        const Argument a = argument_at(given_argc, given_argv, i);
        text_begin(&t);
        fprintf(t.f, "%s", a.option->name);
        if (a.option->kind != FLAG) fprintf(t.f, "=%s", a.value);
        char *text = text_end(&t);
        fprintf(f, "%s\n  ", i > 1 ? "," : "");
        write_json_text(f, text);
        free(text);
        words = a.words;
    }
}
