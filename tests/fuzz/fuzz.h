// Fuzz targets: each hands bytes to one of the readers as if they were a file of somebody else, and checks
// what the reader promises. targets.c lists them. libfuzzer.c lets libFuzzer find the bytes; test_readers.c
// reads the seeds and the inputs of tests/fuzz/found again, with any compiler.
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    const char *name;
    int is_text;                                  // its numbers are replaced by unlikely ones
    void (*begin)(void);                          // once, before the first input; NULL: nothing
    void (*seeds)(void);                          // calls fuzz_seed for each
    int (*read)(const uint8_t *bytes, size_t n);  // returns 1 if the reader takes them
} fuzz_target;

extern const fuzz_target *const fuzz_targets[];  // NULL at the end
const fuzz_target *fuzz_find(const char *name);  // NULL: there is none

// Bytes that the target's reader takes. What becomes of them is up to the program.
typedef void (*fuzz_seed_taker)(const char *name, const void *bytes, size_t n);
extern fuzz_seed_taker fuzz_seed;

// Ends the program if the condition does not hold.
#define FUZZ_MUST(condition) ((condition) ? (void)0 : fuzz_failed(#condition, __FILE__, __LINE__))
void fuzz_failed(const char *condition, const char *file, int line) __attribute__((noreturn));

// Returns a path in a folder of this process that goes with it; valid until the next call but three.
const char *fuzz_path(const char *name);
// The same, of a file with these bytes.
const char *fuzz_file(const char *name, const void *bytes, size_t n);
// Returns the bytes with a zero behind them, to be freed.
char *fuzz_text(const uint8_t *bytes, size_t n);

// Calls fn. Returns 1 if it comes back, and 0 if it ends the run by die().
int fuzz_survives(void (*fn)(void *ctx), void *ctx);

// Reads what a checkpoint says of the run, as a trainer that resumes does. Returns 1 if it is taken.
int fuzz_read_run(const char *text);
char *fuzz_run_text(void);  // such a text, to be freed
// Reads a model file, or a folder with one, from end to end. Returns 1 if it is taken.
int fuzz_read_model(const char *path);
// Loads a checkpoint into a small plugin, which must be as before if that fails. Returns 1 if it is loaded.
int fuzz_load(const char *path);
struct zero *fuzz_plugin(void);

#endif
