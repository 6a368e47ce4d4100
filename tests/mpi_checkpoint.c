// Tests checkpoints: mpirun -np N mpi_checkpoint, for any N. A checkpoint loads at every stage and dtype. At
// the saved dtype training continues bit for bit (mpi_bits.c resumes too). A save that fails, or is refused
// because of NaN or Inf, leaves the previous checkpoint intact. mpi_large.c and test_damage.c damage
// checkpoints.
//   mpi_checkpoint save FOLDER [all]    saves with many settings, and records the hashes
//   mpi_checkpoint load FOLDER [all]    loads all checkpoints in FOLDER, with other settings and rank counts
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "../llmc_zero/internal.h"
#include "saves.h"

// -------- the trainer's own update

static const char note[] = "{\"step\": 2, \"note\": \"of the \\\"trainer\\\"\", \"x\": 0.1}";
static const char note_back[] = "{\"step\":2,\"note\":\"of the \\\"trainer\\\"\",\"x\":0.10000000000000001}";

static void check_load_at(const zero_config *c, const char *path, const char saved[17], const char end[17]) {
    toy t;
    char *text = NULL;
    create_and_train(&t, c, 1);  // no value may survive the load
    MUST(zero_load(t.z, path, &text));
    CHECK(!strcmp(text, note_back));
    free(text);
    CHECK(has_hash(t.z, saved));
    steps(&t, 3, 4);
    CHECK(has_hash(t.z, end));
    zero_destroy(t.z);
}

// Saves after 2 steps and trains 2 more. Sets the hashes of both states.
static void save_and_go_on(const zero_config *c, const char *path, char saved[17], char end[17]) {
    toy t;
    create_and_train(&t, c, 2);
    MUST(zero_save(t.z, path, note));
    MUST(zero_hash(t.z, 1, saved));
    steps(&t, 3, 4);
    MUST(zero_hash(t.z, 1, end));
    zero_destroy(t.z);
}

static zero_config own_config(int stage, int update) {
    return settings_config(&settings_paths[stage + 1], &settings_updates[update], 1, 1);
}

static zero_checkpoint *open_alone(const char *path) {
    zero_checkpoint *c = NULL;
    MUST(zero_checkpoint_open(&c, path, toy_tensors, TOY_TENSORS, toy_units, TOY_UNITS));
    return c;
}

// Checks that a plugin with a different number of states refuses the checkpoint.
static void check_other_states(const zero_config *c, const char *path) {
    toy t;
    MUST(toy_create(&t, c, NULL));
    CHECK(zero_load(t.z, path, NULL) == ZERO_ERR_ARGUMENT);
    CHECK(strstr(zero_last_error(), "update_states"));
    zero_destroy(t.z);
}

static void check_update_states(void) {
    const char *path = in_folder("own");
    for (int u = 0; u < SETTINGS_COUNT(settings_updates); u++) {
        zero_config c = own_config(1, u);
        const zero_config adamw = config_at(2, u);
        const zero_value missing = ZERO_MOMENT1 + c.update_states;
        char saved[17], end[17];
        float x;
        CHECK_SETTING("save and load, %s", settings_updates[u].name);
        c.update_name = "named";  // other names are refused (test_damage.c), but not a run without a name
        save_and_go_on(&c, path, saved, end);
        for (int to = 0; to <= 3; to++) {
            const zero_config other = own_config(to, u);
            check_load_at(&other, path, saved, end);
        }
        check_other_states(&adamw, path);
        zero_checkpoint *alone = open_alone(path);
        CHECK(zero_checkpoint_get(alone, missing - 1, 0, 0, 0, 1, &x) == 0);
        CHECK(zero_checkpoint_get(alone, missing, 0, 0, 0, 1, &x) == ZERO_ERR_MISUSE);
        zero_checkpoint_close(alone);
    }
    remove_checkpoint(path);
}

// -------- checkpoints read without a plugin

