// Before the first step, runs each planned matmul once, in memory that is freed again, to find algorithms
// that the heuristic names but the library rejects, and kernels that fail. With a tuning file, times the
// matmuls that the file lacks: the heuristic's candidates, and the matmul without its epilogue plus our own
// kernels.
#include <math.h>
#include <stdlib.h>
#include "cuda.h"
#include "matmul_lt_cuda.h"

enum { ROUNDS = 9, MOST_RUNS = 50, CHOICES = CANDIDATES + 1 };
static const double ROUND_MS = 1;  // minimum total time of a choice's runs in one round

static size_t padded(size_t bytes) { return (bytes + 255) / 256 * 256; }

static size_t matrix_bytes(const Matmul *p, gpt2_dtype dt, int rows, int ld, int next) {
    size_t before = (size_t)(p->batch > 1 ? p->batch - 1 : 0) * next;
    return padded((before + (size_t)rows * ld) * gpt2_dtype_size(dt));
}

// The sizes of a matmul's operands, which are laid out consecutively in the trial's memory.
typedef struct {
    size_t left, right, out, aux, bias, all;
} Sizes;

static Sizes sizes_of(const Matmul *p) {
    Sizes s = { .left = matrix_bytes(p, p->in, p->left_t ? p->depth : p->rows, p->left_ld, p->left_next),
                .right = matrix_bytes(p, p->in, p->right_t ? p->cols : p->depth, p->right_ld, p->right_next),
                .out = matrix_bytes(p, p->out, p->rows, p->out_ld, p->out_next) };
    if (p->epilogue) {
        s.aux = s.out;
        s.bias = padded((p->rows > p->cols ? p->rows : p->cols) * gpt2_dtype_size(p->out));
    }
    s.all = s.left + s.right + s.out + s.aux + s.bias;
    return s;
}

static Operands operands_in(char *memory, const Matmul *p) {
    Sizes s = sizes_of(p);
    char *right = memory + s.left, *out = right + s.right, *aux = out + s.out, *bias = aux + s.aux;
    return (Operands){
        .left = memory, .right = right, .out = out, .aux = aux, .bias = bias, .workspace = cuda_scratch()
    };
}

// -------- timing

typedef struct {
    Kept *kept;
    int choice;  // a candidate's index; kept->found: a smaller matmul and our own kernels ("apart")
    const Operands *x;
} Run;

static int run_choice(const void *ctx) {
    const Run *r = ctx;
    return r->choice < r->kept->found ? matmul_run_candidate(r->kept, r->choice, r->x)
                                      : matmul_cuda_apart(&r->kept->matmul, r->x);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// ms[choice] is the median of rounds in which the choices take turns, or INFINITY for a rejected candidate.
static int time_choices(Kept *kept, int choices, const Operands *x, double ms[CHOICES]) {
    double rounds[CHOICES][ROUNDS];
    int runs[CHOICES];
    for (int c = 0; c < choices; c++) {
        const Run run = { kept, c, x };
        double warm, once;
        runs[c] = 0;
        ms[c] = INFINITY;
        if (cuda_time(run_choice, &run, 1, &warm) != 0 || cuda_time(run_choice, &run, 1, &once) != 0) {
            if (c == kept->found || matmul_rejected() != 0) return -1;
            continue;
        }
        runs[c] = once * MOST_RUNS < ROUND_MS ? MOST_RUNS : once > ROUND_MS ? 1 : (int)ceil(ROUND_MS / once);
    }
    for (int r = 0; r < ROUNDS; r++)
        for (int c = 0; c < choices; c++) {
            const Run run = { kept, c, x };
            if (runs[c] > 0 && cuda_time(run_choice, &run, runs[c], &rounds[c][r]) != 0) return -1;
        }
    for (int c = 0; c < choices; c++) {
        if (runs[c] == 0) continue;
        qsort(rounds[c], ROUNDS, sizeof(double), compare);
        ms[c] = rounds[c][ROUNDS / 2];
    }
    return 0;
}

static int settle(Kept *kept, char *memory);

// Chooses the fastest or, on a tie, the first.
static int tune(Kept *kept, char *memory) {
    const Matmul *p = &kept->matmul;
    int apart = matmul_splits(p), choices = kept->found + apart, best = 0;
    double ms[CHOICES];
    Matmul less = matmul_cuda_less(p);
    Kept *without = apart ? matmul_keep(&less) : NULL;
    if (apart && (!without || settle(without, memory) != 0)) return -1;
    Operands x = operands_in(memory, p);
    // new values, since earlier matmuls have left results there
    if (cuda_random_values(memory, sizes_of(p).all) != 0 || time_choices(kept, choices, &x, ms) != 0)
        return -1;
    for (int c = 1; c < choices; c++)
        if (ms[c] < ms[best]) best = c;
    if (choices == 0 || ms[best] == INFINITY) return matmul_unsupported(p);
    if (best < kept->found)
        kept->chosen = best;
    else
        kept->found = 0;
    kept->settled = 1;
    return tune_add(p, kept->found ? &kept->candidates[best] : NULL, ms[best]);
}

// --------

// Runs the tuning file's choices, because an algorithm that passes cuBLASLt's check may still not run.
static int try_tuned(Kept *kept, char *memory) {
    Operands x = operands_in(memory, &kept->matmul);
    Matmul less = matmul_cuda_less(&kept->matmul);
    if (kept->found == 0) return matmul_cuda_prepare(&less);
    if (matmul_run_candidate(kept, kept->chosen, &x) != 0) return tune_refused(kept->line, gpt2_last_error());
    return cuda_check(cudaStreamSynchronize(0), "a matmul of the tuning file");
}

static int settle(Kept *kept, char *memory) {
    const Matmul *p = &kept->matmul;
    if (kept->settled) return kept->line ? try_tuned(kept, memory) : 0;
    if (tune_wanted() == 1) return tune(kept, memory);
    if (tune_wanted() == 0)
        return gpt2_fail("rank 0 has not timed a matmul that this rank plans, m %d, n %d, k %d, epilogue %d: "
                         "all ranks need the same options",
                         p->cols, p->rows, p->depth, p->epilogue);
    Operands x = operands_in(memory, p);
    int rc = matmul_run(kept, &x);
    if (rc > 0 && !matmul_splits(p)) return matmul_unsupported(p);
    if (rc > 0) {  // replaced by a smaller matmul, which is also tried, and our own kernels
        Matmul less = matmul_cuda_less(p);
        return matmul_cuda_prepare(&less);
    }
    return rc < 0 ? -1 : cuda_check(cudaStreamSynchronize(0), "a matmul that was tried");
}

size_t trial_cuda_bytes(void) {
    size_t most = 0;
    for (int i = 0; matmul_at(i); i++) {
        size_t bytes = sizes_of(&matmul_at(i)->matmul).all;
        most = bytes > most ? bytes : most;
    }
    return most;
}

int trial_cuda(void *memory) {
    // The table may grow during the loop: a replaced matmul adds the smaller one that it needs.
    for (int i = 0; matmul_at(i); i++)
        if (settle(matmul_at(i), memory) != 0) return -1;
    return 0;
}
