#include "transpose.h"
#include <stdlib.h>
#include <string.h>
#include "gpt2_error.h"

enum {
    PANEL = 1 << 22,  // elements, 16 MiB
    TILE = GPT2_PIECE,
    SQUARE = 16  // side of a square transposed at once: a cache line of each row and each column
};

int transposer_begin(Transposer *t, gpt2_source from, void *ctx) {
    *t = (Transposer){ .from = from, .ctx = ctx };
    t->panel = malloc(PANEL * sizeof *t->panel);
    t->tile = malloc(TILE * sizeof *t->tile);
    return t->panel && t->tile ? 0 : gpt2_fail("no memory to transpose weights");
}

void transposer_end(Transposer *t) {
    free(t->panel);
    free(t->tile);
    *t = (Transposer){ 0 };
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Transposes one square of a tile (n, width), which begins at row `first` of the matrix.
static void transpose_square(Transposer *t, int64_t rows, int64_t first, int64_t n, int64_t r0, int64_t c0) {
    const int64_t width = t->end - t->begin;
    for (int64_t c = c0; c < least(c0 + SQUARE, width); c++)
        for (int64_t r = r0; r < least(r0 + SQUARE, n); r++)
            t->panel[c * rows + first + r] = t->tile[r * width + c];
}

static int read_tile(Transposer *t, int64_t cols, int64_t first, int64_t n) {
    const int64_t width = t->end - t->begin;
    if (width == cols) return t->from(t->ctx, t->tensor, t->layer, first * cols, n * cols, t->tile);
    for (int64_t r = 0; r < n; r++) {
        const int64_t at = (first + r) * cols + t->begin;
        if (t->from(t->ctx, t->tensor, t->layer, at, width, t->tile + r * width)) return -1;
    }
    return 0;
}

static int fill_panel(Transposer *t, int64_t rows, int64_t cols) {
    const int64_t width = t->end - t->begin, most = TILE / width;
    for (int64_t first = 0; first < rows; first += most) {
        const int64_t n = least(most, rows - first);
        if (read_tile(t, cols, first, n)) return -1;
        for (int64_t r = 0; r < n; r += SQUARE)
            for (int64_t c = 0; c < width; c += SQUARE) transpose_square(t, rows, first, n, r, c);
    }
    return 0;
}

// Moves the panel to one that contains this row of the transpose.
static int move_panel(Transposer *t, int tensor, int layer, int64_t rows, int64_t cols, int64_t row) {
    const int64_t height = least(TILE, PANEL / rows);
    const int same = t->tensor == tensor && t->layer == layer;
    if (same && row >= t->begin && row < t->end) return 0;
    if (rows > PANEL) return gpt2_fail("a matrix of %lld rows cannot be transposed", (long long)rows);
    t->tensor = tensor;
    t->layer = layer;
    t->begin = row / height * height;
    t->end = least(t->begin + height, cols);
    int failed = fill_panel(t, rows, cols);
    if (failed) t->end = t->begin;
    return failed;
}

int transposer_get(Transposer *t, int tensor, int layer, int64_t rows, int64_t cols, int64_t offset,
                   int64_t n, float *values) {
    for (int64_t some; n; offset += some, values += some, n -= some) {
        if (move_panel(t, tensor, layer, rows, cols, offset / rows)) return -1;
        const int64_t at = offset - t->begin * rows;
        some = least(n, (t->end - t->begin) * rows - at);
        memcpy(values, t->panel + at, (size_t)some * sizeof *values);
    }
    return 0;
}
