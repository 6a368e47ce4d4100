// Files of prompts: token numbers, or text where the first byte is a T. The file that reads them is compiled
// in here with one encoder for all inputs, since each has 50 MiB and a run that ends frees nothing.
#define bpe_create shared_create
#define bpe_free shared_free
#define prompts_read fuzzed_prompts_read
#define prompts_free fuzzed_prompts_free
#include "../../trainer/prompts.c"
#undef bpe_create
#undef bpe_free
#include "fuzz.h"

int bpe_create(Bpe **b, const Tokenizer *t);
static Bpe *shared;

int shared_create(Bpe **b, const Tokenizer *t) {
    if (!shared && bpe_create(&shared, t)) return -1;
    *b = shared;
    return 0;
}

void shared_free(Bpe *b) { (void)b; }

enum { BYTES = 256, LONGEST = 64 };
static Tokenizer bytes_only, without = { .eot_token = BYTES };

// Every byte is a token, and the last one ends a text.
static void open_tokenizer_of_bytes(void) {
    uint32_t header[256] = { 20240328, 2, BYTES + 1, BYTES };
    uint8_t file[sizeof header + 2 * (BYTES + 1)];
    memcpy(file, header, sizeof header);
    for (int i = 0; i <= BYTES; i++) {
        file[sizeof header + 2 * i] = 1;
        file[sizeof header + 2 * i + 1] = (uint8_t)i;
    }
    FUZZ_MUST(!tokenizer_init(&bytes_only, fuzz_file("bytes", file, sizeof file)));
}

static void give_seeds(void) {
    fuzz_seed("numbers", "1 2 3\n\n 255\n", 12);
    fuzz_seed("text", "TOnce upon\na time\n", 18);
}

typedef struct {
    const Tokenizer *tokenizer;
    Prompts prompts;
} Reading;

static void read_prompts(void *ctx) {
    Reading *r = ctx;
    prompts_read(&r->prompts, r->tokenizer, BYTES + 1, LONGEST);
}

static int read_file(const uint8_t *bytes, size_t n) {
    const int is_text = n && *bytes == 'T';
    Reading r = { .tokenizer = is_text ? &bytes_only : &without };
    opt.prompts = fuzz_file("prompts", bytes + is_text, n - (size_t)is_text);
    opt.sample_tokens = 1;
    int taken = fuzz_survives(read_prompts, &r);
    opt.prompts = NULL;
    if (!taken) return 0;
    for (int i = 0; i < r.prompts.n; i++)
        for (int t = 0; t < r.prompts.lengths[i]; t++)
            FUZZ_MUST(r.prompts.tokens[i][t] >= 0 && r.prompts.tokens[i][t] <= BYTES);
    prompts_free(&r.prompts);
    return 1;
}

const fuzz_target fuzz_prompts = {
    .name = "prompts", .is_text = 1, .begin = open_tokenizer_of_bytes, .seeds = give_seeds, .read = read_file
};
