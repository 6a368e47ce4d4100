#include "verify.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../gpt2/error.h"
#include "../llmc_zero/zero.h"
#include "checkpoint.h"
#include "run.h"

static void say_good(void *ctx, const char *file, int64_t bytes) {
    (void)ctx;
    print0("%s: good, %lld bytes\n", file, (long long)bytes);
}

static int say_bad(const char *sentence) {
    print0("BAD %s\n", sentence);
    return EXIT_FAILURE;
}

static int verify_states(const char *path) {
    return zero_checkpoint_verify(path, say_good, NULL) ? say_bad(zero_last_error()) : 0;
}

static int verify_model(const char *path) {
    struct stat st;
    int rc = checkpoint_check_model(path);
    if (rc < 0) return say_bad(gpt2_last_error());
    if (rc || stat(path, &st))
        print0("%s: not verified: there is no checkpoint to compare it with\n", path);
    else
        say_good(NULL, path, st.st_size);
    return 0;
}

// Who names it asks whether it is good, and nothing can say so.
static int verify_named_model(const char *path) {
    if (checkpoint_check_model(path) <= 0) return verify_model(path);
    print0("BAD %s: cannot be verified: there is no checkpoint to compare it with\n", path);
    return EXIT_FAILURE;
}

// A run does not go on from a checkpoint under the name of another step.
static int verify_name(const char *states) {
    TrainerState state;
    char *text = NULL;
    const int step = checkpoint_step_of(states);
    if (step < 0) return 0;  // a name of the user's own
    if (zero_checkpoint_text(states, &text)) return say_bad(zero_last_error());
    const int is_other = !saved_run_state(text, &state) && state.step != step;
    free(text);
    if (!is_other) return 0;
    gpt2_fail("%s: is of step %d", states, state.step);
    return say_bad(gpt2_last_error());
}

// A checkpoint is complete without its model file.
static int verify_both(const char *states, const char *model) {
    int bad = verify_states(states);
    if (!bad) bad = verify_name(states);
    return bad || !model || !file_is_there(model) ? bad : verify_model(model);
}

// A save that died damages nothing, but is worth a line.
static int verify_found(void *ctx, const CheckpointPaths *p) {
    int *found = ctx;
    if (p->complete || p->damaged) ++*found;
    if (p->complete) return verify_both(p->states, p->model);
    if (p->damaged) {
        gpt2_fail("%s: damaged: it was complete, and manifest.json is missing", p->states);
        return say_bad(gpt2_last_error());
    }
    print0("%s: the save did not end, so it is no checkpoint\n", p->states);
    return 0;
}

static int is_model(const char *path) {
    const char *dot = strrchr(path, '.'), *slash = strrchr(path, '/');
    return dot && !strcmp(dot, ".bin") && !strncmp(slash ? slash + 1 : path, "model_", 6);
}

static int is_checkpoint(const char *path) {
    char manifest[4200];
    snprintf(manifest, sizeof manifest, "%s/manifest.json", path);
    return !access(manifest, F_OK);
}

int verify(const char *path) {
    struct stat st;
    char model[OUTPUT_PATH];
    int found = 0;
    if (stat(path, &st)) {
        print0("BAD %s: %s\n", path, strerror(errno));
        return EXIT_FAILURE;
    }
    if (S_ISREG(st.st_mode) && is_model(path)) return verify_named_model(path);
    if (!S_ISDIR(st.st_mode)) {
        print0("BAD %s: neither a folder nor model_NNNNNNNN.bin\n", path);
        return EXIT_FAILURE;
    }
    if (is_checkpoint(path)) return verify_both(path, checkpoint_model_of(model, path) ? NULL : model);
    int bad = checkpoints_visit(path, verify_found, &found);
    if (!bad && !found) print0("BAD %s: there is no complete checkpoint\n", path);
    return bad || !found ? EXIT_FAILURE : EXIT_SUCCESS;
}
