// A checkpoint's manifest, with a valid file of states. The target corrects the manifest's digest before each
// read, so that the reader gets past that check.
#define XXH_INLINE_ALL
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>
#include "../../llmc_zero/internal.h"
#include "../small.h"
#include "fuzz.h"

enum { BLOCK = 4096, BLOCKS = 6 };
static zero *z;
static char hash[17];       // of the plugin's states
static char *good, *brief;  // manifests; the brief one has no description of the run

static json_t *digests_of(const unsigned char *bytes) {
    char hex[BLOCKS * 16 + 1];
    for (int i = 0; i < BLOCKS; i++)
        sprintf(hex + i * 16, "%016llx", (unsigned long long)XXH3_64bits(bytes + i * BLOCK, BLOCK));
    return json_string(hex);
}

static void move_state(json_t *part, const char *name, int block) {
    const json_int_t at = json_integer_value(json_object_get(part, name));
    json_object_set_new(part, name, json_integer(at + block * BLOCK));
}

// Gives the file of states a fixed name, and each kind of state its own blocks.
static void move_states(json_t *root, const char *folder) {
    unsigned char bytes[BLOCKS * BLOCK] = "";
    char path[4096];
    json_t *file = json_array_get(json_object_get(root, "files"), 0), *part;
    size_t i;
    snprintf(path, sizeof path, "%s/%s", folder, json_string_value(json_object_get(file, "name")));
    FILE *f = fopen(path, "rb");
    FUZZ_MUST(f);
    size_t n = fread(bytes, 1, 2 * BLOCK, f);
    FUZZ_MUST(n > 0 && n < 2 * BLOCK && !fclose(f) && !remove(path));
    memcpy(bytes + 2 * BLOCK, bytes, n);
    memcpy(bytes + 4 * BLOCK, bytes, n);
    fuzz_file("saved/states", bytes, sizeof bytes);
    json_array_foreach(json_object_get(file, "parts"), i, part) {
        move_state(part, "moment1", 2);
        move_state(part, "moment2", 4);
    }
    json_object_set_new(root, "block_bytes", json_integer(BLOCK));
    json_object_set_new(file, "name", json_string("states"));
    json_object_set_new(file, "bytes", json_integer(sizeof bytes));
    json_object_set_new(file, "xxh3", digests_of(bytes));
    json_object_del(root, "xxh3");
}

static void save(void) {
    json_error_t e;
    FUZZ_MUST(!small_create(&z) && !zero_hash(z, 1, hash));
    char *path = strdup(fuzz_path("saved")), *run = fuzz_run_text();
    FUZZ_MUST(!zero_save(z, path, run));
    free(run);
    json_t *root = json_load_file(fuzz_path("saved/manifest.json"), 0, &e);
    FUZZ_MUST(root);
    move_states(root, path);
    good = json_dumps(root, JSON_INDENT(1));
    json_object_set_new(root, "trainer", json_object());
    brief = json_dumps(root, JSON_INDENT(1));
    FUZZ_MUST(good && brief);
    json_decref(root);
    free(path);
}

static void give_seeds(void) {
    fuzz_seed("manifest", good, strlen(good));
    fuzz_seed("brief", brief, strlen(brief));
}

// -------- reading

// Checks that training can continue indefinitely with this scale.
static void check_scale(const loss_scale *s) {
    FUZZ_MUST(s->value > 0 && isfinite(s->value));
    FUZZ_MUST(s->steps >= 0 && s->steps <= INT64_MAX / 2);
    FUZZ_MUST(s->last_overflow >= -1 && s->last_overflow <= s->steps);
    FUZZ_MUST(s->left >= 0);
}

// Loads the checkpoint. A failed load must change nothing.
static int load(const char *path) {
    char *text = NULL, after[17];
    const loss_scale before = step_scale(z);
    int failed = zero_load(z, path, &text);
    FUZZ_MUST(!zero_hash(z, 1, after));
    const loss_scale scale = step_scale(z);
    check_scale(&scale);
    if (failed) {
        FUZZ_MUST(!text && !strcmp(after, hash));
        FUZZ_MUST(!memcmp(&before, &scale, sizeof before));
        FUZZ_MUST(strstr(zero_last_error(), path));
        return 0;
    }
    memcpy(hash, after, sizeof hash);
    fuzz_read_run(text);
    free(text);
    return 1;
}

static const uint8_t *last_of(const uint8_t *bytes, size_t n, const char *words) {
    const size_t length = strlen(words);
    for (size_t at = n; at-- > 0;)
        if (n - at >= length && !memcmp(bytes + at, words, length)) return bytes + at;
    return NULL;
}

// Corrects the digest. Without one, puts a digest in place of the text from the last brace on.
static int read_manifest(const uint8_t *bytes, size_t n) {
    const uint8_t *end = last_of(bytes, n, ",\n\"xxh3\": \"");
    if (!end) end = last_of(bytes, n, "}");
    const size_t length = end ? (size_t)(end - bytes) : n;
    char *text = malloc(length + 64);
    FUZZ_MUST(text);
    memcpy(text, bytes, length);
    int tail = sprintf(text + length, ",\n\"xxh3\": \"%016llx\"\n}\n",
                       (unsigned long long)XXH3_64bits(text, length));
    fuzz_file("saved/manifest.json", text, length + (size_t)tail);
    free(text);
    return load(fuzz_path("saved"));
}

const fuzz_target fuzz_checkpoint = {
    .name = "checkpoint", .is_text = 1, .begin = save, .seeds = give_seeds, .read = read_manifest
};
