// Tests ranks with different settings, tables or trainer lines: mpirun -np N mpi_same, for at least 2 ranks.
// The ranks take turns being the odd one. Every case must fail on all ranks with the same message, which
// names two ranks, the difference, and both values. Settings that may differ must not change a bit of the
// results. The lines of our trainer (must_be_same) must have almost all options, the model and the data, and
// the contents of files rather than their paths.
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../llmc_zero/settings/settings.h"
#include "../trainer/options/options.h"
#include "../trainer/running/inputs.h"
#include "../trainer/running/run.h"
#include "check.h"
#include "files.h"
#include "toy.h"

static int odd;  // the rank with a different setting, table or line
static char host[64];
static const char *const hint = "; it must be the same on all ranks";

typedef struct {
    zero_config config;
    zero_tensor tensors[TOY_TENSORS];
    zero_unit units[TOY_UNITS];
    int n_tensors, n_units;
} given;

static given usual(void) {
    given g = { .config = zero_defaults(), .n_tensors = TOY_TENSORS, .n_units = TOY_UNITS };
    g.config.stage = 3;
    g.config.numbers.dtype = ZERO_BF16;
    g.config.overlap = 0;
    g.config.comm.timeout_s = 60;
    memcpy(g.tensors, toy_tensors, sizeof g.tensors);
    memcpy(g.units, toy_units, sizeof g.units);
    return g;
}

// Expects the message that one rank has `theirs` and the others have `ours`. Either begins with "no" if the
// line is missing.
static void expect(int rc, const char *theirs, const char *ours, const char *end) {
    char message[1024], first[1024];
    snprintf(message, sizeof message, "rank %d (host %s) has %s and rank 0 (host %s) has %s%s", odd ? odd : 1,
             host, odd ? theirs : ours, host, odd ? ours : theirs, end);
    CHECK(rc == ZERO_ERR_ARGUMENT);
    CHECK(!strcmp(zero_last_error(), message));
    if (strcmp(zero_last_error(), message))
        fprintf(stderr, "  got:      %s\n  expected: %s\n", zero_last_error(), message);
    snprintf(first, sizeof first, "%s", zero_last_error());
    MPI_Bcast(first, sizeof first, MPI_CHAR, 0, MPI_COMM_WORLD);
    CHECK(!strcmp(zero_last_error(), first));
}

static void refused(const given *g, const char *theirs, const char *ours) {
    zero *z;
    int rc = zero_create(&z, &g->config, g->tensors, g->n_tensors, g->units, g->n_units);
    CHECK(!z);
    expect(rc, theirs, ours, hint);
    if (!rc) zero_destroy(z);
}

