// The secret of a job, and tags by which a rank proves that it knows it without telling it: libsodium's keyed
// BLAKE2b.
#ifndef LLMC_ZERO_SECRET_H
#define LLMC_ZERO_SECRET_H
#include <stddef.h>

enum { SECRET_NONCE = 16, SECRET_TAG = 16, SECRET_TEXT = 65, SECRET_LEAST = 16 };
typedef struct {
    unsigned char bytes[32];
} secret;

// Fills `bytes` with random numbers. Returns 0, or a ZERO_ERR_*. To be called before the others.
int secret_draw(void *bytes, size_t n);
int secret_draw_text(char text[SECRET_TEXT]);  // 256 random bits in hexadecimal digits
// Returns the secret of those who know both `s` and these bytes.
secret secret_add(secret s, const void *bytes, size_t n);
// The tag of a message; only who knows the secret can compute it.
void secret_tag(const secret *s, const void *message, size_t bytes, unsigned char tag[SECRET_TAG]);
int secret_is_tag(const unsigned char tag[SECRET_TAG], const unsigned char other[SECRET_TAG]);

#endif