// Returns all elements of a state of the plugin, or of the checkpoint if z is NULL. The caller frees them.
// Reads the checkpoint in pieces, some of which span the files of several ranks. Moments of frozen tensors,
// which do not exist, are 0.
static float *values_of(zero *z, zero_checkpoint *c, zero_value what) {
    enum { PIECE = 777 };
    const int is_moment = what == ZERO_MOMENT1 || what == ZERO_MOMENT2;
    float *all = calloc(TOY_ELEMS, sizeof *all), *next = all;
    for (int k = 0; k < TOY_TENSORS; k++)
        for (int l = 0; l < toy_tensors[k].layers; l++, next += toy_elems(k)) {
            if (is_moment && toy_tensors[k].frozen) continue;
            if (z) MUST(zero_get(z, what, k, l, 0, toy_elems(k), next));
            for (int64_t from = 0, n; !z && from < toy_elems(k); from += n) {
                n = toy_elems(k) - from < PIECE ? toy_elems(k) - from : PIECE;
                MUST(zero_checkpoint_get(c, what, k, l, from, n, next + from));
            }
        }
    return all;
}

// Checks that the plugin's state has the checkpoint's values, rounded to dtype. A frozen tensor's master is
// its parameter.
static void compare(zero *z, zero_value what, zero_checkpoint *c, zero_value saved, zero_dtype dtype) {
    float *now = values_of(z, NULL, what), *values = values_of(NULL, c, saved);
    int64_t wrong = 0, i = 0;
    for (int k = 0; k < TOY_TENSORS; k++) {
        const zero_dtype stored = toy_tensors[k].frozen ? z->config.numbers.dtype : dtype;
        const int64_t end = i + toy_elems(k) * toy_tensors[k].layers;
        for (; i < end; i++) wrong += now[i] != toy_rounded(stored, values[i]);
    }
    CHECK(!wrong);
    free(now);
    free(values);
}

static void misuse(zero_checkpoint *c) {
    static const struct {
        zero_value what;
        int tensor, layer;
        int64_t offset, n;
    } wrong[] = {
        { ZERO_GRADIENT, 0, 0, 0, 1 }, { ZERO_MASTER, TOY_TENSORS, 0, 0, 1 },
        { ZERO_MASTER, 0, 99, 0, 1 },  { ZERO_MASTER, 0, 0, TOY_LARGEST, 1 },
        { ZERO_MASTER, 0, 0, -1, 1 },  { ZERO_MASTER, 0, 0, 1, INT64_MAX },
    };
    float piece[1];
    for (int i = 0; i < SETTINGS_COUNT(wrong); i++)
        CHECK(zero_checkpoint_get(c, wrong[i].what, wrong[i].tensor, wrong[i].layer, wrong[i].offset,
                                  wrong[i].n, piece) == ZERO_ERR_MISUSE);
}

static void check_alone(const char *path, zero_dtype dtype, zero *z) {
    static const zero_value kinds[] = { ZERO_MASTER, ZERO_MOMENT1, ZERO_MOMENT2, ZERO_PARAM };
    zero_tensor other[TOY_TENSORS];
    zero_checkpoint *c = open_alone(path);
    CHECK(zero_checkpoint_dtype(c) == dtype);
    for (int i = 0; i < SETTINGS_COUNT(kinds); i++) compare(z, kinds[i], c, kinds[i], ZERO_F32);
    misuse(c);
    zero_checkpoint_close(c);
    memcpy(other, toy_tensors, sizeof other);
    other[0].dims[0]++;
    CHECK(zero_checkpoint_open(&c, path, other, TOY_TENSORS, toy_units, TOY_UNITS) == ZERO_ERR_ARGUMENT);
    CHECK(!c);
}

// -------- other dtypes

