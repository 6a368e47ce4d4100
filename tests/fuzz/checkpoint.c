// A checkpoint: its manifest, and its file of states, each beside the other, valid file. One target corrects
// the manifest's digest before each read, so that the reader gets past that check.
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

enum { BLOCK = 4096, BLOCKS = 3 };
static zero *z;
static char hash[17];       // of the plugin's states
static char *good, *brief;  // manifests; the brief one has no description of the run. Both lack the digest
static unsigned char states[BLOCKS * BLOCK];

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
    char path[4096];
    json_t *file = json_array_get(json_object_get(root, "files"), 0), *part;
    size_t i;
    snprintf(path, sizeof path, "%s/%s", folder, json_string_value(json_object_get(file, "name")));
    size_t n = fuzz_bytes(path, states, BLOCK);
    FUZZ_MUST(!remove(path));
    memcpy(states + BLOCK, states, n);
    memcpy(states + 2 * BLOCK, states, n);
    json_array_foreach(json_object_get(file, "parts"), i, part) {
        move_state(part, "moment1", 1);
        move_state(part, "moment2", 2);
    }
    json_object_set_new(root, "block_bytes", json_integer(BLOCK));
    json_object_set_new(file, "name", json_string("states"));
    json_object_set_new(file, "bytes", json_integer(sizeof states));
    json_object_set_new(file, "xxh3", digests_of(states));
    json_object_del(root, "xxh3");
}

static void save(void) {
    json_error_t e;
    if (z) return;
    FUZZ_MUST(!small_create(&z));
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
    FUZZ_MUST(!small_fill(z, -1) && !zero_hash(z, 1, hash));
    json_decref(root);
    free(path);
}

// -------- reading

// Checks that training can continue indefinitely with this scale.
static void check_scale(const loss_scale *s) {
    FUZZ_MUST(s->value > 0 && isfinite(s->value));
    FUZZ_MUST(s->steps >= 0 && s->steps <= INT64_MAX / 2);
    FUZZ_MUST(s->last_overflow >= -1 && s->last_overflow <= s->steps);
    FUZZ_MUST(s->left >= 0);
}

// These messages are about a valid checkpoint that this plugin cannot load, not about damage. Each follows
// the manifest's name; a message about damage may quote any text.
static int is_of_other(const char *error) {
    static const char *const words[] = { ": belongs to another model: ",
                                         ": not the manifest of a checkpoint: ", ": was saved with ",
                                         ": its optimizer is ", ": version " };
    const char *path = fuzz_path("saved/manifest.json");
    const size_t length = strlen(path);
    if (strncmp(error, path, length) != 0) return 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strncmp(error + length, words[i], strlen(words[i]))) return 1;
    return 0;
}

// Loads the checkpoint. A failed load must change nothing. A successful one must change the states, so they
// are changed back.
static const char *load(void) {
    static char error[4096];
    const char *path = fuzz_path("saved");
    char *text = NULL, after[17];
    const loss_scale before = step_scale(z);
    const int failed = zero_load(z, path, &text);
    snprintf(error, sizeof error, "%s", zero_last_error());
    FUZZ_MUST(!zero_hash(z, 1, after));
    FUZZ_MUST(!strcmp(after, hash) == (failed != 0));
    const loss_scale scale = step_scale(z);
    check_scale(&scale);
    if (failed) {
        FUZZ_MUST(!text && !memcmp(&before, &scale, sizeof before));
        FUZZ_MUST(failed == (is_of_other(error) ? ZERO_ERR_ARGUMENT : ZERO_ERR_IO));
        return error;
    }
    FUZZ_MUST(!small_fill(z, -1) && !zero_hash(z, 1, hash));
    fuzz_read_run(text);
    free(text);
    return NULL;
}

static const uint8_t *last_of(const uint8_t *bytes, size_t n, const char *words) {
    const size_t length = strlen(words);
    for (size_t at = n; at-- > 0;)
        if (n - at >= length && !memcmp(bytes + at, words, length)) return bytes + at;
    return NULL;
}

