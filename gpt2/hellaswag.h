// HellaSwag, or other multiple-choice examples, in llm.c's format: 256 int32 (magic 20240522, version 1,
// number of examples, bytes of the longest), then the examples in uint16. An example is 65535, its bytes, its
// number, the label (which completion is right), 4, and five token sequences, each after its length: the
// context and four completions.
//
// A completion's loss is the mean loss of its tokens after the context. The completion with the lowest loss
// is the model's answer. Each completion takes one row of a batch, and an example may continue in the next
// batch. Rank r has the examples r, r + ranks, r + 2 * ranks and so on.
#ifndef GPT2_HELLASWAG_H
#define GPT2_HELLASWAG_H
#include <stdint.h>

enum { HELLASWAG_COMPLETIONS = 4 };

// One row of the batch.
typedef struct {
    int example, completion, label;
    int first, n;  // where the completion's losses begin, and their number; n 0: no completion is left
    double loss;   // (hellaswag_score)
} HellaSwagRow;

typedef struct {
    int rank, ranks, B, T;
    const char *path;  // owned by the caller
    int num_examples;  // of all ranks
    int batches;       // of each rank, for all its examples; ranks with fewer examples get empty rows
    uint16_t *data;    // (words) the examples
    int64_t words;
    int64_t at;               // where the next row's example begins
    int example, completion;  // of the next row
    HellaSwagRow *rows;       // (B)
    int *inputs, *targets;    // (B, T) each
    float *losses;            // (B, T) filled in by the caller
    double lowest_loss;       // among the example's completions so far
    int answer;               // the completion with that loss
    int correct;              // answers so far, of this rank
} HellaSwag;

// Reads the file and checks all of it: tokens must be below V, and rows of T tokens must hold each example.
// Returns 0, or -1 with the file, the byte and a hint in gpt2_last_error().
int hellaswag_open(HellaSwag *h, const char *path, int B, int T, int V, int rank, int ranks);
void hellaswag_close(HellaSwag *h);
// Goes back to the first example.
void hellaswag_begin(HellaSwag *h);
// Fills inputs and targets with the next B completions.
void hellaswag_next(HellaSwag *h);
// Scores the batch from the loss of each of its tokens. Returns 0, or -1 if a completion's loss is not
// finite.
int hellaswag_score(HellaSwag *h);

#endif
