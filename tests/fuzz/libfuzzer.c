// Connects libFuzzer to the target that FUZZ_TARGET names. Without FUZZ_TARGET the program lists the targets.
// With FUZZ_SEEDS=FOLDER it first writes the target's seeds to the folder.
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
    fuzz_read(target, bytes, n);
    return 0;
}

// -------- a mutator that replaces numbers in a text

static const char *const numbers[] = {
    "0",     "1",    "-1",   "4",         "7",          "127",        "128",
    "65536", "1e9",  "0.5",  "-0.0",      "2147483647", "2147483648", "-2147483648",
    "1e308", "1e19", "1e-9", "536870912", "4294967295", "4294967296", "4611686018427387904",
    "true",  "null", "[]",   "\"7\"",     "9e18",       "1e400",      "9223372036854775807",
};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

static int is_of_number(uint8_t c) { return c && strchr("0123456789+-.eE", c); }

// Finds the first number at or after `at`. Sets *from to its start and returns its length, or 0 if none is
// found.
static size_t find_number(const uint8_t *text, size_t n, size_t at, size_t *from) {
    while (at < n && (text[at] < '0' || text[at] > '9')) at++;
    size_t end = at;
    while (end < n && is_of_number(text[end])) end++;
    while (at > 0 && is_of_number(text[at - 1])) at--;
    *from = at;
    return end - at;
}

static void copy_number(char number[32], const uint8_t *from, size_t length) {
    memset(number, 0, 32);
    memcpy(number, from, length < 31 ? length : 31);
}

// Replaces `number` with one from the list above, one close to it, or one from elsewhere in the text.
static void craft_number(char number[32], const uint8_t *text, size_t n, unsigned seed) {
    size_t other;
    const uint64_t x = (uint64_t)strtoll(number, NULL, 10);
    const uint64_t near[] = { x + 1, x - 1, x + 4, x - 4, 2 * x, x / 2 };
    enum { NEAR = sizeof near / sizeof *near, OTHERS = 12 };
    const unsigned which = seed % (NUMBERS + NEAR + OTHERS);
    if (which < NUMBERS) {
        strcpy(number, numbers[which]);
    } else if (which < NUMBERS + NEAR) {
        snprintf(number, 32, "%lld", (long long)near[which - NUMBERS]);
    } else {
        const size_t length = find_number(text, n, seed * 2654435761u % n, &other);
        if (length) copy_number(number, text + other, length);
    }
}

// Replaces a number in the text, and returns the text's new length.
static size_t change_number(uint8_t *text, size_t n, size_t most, unsigned seed) {
    char number[32];
    size_t from;
    const size_t old = n ? find_number(text, n, seed / 64 % n, &from) : 0;
    if (!old) return LLVMFuzzerMutate(text, n, most);
    copy_number(number, text + from, old);
    craft_number(number, text, n, seed);
    const size_t length = strlen(number);
    if (n - old + length > most) return LLVMFuzzerMutate(text, n, most);
    memmove(text + from + length, text + from + old, n - old - from);
    memcpy(text + from, number, length);
    return n - old + length;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n, size_t most, unsigned seed) {
    if (!target->is_text || seed % 2) return LLVMFuzzerMutate(bytes, n, most);
    return change_number(bytes, n, most, seed / 2);
}
