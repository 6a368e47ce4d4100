#include "../files.h"
#include "fuzz.h"
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

extern const fuzz_target fuzz_checkpoint, fuzz_manifest, fuzz_states, fuzz_saved_run, fuzz_model_file,
    fuzz_model_export, fuzz_safetensors, fuzz_hf_config, fuzz_hf_index, fuzz_tokenizer, fuzz_word_pieces,
    fuzz_shards, fuzz_choices, fuzz_deepspeed, fuzz_tuning, fuzz_options, fuzz_prompts;

const fuzz_target *const fuzz_targets[] = {
    &fuzz_checkpoint,  &fuzz_manifest,    &fuzz_states,
    &fuzz_saved_run,   &fuzz_model_file,  &fuzz_model_export,
    &fuzz_safetensors, &fuzz_hf_config,   &fuzz_hf_index,
    &fuzz_tokenizer,   &fuzz_word_pieces, &fuzz_shards,
    &fuzz_choices,     &fuzz_deepspeed,   &fuzz_tuning,
    &fuzz_options,     &fuzz_prompts,     NULL,
};

fuzz_seed_taker fuzz_seed;
char fuzz_doing[200];

const fuzz_target *fuzz_find(const char *name) {
    for (int i = 0; fuzz_targets[i]; i++)
        if (!strcmp(fuzz_targets[i]->name, name)) return fuzz_targets[i];
    return NULL;
}

void fuzz_failed(const char *condition, const char *file, int line) {
    fprintf(stderr, "%s:%d: check failed: %s\n%s\n", file, line, condition, fuzz_doing);
    abort();
}

const char *fuzz_read(const fuzz_target *t, const uint8_t *bytes, size_t n) {
    if (t->file && bytes) fuzz_file(t->file, bytes, n);
    const char *error = t->read(bytes, n), *named = t->named;
    if (!named) named = t->file ? fuzz_path("") : "";
    if (error && (!*error || !strstr(error, named))) {
        fprintf(stderr, "\"%s\" does not name \"%s\"\n", error, named);
        FUZZ_MUST(!"the message names the file");
    }
    return error;
}

// -------- files

static char folder[PATH_MAX - 300];

static void remove_folder(void) { remove_tree(folder); }

const char *fuzz_path(const char *name) {
    static char paths[4][PATH_MAX];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    if (!*folder) {
        const char *parent = getenv("TMPDIR"), *memory = access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm";
        snprintf(folder, sizeof folder, "%s/llmc_zero_fuzz.XXXXXX", parent ? parent : memory);
        FUZZ_MUST(mkdtemp(folder));
        atexit(remove_folder);
    }
    snprintf(path, PATH_MAX, "%s/%s", folder, name);
    return path;
}

const char *fuzz_file(const char *name, const void *bytes, size_t n) {
    const char *path = fuzz_path(name);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    FUZZ_MUST(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    FUZZ_MUST(!close(fd));
    return path;
}

size_t fuzz_bytes(const char *path, void *bytes, size_t most) {
    FILE *f = fopen(path, "rb");
    const size_t n = f ? fread(bytes, 1, most, f) : 0;
    FUZZ_MUST(n > 0 && n < most && !fclose(f));
    return n;
}

char *fuzz_text(const uint8_t *bytes, size_t n) {
    char *text = malloc(n + 1);
    FUZZ_MUST(text);
    memcpy(text, bytes, n);
    text[n] = 0;
    return text;
}
