// Between libFuzzer and the target that FUZZ_TARGET names. Without a name the program lists them. With
// FUZZ_SEEDS=FOLDER it begins by writing the target's seeds there.
#include <limits.h>
#include <string.h>
#include "fuzz.h"

size_t LLVMFuzzerMutate(uint8_t *bytes, size_t n, size_t most);

static const fuzz_target *target;

static void write_seed(const char *name, const void *bytes, size_t n) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", getenv("FUZZ_SEEDS"), name);
    FILE *f = fopen(path, "wb");
    FUZZ_MUST(f && fwrite(bytes, 1, n, f) == n);
    FUZZ_MUST(!fclose(f));
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    const char *name = getenv("FUZZ_TARGET");
    target = name ? fuzz_find(name) : NULL;
    if (!target) {
        for (int i = 0; fuzz_targets[i]; i++) puts(fuzz_targets[i]->name);
        exit(name ? EXIT_FAILURE : EXIT_SUCCESS);
    }
    if (target->begin) target->begin();
    fuzz_seed = write_seed;
    if (getenv("FUZZ_SEEDS")) target->seeds();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    target->read(bytes, n);
    return 0;
}

// -------- crafted numbers

static const char *const numbers[] = {
    "0",     "1",    "-1",   "4",         "7",          "127",        "128",
    "65536", "1e9",  "0.5",  "-0.0",      "2147483647", "2147483648", "-2147483648",
    "1e308", "1e19", "1e-9", "536870912", "4294967295", "4294967296", "4611686018427387904",
    "true",  "null", "[]",   "\"7\"",     "9e18",       "1e400",      "9223372036854775807",
};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

static int is_of_number(uint8_t c) { return c && strchr("0123456789+-.eE", c); }

// A number near the one that begins at `old`, or one of those above.
static void craft_number(char number[32], const uint8_t *old, size_t length, unsigned seed) {
    char text[24] = "";
    memcpy(text, old, length < sizeof text ? length : sizeof text - 1);
    const uint64_t x = (uint64_t)strtoll(text, NULL, 10);
    const uint64_t near[] = { x + 1, x - 1, x + 4, x - 4, 2 * x, x / 2 };
    enum { NEAR = sizeof near / sizeof *near };
    seed %= NUMBERS + NEAR;
    if (seed < NUMBERS)
        strcpy(number, numbers[seed]);
    else
        snprintf(number, 32, "%lld", (long long)near[seed - NUMBERS]);
}

// Puts another number in place of one in the text. Returns the new length.
static size_t change_number(uint8_t *text, size_t n, size_t most, unsigned seed) {
    char number[32];
    size_t from = n ? seed / 64 % n : 0;
    while (from < n && (text[from] < '0' || text[from] > '9')) from++;
    size_t end = from;
    while (end < n && is_of_number(text[end])) end++;
    while (from > 0 && is_of_number(text[from - 1])) from--;
    craft_number(number, text + from, end - from, seed);
    const size_t length = strlen(number);
    if (from == end || n - (end - from) + length > most) return LLVMFuzzerMutate(text, n, most);
    memmove(text + from + length, text + end, n - end);
    memcpy(text + from, number, length);
    return n - (end - from) + length;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n, size_t most, unsigned seed) {
    if (!target->is_text || seed % 2) return LLVMFuzzerMutate(bytes, n, most);
    return change_number(bytes, n, most, seed / 2);
}
