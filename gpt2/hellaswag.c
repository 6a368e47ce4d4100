#include "hellaswag.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "disk.h"
#include "gpt2_error.h"

enum { MAGIC = 20240522, VERSION = 1, HEADER = 256 * sizeof(int32_t) };
enum { START, BYTES, NUMBER, LABEL, COMPLETIONS, CONTEXT };  // an example's first words
enum { START_MARK = 65535 };

// -------- checks of the whole file

// Reports what is wrong with the word at `at`.
static int __attribute__((format(printf, 3, 4))) wrong(const HellaSwag *h, int64_t at, const char *fmt, ...) {
    char what[160];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return gpt2_fail(
        "%s: byte %lld, example %d: %s; build/make_hellaswag makes such files (docs/reference/data.md)",
        h->path, (long long)(HEADER + 2 * at), h->example, what);
}

// Checks the sequence at `at`, which must end by `end`. Returns its number of tokens, or -1.
static int check_tokens(const HellaSwag *h, int64_t at, int64_t end, int V) {
    const int n = at < end ? h->data[at] : 0;
    if (n < 1 || at + 1 + n > end) return wrong(h, at, "%d tokens do not fit into the example", n);
    for (int64_t i = at + 1; i <= at + n; i++)
        if (h->data[i] >= V)
            return wrong(h, i,
                         "token %d is outside the vocabulary of %d; was it made with another tokenizer?",
                         h->data[i], V);
    return n;
}

static int check_example(const HellaSwag *h, int V) {
    const uint16_t *x = h->data + h->at;
    const int64_t left = h->words - h->at, words = left > CONTEXT ? x[BYTES] / 2 : 0, end = h->at + words;
    if (left <= CONTEXT) return wrong(h, h->at, "the file ends inside this example");
    if (x[START] != START_MARK) return wrong(h, h->at, "begins with %d, expected 65535", x[START]);
    if (x[BYTES] % 2 || words > left) return wrong(h, h->at + BYTES, "%d bytes in it", x[BYTES]);
    if (x[NUMBER] != h->example) return wrong(h, h->at + NUMBER, "its number is %d", x[NUMBER]);
    if (x[LABEL] >= HELLASWAG_COMPLETIONS) return wrong(h, h->at + LABEL, "its label is %d", x[LABEL]);
    if (x[COMPLETIONS] != HELLASWAG_COMPLETIONS)
        return wrong(h, h->at + COMPLETIONS, "%d completions, expected 4", x[COMPLETIONS]);
    int64_t at = h->at + CONTEXT;
    for (int i = 0; i <= HELLASWAG_COMPLETIONS; i++) {
        const int n = check_tokens(h, at, end, V);
        if (n < 0) return -1;
        // The last token is only a target.
        if (i && x[CONTEXT] + n - 1 > h->T)
            return wrong(h, at, "it needs rows of %d tokens, but T is %d", x[CONTEXT] + n - 1, h->T);
        at += 1 + n;
    }
    return at == end ? 0 : wrong(h, at, "%lld words follow its last completion", (long long)(end - at));
}

static void next_example(HellaSwag *h) {
    h->at += h->data[h->at + BYTES] / 2;
    h->example++;
}

static int check_examples(HellaSwag *h, int V) {
    for (h->at = h->example = 0; h->example < h->num_examples; next_example(h))
        if (check_example(h, V)) return -1;
    if (h->at == h->words) return 0;
    return wrong(h, h->at, "the header counts %d examples, but more follows", h->num_examples);
}

// -------- the file

static int read_file(HellaSwag *h, int fd, int64_t bytes) {
    int32_t header[256];
    if (disk_read_header(fd, h->path, bytes, "file of multiple-choice examples", MAGIC, header)) return -1;
    if (header[1] != VERSION) return gpt2_fail("%s: version %d, expected %d", h->path, header[1], VERSION);
    if (header[2] < 1 || header[2] > UINT16_MAX + 1 || bytes % 2)
        return gpt2_fail(
            "%s: %lld bytes with %d examples in its header, expected 1 to 65536 and an even size", h->path,
            (long long)bytes, header[2]);
    h->num_examples = header[2];
    h->words = (bytes - HEADER) / 2;
    h->data = malloc(bytes);
    if (!h->data) return gpt2_fail("%s: no memory for its %lld bytes", h->path, (long long)bytes);
    return disk_read(fd, h->path, HEADER, (size_t)h->words * 2, h->data);
}

