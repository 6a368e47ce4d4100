// Fuzz targets: each passes bytes to one of the readers as an untrusted file, and checks what the reader
// promises. targets.c lists them. libfuzzer.c runs them under libFuzzer; test_readers.c replays the seeds and
// the inputs in tests/fuzz/found, with any compiler.
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    const char *name;
    int is_text;                                  // 1: numbers are replaced by unlikely ones
    void (*begin)(void);                          // (optional) called once, before the first input
    void (*seeds)(void);                          // calls fuzz_seed for each
    int (*read)(const uint8_t *bytes, size_t n);  // returns 1 if the reader accepts them
} fuzz_target;

extern const fuzz_target *const fuzz_targets[];  // NULL at the end
const fuzz_target *fuzz_find(const char *name);  // NULL: unknown

// Receives bytes that the target's reader accepts; set by the program.
typedef void (*fuzz_seed_taker)(const char *name, const void *bytes, size_t n);
extern fuzz_seed_taker fuzz_seed;

// Ends the program if the condition does not hold.
#define FUZZ_MUST(condition) ((condition) ? (void)0 : fuzz_failed(#condition, __FILE__, __LINE__))
void fuzz_failed(const char *condition, const char *file, int line) __attribute__((noreturn));

// Returns a path in a temporary folder that is removed at exit. Valid for the next three calls too.
const char *fuzz_path(const char *name);
// Writes a file with these bytes there.
const char *fuzz_file(const char *name, const void *bytes, size_t n);
// Returns the bytes with a zero appended, to be freed.
char *fuzz_text(const uint8_t *bytes, size_t n);

// Calls fn. Returns 1 if it returns, 0 if it ends the run by die().
int fuzz_survives(void (*fn)(void *ctx), void *ctx);

// Reads a checkpoint's description of the run, like a trainer that resumes. Returns 1 if it is accepted.
int fuzz_read_run(const char *text);
char *fuzz_run_text(void);  // a valid text, to be freed
// Reads all of a model file, or of a folder with one. Returns 1 if it is accepted.
int fuzz_read_model(const char *path);

#endif
