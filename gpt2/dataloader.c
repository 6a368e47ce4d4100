// Serves rows of tokens from shards. Each rank computes the order itself.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "dataloader.h"
#include "disk.h"
#include "gpt2_error.h"
#include "rand.h"

enum { MAGIC = 20240520, VERSION = 1, HEADER = 256 * sizeof(int32_t) };

// -------- one shard

// Returns 1 if the file begins with text, without control characters.
static int is_text(int fd, const char *path, int64_t bytes) {
    unsigned char start[HEADER];
    const size_t n = bytes < (int64_t)HEADER ? (size_t)bytes : HEADER;
    if (!n || disk_read(fd, path, 0, n, start)) return 0;
    for (size_t i = 0; i < n; i++)
        if (start[i] < ' ' && !memchr("\t\n\f\r", start[i], 4)) return 0;
    return 1;
}

// Returns the number of tokens in the shard, or -1.
static int64_t check_shard(int fd, const char *path, int64_t bytes, int T) {
    int32_t header[256];
    if (is_text(fd, path, bytes))
        return gpt2_fail("%s: text, not a shard of tokens; convert it: make build/make_tokens && "
                         "build/make_tokens -o data/my %s",
                         path, path);
    if (disk_read_header(fd, path, bytes, "shard of tokens", MAGIC, header)) return -1;
    if (header[1] != VERSION) return gpt2_fail("%s: shard version %d, expected %d", path, header[1], VERSION);
    int64_t num_tokens = header[2], expected = HEADER + num_tokens * (int64_t)sizeof(uint16_t);
    if (bytes != expected)
        return gpt2_fail("%s: %lld bytes, expected %lld for the %lld tokens in its header", path,
                         (long long)bytes, (long long)expected, (long long)num_tokens);
    if (num_tokens <= T)
        return gpt2_fail(
            "%s: %lld tokens, expected at least %d for one row; use shorter rows or a larger shard", path,
            (long long)num_tokens, T + 1);
    return num_tokens;
}

// Returns the open file, or -1.
static int open_shard(const char *path, int T, int64_t *num_tokens) {
    int64_t bytes;
    int fd;
    if (disk_open(path, &fd, &bytes)) return -1;
    *num_tokens = check_shard(fd, path, bytes, T);
    if (*num_tokens >= 0) return fd;
    close(fd);  // nothing was written, and the error is known
    return -1;
}

// -------- the order of shards and rows

// Every (seed, epoch, shard) has its own generator; shard -1 is for the order of the shards. The three
// numbers are mixed as in splitmix64.
static void seed_order(mt19937 *rng, uint32_t seed, int64_t epoch, int64_t shard) {
    uint64_t x = seed;
    const uint64_t parts[] = { (uint64_t)epoch, (uint64_t)(shard + 1) };
    for (int i = 0; i < 2; i++) {
        x += parts[i] + 0x9e3779b97f4a7c15ull;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
        x ^= x >> 31;
    }
    mt_seed(rng, (uint32_t)x);
}

static void close_shard(DataLoader *l) {
    if (l->fd >= 0) close(l->fd);  // nothing was written
    free(l->permutation);
    l->fd = -1;
    l->permutation = NULL;
}

static void order_shards(DataLoader *l, int64_t epoch) {
    mt19937 rng;
    uint32_t n = (uint32_t)l->files.gl_pathc;
    seed_order(&rng, l->seed, epoch, -1);
    if (l->shuffle) {
        mt_permutation(&rng, l->order, n);
    } else {
        for (uint32_t i = 0; i < n; i++) l->order[i] = i;
    }
}

static int permute_rows(DataLoader *l, uint32_t shard) {
    mt19937 rng;
    l->permutation = malloc(l->rows[shard] * sizeof *l->permutation);
    if (!l->permutation)
        return gpt2_fail("%s: no memory to shuffle %lld rows", l->files.gl_pathv[shard],
                         (long long)l->rows[shard]);
    seed_order(&rng, l->seed, l->open_epoch, shard);
    mt_permutation(&rng, l->permutation, (uint32_t)l->rows[shard]);
    return 0;
}

// Opens the shard with this row of the epoch, unless it is open already.
static int open_row(DataLoader *l, int64_t epoch, int64_t row) {
    if (l->fd >= 0 && epoch == l->open_epoch && row >= l->open_row &&
        row < l->open_row + l->rows[l->order[l->slot]])
        return 0;
    close_shard(l);
    order_shards(l, epoch);
    l->open_epoch = epoch;
    l->open_row = 0;
    l->slot = 0;
    while (row >= l->open_row + l->rows[l->order[l->slot]]) {
        l->open_row += l->rows[l->order[l->slot]];
        l->slot++;
    }

    uint32_t shard = l->order[l->slot];
    int64_t num_tokens;
    l->fd = open_shard(l->files.gl_pathv[shard], l->T, &num_tokens);
    if (l->fd < 0) return -1;
    int failed = 0;
    if ((num_tokens - 1) / l->T != l->rows[shard])
        failed = gpt2_fail("%s: now has %lld tokens, a different number than at the start",
                           l->files.gl_pathv[shard], (long long)num_tokens);
    else if (l->shuffle)
        failed = permute_rows(l, shard);
    if (failed) close_shard(l);
    return failed;
}

