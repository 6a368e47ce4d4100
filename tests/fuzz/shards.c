// Shards of tokens, and files of multiple-choice examples. The lowest bit of the last byte chooses whether
// the rows of a shard are shuffled.
#include <string.h>
#include "../../gpt2/dataloader.h"
#include "../../gpt2/hellaswag.h"
#include "fuzz.h"

enum { HEADER = 256 * sizeof(int32_t), B = 2, T = 8, V = 257 };

static void give_seed(const char *name, int tokens) {
    const int32_t header[] = { 20240520, 1, tokens };
    char file[HEADER + 2 * 100] = "";
    memcpy(file, header, sizeof header);
    for (int i = 0; i < tokens; i++) file[HEADER + 2 * i] = (char)(31 * i);
    fuzz_seed(name, file, HEADER + 2 * (size_t)tokens);
}

static void give_seeds(void) {
    give_seed("rows4", 40);
    give_seed("rows2", 17);
    const uint16_t example[] = { 65535, 32, 0, 3, 4, 2, 5, 6, 1, 7, 1, 8, 1, 10, 1, 11 };
    const int32_t header[] = { 20240522, 1, 1, sizeof example };
    char file[HEADER + sizeof example] = "";
    memcpy(file, header, sizeof header);
    memcpy(file + HEADER, example, sizeof example);
    fuzz_seed("choices", file, sizeof file);
}

static void check_batch(const int *inputs, const int *targets) {
    for (int t = 0; t < B * T; t++)
        FUZZ_MUST(inputs[t] >= 0 && inputs[t] < V && targets[t] >= 0 && targets[t] < V);
}

static int read_choices(const char *path) {
    HellaSwag h;
    if (hellaswag_open(&h, path, B, T, V, 0, 1)) return 0;
    memset(h.losses, 0, B * T * sizeof *h.losses);
    for (int i = 0; i < h.batches; i++) {
        hellaswag_next(&h);
        check_batch(h.inputs, h.targets);
        FUZZ_MUST(!hellaswag_score(&h));
    }
    hellaswag_close(&h);
    return 1;
}

static int read_shard(const uint8_t *bytes, size_t n) {
    DataLoader l;
    const int shuffle = n && bytes[n - 1] & 1;
    const char *path = fuzz_file("shard", bytes, n);
    if (dataloader_init(&l, path, B, T, V, 0, 1, shuffle, 42)) return read_choices(path);
    for (int i = 0; i < 5; i++) {
        if (dataloader_next(&l)) break;
        check_batch(l.inputs, l.targets);
    }
    dataloader_free(&l);
    return 1;
}

const fuzz_target fuzz_shards = { .name = "shards", .seeds = give_seeds, .read = read_shard };
