// Targets: each reads one kind of file that comes from outside, and checks what its reader guarantees. Two
// programs run them: tests/test_damage.c damages the targets' valid files in known ways, and libfuzzer.c lets
// libFuzzer look for more. Inputs that once broke a reader are in found/TARGET.
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// A change of a target's first seed, and a part of the message with which its reader must refuse the result;
// NULL: it must accept it. The change replaces the first text `from`, or puts a value of 4 bytes at an
// offset. Then the file grows.
typedef struct {
    const char *from, *to, *error;
    long at;
    uint32_t value;
    long grow;
} fuzz_damage;
#define FUZZ_PUT(at, value, grow, error) \
    { NULL, NULL, error, at, value, grow }
#define FUZZ_ROWS(rows) .damage = rows, .n_damage = sizeof(rows) / sizeof *(rows)

typedef struct {
    const char *name;
    int is_text;          // 1: the fuzzer also replaces numbers in the text
    void (*begin)(void);  // (optional) called before the first input
    void (*seeds)(void);  // calls fuzz_seed for each valid file
    const char *file;     // (optional) the bytes are written to this file in the temporary folder
    // Reads the file or the bytes. Returns NULL if they are accepted, or the reader's message.
    const char *(*read)(const uint8_t *bytes, size_t n);
    const char *named;  // what each message contains; NULL: with `file`, the temporary folder
    void (*mend)(uint8_t *bytes, long grown);  // (optional) called after text is replaced
    const fuzz_damage *damage;
    size_t n_damage;
    // If every change must be refused: what the messages contain after changed bytes, and after bytes are cut
    // off or added. %ld is the start of the changed bytes' block.
    const char *changed, *cut;
    long block;
    int no_links;  // 1: refuses a symbolic link to a valid file
} fuzz_target;
// Defines a target; begin may be NULL. The rest sets more fields.
#define FUZZ_DEFINE(NAME, BEGIN, SEEDS, ...) \
    const fuzz_target fuzz_##NAME = { .name = #NAME, .begin = BEGIN, .seeds = SEEDS, __VA_ARGS__ }

extern const fuzz_target *const fuzz_targets[];  // ends with NULL
const fuzz_target *fuzz_find(const char *name);  // returns NULL if there is none
// Passes bytes to the target; NULL: what its file has. Returns NULL if they are accepted, or the reader's
// message, which is checked.
const char *fuzz_read(const fuzz_target *t, const uint8_t *bytes, size_t n);

// Takes a seed, which the target's reader must accept. The program sets this function.
typedef void (*fuzz_seed_taker)(const char *name, const void *bytes, size_t n);
extern fuzz_seed_taker fuzz_seed;

// Ends the program if the condition does not hold, and prints fuzz_doing.
#define FUZZ_MUST(condition) ((condition) ? (void)0 : fuzz_failed(#condition, __FILE__, __LINE__))
void fuzz_failed(const char *condition, const char *file, int line) __attribute__((noreturn));
extern char fuzz_doing[200];

// Returns a path in a temporary folder that is removed at exit. It stays valid for the next three calls.
const char *fuzz_path(const char *name);
// Writes a file with these bytes in that folder, and returns its path.
const char *fuzz_file(const char *name, const void *bytes, size_t n);
// Reads a file of 1 to most - 1 bytes, and returns their number.
size_t fuzz_bytes(const char *path, void *bytes, size_t most);
// Returns a copy of the bytes with a terminating zero. The caller frees it.
char *fuzz_text(const uint8_t *bytes, size_t n);

// Calls fn. Returns NULL if fn returns, or the message if it ends the run, for example with die().
const char *fuzz_survives(void (*fn)(void *ctx), void *ctx);

// Reads a checkpoint's description of the run, like a trainer that resumes. Returns NULL or a message.
const char *fuzz_read_run(const char *text);
// Returns a valid description, which the caller frees.
char *fuzz_run_text(void);

#endif
