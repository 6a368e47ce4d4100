// Shards of tokens. The lowest bit of the last byte chooses whether the rows are shuffled.
#include <string.h>
#include "../../gpt2/dataloader.h"
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
}

static int read_shard(const uint8_t *bytes, size_t n) {
    DataLoader l;
    const int shuffle = n && bytes[n - 1] & 1;
    if (dataloader_init(&l, fuzz_file("shard", bytes, n), B, T, V, 0, 1, shuffle, 42)) return 0;
    for (int i = 0; i < 5; i++) {
        if (dataloader_next(&l)) break;
        for (int t = 0; t < B * T; t++)
            FUZZ_MUST(l.inputs[t] >= 0 && l.inputs[t] < V && l.targets[t] >= 0 && l.targets[t] < V);
    }
    dataloader_free(&l);
    return 1;
}

const fuzz_target fuzz_shards = { .name = "shards", .seeds = give_seeds, .read = read_shard };