static int allocate_batch(HellaSwag *h) {
    const size_t BT = (size_t)h->B * h->T;
    h->rows = calloc(h->B, sizeof *h->rows);
    h->inputs = malloc(BT * sizeof *h->inputs);
    h->targets = malloc(BT * sizeof *h->targets);
    h->losses = malloc(BT * sizeof *h->losses);
    if (h->rows && h->inputs && h->targets && h->losses) return 0;
    return gpt2_fail("%s: no memory for batches of %d rows of %d tokens", h->path, h->B, h->T);
}

int hellaswag_open(HellaSwag *h, const char *path, int B, int T, int V, int rank, int ranks) {
    int64_t bytes;
    int fd;
    *h = (HellaSwag){ .rank = rank, .ranks = ranks, .B = B, .T = T, .path = path };
    if (disk_open(path, &fd, &bytes)) return -1;
    int failed = read_file(h, fd, bytes);
    close(fd);  // nothing was written
    if (!failed) failed = check_examples(h, V);
    if (!failed) failed = allocate_batch(h);
    if (failed) {
        hellaswag_close(h);
        return -1;
    }
    const int examples = (h->num_examples + ranks - 1) / ranks;  // of rank 0, which has the most
    h->batches = (examples * HELLASWAG_COMPLETIONS + B - 1) / B;
    hellaswag_begin(h);
    return 0;
}

void hellaswag_close(HellaSwag *h) {
    free(h->data);
    free(h->rows);
    free(h->inputs);
    free(h->targets);
    free(h->losses);
    *h = (HellaSwag){ 0 };
}

// -------- batches

static void skip_examples(HellaSwag *h, int n) {
    for (int i = 0; i < n && h->example < h->num_examples; i++) next_example(h);
}

void hellaswag_begin(HellaSwag *h) {
    h->at = h->example = h->completion = h->correct = 0;
    skip_examples(h, h->rank);
}

// Writes the next completion into row b: the context and the completion as inputs, and as targets the same
// one token earlier. Zeros follow, whose losses are not used.
static void fill_row(HellaSwag *h, int b) {
    int *inputs = h->inputs + (size_t)b * h->T, *targets = h->targets + (size_t)b * h->T;
    memset(inputs, 0, h->T * sizeof *inputs);
    memset(targets, 0, h->T * sizeof *targets);
    h->rows[b] = (HellaSwagRow){ 0 };
    if (h->example >= h->num_examples) return;
    const uint16_t *context = h->data + h->at + CONTEXT, *completion = context + 1 + *context;
    for (int i = 0; i < h->completion; i++) completion += 1 + *completion;
    const int in_context = *context, n = *completion;
    for (int t = 0; t < in_context + n; t++) {
        const int token = t < in_context ? context[1 + t] : completion[1 + t - in_context];
        if (t < in_context + n - 1) inputs[t] = token;
        if (t > 0) targets[t - 1] = token;
    }
    h->rows[b] = (HellaSwagRow){
        .example = h->example,
        .completion = h->completion,
        .label = h->data[h->at + LABEL],
        .first = in_context - 1,
        .n = n,
    };
    h->completion = (h->completion + 1) % HELLASWAG_COMPLETIONS;
    if (!h->completion) skip_examples(h, h->ranks);
}

void hellaswag_next(HellaSwag *h) {
    for (int b = 0; b < h->B; b++) fill_row(h, b);
}

int hellaswag_score(HellaSwag *h) {
    for (int b = 0; b < h->B && h->rows[b].n; b++) {
        HellaSwagRow *row = &h->rows[b];
        const float *losses = h->losses + (size_t)b * h->T + row->first;
        double sum = 0;
        for (int t = 0; t < row->n; t++) sum += losses[t];
        row->loss = sum / row->n;
        if (!isfinite(row->loss))
            return gpt2_fail("%s: example %d: the loss of completion %d is not finite (%f)", h->path,
                             row->example, row->completion, row->loss);
        if (row->completion == 0 || row->loss < h->lowest_loss) {
            h->lowest_loss = row->loss;
            h->answer = row->completion;
        }
        if (row->completion == HELLASWAG_COMPLETIONS - 1) h->correct += h->answer == row->label;
    }
    return 0;
}
