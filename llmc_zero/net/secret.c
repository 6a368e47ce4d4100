#include "secret.h"
#include "../base/error.h"
#include <sodium.h>

int secret_draw(void *bytes, size_t n) {
    if (sodium_init() < 0)
        return zero_fail(ZERO_ERR_COMM, "libsodium does not start, so no rank can be known");
    randombytes_buf(bytes, n);
    return 0;
}

int secret_draw_text(char text[SECRET_TEXT]) {
    unsigned char bytes[SECRET_TEXT / 2];
    ZERO_TRY(secret_draw(bytes, sizeof bytes));
    sodium_bin2hex(text, SECRET_TEXT, bytes, sizeof bytes);
    return 0;
}

secret secret_add(secret s, const void *bytes, size_t n) {
    secret both = { { 0 } };
    // fails only for lengths out of range, which these are not
    (void)!crypto_generichash(both.bytes, sizeof both.bytes, bytes, n, s.bytes, sizeof s.bytes);
    return both;
}

// Takes the same time wherever they differ.
int secret_is_same(secret one, secret other) { return !crypto_verify_32(one.bytes, other.bytes); }