// Writes the first n bytes of a manifest, and its digest.
static void write_manifest(const uint8_t *bytes, size_t n) {
    char *text = malloc(n + 64);
    FUZZ_MUST(text);
    memcpy(text, bytes, n);
    int tail = sprintf(text + n, ",\n\"xxh3\": \"%016llx\"\n}\n", (unsigned long long)XXH3_64bits(text, n));
    fuzz_file("saved/manifest.json", text, n + (size_t)tail);
    free(text);
}

static void write_good(void) { write_manifest((uint8_t *)brief, strlen(brief) - 1); }

// -------- the manifest, with its digest corrected

static void begin_manifest(void) {
    save();
    fuzz_file("saved/states", states, sizeof states);
}

static void give_manifests(void) {
    fuzz_seed("manifest", good, strlen(good));
    fuzz_seed("brief", brief, strlen(brief));
}

// Without a digest, puts one in place of the text from the last brace on.
static const char *read_mended(const uint8_t *bytes, size_t n) {
    const uint8_t *end = last_of(bytes, n, ",\n\"xxh3\": \"");
    if (!end) end = last_of(bytes, n, "}");
    write_manifest(bytes, end ? (size_t)(end - bytes) : n);
    return load();
}

static const fuzz_damage false_values[] = {
    { "\"llmc_zero checkpoint\"", "\"another\"", ": not the manifest of a checkpoint: \"format\" must be" },
    { "\"version\": 4", "\"version\": 5", "version 5; this library reads version 4" },
    { "\"version\": 4", "\"version\": \"4\"", "\"version\" must be a whole number" },
    { "\"fp16\"", "\"fp64\"", "\"dtype\" must be" },
    { "\"value\": 65536.0", "\"value\": -1.0", "\"value\" must be" },
    { "\"left\": 2", "\"left\": -1", "\"left\" must be a whole number of 0 to" },
    { "\"update_states\": 2", "\"update_states\": 1", "" },
    { "\"update\": \"AdamW\",", "", NULL },
    { "\"update\": \"AdamW\"", "\"update\": 7", "\"update\" must be a string" },
    { "\"AdamW\"", "\"Lion\"", "its optimizer is Lion, and this run's is AdamW" },
    { "\"block_bytes\": 4096", "\"block_bytes\": 0", "\"block_bytes\" must be" },
    { "\"block_bytes\": 4096", "\"block_bytes\": 262148", "\"block_bytes\" must be a multiple of 4096" },
    { "\"block_bytes\": 4096", "\"block_bytes\": 1099511627776", "\"block_bytes\" must be" },
    { "\"states\"", "\"../x\"", "\"name\" must be the name of a file" },
    { "\"states\"", "\"a\\u0000b\"", "manifest.json" },
    { "\"states\"", "\"a/b\"", "\"name\" must be the name of a file" },
    { "\"states\"", "7", "\"name\" must be the name of a file" },
    { "\"bytes\": 12288", "\"bytes\": 4611686018427387903", "\"xxh3\" must be" },
    { "\"bytes\": 12288", "\"bytes\": 9223372036854775807", "\"bytes\" must be" },
    { "\"bytes\": 12288", "\"bytes\": -4", "\"bytes\" must be" },
    { "\"parts\": [", "\"parts\": {}, \"other\": [", "\"parts\" must be an array" },
    { "\"parts\": [", "\"parts\": [], \"other\": [", "manifest.json" },
    { "\"unit\": 0,\n     \"from\"", "\"unit\": 2147483647,\n     \"from\"", "does not follow" },
    { "\"unit\": 0,\n     \"from\"", "\"unit\": -1,\n     \"from\"", "\"unit\" must be" },
    { "\"from\": 0", "\"from\": 1", "does not follow" },
    { "\"unit\": 1,\n     \"from\": 0", "\"unit\": 1,\n     \"from\": -1", "\"from\" must be" },
    { "\"from\": 0,\n     \"elems\": 90", "\"from\": 0,\n     \"elems\": 4611686018427387904",
      "\"elems\" must be" },
    { "\"from\": 0,\n     \"elems\": 90", "\"from\": 0,\n     \"elems\": 1", "manifest.json" },
    { "{\n     \"unit\": 0,\n     \"from\": 0,\n     \"elems\": 90",
      "{\"unit\":0,\"from\":0,\"elems\":45,\"master\":0,\"moment1\":4456,\"moment2\":8912},"
      "{\"unit\":0,\"from\":0,\"elems\":45",
      "does not follow" },
    { "\"master\": 0", "\"master\": -4", "\"master\" must be" },
    { "\"moment1\": 4456", "\"moment1\": 9223372036854775804", "\"moment1\" must be" },
    { "\"moment2\": 8912", "\"moment2\": 2", "\"moment2\" must be a multiple of 4" },
    { "\"xxh3\": \"", "\"xxh3\": \"0123\", \"other\": \"", "\"xxh3\" must be" },
    { "\"xxh3\": \"", "\"xxh3\": \"\", \"other\": \"", "\"xxh3\" must be" },
    { "\"trainer\": {", "\"trainer\": 7, \"other\": {", "\"trainer\" must be an object" },
    { "\"wte\"", "\"wtf\"", "another model: tensors[0] wte: name is \"wte\" here and \"wtf\"" },
    { "    20\n", "130\n", "another model: tensors[1] lnw: dims[0] is 20 here and 130" },
    { "\"layers\": 2", "\"layers\": 3", "another model: tensors[1] lnw: layers is 2 here and 3" },
    { "\"unit\": 1,\n   \"decay\"", "\"unit\": 2,\n   \"decay\"", NULL },  // another division into units
    { "\"tensors\": [\n    {", "\"tensors\": [], \"other\": [\n    {", "no unit has layer 0 of tensor wte" },
    { "\"tensor\": 0", "\"tensor\": 1", "unit 1: layer 0 of tensor lnw" },
    { "\"tensor\": 0", "\"tensor\": 9", "unit 0: \"tensor\" must be" },
    { "\"layer\": 0", "\"layer\": 1", "unit 0: \"layer\" must be" },
    { "\"elems\": 90", "\"elems\": 7", "unit 0: \"elems\" must be" },
    { "\"elems\": 90", "\"elems\": 100", "the files have 90 of its 100 elements" },
    { "\"offset\": 0", "\"offset\": 128", "unit 0: \"offset\" must be" },
};

