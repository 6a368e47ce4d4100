// Files of prompts: token numbers, or text where the first byte is a T. The file that reads them is compiled
// in here. A run that ends frees nothing, so what it has allocated is noted and freed by the target; and all
// inputs share one encoder, since each has 50 MiB.
#include "../../gpt2/bpe.h"
#include "../../gpt2/text_file.h"
#include "../../trainer/die.h"
#include "fuzz.h"

static void *note(void *p);
static int shared_create(Bpe **b, const Tokenizer *t);
#define malloc_check(bytes) note(malloc(bytes))
#define text_file_read(path) note(text_file_read(path))
#define free(p) (void)(p)
#define bpe_create shared_create
#define bpe_free(b) (void)(b)
#define prompts_read fuzzed_prompts_read
#define prompts_free fuzzed_prompts_free
#include "../../trainer/prompts.c"
#undef free
#undef bpe_create

static void **noted;
static size_t n_noted;

static void *note(void *p) {
    noted = realloc(noted, (n_noted + 1) * sizeof *noted);
    FUZZ_MUST(noted);
    return noted[n_noted++] = p;
}

static void free_noted(void) {
    for (size_t i = 0; i < n_noted; i++) free(noted[i]);
    free(noted);
    noted = NULL;
    n_noted = 0;
}

static int shared_create(Bpe **b, const Tokenizer *t) {
    static Bpe *shared;
    if (!shared && bpe_create(&shared, t)) return -1;
    *b = shared;
    return 0;
}

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
    for (int i = 0; taken && i < r.prompts.n; i++)
        for (int t = 0; t < r.prompts.lengths[i]; t++)
            FUZZ_MUST(r.prompts.tokens[i][t] >= 0 && r.prompts.tokens[i][t] <= BYTES);
    free_noted();
    return taken;
}

const fuzz_target fuzz_prompts = {
    .name = "prompts", .is_text = 1, .begin = open_tokenizer_of_bytes, .seeds = give_seeds, .read = read_file
};
