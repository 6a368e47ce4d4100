// The plugin into which checkpoints are loaded.
#include <math.h>
#include <string.h>
#include "../../llmc_zero/internal.h"
#include "../small.h"
#include "fuzz.h"

static zero *z;
static char hash[17];  // of its states

static void create(void) {
    FUZZ_MUST(!small_create(&z));
    FUZZ_MUST(!zero_hash(z, 1, hash));
}

zero *fuzz_plugin(void) {
    if (!z) create();
    return z;
}

// Training must be able to continue for ever with this scale.
static void check_scale(const loss_scale *s) {
    FUZZ_MUST(s->value > 0 && isfinite(s->value));
    FUZZ_MUST(s->steps >= 0 && s->steps <= INT64_MAX / 2);
    FUZZ_MUST(s->last_overflow >= -1 && s->last_overflow <= s->steps);
    FUZZ_MUST(s->left >= 0);
}

int fuzz_load(const char *path) {
    char *text = NULL, after[17];
    const loss_scale before = step_scale(fuzz_plugin());
    int failed = zero_load(z, path, &text);
    FUZZ_MUST(!zero_hash(z, 1, after));
    const loss_scale scale = step_scale(z);
    check_scale(&scale);
    if (failed) {
        FUZZ_MUST(!text && !strcmp(after, hash));
        FUZZ_MUST(!memcmp(&before, &scale, sizeof before));
        FUZZ_MUST(strstr(zero_last_error(), path));
        return 0;
    }
    memcpy(hash, after, sizeof hash);
    fuzz_read_run(text);
    free(text);
    return 1;
}
