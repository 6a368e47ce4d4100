// Shards of tokens, and files of multiple-choice examples. The lowest bit of the last byte chooses whether
// the rows of a shard are shuffled.
#include <string.h>
#include "../../gpt2/dataloader.h"
#include "../../gpt2/gpt2_error.h"
#include "../../gpt2/hellaswag.h"
#include "fuzz.h"

enum { HEADER = 256 * sizeof(int32_t), B = 2, T = 8, V = 257 };

static void give_shard(const char *name, int tokens) {
    const int32_t header[] = { 20240520, 1, tokens };
    char file[HEADER + 2 * 100] = "";
    memcpy(file, header, sizeof header);
    for (int i = 0; i < tokens; i++) file[HEADER + 2 * i] = (char)(31 * i);
    fuzz_seed(name, file, HEADER + 2 * (size_t)tokens);
}

static void give_shards(void) {
    give_shard("rows4", 40);
    give_shard("rows2", 17);
}

static void check_batch(const int *inputs, const int *targets, int n, int vocabulary) {
    for (int t = 0; t < n; t++)
        FUZZ_MUST(inputs[t] >= 0 && inputs[t] < vocabulary && targets[t] >= 0 && targets[t] < vocabulary);
}

static const char *read_shard(const uint8_t *bytes, size_t n) {
    DataLoader l;
    const int shuffle = n && bytes[n - 1] & 1;
    const char *error = NULL;
    if (dataloader_init(&l, fuzz_path("shard"), B, T, V, 0, 1, shuffle, 42)) return gpt2_last_error();
    for (int i = 0; i < 5 && !error; i++) {
        if (dataloader_next(&l))
            error = gpt2_last_error();
        else
            check_batch(l.inputs, l.targets, B * T, V);
    }
    dataloader_free(&l);
    return error;
}

static const fuzz_damage bad_shards[] = {
    FUZZ_PUT(0, 20240326, 0, "first number is 20240326"),
    FUZZ_PUT(4, 2, 0, "version 2"),
    FUZZ_PUT(8, 100, 0, "100 tokens"),
    FUZZ_PUT(8, -41u, 0, "-41 tokens"),
    FUZZ_PUT(8, 40, -2, "40 tokens"),
    FUZZ_PUT(8, 40, 2, "40 tokens"),
    FUZZ_PUT(8, 40, -1000, "header"),
    FUZZ_PUT(HEADER + 16, 257, 0, "token 8 is 257, outside the vocabulary of 257"),
};

FUZZ_DEFINE(shards, NULL, give_shards, .file = "shard", .read = read_shard, FUZZ_ROWS(bad_shards));

// -------- multiple-choice examples

enum { CHOICE_B = 1, CHOICE_T = 3, CHOICE_V = 16 };

static void give_choices(void) {
    static const uint16_t words[] = { 65535, 34,    0,  3, 4, 2, 5, 6, 1, 7,  2, 8,  9, 1,  10, 1,
                                      11,    65535, 30, 1, 0, 4, 1, 1, 1, 12, 1, 13, 1, 14, 1,  15 };
    const int32_t header[] = { 20240522, 1, 2, 34 };
    char file[HEADER + sizeof words] = "";
    memcpy(file, header, sizeof header);
    memcpy(file + HEADER, words, sizeof words);
    fuzz_seed("two", file, sizeof file);
}

static const char *read_choices(const uint8_t *bytes, size_t n) {
    HellaSwag h;
    if (hellaswag_open(&h, fuzz_path("choices"), CHOICE_B, CHOICE_T, CHOICE_V, 0, 1))
        return gpt2_last_error();
    memset(h.losses, 0, CHOICE_B * CHOICE_T * sizeof *h.losses);
    for (int i = 0; i < h.batches; i++) {
        hellaswag_next(&h);
        check_batch(h.inputs, h.targets, CHOICE_B * CHOICE_T, CHOICE_V);
        FUZZ_MUST(!hellaswag_score(&h));
    }
    hellaswag_close(&h);
    return NULL;
}

static const fuzz_damage bad_choices[] = {
    FUZZ_PUT(0, 20240520, 0, "first number is 20240520, expected 20240522"),
    FUZZ_PUT(4, 2, 0, "version 2, expected 1"),
    FUZZ_PUT(8, 0, 0, "with 0 examples in its header"),
    FUZZ_PUT(8, 65537, 0, "with 65537 examples in its header"),
    FUZZ_PUT(8, 1, 0, "byte 1058, example 1: the header counts 1 examples"),
    FUZZ_PUT(8, 3, 0, "byte 1088, example 2: the file ends inside"),
    FUZZ_PUT(0, 20240522, -1, "1087 bytes with 2 examples in its header"),
    FUZZ_PUT(0, 20240522, -2, "byte 1060, example 1: 30 bytes in it"),
    FUZZ_PUT(0, 20240522, 2, "byte 1088, example 2: the header counts 2 examples"),
    FUZZ_PUT(1024, 65534 | 34 << 16, 0, "byte 1024, example 0: begins with 65534"),
    FUZZ_PUT(1026, 33, 0, "byte 1026, example 0: 33 bytes in it"),
    FUZZ_PUT(1026, 0, 0, "byte 1034, example 0: 0 tokens do not fit"),
    FUZZ_PUT(1026, 32, 0, "byte 1054, example 0: 1 tokens do not fit"),
    FUZZ_PUT(1026, 36, 0, "byte 1058, example 0: 1 words follow"),
    FUZZ_PUT(1028, 1 | 3 << 16, 0, "byte 1028, example 0: its number is 1"),
    FUZZ_PUT(1030, 4 | 4 << 16, 0, "byte 1030, example 0: its label is 4"),
    FUZZ_PUT(1032, 5 | 2 << 16, 0, "byte 1032, example 0: 5 completions"),
    FUZZ_PUT(1040, 4 | 7 << 16, 0, "byte 1040, example 0: it needs rows of 5 tokens, but T is 3"),
    FUZZ_PUT(1036, 16 | 6 << 16, 0, "byte 1036, example 0: token 16 is outside the vocabulary of 16"),
};

FUZZ_DEFINE(choices, NULL, give_choices, .file = "choices", .read = read_choices, FUZZ_ROWS(bad_choices));
