// Passes each target its seeds, which it must accept, and the inputs in tests/fuzz/found, which once broke a
// reader. It does not need libFuzzer.
//   test_readers                  all targets; run it in the folder that contains tests/
//   test_readers TARGET FILE...   passes only these files to one target
#include <errno.h>
#include <glob.h>
#include <string.h>
#include "fuzz.h"

static const fuzz_target *target;
static int passed, failed;

static int read_exactly(const void *bytes, size_t n) {
    uint8_t *own = malloc(n + 1);  // shrunk to n bytes below, so that ASan detects a read past the end
    FUZZ_MUST(own);
    memcpy(own, bytes, n);
    own = realloc(own, n ? n : 1);
    int accepted = target->read(own, n);
    free(own);
    return accepted;
}

static void must_accept(const char *name, const void *bytes, size_t n) {
    int accepted = read_exactly(bytes, n);
    passed += accepted;
    failed += !accepted;
    if (!accepted) printf("FAILED %s: rejects its seed %s\n", target->name, name);
}

static void replay(const char *path) {
    static char bytes[1 << 20];
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(bytes, 1, sizeof bytes, f) : 0;
    if (!f || ferror(f)) {
        printf("FAILED %s: %s\n", path, strerror(errno));
        failed++;
    } else {
        read_exactly(bytes, n);
        passed++;
    }
    if (f) fclose(f);
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
    target = t;
    if (t->begin) t->begin();
}

int main(int argc, char **argv) {
    fuzz_seed = must_accept;
    if (argc > 1) {
        const fuzz_target *named = fuzz_find(argv[1]);
        if (!named) {
            printf("unknown target: %s\n", argv[1]);
            return EXIT_FAILURE;
        }
        begin(named);
        for (int i = 2; i < argc; i++) replay(argv[i]);
    }
    for (int i = 0; argc == 1 && fuzz_targets[i]; i++) {
        begin(fuzz_targets[i]);
        target->seeds();
        read_found();
    }
    printf("test_readers: %d passed, %d failed\n", passed, failed);
    return failed || !passed;
}
