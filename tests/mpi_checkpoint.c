// Checkpoints: mpirun -np N mpi_checkpoint, for any N. What was saved loads at every stage and dtype and goes
// on with the same bits; damage, lies and other models are refused before anything changes; a save that fails
// leaves the checkpoint before.
//   mpi_checkpoint save FOLDER [all]    saves under many settings, and notes the digests
//   mpi_checkpoint load FOLDER [all]    loads all that other numbers of ranks have saved there, under others
#define XXH_INLINE_ALL
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "../llmc_zero/internal.h"
#include "check.h"
#include "settings.h"
#include "toy.h"

enum { PATH_BYTES = 200, MOST_TEXT = 1 << 20 };
static char folder[100];

static void path_of(char path[PATH_BYTES], const char *name) {
    snprintf(path, PATH_BYTES, "%s/%s", folder, name);
}

static void steps(toy *t, int from, int to) {
    for (int step = from; step <= to; step++) MUST(toy_step(t, 1, step, NULL));
}

static zero_config config_at(int stage, int format) {
    return settings_config(&settings_paths[stage + 1], &settings_formats[format], 1,
                           &settings_variations[stage & 1]);
}

// A checkpoint of all ranks goes.
static void remove_checkpoint(const char *path) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (!checks.rank) CHECK(!zero_checkpoint_remove(path));
    MPI_Barrier(MPI_COMM_WORLD);
}

// -------- the same ranks

static const char note[] = "{\"step\": 2, \"note\": \"of the \\\"trainer\\\"\", \"x\": 0.1}";
static const char note_back[] = "{\"step\":2,\"note\":\"of the \\\"trainer\\\"\",\"x\":0.10000000000000001}";

static void check_load_at(const zero_config *c, const char *path, const char saved[17], const char end[17]) {
    toy t;
    char hex[17], *text = NULL;
    MUST(toy_create(&t, c, NULL));
    steps(&t, 1, 1);  // values from before the load must not remain
    MUST(zero_load(t.z, path, &text));
    CHECK(!strcmp(text, note_back));
    free(text);
    MUST(zero_hash(t.z, 1, hex));
    CHECK(!strcmp(hex, saved));
    steps(&t, 3, 4);
    MUST(zero_hash(t.z, 1, hex));
    CHECK(!strcmp(hex, end));
    zero_destroy(t.z);
}

static void check_same_ranks(void) {
    char path[PATH_BYTES], saved[17], end[17];
    path_of(path, "same");
    for (int f = 0; f < SETTINGS_COUNT(settings_formats); f++)
        for (int from = 0; from <= 3; from++) {
            zero_config c = config_at(from, f);
            toy t;
            CHECK_SETTING("save, %s, stage %d", settings_formats[f].name, from);
            MUST(toy_create(&t, &c, NULL));
            steps(&t, 1, 2);
            MUST(zero_save(t.z, path, note));
            MUST(zero_hash(t.z, 1, saved));
            steps(&t, 3, 4);
            MUST(zero_hash(t.z, 1, end));
            zero_destroy(t.z);
            for (int to = 0; to <= 3; to++) {
                zero_config other = config_at(to, f);
                CHECK_SETTING("load, %s, stage %d at stage %d", settings_formats[f].name, from, to);
                check_load_at(&other, path, saved, end);
            }
        }
    remove_checkpoint(path);
}

// -------- read without a plugin

enum { ALL_VALUES = TOY_LARGEST + 50 + TOY_BLOCKS * (129 + 5003 + 33 + 1280) };

static float *values_of(zero *z, zero_value what) {
    int64_t n = 0;
    float *all = malloc(sizeof *all * 100000);
    for (int k = 0; k < TOY_TENSORS; k++)
        for (int l = 0; l < toy_tensors[k].layers; l++) {
            MUST(zero_get(z, what, k, l, 0, toy_elems(k), all + n));
            n += toy_elems(k);
        }
    all[n] = 0;
    return all;
}

enum { READ_ALONE = 4 };
static const zero_value kinds[READ_ALONE] = { ZERO_MASTER, ZERO_MOMENT1, ZERO_MOMENT2, ZERO_PARAM };