// Loads into a plugin of config c, possibly in a different format. Masters are fp32 in the file; a plugin
// without masters rounds them to its parameters. untouched: the plugin's states are still 0. hash: the
// expected hash of the loaded states; NULL: unknown.
static void load_as(const zero_config *c, const char *path, int untouched, const char *hash) {
    toy t;
    const zero_dtype dtype = c->numbers.dtype;
    MUST(untouched ? toy_create_empty(&t, c, NULL) : toy_create(&t, c, NULL));
    if (!untouched) steps(&t, 1, 1);
    MUST(zero_load(t.z, path, NULL));
    if (hash) CHECK(has_hash(t.z, hash));
    zero_checkpoint *saved = open_alone(path);
    compare(t.z, ZERO_PARAM, saved, ZERO_MASTER, dtype);
    compare(t.z, ZERO_MASTER, saved, ZERO_MASTER, c->numbers.no_master ? dtype : ZERO_F32);
    compare(t.z, ZERO_MOMENT1, saved, ZERO_MOMENT1, ZERO_F32);
    compare(t.z, ZERO_MOMENT2, saved, ZERO_MOMENT2, ZERO_F32);
    zero_checkpoint_close(saved);
    steps(&t, 3, 3);  // training continues
    zero_destroy(t.z);
}

// zero_save_bytes must return the bytes that the save has written.
static void check_bytes(zero *z, const char *path) {
    char file[2 * PATH_BYTES];
    int64_t bytes, written = size_of(in_folder("typed/manifest.json"));
    MUST(zero_save_bytes(z, NULL, &bytes));
    for (int r = 0; r < checks.ranks; r++) {
        file_in(file, path, r);
        written += size_of(file);
    }
    CHECK(bytes == written);
}

static void check_dtypes(void) {
    const char *path = in_folder("typed");
    for (int from = 0; from < SETTINGS_COUNT(settings_formats); from++) {
        zero_config c = config_at(3 - from, from);
        toy t;
        CHECK_SETTING("%s read without a plugin", settings_formats[from].name);
        create_and_train(&t, &c, 2);
        MUST(zero_save(t.z, path, NULL));
        check_bytes(t.z, path);
        check_alone(path, c.numbers.dtype, t.z);
        zero_destroy(t.z);
    }
    remove_checkpoint(path);
}

// -------- saves that fail

// A failed save must keep the previous checkpoint and leave no other files behind.
static void check_failed_save(toy *t, const char *path, const char *saved) {
    CHECK_SETTING("texts that are not JSON objects");
    for (int i = 0; i < 2; i++)
        CHECK(zero_save(t->z, path, i ? "{" : "[1]") == ZERO_ERR_ARGUMENT &&
              strstr(zero_last_error(), "not a JSON object"));
    CHECK_SETTING("a folder that cannot be created");
    CHECK(zero_save(t->z, "/proc/no/folder", NULL) == ZERO_ERR_IO);
    if (checks.ranks > 1) {
        CHECK_SETTING("ranks that name different folders");
        CHECK(zero_save(t->z, checks.rank ? in_folder("other") : path, NULL) == ZERO_ERR_ARGUMENT);
        CHECK(strstr(zero_last_error(), "all ranks must use one folder"));
    }
    CHECK_SETTING("the previous checkpoint is intact");
    CHECK(files_in(path) == checks.ranks + 1);
    MUST(zero_load(t->z, path, NULL));
    CHECK(has_hash(t->z, saved));
}

static void touch(const char *path) {
    FILE *f = fopen(path, "wb");
    CHECK(f && !fclose(f));
}

// Saves over another checkpoint and over the remains of a killed save. Unrelated files must survive.
static void check_save_again(void) {
    const char *path = in_folder("again");
    char saved[17];
    zero_config c = config_at(2, 1);
    toy t;
    MUST(toy_create(&t, &c, NULL));
    CHECK_SETTING("a save over another one");
    for (int i = 1; i <= 2; i++) {
        MUST(zero_save(t.z, path, NULL));
        steps(&t, i, i);
    }
    if (!checks.rank) {
        touch(in_folder("again/rank00007-0123456789abcdef.states"));
        touch(in_folder("again/.manifest.json.0123456789abcdef"));
        touch(in_folder("again/notes"));
    }
    MUST(zero_save(t.z, path, NULL));
    MUST(zero_hash(t.z, 1, saved));
    MUST(zero_barrier(t.z));
    CHECK(files_in(path) == checks.ranks + 2);
    MPI_Barrier(MPI_COMM_WORLD);
    if (!checks.rank) CHECK(!unlink(in_folder("again/notes")));
    steps(&t, 3, 3);
    MUST(zero_load(t.z, path, NULL));
    CHECK(has_hash(t.z, saved));
    steps(&t, 3, 3);
    check_failed_save(&t, path, saved);
    zero_destroy(t.z);
    remove_checkpoint(path);
    CHECK(zero_checkpoint_remove(path) == 0);  // removing a missing checkpoint succeeds
}