FUZZ_DEFINE(checkpoint, begin_manifest, give_manifests, .is_text = 1, .read = read_mended, .named = "/saved",
            FUZZ_ROWS(false_values));

// -------- the manifest and the file of states as they are

// Every damage must be found by a load, and in the same way by a verification.
static const char *load_as_is(const uint8_t *bytes, size_t n) {
    const char *error = load();
    FUZZ_MUST(!zero_checkpoint_verify(fuzz_path("saved"), NULL, NULL) == !error);
    FUZZ_MUST(!error || !strcmp(zero_last_error(), error));
    return error;
}

static void give_manifest(void) {
    char text[1 << 14];
    write_good();
    fuzz_seed("manifest", text, fuzz_bytes(fuzz_path("saved/manifest.json"), text, sizeof text));
}

FUZZ_DEFINE(manifest, begin_manifest, give_manifest, .file = "saved/manifest.json", .read = load_as_is,
            .changed = "the checksum at offset", .cut = "");

static void begin_states(void) {
    save();
    write_good();
}

static void give_states(void) { fuzz_seed("states", states, sizeof states); }

FUZZ_DEFINE(
    states, begin_states, give_states, .file = "saved/states", .read = load_as_is,
    .changed = "saved/states: damaged: the block of 4096 bytes at offset %ld does not match its checksum",
    .cut = "ends at offset", .block = BLOCK, .no_links = 1);