// values: every state that the plugin had. In pieces, and one that lies in the parts of several ranks.
static void read_all(zero_checkpoint *c, float *const values[READ_ALONE]) {
    enum { PIECE = 777 };
    float piece[PIECE];
    int64_t wrong = 0, at = 0;
    for (int k = 0; k < TOY_TENSORS; k++)
        for (int l = 0; l < toy_tensors[k].layers; at += toy_elems(k), l++)
            for (int64_t from = 0; from < toy_elems(k); from += PIECE)
                for (int i = 0; i < READ_ALONE; i++) {
                    int64_t n = toy_elems(k) - from < PIECE ? toy_elems(k) - from : PIECE;
                    MUST(zero_checkpoint_get(c, kinds[i], k, l, from, n, piece));
                    wrong += memcmp(piece, values[i] + at + from, n * sizeof *piece) != 0;
                }
    CHECK(!wrong);
    CHECK(zero_checkpoint_get(c, ZERO_GRADIENT, 0, 0, 0, 1, piece) == ZERO_ERR_MISUSE);
    CHECK(zero_checkpoint_get(c, ZERO_MASTER, TOY_TENSORS, 0, 0, 1, piece) == ZERO_ERR_MISUSE);
    CHECK(zero_checkpoint_get(c, ZERO_MASTER, 0, 99, 0, 1, piece) == ZERO_ERR_MISUSE);
    CHECK(zero_checkpoint_get(c, ZERO_MASTER, 0, 0, toy_elems(0), 1, piece) == ZERO_ERR_MISUSE);
    CHECK(zero_checkpoint_get(c, ZERO_MASTER, 0, 0, -1, 1, piece) == ZERO_ERR_MISUSE);
    CHECK(zero_checkpoint_get(c, ZERO_MASTER, 0, 0, 1, INT64_MAX, piece) == ZERO_ERR_MISUSE);
}

static void check_read_alone(void) {
    char path[PATH_BYTES];
    path_of(path, "alone");
    for (int f = 0; f < SETTINGS_COUNT(settings_formats); f++) {
        zero_config config = config_at(f % 4, f);
        zero_checkpoint *c = NULL;
        zero_tensor other[TOY_TENSORS];
        float *values[READ_ALONE];
        toy t;
        CHECK_SETTING("read without a plugin, %s", settings_formats[f].name);
        MUST(toy_create(&t, &config, NULL));
        steps(&t, 1, 2);
        MUST(zero_save(t.z, path, NULL));
        for (int i = 0; i < READ_ALONE; i++) values[i] = values_of(t.z, kinds[i]);
        zero_destroy(t.z);
        MUST(zero_checkpoint_open(&c, path, toy_tensors, TOY_TENSORS, toy_units, TOY_UNITS));
        CHECK(zero_checkpoint_dtype(c) == config.numbers.dtype);
        read_all(c, values);
        zero_checkpoint_close(c);
        memcpy(other, toy_tensors, sizeof other);
        other[0].dims[0]++;
        CHECK(zero_checkpoint_open(&c, path, other, TOY_TENSORS, toy_units, TOY_UNITS) == ZERO_ERR_ARGUMENT);
        CHECK(!c);
        for (int i = 0; i < READ_ALONE; i++) free(values[i]);
    }
    remove_checkpoint(path);
}

// -------- other dtypes