// -------- NaN and Inf

// A value for the first or the last tensor, and therefore for the first or the last rank.
typedef struct {
    zero_value what;
    int last;  // 1: in the last tensor
    float value;
    const char *words;
} bad_value;

static void last_place(const toy *t, int *tensor, int *layer, int64_t *element) {
    const zero_tensor *table = t->z->layout.tensors;
    *tensor = t->z->layout.n_tensors - 1;
    *layer = table[*tensor].layers - 1;
    *element = zero_tensor_elems(&table[*tensor]) - 1;
}

static void check_refused(toy *t, const char *path, const bad_value *b, const char before[17]) {
    int tensor = 0, layer = 0;
    int64_t element = 0;
    char words[100];
    float old;
    if (b->last) last_place(t, &tensor, &layer, &element);
    MUST(zero_get(t->z, b->what, tensor, layer, element, 1, &old));
    MUST(zero_set(t->z, b->what, tensor, layer, element, 1, &b->value));
    snprintf(words, sizeof words, "%s, layer %d, element %lld (unit ", t->z->layout.tensors[tensor].name,
             layer, (long long)element);
    for (int saves = 0; saves < 2; saves++) {
        int rc = saves ? zero_save(t->z, path, NULL) : zero_check_finite(t->z);
        CHECK(rc == ZERO_ERR_ARGUMENT);
        CHECK(strstr(zero_last_error(), b->words) != NULL);
        CHECK(strstr(zero_last_error(), words) != NULL);
        CHECK(zero_last_failure()->rank >= 0 && zero_last_failure()->unit >= 0);
    }
    must_have(path, "{}");
    CHECK(!zero_checkpoint_verify(path, NULL, NULL));
    MUST(zero_set(t->z, b->what, tensor, layer, element, 1, &old));
    MUST(zero_check_finite(t->z));
    CHECK(has_hash(t->z, before));
}

static void check_not_finite(const char *path, int stage, int format) {
    static const bad_value values[] = {
        { ZERO_MASTER, 0, NAN, "parameters that are not finite: nan in " },
        { ZERO_MASTER, 1, -INFINITY, "parameters that are not finite: -inf in " },
        { ZERO_MOMENT1, 0, INFINITY, "first moment that are not finite: inf in " },
        { ZERO_MOMENT1, 1, NAN, "first moment that are not finite: nan in " },
        { ZERO_MOMENT2, 1, INFINITY, "second moment that are not finite: inf in " },
    };
    char before[17];
    zero_config c = config_at(stage, format);
    toy t;
    create_and_train(&t, &c, 2);
    MUST(zero_save(t.z, path, NULL));
    MUST(zero_hash(t.z, 1, before));
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        CHECK_SETTING("not finite, %s, stage %d, value %zu", settings_formats[format].name, stage, i);
        check_refused(&t, path, &values[i], before);
    }
    CHECK_SETTING("a load afterwards, %s, stage %d", settings_formats[format].name, stage);
    steps(&t, 3, 3);
    MUST(zero_load(t.z, path, NULL));
    CHECK(has_hash(t.z, before));
    zero_destroy(t.z);
}

