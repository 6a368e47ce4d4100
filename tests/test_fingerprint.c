// Fingerprints of files: equal for equal contents under any path, and different if any byte that they cover
// differs.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "unit.h"
#include "gpt2/gpt2_error.h"
#include "gpt2/fingerprint.h"

static char folder[] = "/tmp/test_fingerprint.XXXXXX";

static const char *path_of(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static const char *print_of(const char *name, const char *bytes, size_t n, int blocks) {
    static char text[FINGERPRINT];
    FILE *f = fopen(path_of(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(fingerprint_of_file(path_of(name), blocks, text), 0);
    assert_int_equal(unlink(path_of(name)), 0);
    return text;
}

static char *filled(size_t n) {
    char *bytes = malloc(n + 1);
    assert_non_null(bytes);
    for (size_t i = 0; i < n; i++) bytes[i] = (char)(i * 2654435761u >> 13);
    return bytes;
}

// Files of at most `blocks` blocks are read whole, larger ones only in their first and last block.
static void test_contents(void **state) {
    static const struct {
        size_t bytes;
        int blocks;
    } cases[] = {
        { 1, 1 },
        { 7, 1 },
        { 8, 64 },
        { 9, 64 },
        { FINGERPRINT_BLOCK, 1 },
        { FINGERPRINT_BLOCK + 1, 2 },
        { 3 * FINGERPRINT_BLOCK - 5, 3 },
        { 10 * FINGERPRINT_BLOCK + 100, 2 },
        { 10 * FINGERPRINT_BLOCK, 9 },
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        size_t n = cases[c].bytes;
        char *bytes = filled(n), first[FINGERPRINT], size[32];
        const size_t places[] = { 0, n / 2, n - 1 };
        int whole = n <= (size_t)cases[c].blocks * FINGERPRINT_BLOCK;
        snprintf(first, sizeof first, "%s", print_of("a", bytes, n, cases[c].blocks));
        snprintf(size, sizeof size, "%zu bytes, ", n);
        assert_int_equal(strncmp(first, size, strlen(size)), 0);
        assert_string_equal(print_of("another_name", bytes, n, cases[c].blocks), first);
        for (int i = 0; i < 3; i++) {
            if (i == 1 && !whole) continue;
            for (int bit = 0; bit < 8; bit++) {
                bytes[places[i]] ^= (char)(1 << bit);
                assert_string_not_equal(print_of("a", bytes, n, cases[c].blocks), first);
                bytes[places[i]] ^= (char)(1 << bit);
            }
        }
        free(bytes);
    }
}

// The digest distinguishes lengths, even of zeros.
static void test_lengths(void **state) {
    char zeros[17] = { 0 }, seen[18][17];
    for (size_t n = 0; n <= 17; n++) {
        const char *text = strstr(print_of("a", zeros, n, 1), "digest ");
        assert_non_null(text);
        snprintf(seen[n], sizeof seen[n], "%s", text + 7);
        for (size_t i = 0; i < n; i++) assert_string_not_equal(seen[i], seen[n]);
    }
}

// Swapped words, and the high bits of two words: a sum or a product alone would miss them.
static void test_order(void **state) {
    uint64_t a[] = { 1, 2, 3 }, b[] = { 2, 1, 3 }, c[] = { 1 | 1ull << 63, 2 | 1ull << 63, 3 };
    char first[FINGERPRINT];
    snprintf(first, sizeof first, "%s", print_of("a", (char *)a, sizeof a, 1));
    assert_string_not_equal(print_of("a", (char *)b, sizeof b, 1), first);
    assert_string_not_equal(print_of("a", (char *)c, sizeof c, 1), first);
}

static void test_errors(void **state) {
    char text[FINGERPRINT];
    assert_int_equal(fingerprint_of_file(path_of("none"), 1, text), -1);
    assert_non_null(strstr(gpt2_last_error(), "none: cannot open: No such file"));
    assert_int_equal(fingerprint_of_file(folder, 1, text), -1);
    assert_non_null(strstr(gpt2_last_error(), folder));
}

static void test_processor(void **state) {
    char text[FINGERPRINT] = "", again[FINGERPRINT] = "";
    fingerprint_of_processor(text);
    fingerprint_of_processor(again);
    assert_non_null(strstr(text, "oneDNN"));
    assert_string_equal(text, again);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contents), cmocka_unit_test(test_lengths),   cmocka_unit_test(test_order),
        cmocka_unit_test(test_errors),   cmocka_unit_test(test_processor),
    };
    if (!mkdtemp(folder)) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return rmdir(folder) || failed;
}
