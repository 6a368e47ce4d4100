// The lessons of docs/tutorial/: the functions that readers write, those that they may call, and what the
// graders NN_check.c share. `make lesson N=4` builds lesson 4 and runs it on as many ranks as it needs.
#ifndef LESSON_H
#define LESSON_H
#include <stdint.h>
#include "llmc_zero/zero.h"

// -------- what readers write, in dev/lessons/NN_name.c; the rules are in the comments there

// Lesson 1
int64_t state_bytes(int stage, int ranks, int accumulates, int bf16, int64_t parameters);

// Lesson 2
void average_f32(float *gradient, int n);
void average_bf16(uint16_t *gradient, int n);

// Lesson 3
void reduce_scatter(const float *gradient, int n, float *own);
void all_gather(const float *own, int n, float *all);

// Lesson 4
int64_t shard_elems(int64_t unit_elems, int ranks);
void owner(int64_t element, int64_t unit_elems, int ranks, int *rank, int64_t *offset);
void update_range(int rank, int ranks, int64_t unit_elems, int64_t begin, int64_t elems, int64_t *first,
                  int64_t *n);

// Lesson 5
int fill_buckets(const int64_t *elems, int n_units, int64_t bucket_size, int *reduction);
int64_t bucket_memory(const int64_t *elems, int n_units, int64_t bucket_size);

// Lesson 6
int frees_slot(const int *uses, int n_uses, int at);
int gather_ahead(const int *uses, int n_uses, int at, int n_slots, const int *held);

// Lesson 7
double global_norm(const float *const *shards, const int64_t *elems, int n_units);

// Lesson 8
typedef struct {
    double begin, end;  // microseconds
} span;
double exposed(const span *sends, int n_sends, const span *computes, int n_computes);

// Lesson 9
int64_t kept_values(int recompute, int64_t layers, int64_t btc);
int64_t slot_bytes(int stage, int ranks, int prefetch, const int64_t *elems, int n_units, int dtype_bytes);

// Lesson 10
void file_bytes(const int64_t *elems, int n_units, int ranks, int micro_batches, int gradients, int64_t *read,
                int64_t *written);

// Lesson 11
typedef struct {
    int64_t from, elems;  // elements of the unit
    int64_t at;           // byte of the file where they begin
} saved_part;
typedef struct {
    int file;           // of this old rank
    int64_t at, bytes;  // in the file
} file_range;
int find_ranges(int64_t unit_elems, const saved_part *saved, int old_ranks, int new_rank, int new_ranks,
                file_range *ranges);

// Lesson 16
float tree_sum(const float *x, int n);

// -------- what readers may call

// This rank's number, from 0, and the number of ranks that take part in the current check.
int wire_rank(void);
int wire_ranks(void);
// Sends bytes to another rank. Returns at once; the data is copied.
void wire_send(int to, const void *data, size_t bytes);
// Waits for the next message from a rank, which must have exactly this size. Messages from one rank arrive in
// the order in which they were sent.
void wire_receive(int from, void *data, size_t bytes);
// Rounds to the nearest bf16 number (ties to even), and converts back; bf16 is stored as uint16_t.
uint16_t to_bf16(float x);
float from_bf16(uint16_t x);

// -------- checks, for graders

// Starts the lesson on this number of ranks: unless mpirun has started the program, runs it again under
// mpirun. Prints the title. From then on, a crash or a hang ends the lesson with a message.
void lesson_begin(char **argv, int ranks, int number, const char *title);
// Records, on any rank, that the current check fails. lesson_check prints the first message.
void lesson_off(const char *format, ...) __attribute__((format(printf, 1, 2)));
// (on all ranks) Ends a check and prints its result. It fails if a rank has called lesson_off since the last
// check, or if a message was sent and never received.
void lesson_check(const char *what, ...) __attribute__((format(printf, 1, 2)));
// (on all ranks) Prints the sum and returns the exit status: 0 if every check passed.
int lesson_end(void);

// (on all ranks) Lets only the first `ranks` ranks take part from now on. Returns 1 if this rank does.
int lesson_join(int ranks);
// Returns the bytes that this rank has sent through wire_send since lesson_join.
int64_t wire_sent(void);

// -------- the library, for graders

// Ends the lesson with zero_last_error() if a call of the library failed.
void lesson_must(int rc);
// Sets config->start to the ranks that joined.
void lesson_start(zero_config *config);
// Returns the library's plan for rank 0 of `ranks` and a model of n_units units, at most LESSON_UNITS. Unit u
// has one tensor, tensor u, of elems[u] elements.
enum { LESSON_UNITS = 16 };
zero_plan lesson_plan(zero_config *config, const int64_t *elems, int n_units, int ranks);
// (on the ranks that joined) Creates an instance of the library for such a model. Calls lesson_start.
zero *lesson_engine(zero_config *config, const int64_t *elems, int n_units);
// (on the ranks that joined) Runs micro-batch `micro` of `of` through the hooks of lesson_engine's model;
// gradient() gives the gradient of element i of a unit on a rank, as fp32.
typedef float (*lesson_gradient)(int rank, int micro, int unit, int64_t i);
void lesson_micro_batch(zero *z, int micro, int of, const zero_config *config, const int64_t *elems,
                        int n_units, lesson_gradient gradient);
// (on the ranks that joined) Sets mean (elems numbers) to the library's mean of the ranks' gradients of one
// unit, and returns what this rank has sent for it.
zero_traffic lesson_mean(zero_config *config, int64_t elems, lesson_gradient gradient, float *mean);
// Calls lesson_off for each of the elements [first, first + n) whose bits differ; if the bytes sent differ.
void lesson_compare(const float *yours, const float *theirs, int first, int n);
void lesson_compare_bytes(int64_t yours, int64_t theirs);
// Returns number i, from -1 to 1, of a fixed random sequence.
float lesson_number(uint64_t i);

#endif