// A finite master may round to an infinite parameter.
static void check_edge(const char *path, int format, float most, float too_much) {
    zero_config c = config_at(3, format);
    toy t;
    CHECK_SETTING("the largest %s", settings_formats[format].name);
    MUST(toy_create(&t, &c, NULL));
    MUST(zero_set(t.z, ZERO_MASTER, 0, 0, 1, 1, &most));
    CHECK(!zero_check_finite(t.z));
    MUST(zero_save(t.z, path, NULL));
    MUST(zero_set(t.z, ZERO_MOMENT1, 0, 0, 1, 1, &too_much));
    CHECK(zero_check_finite(t.z) == (isfinite(too_much) ? 0 : ZERO_ERR_ARGUMENT));
    MUST(zero_set(t.z, ZERO_MOMENT1, 0, 0, 1, 1, &most));
    MUST(zero_set(t.z, ZERO_MASTER, 0, 0, 1, 1, &too_much));
    CHECK(zero_check_finite(t.z) == ZERO_ERR_ARGUMENT);
    CHECK(zero_save(t.z, path, NULL) == ZERO_ERR_ARGUMENT);
    CHECK(!zero_checkpoint_verify(path, NULL, NULL));
    zero_destroy(t.z);
}

static void check_finite(void) {
    const char *path = in_folder("finite");
    for (int stage = 0; stage <= 3; stage++) check_not_finite(path, stage, stage & 1);
    check_edge(path, 0, 3.402823466e38f, INFINITY);
    check_edge(path, 1, 3.39e38f, 3.4e38f);
    remove_checkpoint(path);
}

// -------- other numbers of ranks

// Combinations of a stage and the tiers that store the states.
// clang-format off
static const struct {
    const char *name;
    int stage;
    zero_tier params, optimizer;
    double ratio;
    int halves;  // 1: two groups shard the parameters; with an odd number of ranks each rank keeps all
} matrix[] = {
    { "stage 0",                  0, ZERO_DEVICE, ZERO_DEVICE, 1 },
    { "stage 1",                  1, ZERO_DEVICE, ZERO_DEVICE, 1 },
    { "stage 2",                  2, ZERO_DEVICE, ZERO_DEVICE, 1 },
    { "stage 3",                  3, ZERO_DEVICE, ZERO_DEVICE, 1 },
    { "stage 3, all on NVMe",     3, ZERO_NVME,   ZERO_NVME,   1 },
    { "stage 3, halves, on host", 3, ZERO_HOST,   ZERO_HOST,   1, 1 },
    { "stage 1, AdamW on host",   1, ZERO_DEVICE, ZERO_HOST,   1 },
    { "stage 2, 0.4 on NVMe",     2, ZERO_DEVICE, ZERO_NVME,   0.4 },
    { "stage 3, host and NVMe",   3, ZERO_HOST,   ZERO_NVME,   1 },
};
// clang-format on
enum { KINDS = sizeof matrix / sizeof *matrix };

static zero_config matrix_config(int kind, int format) {
    zero_config c = config_at(matrix[kind].stage, format);
    c.offload.params = matrix[kind].params;
    c.offload.optimizer = matrix[kind].optimizer;
    c.offload.optimizer_ratio = matrix[kind].ratio;
    c.offload.nvme = folder;
    c.offload.sub_group_size = 2048;
    if (matrix[kind].halves) c.param_group = checks.ranks % 2 ? 1 : checks.ranks / 2;
    return c;
}

static void save_one(int kind, int format, int frozen_set) {
    const zero_config c = matrix_config(kind, format);
    char name[64], text[100], hex[17];
    toy t;
    toy_freeze(frozen_set);
    snprintf(name, sizeof name, "np%d_kind%d_format%d_frozen%d", checks.ranks, kind, format, frozen_set);
    CHECK_SETTING("%s", name);
    create_and_train(&t, &c, 2);
    MUST(zero_hash(t.z, 1, hex));
    snprintf(text, sizeof text, "{\"hash\": \"%s\", \"format\": %d}", hex, format);
    MUST(zero_save(t.z, in_folder(name), text));
    zero_destroy(t.z);
}

