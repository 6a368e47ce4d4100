// State files of versions 2 and 3. The checksum at their end is put right before they are read.
#include "../old_states.h"
#include "fuzz.h"

static void give_seed(const char *name, int version) {
    zero *z = fuzz_plugin();
    const size_t states = 3 * sizeof(float) * z->layout.shard_elems, end = (version - 1) * sizeof(uint64_t);
    const old_header h = old_header_of(z, version, 4);
    size_t n = sizeof h + 4 + states + end;
    char *bytes = calloc(1, n);
    FUZZ_MUST(bytes);
    memcpy(bytes, &h, sizeof h);
    memcpy(bytes + sizeof h, "user", 4);
    fuzz_seed(name, bytes, n);
    free(bytes);
}

static void give_seeds(void) {
    give_seed("version2", 2);
    give_seed("version3", 3);
}

static int read_states(const uint8_t *bytes, size_t n) {
    char *copy = fuzz_text(bytes, n);
    if (n >= sizeof(uint64_t)) {
        uint64_t digest = XXH3_64bits(copy, n - sizeof digest);
        memcpy(copy + n - sizeof digest, &digest, sizeof digest);
    }
    const char *path = fuzz_file("states", copy, n);
    free(copy);
    return fuzz_load(path);
}

const fuzz_target fuzz_old_states = { .name = "old_states", .seeds = give_seeds, .read = read_states };