// Masters are fp32 in the file. A parameter that has none is the widened parameter.
static void check_dtypes(void) {
    char path[PATH_BYTES];
    path_of(path, "typed");
    for (int from = 0; from < SETTINGS_COUNT(settings_formats); from++)
        for (int to = 0; to < SETTINGS_COUNT(settings_formats); to++) {
            zero_config c = config_at(3, from), d = config_at(2, to);
            toy t;
            CHECK_SETTING("%s loads as %s", settings_formats[from].name, settings_formats[to].name);
            MUST(toy_create(&t, &c, NULL));
            steps(&t, 1, 2);
            MUST(zero_save(t.z, path, NULL));
            float *masters = values_of(t.z, ZERO_MASTER), *moments = values_of(t.z, ZERO_MOMENT2);
            zero_destroy(t.z);
            MUST(toy_create(&t, &d, NULL));
            MUST(zero_load(t.z, path, NULL));
            float *new_masters = values_of(t.z, ZERO_MASTER), *new_moments = values_of(t.z, ZERO_MOMENT2);
            float *params = values_of(t.z, ZERO_PARAM);
            zero_dtype stored = settings_formats[to].no_master ? d.numbers.dtype : ZERO_F32;
            int64_t wrong = 0;
            for (int i = 0; i < ALL_VALUES; i++) {
                wrong += new_masters[i] != toy_rounded(stored, masters[i]);
                wrong += params[i] != toy_rounded(d.numbers.dtype, masters[i]);
                wrong += new_moments[i] != moments[i];
            }
            CHECK(!wrong);
            steps(&t, 3, 3);  // and it trains
            zero_destroy(t.z);
            free(masters), free(moments), free(new_masters), free(new_moments), free(params);
        }
    remove_checkpoint(path);
}

// -------- damage

// The path of the states of a rank, or of the manifest with rank -1.
static void file_in(char path[2 * PATH_BYTES], const char *checkpoint, int rank) {
    char prefix[16];
    snprintf(prefix, sizeof prefix, "rank%05d", rank);
    snprintf(path, 2 * PATH_BYTES, "%s/manifest.json", checkpoint);
    if (rank < 0) return;
    DIR *dir = opendir(checkpoint);
    CHECK(dir);
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir))
        if (!strncmp(e->d_name, prefix, strlen(prefix)))
            snprintf(path, 2 * PATH_BYTES, "%s/%.60s", checkpoint, e->d_name);
    if (dir) closedir(dir);
}

static long size_of(const char *path) {
    struct stat st;
    return stat(path, &st) ? -1 : (long)st.st_size;
}

static void flip(const char *path, long at, int bits) {
    FILE *f = fopen(path, "r+b");
    int byte, ok = f && !fseek(f, at, SEEK_SET) && (byte = fgetc(f)) != EOF && !fseek(f, at, SEEK_SET) &&
                   fputc(byte ^ bits, f) != EOF;
    CHECK(f && !fclose(f) && ok);
}

// Loading fails on all ranks with these words and changes nothing.
static void must_refuse(toy *t, const char *path, int code, const char *words, const char *more) {
    char before[17], after[17], *text = NULL;
    MUST(zero_hash(t->z, 1, before));
    CHECK(zero_load(t->z, path, &text) == code);
    CHECK(!text);
    if (!strstr(zero_last_error(), words) || !strstr(zero_last_error(), more))
        fprintf(stderr, "not '%s' '%s': %s\n", words, more, zero_last_error());
    CHECK(strstr(zero_last_error(), words) && strstr(zero_last_error(), more));
    MUST(zero_hash(t->z, 1, after));
    CHECK(!strcmp(before, after));
}

// One byte of each block of each file.
static void check_blocks(toy *t, const char *path) {
    enum { BLOCK = VALUES_CHUNK * sizeof(float) };
    char file[2 * PATH_BYTES], offset[64];
    for (int r = 0; r < checks.ranks; r++) {
        file_in(file, path, r);
        long bytes = size_of(file);
        for (long at = 0; at < bytes; at += BLOCK) {
            long odd = at + (bytes - at < BLOCK ? bytes - at : BLOCK) * (r + 1) / (checks.ranks + 1);
            CHECK_SETTING("a flipped bit at %ld of rank %d's file", odd, r);
            MPI_Barrier(MPI_COMM_WORLD);
            if (!checks.rank) flip(file, odd, 1 << (at / BLOCK % 8));
            MPI_Barrier(MPI_COMM_WORLD);
            snprintf(offset, sizeof offset, "at offset %ld does not match", at);
            must_refuse(t, path, ZERO_ERR_IO, strrchr(file, '/'), offset);
            MPI_Barrier(MPI_COMM_WORLD);
            if (!checks.rank) flip(file, odd, 1 << (at / BLOCK % 8));
        }
    }
}

