// Damages a valid file of every kind that is read: changed bits, every shorter length, added bytes, swapped
// halves, folders, pipes and links in place of the file, the changes that a target lists with their messages,
// and the inputs in tests/fuzz/found, which once broke a reader. A reader must refuse the file with a message
// that names it, or return what the file says; the targets in tests/fuzz/ check either.
//   test_damage                  all targets; run it in the folder that contains tests/
//   test_damage TARGET           one target
//   test_damage all TARGET...    these targets: every bit of these bytes, instead of one, and more bytes
//   test_damage TARGET FILE...   passes only these files to one target
#include <errno.h>
#include <glob.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "fuzz/fuzz.h"

enum { PRINTED = 20, MOST = 1 << 20 };
static const fuzz_target *target;
static int all_bits, passed, failed, wrong;

// The valid file, and a copy to damage.
static const char *seed_name;
static const uint8_t *seed;
static uint8_t changed[MOST];
static size_t size;

// The bytes end where their memory ends, so that ASan detects a read past them.
static const char *read_exactly(const void *bytes, size_t n) {
    uint8_t *own = malloc(n ? n : 1);
    FUZZ_MUST(own);
    memcpy(own, bytes, n);
    const char *error = fuzz_read(target, own, n);
    free(own);
    return error;
}

// words: what the reader's message must contain; NULL: it may accept the file.
static void expect(const char *error, const char *words) {
    if (!words || (error && strstr(error, words))) return;
    if (wrong++ < PRINTED)
        printf("FAILED %s: expected \"%s\", but: %s\n", fuzz_doing, words, error ? error : "accepted");
}

static void accept(const char *error) {
    if (error && wrong++ < PRINTED) printf("FAILED %s: %s\n", fuzz_doing, error);
}

#define DOING(...) (void)snprintf(fuzz_doing, sizeof fuzz_doing, __VA_ARGS__)
static void doing(const char *what, long at) {
    DOING("%s, seed %s: %s %ld", target->name, seed_name, what, at);
}

static const char *words_at(size_t at) {
    static char words[200];
    const long block = target->block ? target->block : 1;
    if (!target->changed) return NULL;
    snprintf(words, sizeof words, target->changed, (long)at / block * block);
    return words;
}

// In a large file, only some bytes are damaged.
static size_t stride(void) { return 1 + size / (all_bits ? 8192 : 2048); }

// -------- ways to damage a file

static void flip_bits(void) {
    for (size_t at = 0; at < size; at += stride())
        for (size_t bit = 0; bit < 8; bit++) {
            if (!all_bits && bit != at % 8) continue;
            doing("a flipped bit of byte", (long)at);
            changed[at] ^= (uint8_t)(1 << bit);
            expect(read_exactly(changed, size), words_at(at));
            changed[at] = seed[at];
        }
}

static void cut_and_grow(void) {
    for (size_t n = 0; n < size; n += stride()) {
        doing("cut to", (long)n);
        expect(read_exactly(seed, n), target->cut);
    }
    for (int byte = 0; byte < 256; byte += 'x') {
        changed[size] = (uint8_t)byte;
        doing("an added byte", byte);
        expect(read_exactly(changed, size + 1), target->cut);
    }
}

static void swap_halves(void) {
    const size_t half = size / 2;
    memcpy(changed, seed + half, half);
    memcpy(changed + half, seed, half);
    doing("swapped halves of", (long)half);
    expect(read_exactly(changed, size), words_at(0));
    memcpy(changed, seed, size);
}

enum { GONE, A_FOLDER, A_PIPE, A_LINK_TO_NOTHING, A_LINK_TO_ZEROS, A_LINK_TO_IT, KINDS };

static void put_in_place(const char *path, const char *aside, int kind) {
    FUZZ_MUST(kind == A_LINK_TO_IT ? !rename(path, aside) : !unlink(path));
    FUZZ_MUST(kind != A_FOLDER || !mkdir(path, 0700));
    FUZZ_MUST(kind != A_PIPE || !mkfifo(path, 0600));
    if (kind >= A_LINK_TO_NOTHING)
        FUZZ_MUST(!symlink(kind == A_LINK_TO_IT      ? aside
                           : kind == A_LINK_TO_ZEROS ? "/dev/zero"
                                                     : "nothing",
                           path));
}

