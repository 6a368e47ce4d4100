// Damages a small checkpoint: flipped bits in every byte, every shorter length, folders or pipes in place of
// files, mixed files of two saves, and forged manifests. A load must fail and change nothing. The error must
// name the file and, for states, the offset.
//   test_flips        one bit of every byte
//   test_flips all    every bit of every byte
#define XXH_INLINE_ALL
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "unit.h"
#include "small.h"

enum { MOST = 1 << 16, PATH = 300 };

static zero *z;
static char folder[] = "/tmp/test_flips.XXXXXX";
static char hash[17];  // hash of the plugin's states, which a failed load must not change
static int all_bits;

static void in_folder(char path[PATH], const char *name) { snprintf(path, PATH, "%s/%s", folder, name); }

// -------- files

typedef struct {
    char path[PATH];
    unsigned char bytes[MOST];
    long n;
} file;

static void read_back(file *f, const char *path) {
    snprintf(f->path, PATH, "%s", path);
    FILE *from = fopen(path, "rb");
    assert_non_null(from);
    f->n = (long)fread(f->bytes, 1, MOST, from);
    assert_int_equal(fclose(from), 0);
    assert_true(f->n > 0 && f->n < MOST);
}

static void put(const char *path, const void *bytes, long n) {
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    assert_return_code(fd, errno);
    assert_int_equal(write(fd, bytes, (size_t)n), n);
    assert_int_equal(close(fd), 0);
}

static void put_byte(const char *path, long at, int byte) {
    unsigned char c = (unsigned char)byte;
    int fd = open(path, O_WRONLY);
    assert_return_code(fd, errno);
    assert_int_equal(pwrite(fd, &c, 1, at), 1);
    assert_int_equal(close(fd), 0);
}

// Reads the file of states; the checkpoint has only one rank.
static void read_states_of(file *f, const char *checkpoint) {
    char path[2 * PATH] = "";
    DIR *dir = opendir(checkpoint);
    assert_non_null(dir);
    for (struct dirent *e = readdir(dir); e; e = readdir(dir))
        if (!strncmp(e->d_name, "rank00000", 9)) snprintf(path, sizeof path, "%s/%s", checkpoint, e->d_name);
    closedir(dir);
    read_back(f, path);
}

// -------- checks

static int must_not_load(const char *path, const char *file_name, const char *words) {
    char *text = NULL, after[17];
    int rc = zero_load(z, path, &text);
    if (!rc) fail_msg("%s was loaded, though %s is damaged", path, file_name);
    assert_true(rc == ZERO_ERR_IO || rc == ZERO_ERR_ARGUMENT);
    if (!strstr(zero_last_error(), file_name) || !strstr(zero_last_error(), words))
        fail_msg("expected '%s' and '%s': %s", words, file_name, zero_last_error());
    assert_null(text);
    assert_int_equal(zero_hash(z, 1, after), 0);
    assert_string_equal(after, hash);
    return rc;
}

static void must_refuse(const char *path, const char *file_name, const char *words) {
    int rc = must_not_load(path, file_name, words);
    assert_int_equal(zero_checkpoint_verify(path, NULL, NULL), rc);
    assert_non_null(strstr(zero_last_error(), file_name));
}

static void count_file(void *files, const char *path, int64_t bytes) {
    struct stat st;
    assert_return_code(stat(path, &st), errno);
    assert_int_equal(st.st_size, bytes);
    ++*(int *)files;
}

static void must_load(const char *path) {
    int files = 0;
    assert_int_equal(zero_checkpoint_verify(path, count_file, &files), 0);
    assert_int_equal(files, 2);
    assert_int_equal(zero_load(z, path, NULL), 0);
    assert_int_equal(small_fill(z, -1), 0);  // makes the states differ from the checkpoint again
    assert_int_equal(zero_hash(z, 1, hash), 0);
}

static const char *name_of(const file *f) { return strrchr(f->path, '/') + 1; }

static void flip_every_byte(const file *f, const char *path, const char *words) {
    for (long at = 0; at < f->n; at++)
        for (int bit = 0; bit < 8; bit++) {
            if (!all_bits && bit != at % 8) continue;
            put_byte(f->path, at, f->bytes[at] ^ 1 << bit);
            must_refuse(path, name_of(f), words);
            put_byte(f->path, at, f->bytes[at]);
        }
    must_load(path);
}