static char *read_file(const char *path, long *bytes) {
    char *text = calloc(1, MOST_TEXT);
    FILE *f = fopen(path, "rb");
    *bytes = f ? (long)fread(text, 1, MOST_TEXT - 1, f) : 0;
    CHECK(f && *bytes > 0);
    if (f) fclose(f);
    return text;
}

static void write_file(const char *path, const char *text, long bytes) {
    FILE *f = fopen(path, "wb");
    CHECK(f && (long)fwrite(text, 1, bytes, f) == bytes);
    CHECK(f && !fclose(f));
}

// Every byte of the manifest, and every length. One rank is enough: all read the same.
static void check_manifest(const char *path) {
    char manifest[2 * PATH_BYTES], *text = NULL;
    long bytes;
    CHECK_SETTING("every byte of the manifest");
    if (checks.rank) return;
    file_in(manifest, path, -1);
    char *good = read_file(manifest, &bytes);
    for (long at = 0; at < bytes; at++) {
        flip(manifest, at, 1 << (at % 8));
        CHECK(zero_checkpoint_text(path, &text) == ZERO_ERR_IO && strstr(zero_last_error(), "manifest.json"));
        flip(manifest, at, 1 << (at % 8));
    }
    for (long at = bytes - 1; at >= 0; at--) {
        CHECK(!truncate(manifest, at));
        CHECK(zero_checkpoint_text(path, &text) == ZERO_ERR_IO && strstr(zero_last_error(), "manifest.json"));
    }
    CHECK(!text);
    write_file(manifest, good, bytes);
    MUST(zero_checkpoint_text(path, &text));
    CHECK(!strcmp(text, "{}"));
    free(text);
    free(good);
}

typedef enum { CUT, LONGER, EMPTY, GONE, LINK, NO_MANIFEST, DAMAGES } damage;

static void do_damage(damage what, const char *file, const char *manifest, const char *aside) {
    if (what == CUT) CHECK(!truncate(file, size_of(file) - 1));
    if (what == LONGER) CHECK(!truncate(file, size_of(file) + 1));
    if (what == EMPTY) CHECK(!truncate(file, 0));
    if (what == GONE || what == LINK) CHECK(!rename(file, aside));
    if (what == LINK) CHECK(!symlink(aside, file));
    if (what == NO_MANIFEST) CHECK(!unlink(manifest));
}

static void check_files(toy *t, const char *path) {
    static const char *const words[DAMAGES] = {
        [CUT] = "truncated or damaged", [LONGER] = "truncated or damaged", [EMPTY] = "truncated or damaged",
        [GONE] = "No such file",        [LINK] = "symbolic links",         [NO_MANIFEST] = "No such file",
    };
    char file[2 * PATH_BYTES], manifest[2 * PATH_BYTES], aside[PATH_BYTES];
    path_of(aside, "aside");
    for (int what = 0; what < DAMAGES; what++) {
        CHECK_SETTING("damage %d", what);
        MUST(zero_save(t->z, path, NULL));
        file_in(file, path, checks.ranks - 1);
        file_in(manifest, path, -1);
        MPI_Barrier(MPI_COMM_WORLD);
        if (!checks.rank) do_damage(what, file, manifest, aside);
        MPI_Barrier(MPI_COMM_WORLD);
        must_refuse(t, path, ZERO_ERR_IO, words[what],
                    what == NO_MANIFEST ? "manifest.json" : strrchr(file, '/'));
        MPI_Barrier(MPI_COMM_WORLD);
        if (!checks.rank) unlink(aside);
    }
}

// -------- lies: manifests whose checksum is right

