// The manifest of a checkpoint: what was saved, where each part is in which file, and the digest of every
// block of every file. Its last line is the digest of everything above it. docs/formats.md describes every
// member.
#ifndef LLMC_ZERO_CHECKPOINT_MANIFEST_H
#define LLMC_ZERO_CHECKPOINT_MANIFEST_H
#include <jansson.h>
#include "files.h"
#include "parts.h"

#define MANIFEST_FORMAT "llmc_zero checkpoint"
enum { MANIFEST_VERSION = 4, BLOCK_BYTES = VALUES_CHUNK * sizeof(float) };
enum { SMALLEST_BLOCK = 4096, LARGEST_BLOCK = 64 << 20 };  // blocks are multiples of the smallest

typedef struct {
    char name[FILE_NAME];
    int64_t bytes;
    int64_t n_blocks;
    uint64_t *digests;  // (n_blocks) XXH3-64 of each block; all but the last have block_bytes
    saved_part *parts;  // (n_parts)
    int n_parts;
} manifest_file;

// Returns the number of blocks of a file.
static inline int64_t manifest_blocks(int64_t bytes, int64_t block_bytes) {
    return bytes / block_bytes + (bytes % block_bytes != 0);
}

// Parses JSON, refusing duplicate keys. Returns NULL with *e on failure. Parses twice and compares, because
// Jansson 2.14 silently loses a character if memory runs out within a string.
json_t *manifest_parse(const char *text, size_t bytes, json_error_t *e);

typedef struct {
    char path[PATH_MAX];
    int n_files;
    manifest_file *files;
    loss_scale scale;  // at the time the states were read
    json_t *root;      // of the manifest; before it is written, only the trainer's object
    // only after reading:
    int64_t bytes;  // of the text
    uint64_t digest;
    int64_t block_bytes;
    zero_dtype dtype;  // of the run that saved
} manifest;
// Returns the text, to be freed, for files that this plugin has written; NULL: out of memory.
char *manifest_write(const zero *z, const manifest *m);
// Returns 0 with *m checked, except against a model. Call manifest_free in either case.
// ZERO_ERR_IO: missing or damaged; ZERO_ERR_ARGUMENT: another format or version.
int manifest_read(manifest *m, const char *folder);
void manifest_free(manifest *m);
// Returns 0 and the text of the trainer's object, to be freed.
int manifest_text(const manifest *m, char **text);
// Returns 0 if the model has these tables, and the files have each of its elements once; else
// ZERO_ERR_ARGUMENT naming the first difference, or ZERO_ERR_IO naming the file.
int manifest_check_model(const manifest *m, const layout *l);

#endif
