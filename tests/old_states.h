// The state files of versions 2 and 3, as zero_save wrote them, for tests that write some.
#ifndef TESTS_OLD_STATES_H
#define TESTS_OLD_STATES_H
#define XXH_INLINE_ALL
#include <stdint.h>
#include <string.h>
#include <xxhash.h>
#include "../llmc_zero/internal.h"

typedef struct {
    char magic[8];
    uint32_t version, ranks, rank, dtype;
    uint64_t geometry, elems, user_bytes;
    loss_scale scale;
} old_header;

static inline uint64_t old_geometry(const layout *l) {
    uint64_t h = l->n_units;
    for (int i = 0; i < l->n_tensors; i++) {
        const zero_tensor *t = &l->tensors[i];
        int64_t numbers[] = { (int64_t)h, zero_tensor_elems(t), t->layers, t->unit };
        h = XXH3_64bits_withSeed(t->name, strlen(t->name), XXH3_64bits(numbers, sizeof numbers));
    }
    return h;
}

// The header of this rank's file.
static inline old_header old_header_of(const zero *z, int version, uint64_t user_bytes) {
    return (old_header){ "llmczero",
                         version,
                         zero_ranks(z),
                         zero_rank(z),
                         z->config.numbers.dtype,
                         old_geometry(&z->layout),
                         z->layout.elems,
                         user_bytes,
                         z->scale };
}

#endif
