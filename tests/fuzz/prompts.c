// Files of prompts: token numbers, or text if the first byte is T. All inputs share one encoder, because it
// takes 50 MiB.
#include "../../gpt2/bpe.h"
#include <string.h>
#include "../../trainer/generating/prompts.h"
#include "../../trainer/options/options.h"
#include "fuzz.h"

enum { BYTES = 256 };
static Bpe *bytes_only;

// Creates an encoder with one token per byte value, followed by end-of-text.
static void open_encoder_of_bytes(void) {
    uint32_t header[256] = { 20240328, 2, BYTES + 1, BYTES };
    uint8_t file[sizeof header + 2 * (BYTES + 1)];
    Tokenizer tokenizer;
    memcpy(file, header, sizeof header);
    for (int i = 0; i <= BYTES; i++) {
        file[sizeof header + 2 * i] = 1;
        file[sizeof header + 2 * i + 1] = (uint8_t)i;
    }
    FUZZ_MUST(!tokenizer_init(&tokenizer, fuzz_file("bytes", file, sizeof file)));
    FUZZ_MUST(!bpe_create(&bytes_only, &tokenizer));
    tokenizer_free(&tokenizer);
}

static void give_seeds(void) {
    fuzz_seed("numbers", "1 2 3\n\n 255\n", 12);
    fuzz_seed("text", "TOnce upon\na time\n", 18);
}

typedef struct {
    const char *text;
    Prompts prompts;
} Reading;

static void read_prompts(void *ctx) {
    Reading *r = ctx;
    prompts_read(&r->prompts, r->text);
}

static const char *read_file(const uint8_t *bytes, size_t n) {
    const int is_text = n && *bytes == 'T';
    char *text = fuzz_text(bytes + is_text, n - (size_t)is_text);
    Reading r = { text,
                  { .bpe = is_text ? bytes_only : NULL, .eot_token = BYTES, .V = BYTES + 1, .T = BYTES } };
    opt.prompts = "a file";
    const char *error = fuzz_survives(read_prompts, &r);
    opt.prompts = NULL;
    for (int i = 0; !error && i < r.prompts.first[r.prompts.n]; i++)
        FUZZ_MUST(r.prompts.tokens[i] >= 0 && r.prompts.tokens[i] <= BYTES);
    r.prompts.bpe = NULL;  // all inputs share it
    prompts_free(&r.prompts);
    free(text);
    return error;
}

const fuzz_target fuzz_prompts = { .name = "prompts",
                                   .is_text = 1,
                                   .begin = open_encoder_of_bytes,
                                   .seeds = give_seeds,
                                   .read = read_file,
                                   .named = "a file" };
