#include "secret.h"
#include "../error.h"
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

static void digest(const secret *s, const void *in, size_t bytes, unsigned char *out, size_t out_bytes) {
    // Fails only for lengths that are out of range, which these are not.
    (void)!crypto_generichash(out, out_bytes, in, bytes, s->bytes, sizeof s->bytes);
}

secret secret_add(secret s, const void *bytes, size_t n) {
    secret both = { { 0 } };
    digest(&s, bytes, n, both.bytes, sizeof both.bytes);
    return both;
}

void secret_tag(const secret *s, const void *message, size_t bytes, unsigned char tag[SECRET_TAG]) {
    digest(s, message, bytes, tag, SECRET_TAG);
}

// Takes the same time wherever the two differ.
int secret_is_tag(const unsigned char tag[SECRET_TAG], const unsigned char other[SECRET_TAG]) {
    return !crypto_verify_16(tag, other);
}