static void cut_at_every_byte(const file *f, const char *path, const char *words) {
    for (long n = f->n - 1; n >= 0; n--) {
        assert_return_code(truncate(f->path, n), errno);
        must_refuse(path, name_of(f), words);
    }
    put(f->path, f->bytes, f->n);
    assert_return_code(truncate(f->path, f->n + 1), errno);
    must_refuse(path, name_of(f), words);
    put(f->path, f->bytes, f->n);
    must_load(path);
}

// -------- the tests

static char saved[PATH];  // a checkpoint
static file manifest, states;

static int begin(void **state) {
    if (!mkdtemp(folder) || small_create(&z)) return -1;
    in_folder(saved, "saved");
    if (zero_save(z, saved, "{\"step\": 1}") || small_fill(z, -1) || zero_hash(z, 1, hash)) return -1;
    read_states_of(&states, saved);
    char path[2 * PATH];
    snprintf(path, sizeof path, "%s/manifest.json", saved);
    read_back(&manifest, path);
    return 0;
}

static int end(void **state) {
    zero_destroy(z);
    if (zero_checkpoint_remove(saved)) return -1;
    return rmdir(folder);
}

static void test_states(void **state) {
    flip_every_byte(&states, saved, "at offset 0 does not match its checksum");
    cut_at_every_byte(&states, saved, "ends at offset");
}

static void test_manifest(void **state) {
    flip_every_byte(&manifest, saved, "the checksum at offset");
    cut_at_every_byte(&manifest, saved, "");
}

// -------- forged manifests with a correct checksum

// Replaces the value after occurrence n (from 0) of the key, and corrects the checksum.
static void put_value(char *text, const char *key, int n, const char *value) {
    char *at = text;
    for (; n >= 0; n--) {
        at = strstr(at, key);
        assert_non_null(at);
        at += strlen(key);
    }
    at += strspn(at, " :");
    size_t old = strcspn(at, ",}\n");
    if (*at == '"') old = strcspn(at + 1, "\"") + 2;
    if (*at == '[') old = strcspn(at, "]") + 1;
    if (*at == '{') old = strcspn(at, "}") + 1;
    memmove(at + strlen(value), at + old, strlen(at + old) + 1);
    memcpy(at, value, strlen(value));
    char *tail = strstr(text, ",\n\"xxh3\": ");
    snprintf(tail, 48, ",\n\"xxh3\": \"%016llx\"\n}\n", (unsigned long long)XXH3_64bits(text, tail - text));
}

static const struct {
    const char *key;
    int number;
    const char *value;
    int code;
    const char *words;
} false_values[] = {
    { "\"format\"", 0, "\"another\"", ZERO_ERR_ARGUMENT, "\"format\" must be" },
    { "\"version\"", 0, "5", ZERO_ERR_ARGUMENT, "version 5; this library reads version 4" },
    { "\"version\"", 0, "\"4\"", ZERO_ERR_IO, "\"version\" must be a whole number" },
    { "\"dtype\"", 0, "\"fp64\"", ZERO_ERR_IO, "\"dtype\" must be" },
    { "\"value\"", 0, "-1.0", ZERO_ERR_IO, "\"value\" must be" },
    { "\"left\"", 0, "-1", ZERO_ERR_IO, "\"left\" must be a whole number of 0 to" },
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
    { "{\"name\"", 0, "\"wtf\"", ZERO_ERR_ARGUMENT,
      "another model: tensors[0] wte: name is \"wte\" here and \"wtf\"" },
    { "\"dims\"", 1, "[130]", ZERO_ERR_ARGUMENT,
      "another model: tensors[1] lnw: dims[0] is 20 here and 130" },
    { "\"layers\"", 1, "3", ZERO_ERR_ARGUMENT, "another model: tensors[1] lnw: layers is 2 here and 3" },
    { "\"unit\"", 1, "2", ZERO_ERR_ARGUMENT, "another model: tensors[1] lnw: unit is 1 here and 2" },
    { ",\"tensors\"", 0, "[]", ZERO_ERR_ARGUMENT, ": tensors has 1 rows here and 0 there" },
    { "{\"tensor\"", 0, "1", ZERO_ERR_ARGUMENT, ": tensors[0]: tensor is 0 here and 1" },
    { "\"layer\"", 0, "1", ZERO_ERR_ARGUMENT, ": tensors[0]: layer is 0 here and 1" },
    { "\"elems\"", 0, "7", ZERO_ERR_ARGUMENT, "another model: units[0] emb: elems is " },
    { "\"offset\"", 0, "128", ZERO_ERR_ARGUMENT, ": tensors[0]: offset is 0 here and 128" },
};