// `all` changes the configuration on all ranks, then `change` changes it on the odd one.
#define DIFFERS_IN(all, change, theirs, ours)        \
    do {                                             \
        given g = usual();                           \
        CHECK_SETTING("odd rank %d: " #change, odd); \
        all;                                         \
        if (checks.rank == odd) {                    \
            change;                                  \
        }                                            \
        refused(&g, theirs, ours);                   \
    } while (0)
#define DIFFERS(change, theirs, ours) DIFFERS_IN((void)0, change, theirs, ours)

// Returns a different value within the setting's range.
static double other_value(const zero_setting *s, const zero_config *config) {
    char now[64];
    zero_setting_text(s, config, now, sizeof now);
    if (s->kind == ZERO_KIND_INT64) return s->max < 0x1p40 ? s->max : 0x1p40;
    if (s->kind == ZERO_KIND_REAL) return atof(now) < 1 ? atof(now) + 0.1 : atof(now) - 0.5;
    if (s->kind == ZERO_KIND_UNSIGNED) return s->max;
    if (*s->words) return strcmp(now, s->words[1]) ? 1 : 2;
    return atof(now) < s->max ? atof(now) + 1 : atof(now) - 1;
}

static void any_update(void *ctx, const zero_piece *p) {}

// Sets other settings that this one depends on.
static void prepare(const zero_setting *s, zero_config *c) {
    if (!strcmp(s->name, "debug.naive")) c->stage = 0;
    if (!strcmp(s->name, "debug.check_steps")) c->debug.check_steps = 0;  // -1 depends on the environment
    if (strstr(s->name, "_nccl") || strstr(s->name, "nccl_")) c->device = ZERO_CUDA, c->comm.nccl = 1;
    if (!strcmp(s->name, "update_states")) c->update_with = any_update;
    if (!strcmp(s->name, "offload.gradients") || !strcmp(s->name, "offload.delayed_update"))
        c->offload.optimizer = ZERO_HOST;
}

// Tests each setting that must be the same on all ranks.
static void check_settings(void) {
    int n;
    for (const zero_setting *s = zero_settings(&n), *end = s + n; s < end; s++) {
        char ours[64], theirs[64], we_have[128], they_have[128];
        given g = usual();
        if (!s->same) continue;
        CHECK_SETTING("odd rank %d: %s", odd, s->name);
        prepare(s, &g.config);
        zero_config other = g.config;
        setting_put(s, &other, other_value(s, &other));
        zero_setting_text(s, &g.config, ours, sizeof ours);
        zero_setting_text(s, &other, theirs, sizeof theirs);
        snprintf(we_have, sizeof we_have, "%s = %s", s->name, ours);
        snprintf(they_have, sizeof they_have, "%s = %s", s->name, theirs);
        if (checks.rank == odd) g.config = other;
        refused(&g, they_have, we_have);
    }
}

static void check_update(void) {
    DIFFERS(g.config.update_with = any_update, "update_with = a function", "update_with = AdamW");
    DIFFERS((g.config.update_with = any_update, g.config.update_name = "AdamW"), "update_with = a function",
            "update_with = AdamW");
    DIFFERS_IN(g.config.update_with = any_update, g.config.update_name = "SGD", "update_name = SGD",
               "update_name = none");
}

static void check_tables(void) {
#define TENSOR2(name, elems, layers, unit, step, decay, overwrites, frozen)                           \
    "tensor 2 = " name ", shape " elems ", layers " layers " from unit " unit " on in steps of " step \
    ", decay " decay ", backward_overwrites " overwrites ", lr_factor 0, frozen " frozen
#define TENSOR5(lr_factor)                                                                               \
    "tensor 5 = lnfw, shape 50, layers 1 from unit 0 on in steps of 0, decay 0, backward_overwrites 0, " \
    "lr_factor " lr_factor ", frozen 0"
    const char *ours = TENSOR2("w", "5003", "4", "1", "0", "1", "1", "0");
    DIFFERS(g.tensors[2].name = "v", TENSOR2("v", "5003", "4", "1", "0", "1", "1", "0"), ours);
    DIFFERS(g.tensors[2].dims[0]++, TENSOR2("w", "5004", "4", "1", "0", "1", "1", "0"), ours);
    DIFFERS((g.tensors[2].n_dims = 2, g.tensors[2].dims[1] = 1),
            TENSOR2("w", "5003 1", "4", "1", "0", "1", "1", "0"), ours);
    DIFFERS(g.tensors[2].layers--, TENSOR2("w", "5003", "3", "1", "0", "1", "1", "0"), ours);
    DIFFERS(g.tensors[2].unit = 0, TENSOR2("w", "5003", "4", "0", "0", "1", "1", "0"), ours);
    DIFFERS(g.tensors[2].unit_step = 1, TENSOR2("w", "5003", "4", "1", "1", "1", "1", "0"), ours);
    DIFFERS(g.tensors[2].decay = 0, TENSOR2("w", "5003", "4", "1", "0", "0", "1", "0"), ours);
    DIFFERS(g.tensors[2].decay = 0.1f, TENSOR2("w", "5003", "4", "1", "0", "0.100000001", "1", "0"), ours);
    DIFFERS(g.tensors[5].lr_factor = 0.5f, TENSOR5("0.5"), TENSOR5("0"));
    DIFFERS(g.tensors[2].backward_overwrites = 0, TENSOR2("w", "5003", "4", "1", "0", "1", "0", "0"), ours);
    DIFFERS(g.tensors[2].frozen = 1, TENSOR2("w", "5003", "4", "1", "0", "1", "1", "1"), ours);
    DIFFERS(g.tensors[2].name = NULL, TENSOR2("", "5003", "4", "1", "0", "1", "1", "0"), ours);
    DIFFERS(g.n_tensors--, "no tensor 5", TENSOR5("0"));
#define UNIT0(name, forward, repeated, backward, without)                                            \
    "unit 0 = " name ", uses forward " forward ", of them " repeated " repeated, backward " backward \
    ", of them " without " only for gradients"
    ours = UNIT0("emb", "2", "0", "2", "1");
    DIFFERS(g.units[0].name = "embedding", UNIT0("embedding", "2", "0", "2", "1"), ours);
    DIFFERS(g.units[0].forward_uses = 3, UNIT0("emb", "3", "0", "2", "1"), ours);
    DIFFERS(g.units[0].backward_uses = 1, UNIT0("emb", "2", "0", "1", "1"), ours);
    DIFFERS(g.units[0].gradient_only_uses = 0, UNIT0("emb", "2", "0", "2", "0"), ours);
    DIFFERS(g.units[0].repeated_uses = 1, UNIT0("emb", "2", "1", "2", "1"), ours);
    DIFFERS(g.n_units--, "no unit 4",
            "unit 4 = block 3, uses forward 1, of them 0 repeated, backward 1, of them 0 only for gradients");
}

// -------- the trainer's lines

static const struct {
    const char *theirs, *ours, *they_have, *we_have;
} line_cases[] = {
    { "B = 8\n", "B = 4\n", "B = 8", "B = 4" },
    { "B = 4\nT = 65", "B = 4\nT = 64", "T = 65", "T = 64" },
    { "B = 4\n", "B = 4\nT = 64\n", "no T", "T = 64" },
    { "B = 4\nT = 64\n", "B = 4\n", "T = 64", "no T" },
    { "B = 4\n\nT = 2\n", "B = 4\n\nT = 1\n", "T = 2", "T = 1" },
    { "a = 1\nb = 2\nc = 3\n", "a = 1\nc = 3\n", "b = 2", "no b" },
    { "a = 1\nc = 3\n", "a = 1\nb = 2\nc = 3\n", "no b", "b = 2" },
    { "", "B = 4\n", "no B", "B = 4" },
    { "just words\nB = 8\n", "just words\nB = 4\n", "B = 8", "B = 4" },
    { "", "just words\n", "no just words", "just words" },
    { "name = a = 2\n", "name = a = 1\n", "name = a = 2", "name = a = 1" },
};
enum { LINE_CASES = sizeof line_cases / sizeof *line_cases };

// The trainer's lines are compared before the settings and tables.
#define OWN(change, all, theirs, ours)                                                                       \
    DIFFERS_IN(g.config.start.same = all, (g.config.start.same = change, g.config.stage = 2, g.n_tensors--), \
               theirs, ours)
static void check_own_lines(void) {
    static char room[17 << 20];
    char quoted[141];
    OWN("B = 8\n", NULL, "B = 8", "no B");
    memset(room, 'x', sizeof room);
    memcpy(room, "long = ", 7);
    room[10000] = 0;
    snprintf(quoted, sizeof quoted, "%.135s", room);  // cut to fit a message
    OWN(room, "long = 1\n", quoted, "long = 1");
    if (odd) return;
    CHECK_SETTING("more than 16 MiB of lines");
    given g = usual();
    zero *z;
    room[10000] = 'x';
    room[sizeof room - 1] = 0;
    g.config.start.same = room;
    for (int i = 0; i < 20; i++) {  // several times, because a rank may not see the others leave
        CHECK(zero_create(&z, &g.config, g.tensors, g.n_tensors, g.units, g.n_units) == ZERO_ERR_ARGUMENT);
        CHECK(!strncmp(zero_last_error(), "rank 0 has ", 11) &&
              strstr(zero_last_error(), "at most 16777216"));
    }
    CHECK_SETTING("the same invalid table on all ranks");
    g.config.start.same = NULL;
    g.tensors[2].name = NULL;
    CHECK(zero_create(&z, &g.config, g.tensors, g.n_tensors, g.units, g.n_units) == ZERO_ERR_ARGUMENT);
    CHECK(strstr(zero_last_error(), "tensor 2"));
}

// The same with zero_require_same.
static void check_lines(int shared, int overlap) {
    enum { LONG = 300000 };
    char *text = malloc(LONG + 1);
    given g = usual();
    toy t;
    g.config.comm.shared_window = shared;
    g.config.overlap = overlap;
    CHECK_SETTING("zero_require_same, odd rank %d, %s, overlap %d", odd, shared ? "window" : "messages",
                  overlap);
    MUST(toy_create(&t, &g.config, NULL));
    for (int i = 0; i < LINE_CASES; i++) {
        const char *ours = line_cases[i].ours;
        expect(zero_require_same(t.z, checks.rank == odd ? line_cases[i].theirs : ours),
               line_cases[i].they_have, line_cases[i].we_have, "");
        MUST(zero_require_same(t.z, ours));
    }
    for (int i = 0; i < LONG; i++) text[i] = i % 10 == 9 ? '\n' : (char)('a' + i / 10 % 23);
    memcpy(text + LONG - 10, "last = 1", 9);
    MUST(zero_require_same(t.z, text));
    if (checks.rank == odd) text[LONG - 3] = '2';
    expect(zero_require_same(t.z, text), "last = 2", "last = 1", "");
    MUST(toy_step(&t, 1, 1, NULL));  // the plugin still works
    zero_destroy(t.z);
    free(text);
}

// -------- what may differ

static void train(const given *g, char hash[17]) {
    toy t;
    MUST(toy_create(&t, &g->config, NULL));
    for (int step = 1; step <= 2; step++) MUST(toy_step(&t, 1, step, NULL));
    MUST(zero_hash(t.z, 1, hash));
    zero_destroy(t.z);
}

// Applies `change` to the odd rank's config. This difference is allowed and must not change the results.
#define FREE(change, name)                                                                                   \
    do {                                                                                                     \
        given g = usual();                                                                                   \
        char hash[17];                                                                                       \
        CHECK_SETTING("odd rank %d may have a different %s, %s", odd, name, shared ? "window" : "messages"); \
        g.config.comm.shared_window = shared;                                                                \
        if (checks.rank == odd) change;                                                                      \
        train(&g, hash);                                                                                     \
        CHECK(!strcmp(hash, expected));                                                                      \
    } while (0)

static void put_other(const zero_setting *s, zero_config *config) {
    if (s->kind == ZERO_KIND_TEXT)
        zero_setting_set(s, config, "/a");
    else
        setting_put(s, config, other_value(s, config));
}

static void check_free(void) {
    MPI_Comm world = MPI_COMM_WORLD;
    int n;
    for (int shared = 0; shared < 2; shared++) {
        given same = usual();
        char expected[17];
        same.config.comm.shared_window = shared;
        same.config.start.same = "alike = 1\n";
        train(&same, expected);
        for (const zero_setting *s = zero_settings(&n), *end = s + n; s < end; s++)
            if (!s->same && strncmp(s->name, "start.", 6)) FREE(put_other(s, &g.config), s->name);
        FREE(g.config.cuda_stream = &odd, "cuda_stream");
        FREE(g.config.memory_beside = 1, "memory_beside");
        FREE(g.config.start.mpi_comm = &world, "start.mpi_comm");
        FREE((g.config.start.ranks = checks.ranks, g.config.start.rank = odd), "start.rank");
    }
}

// Every rank has a different value: the error names the lowest rank that differs from rank 0.
static void check_lowest(void) {
    given g = usual();
    char lines[32], theirs[32];
    CHECK_SETTING("every rank has a different value");
    odd = 1;
    g.config.prefetch = 5 + checks.rank;
    refused(&g, "prefetch = 6", "prefetch = 5");
    g.config.prefetch = 1;
    snprintf(lines, sizeof lines, "value = %d\n", checks.rank / 2 * 2);
    g.config.start.same = lines;
    odd = checks.ranks > 2 ? 2 : 0;  // ranks 0 and 1 have 0
    snprintf(theirs, sizeof theirs, "value = %d", odd);
    if (odd) refused(&g, theirs, "value = 0");
}

// -------- our trainer's lines: rank 0 compares the text of changed options with the usual one

enum { TOKENS = 1000 };
static char folder[100];
static Options usual_options;
static GPT2 model;

static const char *path_of(const char *name) {
    static char paths[8][256];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

// Writes a shard of the usual tokens, except that token number `other` differs; -1: none differs.
static void write_shard(const char *name, int tokens, int other) {
    int32_t header[256] = { 20240520, 1, tokens };
    uint16_t body[TOKENS + 1];
    for (int i = 0; i < tokens; i++) body[i] = (uint16_t)(i % 7 + (i == other));
    FILE *f = fopen(path_of(name), "wb");
    CHECK(f && fwrite(header, sizeof header, 1, f) == 1);
    CHECK(f && fwrite(body, sizeof *body, tokens, f) == (size_t)tokens && !fclose(f));
}

static void take_usual(void) {
    opt = usual_options;
    model.dtype = GPT2_F32;
    gpt2_check(gpt2_config_from_descriptor(&model.config, opt.model));
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

// Returns the first line in which the current settings differ from the usual ones, or "", and returns to the
// usual ones.
static const char *difference(void) {
    static char line[512];
    char *b = text_now(), *p = b;
    take_usual();
    char *a = text_now(), *q = a;
    for (; *p && *p == *q; p++) q++;
    int same = !*p && !*q;
    while (p > b && p[-1] != '\n') p--;
    snprintf(line, sizeof line, "%.*s", same ? 0 : (int)strcspn(p, "\n"), p);
    free(a);
    free(b);
    return line;
}

// Checks that the ranks compare a line that begins like this; "": no line differs.
static void unlike(const char *line) {
    const char *found = difference();
    const int is_right = *line ? !strncmp(found, line, strlen(line)) : !*found;
    CHECK(is_right);
    if (!is_right) fprintf(stderr, "  '%s' does not begin with '%s'\n", found, line);
}
#define UNLIKE(change, line) \
    (CHECK_SETTING("trainer: %s, %.60s", #change, line), (void)(change), unlike(line))

// Ranks may differ in these options.
static int is_free(const char *name) {
    static const char names[] = " -i -j -o --tokenizer --zero-config --threads --overlap --progress --nvme "
                                "--resume -pi -pn -pr -pg -ps -pf --verify --hellaswag ";
    char word[64];
    snprintf(word, sizeof word, " %s ", name);
    return strstr(names, word) != NULL;
}

// Returns 0 if the option has no value.
static int change_option(const Option *o) {
    const int files = !strcmp(o->name, "-i") || !strcmp(o->name, "-j");
    if (o->kind == TEXT && !files)
        *(const char **)o->value = strcmp(o->name, "--prompts") ? "other" : opt.val_data;  // any file
    else if (o->kind == WIDE)
        *(int64_t *)o->value = (int64_t)fmax((double)*(int64_t *)o->value, o->min) + 1;
    else if (o->kind == INT || o->kind == CHOICE)
        *(int *)o->value += 1;
    else if (o->kind == REAL)  // a value below the minimum means that the option was not given
        *(double *)o->value = fmax(*(double *)o->value, o->min) + 1e-3;
    else
        return 0;
    return 1;
}

// Every option in the table, including future ones, must be compared unless is_free lists it.
static void check_options(void) {
    int compared = 0;
    for (const Option *o = option_table; o < option_table + num_options; o++) {
        char line[64];
        CHECK_SETTING("trainer: option %s", o->name);
        if (!change_option(o)) continue;
        snprintf(line, sizeof line, "%s = ", o->name);
        unlike(is_free(o->name) ? "" : line);
        compared += !is_free(o->name);
    }
    CHECK(compared > 40);
    UNLIKE(model.dtype = GPT2_BF16, "--dtype auto = bf16");  // the dtype chosen for "auto"
}

static void check_model(void) {
    // The plugin's tables do not depend on the number of heads.
    UNLIKE(model.config.num_heads = 8, "model = L 4, NH 8, C 128, V 257, longest sequence 64");
    UNLIKE(opt.model = "l4h4c128v257t64 ", "-e = l4h4c128v257t64 ");
    char first[512];
    opt.model = path_of("val.bin");  // any file
    snprintf(first, sizeof first, "%s", difference());
    UNLIKE(opt.model = path_of("train_0.bin"), first);
    write_shard("other.bin", TOKENS, 999);
    UNLIKE(opt.model = path_of("other.bin"), "-e = a file of 3024 bytes, digest ");
    opt.model = path_of("other.bin");
    CHECK(strcmp(difference(), first));
    UNLIKE(opt.hellaswag = 1, "-h = 1");
    usual_options.hellaswag = 1;
    take_usual();
    UNLIKE(opt.hellaswag_data = path_of("other.bin"), "--hellaswag = a file of 3024 bytes, digest ");
    usual_options.hellaswag = 0;
    take_usual();
}

static void write_shards(const char *in) {
    static const char *const names[] = { "train_0.bin", "train_1.bin", "train_2.bin", "val.bin" };
    char name[64];
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "%s%s", in, names[i]);
        write_shard(name, TOKENS, -1);
    }
}

static void check_data(void) {
    static const struct {
        const char *file;
        int tokens, other;
        const char *line;
    } cases[] = {
        { "same/train_1.bin", TOKENS, TOKENS - 1, "-i, shard 1 = train_1.bin, 3024 bytes, digest " },
        { "same/train_1.bin", TOKENS + 1, -1, "-i, shard 1 = train_1.bin, 3026 bytes, digest " },
        { "same/train_3.bin", TOKENS, -1, "-i, number of shards = 4" },
        { "same/val.bin", TOKENS, 500, "-j, shard 0 = val.bin, 3024 bytes, digest " },
    };
    CHECK(!mkdir(path_of("same"), 0777));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_shards("same/");
        write_shard(cases[i].file, cases[i].tokens, cases[i].other);
        opt.train_data = path_of("same/train_*.bin");
        UNLIKE(opt.val_data = path_of("same/val.bin"), cases[i].line);
        unlink(path_of("same/train_3.bin"));
    }
    CHECK(!rename(path_of("same/train_2.bin"), path_of("same/train_2b.bin")));
    UNLIKE(opt.train_data = path_of("same/train_*.bin"), "-i, shard 2 = train_2b.bin, 3024 bytes");
    opt.val_every = 0;  // then the validation data is not read
    UNLIKE(opt.val_data = path_of("train_0.bin"), "-v = 0");
}

static void check_trainer(void) {
    write_shards("");
    parse_options(0, NULL);
    usual_options = opt;
    usual_options.train_data = strdup(path_of("train_*.bin"));
    usual_options.val_data = strdup(path_of("val.bin"));
    usual_options.hellaswag_data = usual_options.val_data;  // any file
    take_usual();
    UNLIKE(0, "");
    check_options();
    check_model();
    check_data();
    CHECK(!remove_tree(folder));
}

static void check_all(const char *asked) {
    if (checks.ranks < 2) {
        fprintf(stderr, "mpi_same needs at least 2 ranks\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    gethostname(host, sizeof host - 1);
    for (odd = 0; odd < checks.ranks; odd++) {
        check_settings();
        check_update();
        check_tables();
        check_own_lines();
        check_free();
        for (int i = 0; i < 4; i++) check_lines(i & 1, i >> 1);
    }
    check_lowest();
    check_make_folder(folder, sizeof folder, "/tmp");
    if (!checks.rank) check_trainer();
}

int main(int argc, char **argv) { return checks_main(argc, argv, "mpi_same", check_all); }