// Opening a pipe without a writer must not block; if it does, the alarm ends the program.
static void replace_file(void) {
    alarm(120);
    for (int kind = 0; target->file && kind < KINDS; kind++) {
        char path[4096], aside[4096];
        snprintf(path, sizeof path, "%s", fuzz_path(target->file));
        snprintf(aside, sizeof aside, "%s", fuzz_path("aside"));
        fuzz_file(target->file, seed, size);
        put_in_place(path, aside, kind);
        doing("replaced by a thing of kind", kind);
        const char *error = fuzz_read(target, NULL, 0);
        if (kind == A_LINK_TO_IT && !target->no_links)
            accept(error);
        else
            expect(error, kind == A_LINK_TO_IT ? "symbolic links" : "");
        FUZZ_MUST(kind == GONE || !remove(path));
    }
    alarm(0);
}

static size_t apply(const fuzz_damage *d) {
    size_t n = size;
    if (d->from) {
        uint8_t *at = memmem(changed, n, d->from, strlen(d->from));
        FUZZ_MUST(at);
        const long grown = (long)strlen(d->to) - (long)strlen(d->from);
        uint8_t *const rest = at + strlen(d->from);
        memmove(rest + grown, rest, (size_t)(changed + n - rest));
        memcpy(at, d->to, strlen(d->to));
        if (target->mend) target->mend(changed, grown);
        n += (size_t)grown;
    } else {
        memcpy(changed + d->at, &d->value, sizeof d->value);
    }
    memset(changed + n, 0, d->grow > 0 ? (size_t)d->grow : 0);
    return -d->grow > (long)n ? 0 : n + (size_t)d->grow;
}

static void apply_rows(void) {
    for (size_t i = 0; i < target->n_damage; i++) {
        const fuzz_damage *d = &target->damage[i];
        DOING("%s: \"%s\" to \"%s\", row %zu", target->name, d->from ? d->from : "", d->to ? d->to : "", i);
        const size_t n = apply(d);
        const char *error = read_exactly(changed, n);
        if (d->error)
            expect(error, d->error);
        else
            accept(error);
        memcpy(changed, seed, size);
    }
}

static void end_case(void) {
    doing("undamaged", 0);
    accept(read_exactly(seed, size));
    passed += !wrong;
    failed += wrong != 0;
    wrong = 0;
}

static void damage(const char *name, const void *bytes, size_t n) {
    static void (*const ways[])(void) = { flip_bits, cut_and_grow, swap_halves, replace_file };
    const int is_first = !seed;
    FUZZ_MUST(n < MOST / 2);
    seed_name = name;
    seed = bytes;
    size = n;
    memcpy(changed, bytes, n);
    end_case();
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        ways[i]();
        end_case();
    }
    if (is_first) apply_rows();
    if (is_first) end_case();
}

// -------- known inputs

static void replay(const char *path) {
    FILE *f = fopen(path, "rb");
    const size_t n = f ? fread(changed, 1, sizeof changed, f) : 0;
    FUZZ_MUST(f && !ferror(f) && !fclose(f));
    DOING("%s", path);
    read_exactly(changed, n);
    passed++;
}

static void read_found(void) {
    char pattern[200];
    glob_t files;
    snprintf(pattern, sizeof pattern, "tests/fuzz/found/%s/*", target->name);
    if (glob(pattern, 0, NULL, &files)) return;
    for (size_t i = 0; i < files.gl_pathc; i++) replay(files.gl_pathv[i]);
    globfree(&files);
}

static void begin(const fuzz_target *t) {
    FUZZ_MUST(t);
    target = t;
    seed = NULL;
    if (t->begin) t->begin();
}

int main(int argc, char **argv) {
    const char *named = argc > 1 ? argv[1] : "";
    all_bits = !strcmp(named, "all");
    fuzz_seed = damage;
    const int first = all_bits ? 2 : 1, has_files = argc > 2 && !all_bits;
    if (has_files) begin(fuzz_find(named));
    for (int i = 2; has_files && i < argc; i++) replay(argv[i]);
    for (int i = 0; !has_files && fuzz_targets[i]; i++) {
        int chosen = argc == 1;
        for (int k = first; k < argc; k++) chosen |= !strcmp(argv[k], fuzz_targets[i]->name);
        if (!chosen) continue;
        begin(fuzz_targets[i]);
        target->seeds();
        read_found();
    }
    printf("test_damage: %d passed, %d failed\n", passed, failed);
    return failed || !passed;
}
