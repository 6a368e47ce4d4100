#include "verify.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../gpt2/gpt2_error.h"
#include "../llmc_zero/zero.h"
#include "checkpoint.h"
#include "run.h"

static void say_good(void *ctx, const char *file, int64_t bytes) {
    (void)ctx;
    print0("%s: good, %lld bytes\n", file, (long long)bytes);
}

static int say_bad(void) {
    print0("BAD %s\n", gpt2_last_error());
    return EXIT_FAILURE;
}

// Each of the next four returns 0, or -1 with gpt2_last_error().
static int verify_states(const char *path) {
    return zero_checkpoint_verify(path, say_good, NULL) ? gpt2_fail("%s", zero_last_error()) : 0;
}

static int verify_model(const char *path) {
    struct stat st;
    int rc = checkpoint_check_model(path);
    if (rc > 0) return gpt2_fail("%s: cannot be verified: there is no checkpoint to compare it with", path);
    if (rc < 0) return -1;
    if (stat(path, &st)) return gpt2_fail("%s: %s", path, strerror(errno));
    say_good(NULL, path, st.st_size);
    return 0;
}

// A run does not resume a checkpoint under another step's name.
static int verify_name(const char *states) {
    TrainerState state;
    char *text = NULL;
    const int step = checkpoint_step_of(states);
    if (step < 0) return 0;  // a name that the user chose
    if (zero_checkpoint_text(states, &text)) return gpt2_fail("%s", zero_last_error());
    const int is_other = !saved_run_state(text, &state) && state.step != step;
    free(text);
    return is_other ? gpt2_fail("%s: is of step %d", states, state.step) : 0;
}

// A checkpoint is complete without its model file.
static int verify_both(const char *states) {
    char model[OUTPUT_PATH];
    if (verify_states(states) || verify_name(states)) return -1;
    return checkpoint_model_of(model, states) || !file_is_there(model) ? 0 : verify_model(model);
}

// --------
// a folder in which a run may save and remove checkpoints meanwhile

typedef struct {
    int bad;      // EXIT_FAILURE: at least one
    int checked;  // complete checkpoints verified, good or bad
    int removed;
} Tally;

// A model file that vanished meanwhile is not damage: a run removes it, and then its checkpoint.
static int verify_while_there(const Listing *l, const Found *f, const char *path) {
    char model[OUTPUT_PATH];
    int bad, had_model;
    const int has_model = !checkpoint_model_of(model, path);
    do {
        had_model = has_model && file_is_there(model);
        bad = verify_both(path);
    } while (bad && checkpoint_is_there(l, f) && had_model && !file_is_there(model));
    return bad;
}

static int check_complete(const Listing *l, const Found *f, const char *path, Tally *t) {
    const int bad = verify_while_there(l, f, path);
    if (bad && !checkpoint_is_there(l, f)) {
        print0("%s: removed meanwhile\n", path);
        t->removed++;
        return 0;
    }
    t->checked++;
    return bad || checkpoint_check_run(l, f);
}

// A killed save does no damage, but is worth a line.
static void verify_found(const Listing *l, const Found *f, Tally *t) {
    char path[OUTPUT_PATH];
    int bad = 0;
    checkpoint_folder(path, l, f);
    if (f->complete)
        bad = check_complete(l, f, path, t);
    else if (f->damaged)
        bad = gpt2_fail("%s: damaged: it was complete, and manifest.json is missing", path);
    else
        print0("%s: the save did not end, so it is no checkpoint\n", path);
    if (bad) t->bad = say_bad();
}

static int verify_all(const char *path) {
    Tally t;
    do {
        Listing l = checkpoints_in_order("--verify", path);
        t = (Tally){ 0 };
        for (int i = 0; i < l.n; i++) verify_found(&l, &l.found[i], &t);
        free(l.found);
    } while (!t.bad && !t.checked && t.removed);
    if (t.bad || t.checked) return t.bad;
    gpt2_fail("%s: there is no complete checkpoint", path);
    return say_bad();
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
    int bad;
    if (stat(path, &st))
        bad = gpt2_fail("%s: %s", path, strerror(errno));
    else if (S_ISREG(st.st_mode) && is_model(path))
        bad = verify_model(path);
    else if (!S_ISDIR(st.st_mode))
        bad = gpt2_fail("%s: neither a folder nor model_NNNNNNNN.bin", path);
    else if (is_checkpoint(path))
        bad = verify_both(path);
    else
        return verify_all(path);
    return bad ? say_bad() : EXIT_SUCCESS;
}