// Reads row `row` of the epoch into row b of the batch.
static int fetch_row(DataLoader *l, int64_t epoch, int64_t row, int b) {
    if (open_row(l, epoch, row)) return -1;
    const char *path = l->files.gl_pathv[l->order[l->slot]];
    int T = l->T;
    int64_t in_shard = row - l->open_row;
    int64_t first = (l->shuffle ? l->permutation[in_shard] : in_shard) * T;
    if (disk_read(l->fd, path, HEADER + first * (int64_t)sizeof *l->buffer, (T + 1) * sizeof *l->buffer,
                  l->buffer))
        return -1;
    for (int t = 0; t <= T; t++)
        if (l->buffer[t] >= l->V)
            return gpt2_fail(
                "%s: token %lld is %d, outside the vocabulary of %d; was it made with another tokenizer?",
                path, (long long)(first + t), l->buffer[t], l->V);
    int *inputs = l->inputs + (int64_t)b * T, *targets = l->targets + (int64_t)b * T;
    for (int t = 0; t < T; t++) {
        inputs[t] = l->buffer[t];
        targets[t] = l->buffer[t + 1];
    }
    return 0;
}

// -------- the loader

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static int find_shards(DataLoader *l, const char *pattern) {
    // sorted below, independently of the locale
    int status = glob(pattern, GLOB_NOSORT, NULL, &l->files);
    if (status == GLOB_NOMATCH) return gpt2_fail("%s: no file matches", pattern);
    if (status)
        return gpt2_fail("%s: cannot look for files: %s", pattern,
                         status == GLOB_NOSPACE ? "no memory" : strerror(errno));
    qsort(l->files.gl_pathv, l->files.gl_pathc, sizeof *l->files.gl_pathv, by_name);
    l->rows = calloc(l->files.gl_pathc, sizeof *l->rows);
    l->order = calloc(l->files.gl_pathc, sizeof *l->order);
    if (!l->rows || !l->order) return gpt2_fail("%s: no memory for %zu shards", pattern, l->files.gl_pathc);
    for (size_t i = 0; i < l->files.gl_pathc; i++) {
        int64_t num_tokens;
        int fd = open_shard(l->files.gl_pathv[i], l->T, &num_tokens);
        if (fd < 0) return -1;
        close(fd);  // nothing was written
        l->num_tokens += num_tokens;
        l->rows[i] = (num_tokens - 1) / l->T;
        l->num_rows += l->rows[i];
    }
    if (l->num_rows < (int64_t)l->ranks * l->B)
        return gpt2_fail("%s: %lld rows of %d tokens, fewer than the %lld that a micro-batch takes (batch "
                         "%d, ranks %d); use a smaller batch (-b) or more data",
                         pattern, (long long)l->num_rows, l->T, (long long)l->ranks * l->B, l->B, l->ranks);
    return 0;
}

static int allocate_batch(DataLoader *l) {
    size_t BT = (size_t)l->B * l->T;
    l->buffer = malloc((l->T + 1) * sizeof *l->buffer);
    l->inputs = malloc(BT * sizeof *l->inputs);
    l->targets = malloc(BT * sizeof *l->targets);
    return l->buffer && l->inputs && l->targets
               ? 0
               : gpt2_fail("no memory for batches of %d rows of %d tokens", l->B, l->T);
}

int dataloader_init(DataLoader *l, const char *pattern, int B, int T, int V, int rank, int ranks, int shuffle,
                    uint32_t seed) {
    *l = (DataLoader){
        .rank = rank, .ranks = ranks, .B = B, .T = T, .V = V, .shuffle = shuffle, .seed = seed, .fd = -1
    };
    if (B < 1 || T < 1 || V < 1)
        return gpt2_fail("%s: batch %d, rows of %d tokens, vocabulary %d: all must be positive", pattern, B,
                         T, V);
    if (rank < 0 || rank >= ranks) return gpt2_fail("%s: rank %d of %d does not exist", pattern, rank, ranks);
    if (!find_shards(l, pattern) && !allocate_batch(l)) return 0;
    dataloader_free(l);
    return -1;
}

int dataloader_next(DataLoader *l) {
    for (int b = 0; b < l->B; b++) {
        int64_t row = l->row + (int64_t)l->rank * l->B + b;
        if (fetch_row(l, l->epoch + row / l->num_rows, row % l->num_rows, b)) return -1;
    }
    l->row += (int64_t)l->ranks * l->B;
    l->epoch += l->row / l->num_rows;
    l->row %= l->num_rows;
    return 0;
}

DataPosition dataloader_tell(const DataLoader *l) { return (DataPosition){ l->epoch, l->row, l->num_rows }; }

int dataloader_seek(DataLoader *l, DataPosition p) {
    if (p.num_rows != l->num_rows)
        return gpt2_fail(
            "position in the data: its epoch has %lld rows, but that of these files has %lld; use "
            "the same files and sequence length",
            (long long)p.num_rows, (long long)l->num_rows);
    if (p.epoch < 0 || p.row < 0 || p.row >= l->num_rows)
        return gpt2_fail("position in the data: epoch %lld, row %lld of %lld is out of range",
                         (long long)p.epoch, (long long)p.row, (long long)l->num_rows);
    l->epoch = p.epoch;
    l->row = p.row;
    return 0;
}

int dataloader_reset(DataLoader *l) { return dataloader_seek(l, (DataPosition){ 0, 0, l->num_rows }); }

void dataloader_free(DataLoader *l) {
    close_shard(l);
    globfree(&l->files);
    free(l->rows);
    free(l->order);
    free(l->buffer);
    free(l->inputs);
    free(l->targets);
    *l = (DataLoader){ .fd = -1 };
}
