// Token shards in llm.c's format (256 int32: magic 20240520, version 1, count; then uint16 tokens), served as
// rows of T tokens. A shard of n tokens has (n - 1) / T rows; row i has the inputs [i*T, i*T + T), and its
// targets are shifted by one token. The rows of all shards, epoch after epoch, form one endless stream that
// depends only on the seed and the files. Micro-batch m gives rank r the B rows of the stream that begin at
// (m * ranks + r) * B, so N ranks see the same rows as one rank with N micro-batches, and no row is skipped
// at the end of a shard.
#ifndef GPT2_DATALOADER_H
#define GPT2_DATALOADER_H
#include <glob.h>
#include <stdint.h>

typedef struct {
    int rank, ranks, B, T, V;  // tokens are below V
    int shuffle;               // permute shards per epoch and rows within a shard, by (seed, epoch, shard)
    uint32_t seed;
    glob_t files;        // sorted by name
    int64_t num_tokens;  // in all shards
    int64_t num_rows;    // in all shards: an epoch
    int64_t *rows;       // (files) of each shard
    int64_t epoch, row;  // where the next global micro-batch begins; row counts within the epoch
    // the open shard
    int fd;                        // -1: none
    int64_t open_epoch, open_row;  // the epoch, and its row at which the shard begins
    int slot;                      // its place in `order`
    uint32_t *order;               // (files) the shards of open_epoch
    uint32_t *permutation;         // (rows of the shard), if shuffle
    uint16_t *buffer;              // (T + 1)
    int *inputs, *targets;         // (B, T) each, owned by the loader
} DataLoader;

// Checks every shard that matches the pattern (magic, version, length, at least one row), and that an epoch
// has at least one global micro-batch. Returns 0, or -1 with the file, the value and a hint in
// gpt2_last_error().
int dataloader_init(DataLoader *l, const char *pattern, int B, int T, int V, int rank, int ranks, int shuffle,
                    uint32_t seed);
// Fills inputs and targets. A token >= V is an error that names file, position and value.
int dataloader_next(DataLoader *l);
int dataloader_reset(DataLoader *l);  // back to the first row of epoch 0
void dataloader_free(DataLoader *l);

// The position, for checkpoints; it is the same on all ranks and for any number of ranks. seek rejects a
// position from an epoch of a different length, which means different files or a different T.
typedef struct {
    int64_t epoch, row, num_rows;
} DataPosition;
DataPosition dataloader_tell(const DataLoader *l);
int dataloader_seek(DataLoader *l, DataPosition p);

#endif