// Puts `value` in place of what follows the n-th "key":, up to the next , } or line. Returns the new length.
static long put_value(char *text, const char *key, int n, const char *value) {
    char *at = text;
    for (; n >= 0; n--) {
        at = strstr(at, key);
        if (!at) return -1;
        at += strlen(key);
    }
    at += strspn(at, " :");
    size_t old = strcspn(at, ",}\n");
    if (*at == '"') old = strcspn(at + 1, "\"") + 2;
    if (*at == '[') old = strcspn(at, "]") + 1;
    if (*at == '{') old = 2;
    memmove(at + strlen(value), at + old, strlen(at + old) + 1);
    memcpy(at, value, strlen(value));
    char *tail = strstr(text, ",\n\"xxh3\": ");
    snprintf(tail, 48, ",\n\"xxh3\": \"%016llx\"\n}\n", (unsigned long long)XXH3_64bits(text, tail - text));
    return (long)strlen(text);
}

static const struct {
    const char *key;
    int number;
    const char *value;
    int code;
    const char *words;
} lies[] = {
    { "\"format\"", 0, "\"another\"", ZERO_ERR_ARGUMENT, "\"format\" must be" },
    { "\"version\"", 0, "5", ZERO_ERR_ARGUMENT, "version 5; this library reads version 4" },
    { "\"version\"", 0, "\"4\"", ZERO_ERR_IO, "\"version\" must be a whole number" },
    { "\"dtype\"", 0, "\"fp64\"", ZERO_ERR_IO, "\"dtype\" must be" },
    { "\"value\"", 0, "-1.0", ZERO_ERR_IO, "\"value\" must be" },
    { "\"block_bytes\"", 0, "0", ZERO_ERR_IO, "\"block_bytes\" must be" },
    { "\"block_bytes\"", 0, "262148", ZERO_ERR_IO, "\"block_bytes\" must be a multiple of 4096" },
    { "\"block_bytes\"", 0, "1099511627776", ZERO_ERR_IO, "\"block_bytes\" must be" },
    { "\"files\": [\n {\"name\"", 0, "\"../x\"", ZERO_ERR_IO, "\"name\" must be the name of a file" },
    { "\"files\": [\n {\"name\"", 0, "\"a\\u0000b\"", ZERO_ERR_IO, "manifest.json" },
    { "\"files\": [\n {\"name\"", 0, "7", ZERO_ERR_IO, "\"name\" must be the name of a file" },
    { "\"bytes\"", 0, "4611686018427387903", ZERO_ERR_IO, "\"xxh3\" must be" },
    { "\"bytes\"", 0, "9223372036854775807", ZERO_ERR_IO, "\"bytes\" must be" },
    { "\"bytes\"", 0, "-4", ZERO_ERR_IO, "\"bytes\" must be" },
    { "\"parts\"", 0, "{}", ZERO_ERR_IO, "\"parts\" must be an array" },
    { "\"parts\"", 0, "[]", ZERO_ERR_IO, "manifest.json" },
    { "{\"unit\"", 0, "2147483647", ZERO_ERR_IO, "does not follow" },
    { "{\"unit\"", 0, "-1", ZERO_ERR_IO, "\"unit\" must be" },
    { "\"from\"", 0, "1", ZERO_ERR_IO, "does not follow" },
    { "\"from\"", 1, "-1", ZERO_ERR_IO, "\"from\" must be" },
    { "\"from\":0,\"elems\"", 0, "4611686018427387904", ZERO_ERR_IO, "\"elems\" must be" },
    { "\"from\":0,\"elems\"", 0, "1", ZERO_ERR_IO, "manifest.json" },
    { "\"master\"", 0, "-4", ZERO_ERR_IO, "\"master\" must be" },
    { "\"moment1\"", 0, "9223372036854775804", ZERO_ERR_IO, "\"moment1\" must be" },
    { "\"moment2\"", 0, "2", ZERO_ERR_IO, "\"moment2\" must be a multiple of 4" },
    { "],\"xxh3\"", 0, "\"0123\"", ZERO_ERR_IO, "\"xxh3\" must be" },
    { "],\"xxh3\"", 0, "\"\"", ZERO_ERR_IO, "\"xxh3\" must be" },
    { "\"trainer\"", 0, "7", ZERO_ERR_IO, "\"trainer\" must be an object" },
    { "{\"name\"", 0, "\"wtf\"", ZERO_ERR_ARGUMENT, "another model: tensor 0 is \"wte\" here and \"wtf\"" },
    { "\"dims\"", 1, "[130]", ZERO_ERR_ARGUMENT, "another model: dimension 0 of lnw is 129 here and 130" },
    { "\"layers\"", 1, "3", ZERO_ERR_ARGUMENT, "another model: layers of lnw is 4 here and 3" },
    { "\"unit\"", 1, "2", ZERO_ERR_ARGUMENT, "another model: unit of lnw is 1 here and 2" },
    { ",\"tensors\"", 0, "[]", ZERO_ERR_ARGUMENT, "another model: the number of tensors of " },
    { "{\"tensor\"", 0, "1", ZERO_ERR_ARGUMENT, "another model: tensor of place 0 of " },
    { "\"layer\"", 0, "1", ZERO_ERR_ARGUMENT, "another model: layer of place 0 of " },
    { "\"offset\"", 0, "128", ZERO_ERR_ARGUMENT, "another model: offset of place 0 of " },
};

