// The manifest of a checkpoint (docs/reference/formats.md): the model's tables, the file and offset of each
// part, and the digest of every block of every file. Its last member is the digest of everything above it.
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

// A checkpoint may divide the tensors into other units than the model: elements [from, from + elems) of the
// model's unit are elements [saved_from, saved_from + elems) of the saved unit.
typedef struct {
    int unit, saved_unit;
    int64_t from, elems, saved_from;
} saved_stretch;

typedef struct {
    char path[PATH_MAX];
    int n_files;
    manifest_file *files;
    int update_states;  // how many states of the optimizer are saved
    loss_scale scale;   // at the time the states were read
    json_t *root;       // the manifest's JSON; before it is written, only the trainer's object
    // only after manifest_read:
    const char *update;  // the name of the optimizer; NULL: not recorded
    int64_t bytes;       // size of the text
    uint64_t digest;
    int64_t block_bytes;
    zero_dtype dtype;  // of the run that saved it
    // only after manifest_check_model:
    saved_stretch *stretches;  // of all units of the model, in order
    int n_stretches;
} manifest;
// Returns the text for the files that this job has written, which the caller frees. NULL: out of memory.
char *manifest_write(const zero *z, const manifest *m);
// Reads the manifest into *m and checks it, but does not compare it with a model. Call manifest_free even
// after an error. ZERO_ERR_IO: missing or damaged; ZERO_ERR_ARGUMENT: a different format or version.
int manifest_read(manifest *m, const char *folder);
void manifest_free(manifest *m);
// Sets *text to the trainer's object, which the caller frees.
int manifest_text(const manifest *m, char **text);
// Checks that the model has the same tensors (else ZERO_ERR_ARGUMENT and the first difference) and that the
// files have each element of the saved units once (else ZERO_ERR_IO and the file), and sets the stretches.
int manifest_check_model(manifest *m, const layout *l);

#endif