// all: 1: saves every kind in every format; 0: every other combination. Then each set of frozen tensors.
static void save_all(int all) {
    for (int format = 0; format < SETTINGS_COUNT(settings_formats); format++)
        for (int kind = 0; kind < KINDS; kind++)
            if (all || (kind + format + checks.ranks) % 2 == 0) save_one(kind, format, 0);
    for (int set = 1; set < TOY_FROZEN_SETS; set++)
        save_one((2 * set + checks.ranks) % KINDS, (set + checks.ranks) % SETTINGS_COUNT(settings_formats),
                 set);
}

// Loads in `format`; -1: in the format of the checkpoint.
static void load_one(const char *path, int kind, int format, int untouched) {
    char *text = NULL, hash[17] = "";
    int saved = -1;
    MUST(zero_checkpoint_text(path, &text));
    CHECK(sscanf(text, " { \"hash\" : \"%16[^\"]\" , \"format\" : %d", hash, &saved) == 2);
    free(text);
    const zero_config c = matrix_config(kind, format < 0 ? saved : format);
    load_as(&c, path, untouched, format < 0 || format == saved ? hash : NULL);
}

// A plugin with different frozen tensors refuses the checkpoint and keeps its states.
static void refuse_other_set(const char *path, int set) {
    const zero_config c = config_at(3, 1);
    char before[17];
    toy t;
    for (int other = 0; other < TOY_FROZEN_SETS - 1; other++) {
        if (other == set) continue;
        toy_freeze(other);
        MUST(toy_create(&t, &c, NULL));
        MUST(zero_hash(t.z, 1, before));
        CHECK(zero_load(t.z, path, NULL) == ZERO_ERR_ARGUMENT);
        if (set != TOY_ONE_BLOCK) CHECK(strstr(zero_last_error(), ": frozen is "));
        CHECK(has_hash(t.z, before));
        zero_destroy(t.z);
    }
}

// all: 1: loads each checkpoint as every kind, alternating between the saved format and another; 0: loads it
// as one kind, or as three with frozen tensors, chosen so that all pairs of ranks, kinds and formats occur.
static void load_all(int all) {
    struct dirent **list;
    int n = scandir(folder, &list, NULL, alphasort), loaded = 0, set;
    for (int i = 0; i < n; i++) {
        const char *name = list[i]->d_name, *path = in_folder(name);
        if (sscanf(name, "np%*d_kind%*d_format%*d_frozen%d", &set) != 1) continue;
        const int turn = i / 2 + checks.ranks, first = i + 2 * (turn % 2) + 4 * checks.ranks;
        toy_freeze(set);
        for (int k = 0; k < (all ? KINDS : set ? 3 : 1); k++) {
            int kind = (first + k) % KINDS;
            int format = (turn + k) % 2 ? (i / 4 + checks.ranks + 1) % SETTINGS_COUNT(settings_formats) : -1;
            CHECK_SETTING("%.60s loaded by %d ranks, %s, format %d", name, checks.ranks, matrix[kind].name,
                          format);
            load_one(path, kind, format, (i / 2 + i / 9 + checks.ranks / 2 + k) % 2);
            loaded++;
        }
        CHECK_SETTING("%.60s loaded with other frozen tensors by %d ranks", name, checks.ranks);
        if (set) refuse_other_set(path, set);
    }
    toy_freeze(0);
    CHECK(loaded > 0);
    if (!checks.rank) printf("%d loaded\n", loaded);
}

static void check_all(const char *asked) {
    if (*asked) {
        snprintf(folder, sizeof folder, "%s", checks.arguments[2]);
        (strcmp(asked, "load") ? save_all : load_all)(checks.arguments[3] != NULL);
        return;
    }
    check_make_folder(folder, sizeof folder, "build");
    check_update_states();
    check_dtypes();
    check_save_again();
    check_finite();
    check_remove_folder(folder);
}

int main(int argc, char **argv) { return checks_main(argc, argv, "mpi_checkpoint", check_all); }