static void check_lies(toy *t, const char *path) {
    char manifest[2 * PATH_BYTES];
    long bytes;
    MUST(zero_save(t->z, path, NULL));
    MUST(zero_barrier(t->z));
    file_in(manifest, path, -1);
    char *good = read_file(manifest, &bytes);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        char *text = calloc(1, MOST_TEXT);
        memcpy(text, good, bytes);
        long length = put_value(text, lies[i].key, lies[i].number, lies[i].value);
        if (length >= 0) {  // a key that this number of ranks has not is not tried
            CHECK_SETTING("a manifest with %s %s", lies[i].key, lies[i].value);
            MPI_Barrier(MPI_COMM_WORLD);
            if (!checks.rank) write_file(manifest, text, length);
            MPI_Barrier(MPI_COMM_WORLD);
            must_refuse(t, path, lies[i].code, "manifest.json", lies[i].words);
        }
        free(text);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (!checks.rank) write_file(manifest, good, bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    MUST(zero_load(t->z, path, NULL));
    free(good);
}

static void check_other_model(toy *t, const zero_config *c, const char *path) {
    zero_unit units[TOY_UNITS];
    zero_tensor tensors[TOY_TENSORS];
    zero *other;
    CHECK_SETTING("another model");
    MUST(zero_save(t->z, path, NULL));
    memcpy(units, toy_units, sizeof units);
    memcpy(tensors, toy_tensors, sizeof tensors);
    tensors[2].dims[0]--;
    MUST(zero_create(&other, c, tensors, TOY_TENSORS, units, TOY_UNITS));
    CHECK(zero_load(other, path, NULL) == ZERO_ERR_ARGUMENT);
    CHECK(strstr(zero_last_error(), "another model: dimension 0 of w is 5002 here and 5003 there"));
    zero_destroy(other);
}

static void check_damage(void) {
    char path[PATH_BYTES];
    path_of(path, "damaged");
    for (int stage = 1; stage <= 3; stage += 2) {
        zero_config c = config_at(stage, 0);
        toy t;
        MUST(toy_create(&t, &c, NULL));
        steps(&t, 1, 1);
        MUST(zero_save(t.z, path, NULL));
        steps(&t, 2, 2);  // so that a load would change something
        check_blocks(&t, path);
        if (stage == 3) check_manifest(path);
        check_files(&t, path);
        check_lies(&t, path);
        check_other_model(&t, &c, path);
        steps(&t, 2, 2);  // and training goes on
        zero_destroy(t.z);
    }
    remove_checkpoint(path);
}

// -------- saves that fail

static int entries(const char *path) {
    DIR *dir = opendir(path);
    int n = 0;
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir)) n += *e->d_name != '.';
    if (dir) closedir(dir);
    return n;
}