static void test_false_manifests(void **state) {
    static char text[MOST];
    for (size_t i = 0; i < sizeof false_values / sizeof *false_values; i++) {
        snprintf(text, sizeof text, "%.*s", (int)manifest.n, (const char *)manifest.bytes);
        put_value(text, false_values[i].key, false_values[i].number, false_values[i].value);
        put(manifest.path, text, (long)strlen(text));
        int rc = must_not_load(saved, "manifest.json", false_values[i].words);
        if (rc != false_values[i].code) fail_msg("%s %s: %d", false_values[i].key, false_values[i].value, rc);
    }
    put(manifest.path, manifest.bytes, manifest.n);
    must_load(saved);
}

// -------- paths that are not regular files

typedef enum { GONE, A_FOLDER, A_PIPE, A_LINK_TO_NOTHING, A_LINK_TO_ZEROS, KINDS } kind;

static void put_in_place(const char *path, kind what) {
    assert_return_code(unlink(path), errno);
    if (what == A_FOLDER) assert_return_code(mkdir(path, 0700), errno);
    if (what == A_PIPE) assert_return_code(mkfifo(path, 0600), errno);
    if (what == A_LINK_TO_NOTHING) assert_return_code(symlink("nothing", path), errno);
    if (what == A_LINK_TO_ZEROS) assert_return_code(symlink("/dev/zero", path), errno);
}

// Opening a pipe without a writer must not block; if it does, the alarm ends the program.
static void test_not_a_file(void **state) {
    const file *files[] = { &states, &manifest };
    alarm(60);
    for (int i = 0; i < 2; i++)
        for (int what = 0; what < KINDS; what++) {
            put_in_place(files[i]->path, what);
            must_refuse(saved, name_of(files[i]), "");
            if (what != GONE) assert_return_code(remove(files[i]->path), errno);
            put(files[i]->path, files[i]->bytes, files[i]->n);
            must_load(saved);
        }
    alarm(0);
}

// A symlink is refused even if it leads to the right states, because its target may change at any time.
static void test_link(void **state) {
    char aside[PATH];
    in_folder(aside, "aside");
    assert_return_code(rename(states.path, aside), errno);
    assert_return_code(symlink(aside, states.path), errno);
    must_refuse(saved, "rank00000", "symbolic links");
    assert_return_code(rename(aside, states.path), errno);
    must_load(saved);
}

// Mixes the files of two saves. Each file on its own is valid.
static void test_two_saves(void **state) {
    char other[PATH];
    file others;
    in_folder(other, "other");
    assert_int_equal(zero_save(z, other, "{\"step\": 2}"), 0);
    read_states_of(&others, other);
    assert_int_equal(others.n, states.n);
    put(states.path, others.bytes, others.n);
    must_refuse(saved, name_of(&states), "does not match its checksum");
    put(states.path, states.bytes, states.n);
    char path[2 * PATH];
    snprintf(path, sizeof path, "%s/manifest.json", other);
    put(path, manifest.bytes, manifest.n);
    must_refuse(other, name_of(&states), "No such file");
    assert_int_equal(zero_checkpoint_remove(other), 0);
    must_load(saved);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states),     cmocka_unit_test(test_manifest),
        cmocka_unit_test(test_not_a_file), cmocka_unit_test(test_link),
        cmocka_unit_test(test_two_saves),  cmocka_unit_test(test_false_manifests),
    };
    all_bits = argc > 1 && !strcmp(argv[1], "all");
    return cmocka_run_group_tests_name("flips", tests, begin, end);
}
