/* Serves batches of tokens from the first matching uint16 file. Each rank reads different rows; batches may be shuffled. */
#ifndef DATALOADER_H
#define DATALOADER_H
#include <glob.h>
#include <stdint.h>
#include "utils.h"

typedef struct { uint64_t state; } mt19937_state;           // any generator will do

static void manual_seed(mt19937_state *rng, unsigned int seed) { rng->state = seed * 2654435761u + 1; }
static unsigned int randint32(mt19937_state *rng) {
    rng->state = rng->state * 6364136223846793005u + 1442695040888963407u;
    return rng->state >> 33;
}

typedef struct {
    int process_rank;
    int num_processes;
    size_t B, T;
    size_t num_tokens;
    size_t num_batches;             // over all processes
    size_t next;
    int should_shuffle;
    size_t *order;
    uint16_t *tokens;
    int *inputs;
    int *targets;
    mt19937_state shuffle_rng;
} DataLoader;

static void dataloader_reset(DataLoader *loader) {
    loader->next = 0;
    for (size_t i = 0; i < loader->num_batches; i++) { loader->order[i] = i; }
    for (size_t i = loader->num_batches; loader->should_shuffle && i > 1; i--) {
        size_t j = randint32(&loader->shuffle_rng) % i, swap = loader->order[i - 1];
        loader->order[i - 1] = loader->order[j];
        loader->order[j] = swap;
    }
}

static void dataloader_init(DataLoader *loader, const char *pattern, size_t B, size_t T, int process_rank, int num_processes,
                            int should_shuffle) {
    glob_t found;
    if (glob(pattern, 0, NULL, &found) != 0) { fail("cannot find", pattern); }
    FILE *file = fopenCheck(found.gl_pathv[0], "rb");
    int header[256];
    freadCheck(header, sizeof(int), 256, file);
    int64_t num_tokens = header[2];
    loader->tokens = (uint16_t*)mallocCheck(num_tokens * sizeof(uint16_t));
    freadCheck(loader->tokens, sizeof(uint16_t), num_tokens, file);
    fclose(file);
    globfree(&found);
    loader->process_rank = process_rank;
    loader->num_processes = num_processes;
    loader->B = B;
    loader->T = T;
    loader->num_tokens = num_tokens;
    loader->num_batches = (num_tokens - 1) / (num_processes * B * T);
    if (loader->num_batches == 0) {
        printf("Error: %s is too short\n", pattern);
        exit(EXIT_FAILURE);
    }
    loader->order = (size_t*)mallocCheck(loader->num_batches * sizeof(size_t));
    loader->inputs = (int*)mallocCheck(B * T * sizeof(int));
    loader->targets = (int*)mallocCheck(B * T * sizeof(int));
    loader->should_shuffle = should_shuffle;
    if (should_shuffle) { // a different seed on each process
        manual_seed(&loader->shuffle_rng, 7 + process_rank);
    }
    dataloader_reset(loader);
}

static void dataloader_next_batch(DataLoader *loader) {
    if (loader->next == loader->num_batches) { dataloader_reset(loader); }
    size_t BT = loader->B * loader->T, batch = loader->order[loader->next++];
    const uint16_t *from = loader->tokens + (batch * loader->num_processes + loader->process_rank) * BT;
    for (size_t i = 0; i < BT; i++) {
        loader->inputs[i] = from[i];
        loader->targets[i] = from[i + 1];
    }
}

static void dataloader_free(DataLoader *loader) {
    free(loader->tokens);
    free(loader->order);
    free(loader->inputs);
    free(loader->targets);
}
#endif