// The checkpoint before stays, and nothing is left beside it.
static void check_failed_save(toy *t, const char *path, const char *saved) {
    char hex[17], other[2 * PATH_BYTES];
    CHECK_SETTING("a text that is no object");
    CHECK(zero_save(t->z, path, "[1]") == ZERO_ERR_ARGUMENT &&
          strstr(zero_last_error(), "not a JSON object"));
    CHECK(zero_save(t->z, path, "{") == ZERO_ERR_ARGUMENT && strstr(zero_last_error(), "not a JSON object"));
    CHECK_SETTING("a folder that cannot be made");
    CHECK(zero_save(t->z, "/proc/no/folder", NULL) == ZERO_ERR_IO);
    if (checks.ranks > 1) {
        CHECK_SETTING("ranks that name other folders");
        snprintf(other, sizeof other, "%s%s", path, checks.rank ? ".other" : "");
        CHECK(zero_save(t->z, other, NULL) == ZERO_ERR_ARGUMENT);
        CHECK(strstr(zero_last_error(), "all ranks name one folder"));
    }
    CHECK_SETTING("the checkpoint before is there");
    CHECK(entries(path) == checks.ranks + 1);
    MUST(zero_load(t->z, path, NULL));
    MUST(zero_hash(t->z, 1, hex));
    CHECK(!strcmp(hex, saved));
}

