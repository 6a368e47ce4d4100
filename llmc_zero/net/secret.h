// The secret of a job and values derived from it: keys, and tags by which a rank proves that it knows the
// secret without revealing it. Uses libsodium's keyed BLAKE2b.
#ifndef LLMC_ZERO_NET_SECRET_H
#define LLMC_ZERO_NET_SECRET_H
#include <stddef.h>

enum { SECRET_TEXT = 65, SECRET_LEAST = 16 };
typedef struct {
    unsigned char bytes[32];
} secret;
typedef struct {  // a random number that is used once
    unsigned char bytes[16];
} nonce;

// Fills `bytes` with random bytes. Returns 0, or a ZERO_ERR_*. Call it before the other functions.
int secret_draw(void *bytes, size_t n);
int secret_draw_text(char text[SECRET_TEXT]);  // 256 random bits in hexadecimal digits
// Returns a value that only those who know both `s` and these bytes can compute: another secret, or the tag
// of a message.
secret secret_add(secret s, const void *bytes, size_t n);
int secret_is_same(secret one, secret other);

#endif
