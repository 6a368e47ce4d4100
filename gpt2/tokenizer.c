// Decodes tokens. The whole file is read and checked first; tokens then point into it.
#include <stdlib.h>
#include <unistd.h>
#include "disk.h"
#include "gpt2_error.h"
#include "tokenizer.h"

enum { HEADER = 256 * sizeof(uint32_t), MAGIC = 20240328, GPT2_VOCAB = 50257, GPT2_EOT = 50256 };

static int check_header(Tokenizer *t, const char *path, const uint32_t *header) {
    if (header[1] != 1 && header[1] != 2)
        return gpt2_fail("%s: tokenizer version %u, expected 1 or 2", path, header[1]);
    t->vocab_size = header[2];
    t->eot_token = (int)header[3];
    if (header[1] == 1) {  // version 1 does not store its end of text, which is GPT-2's
        if (t->vocab_size != GPT2_VOCAB)
            return gpt2_fail("%s: version 1 with a vocabulary of %u, expected %d", path, t->vocab_size,
                             GPT2_VOCAB);
        t->eot_token = GPT2_EOT;
    } else if (header[3] >= t->vocab_size) {
        return gpt2_fail("%s: end-of-text token %u is outside the vocabulary of %u", path, header[3],
                         t->vocab_size);
    }
    return 0;
}

// Indexes the body: `size` bytes in t->bytes.
static int index_tokens(Tokenizer *t, const char *path, int64_t size) {
    if ((int64_t)t->vocab_size * 2 > size)  // checked before anything of that size is allocated
        return gpt2_fail("%s: a vocabulary of %u tokens does not fit in %lld bytes: the file is cut short",
                         path, t->vocab_size, (long long)size);
    t->lengths = malloc(t->vocab_size);
    t->offsets = malloc(t->vocab_size * sizeof *t->offsets);
    if (!t->lengths || !t->offsets) return gpt2_fail("%s: no memory for %u tokens", path, t->vocab_size);
    int64_t at = 0;
    for (uint32_t i = 0; i < t->vocab_size; i++) {
        if (at >= size || at + 1 + t->bytes[at] > size)
            return gpt2_fail("%s: ends inside token %u of %u", path, i, t->vocab_size);
        t->lengths[i] = t->bytes[at];
        if (!t->lengths[i]) return gpt2_fail("%s: token %u has length 0, expected at least 1", path, i);
        t->offsets[i] = (uint32_t)(at + 1);
        at += 1 + t->lengths[i];
    }
    if (at != size)
        return gpt2_fail("%s: %lld bytes follow the last of %u tokens", path, (long long)(size - at),
                         t->vocab_size);
    return 0;
}

static int read_tokens(Tokenizer *t, const char *path, int fd, int64_t bytes) {
    int32_t header[256];
    if (disk_read_header(fd, path, bytes, "tokenizer file", MAGIC, header)) return -1;
    if (check_header(t, path, (const uint32_t *)header)) return -1;
    if (bytes > INT32_MAX)
        return gpt2_fail("%s: %lld bytes are too many for a tokenizer file", path, (long long)bytes);
    size_t size = (size_t)bytes - HEADER;
    t->bytes = malloc(size + 1);
    if (!t->bytes) return gpt2_fail("%s: no memory for %zu bytes", path, size);
    if (disk_read(fd, path, HEADER, size, t->bytes)) return -1;
    return index_tokens(t, path, size);
}

int tokenizer_init(Tokenizer *t, const char *path) {
    int64_t bytes;
    int fd;
    *t = (Tokenizer){ 0 };
    if (disk_open(path, &fd, &bytes)) return -1;
    int failed = read_tokens(t, path, fd, bytes);
    close(fd);  // nothing was written
    if (failed) tokenizer_free(t);
    return failed;
}

const char *tokenizer_decode(const Tokenizer *t, uint32_t token, int *length) {
    if (token >= t->vocab_size) return NULL;
    *length = t->lengths[token];
    return (const char *)t->bytes + t->offsets[token];
}

void tokenizer_print(const Tokenizer *t, FILE *out, uint32_t token) {
    int length = 0;
    const char *text = tokenizer_decode(t, token, &length);
    if (!text) return;
    for (int i = 0; i < length; i++) {
        unsigned char c = text[i];
        int control = c < 32 || c == 127, white = c >= '\t' && c <= '\r';
        if (!control || white) fputc(c, out);  // the caller may check ferror(out)
    }
}

void tokenizer_free(Tokenizer *t) {
    free(t->lengths);
    free(t->offsets);
    free(t->bytes);
    *t = (Tokenizer){ 0 };
}
