// Provides transposed weights: llm.c stores a weight as (out, in), Hugging Face as (in, out). It holds one
// panel at a time, some rows of one transpose, and fills it tile by tile from runs of the matrix's rows.
#ifndef GPT2_TRANSPOSE_H
#define GPT2_TRANSPOSE_H
#include "model.h"

typedef struct {
    gpt2_source from;  // of the matrices
    void *ctx;
    float *panel;        // (end - begin, rows) of the transpose
    float *tile;         // (TILE) of the matrix
    int tensor, layer;   // being transposed
    int64_t begin, end;  // rows of the transpose; begin == end: none
} Transposer;

// Returns 0, or -1. Call transposer_end in either case.
int transposer_begin(Transposer *t, gpt2_source from, void *ctx);
// Reads elements [offset, offset + n) of the transpose, (cols, rows), of a matrix (rows, cols).
int transposer_get(Transposer *t, int tensor, int layer, int64_t rows, int64_t cols, int64_t offset,
                   int64_t n, float *values);
void transposer_end(Transposer *t);

#endif
