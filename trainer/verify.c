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

static int verify_model(const char *path, int64_t bytes) {
    int rc = checkpoint_check_model(path);
    if (rc < 0) return say_bad(gpt2_last_error());
    if (rc)
        print0("%s: not verified: no checkpoint beside it says what it was\n", path);
    else
        say_good(NULL, path, bytes);
    return 0;
}

// Who names it asks whether it is good, and nothing can say so.
static int verify_named_model(const char *path, int64_t bytes) {
    if (checkpoint_check_model(path) <= 0) return verify_model(path, bytes);
    print0("BAD %s: cannot be verified: no checkpoint beside it says what it was\n", path);
    return EXIT_FAILURE;
}

// A checkpoint is complete without it.
static int verify_model_of(const CheckpointPaths *p) {
    struct stat st = { 0 };
    if (!p->model || (stat(p->model, &st) && errno == ENOENT)) return 0;
    return verify_model(p->model, st.st_size);
}

// A save that died damages nothing, but is worth a line.
static int verify_found(void *ctx, const CheckpointPaths *p) {
    int *verified = ctx;
    if (!p->complete) {
        print0("%s: the save did not end, so it is no checkpoint\n", p->states);
        return 0;
    }
    ++*verified;
    int bad = verify_states(p->states);
    return bad ? bad : verify_model_of(p);
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
    int verified = 0;
    if (stat(path, &st)) {
        print0("BAD %s: %s\n", path, strerror(errno));
        return EXIT_FAILURE;
    }
    if (S_ISREG(st.st_mode) && is_model(path)) return verify_named_model(path, st.st_size);
    if (!S_ISDIR(st.st_mode) || is_checkpoint(path)) return verify_states(path);
    int bad = checkpoints_visit(path, verify_found, &verified);
    if (!bad && !verified) print0("BAD %s: there is no complete checkpoint\n", path);
    return bad || !verified ? EXIT_FAILURE : EXIT_SUCCESS;
}