static void touch(const char *folder, const char *name) {
    char path[2 * PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    CHECK(f && !fclose(f));
}

// A save over another one, and over what a dead one has left; what is not of a save stays.
static void check_save_again(void) {
    char path[PATH_BYTES], own[2 * PATH_BYTES], saved[17], hex[17];
    zero_config c = config_at(2, 1);
    toy t;
    path_of(path, "again");
    MUST(toy_create(&t, &c, NULL));
    CHECK_SETTING("a save over another one");
    for (int i = 1; i <= 2; i++) {
        MUST(zero_save(t.z, path, NULL));
        steps(&t, i, i);
    }
    if (!checks.rank) {
        touch(path, "rank00007-0123456789abcdef.states");
        touch(path, ".manifest.json.0123456789abcdef");
        touch(path, "notes");
    }
    MUST(zero_save(t.z, path, NULL));
    MUST(zero_hash(t.z, 1, saved));
    MUST(zero_barrier(t.z));
    CHECK(entries(path) == checks.ranks + 2);
    snprintf(own, sizeof own, "%s/notes", path);
    MPI_Barrier(MPI_COMM_WORLD);
    if (!checks.rank) CHECK(!unlink(own));
    steps(&t, 3, 3);
    MUST(zero_load(t.z, path, NULL));
    MUST(zero_hash(t.z, 1, hex));
    CHECK(!strcmp(hex, saved));
    steps(&t, 3, 3);
    check_failed_save(&t, path, saved);
    zero_destroy(t.z);
    remove_checkpoint(path);
    CHECK(zero_checkpoint_remove(path) == 0);  // what is not there is gone
}

// -------- other ranks

// Settings of the matrix: a stage, and where states lie.
// clang-format off
static const struct {
    const char *name;
    int stage;
    zero_tier params, optimizer;
    double ratio;
} matrix[] = {
    { "stage 0",                  0, ZERO_DEVICE, ZERO_DEVICE, 1 },
    { "stage 1",                  1, ZERO_DEVICE, ZERO_DEVICE, 1 },
    { "stage 2",                  2, ZERO_DEVICE, ZERO_DEVICE, 1 },
    { "stage 3",                  3, ZERO_DEVICE, ZERO_DEVICE, 1 },
    { "stage 3, all on NVMe",     3, ZERO_NVME,   ZERO_NVME,   1 },
    { "stage 3, all on the host", 3, ZERO_HOST,   ZERO_HOST,   1 },
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
    return c;
}

// The digest of masters and moments as fp32 has them, whatever dtype the run computes in.
static void digest_values(zero *z, char hex[17]) {
    uint64_t digest = 0;
    for (zero_value what = ZERO_MASTER; what <= ZERO_MOMENT2; what++) {
        float *values = values_of(z, what);
        digest = XXH3_64bits_withSeed(values, ALL_VALUES * sizeof *values, digest);
        free(values);
    }
    snprintf(hex, 17, "%016llx", (unsigned long long)digest);
}

// all: every kind in every format, else every other one.
static void save_all(int all) {
    for (int format = 0; format < SETTINGS_COUNT(settings_formats); format++)
        for (int kind = 0; kind < KINDS; kind++) {
            char path[PATH_BYTES], name[64], text[100], hex[17], values[17];
            toy t;
            if (!all && (kind + format + checks.ranks) % 2) continue;
            zero_config c = matrix_config(kind, format);
            snprintf(name, sizeof name, "np%d_kind%d_format%d", checks.ranks, kind, format);
            CHECK_SETTING("%s", name);
            path_of(path, name);
            MUST(toy_create(&t, &c, NULL));
            steps(&t, 1, 2);
            MUST(zero_hash(t.z, 1, hex));
            digest_values(t.z, values);
            snprintf(text, sizeof text, "{\"hash\": \"%s\", \"values\": \"%s\", \"format\": %d}", hex, values,
                     format);
            MUST(zero_save(t.z, path, text));
            zero_destroy(t.z);
        }
}

// Loads as `format`; -1: as the one that was saved. Another one has the same masters and moments, unless it
// has no masters. untouched: into a plugin whose states are still 0.
static void load_one(const char *path, int kind, int format, int untouched) {
    char *text = NULL, hash[17] = "", values[17] = "", hex[17];
    int saved = -1;
    MUST(zero_checkpoint_text(path, &text));
    CHECK(sscanf(text, " { \"hash\" : \"%16[^\"]\" , \"values\" : \"%16[^\"]\" , \"format\" : %d", hash,
                 values, &saved) == 3);
    free(text);
    if (format < 0) format = saved;
    zero_config c = matrix_config(kind, format);
    toy t;
    MUST(untouched ? toy_create_empty(&t, &c, NULL) : toy_create(&t, &c, NULL));
    if (!untouched) steps(&t, 1, 1);
    MUST(zero_load(t.z, path, NULL));
    MUST(zero_hash(t.z, 1, hex));
    CHECK(format != saved || !strcmp(hex, hash));
    digest_values(t.z, hex);
    CHECK((format != saved && settings_formats[format].no_master) || !strcmp(hex, values));
    steps(&t, 3, 3);  // and training goes on
    zero_destroy(t.z);
}

// all: as each kind, and every other time in another format; else as one of them, so that every two of ranks,
// kinds and formats that saved and that load meet.
static void load_all(int all) {
    struct dirent **list;
    int n = scandir(folder, &list, NULL, alphasort), loaded = 0;
    for (int i = 0; i < n; i++) {
        char path[PATH_BYTES];
        if (strncmp(list[i]->d_name, "np", 2)) continue;
        snprintf(path, sizeof path, "%s/%.60s", folder, list[i]->d_name);
        const int turn = i / 2 + checks.ranks, first = i + 2 * (turn % 2) + 4 * checks.ranks;
        for (int k = 0; k < (all ? KINDS : 1); k++) {
            int kind = (first + k) % KINDS;
            int format = (turn + k) % 2 ? (i / 4 + checks.ranks + 1) % SETTINGS_COUNT(settings_formats) : -1;
            CHECK_SETTING("%.60s loaded by %d ranks, %s, format %d", list[i]->d_name, checks.ranks,
                          matrix[kind].name, format);
            load_one(path, kind, format, (i / 2 + i / 9 + checks.ranks / 2 + k) % 2);
            loaded++;
        }
    }
    CHECK(loaded > 0);
    if (!checks.rank) printf("%d loaded\n", loaded);
}

int main(int argc, char **argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
    checks_begin();
    if (argc >= 3) {
        snprintf(folder, sizeof folder, "%s", argv[2]);
        if (strcmp(argv[1], "save"))
            load_all(argc == 4);
        else
            save_all(argc == 4);
    } else {
        check_make_folder(folder, sizeof folder, "build");
        check_same_ranks();
        check_read_alone();
        check_dtypes();
        check_damage();
        check_save_again();
        MPI_Barrier(MPI_COMM_WORLD);
        if (!checks.rank) CHECK(!rmdir(folder));  // nothing else was left in it
    }
    int failed = checks_end("mpi_checkpoint");
    MPI_Finalize();
    return failed;
}
