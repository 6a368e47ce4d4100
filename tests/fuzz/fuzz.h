// Fuzz targets. Each passes bytes to one of the readers as an untrusted file, and checks what the reader
// guarantees. targets.c lists the targets. libfuzzer.c runs them under libFuzzer. test_readers.c replays the
// seeds and the inputs in tests/fuzz/found, and works with any compiler.
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    const char *name;
    int is_text;                                  // 1: the fuzzer also replaces numbers in the text
    void (*begin)(void);                          // (optional) called once, before the first input
    void (*seeds)(void);                          // calls fuzz_seed for each seed
    int (*read)(const uint8_t *bytes, size_t n);  // returns 1 if the reader accepts the bytes
} fuzz_target;

extern const fuzz_target *const fuzz_targets[];  // ends with NULL
const fuzz_target *fuzz_find(const char *name);  // returns NULL if there is none

// Takes a seed, which the target's reader must accept. The program sets this function.
typedef void (*fuzz_seed_taker)(const char *name, const void *bytes, size_t n);
extern fuzz_seed_taker fuzz_seed;

// Ends the program if the condition does not hold.
#define FUZZ_MUST(condition) ((condition) ? (void)0 : fuzz_failed(#condition, __FILE__, __LINE__))
void fuzz_failed(const char *condition, const char *file, int line) __attribute__((noreturn));

// Returns a path in a temporary folder that is removed at exit. It stays valid for the next three calls.
const char *fuzz_path(const char *name);
// Writes a file with these bytes in that folder, and returns its path.
const char *fuzz_file(const char *name, const void *bytes, size_t n);
// Returns a copy of the bytes with a terminating zero. The caller frees it.
char *fuzz_text(const uint8_t *bytes, size_t n);

// Calls fn. Returns 1 if fn returns, or 0 if it ends the run, for example with die().
int fuzz_survives(void (*fn)(void *ctx), void *ctx);

// Reads a checkpoint's description of the run, like a trainer that resumes. Returns 1 if it is accepted.
int fuzz_read_run(const char *text);
// Returns a valid description, which the caller frees.
char *fuzz_run_text(void);
// Reads an entire model file, or a folder that contains a model. Returns 1 if it is accepted.
int fuzz_read_model(const char *path);

#endif
