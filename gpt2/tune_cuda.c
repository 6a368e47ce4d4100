// The tuning file: one line with the fastest algorithm for each GPU, cuBLASLt version and matmul. An
// algorithm of cuBLASLt is 64 bytes that stay valid for the same version of the library. This file handles
// only the text; the caller reads and writes the file.
#define XXH_INLINE_ALL
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "cuda.h"
#include "matmul_lt_cuda.h"

enum { KEY = 512, LINE = 1024 };

static const char HEADING[] =
    "# Matmuls: the fastest of cuBLASLt's algorithms. Matmuls without a line are timed and added.\n";

static struct {
    char *name, *text;  // NULL: no tuning
    int may_time;
} tuning;

// -------- lines: key = algorithm, time in ms, checksum

const char *layers_cuda_card(void) {
    static char gpu[384];
    struct cudaDeviceProp p;
    int device;
    if (cublaslt_load() != 0 || cuda_check(cudaGetDevice(&device), "cudaGetDevice") != 0 ||
        cuda_check(cudaGetDeviceProperties(&p, device), "cudaGetDeviceProperties") != 0)
        return NULL;
    snprintf(gpu, sizeof gpu, "\"%.200s (%d.%d, %d processors)\" cuBLASLt %zu", p.name, p.major, p.minor,
             p.multiProcessorCount, cublasLtGetVersion());
    return gpu;
}

// The key covers everything that an algorithm depends on.
static int write_key(const Matmul *p, char key[KEY]) {
    const char *gpu = layers_cuda_card();
    if (!gpu) return -1;
    snprintf(key, KEY,
             "%s %s to %s rows %d cols %d depth %d batch %d transposed %d %d steps %d %d %d "
             "matrices %d %d %d epilogue %d = ",
             gpu, matmul_dtype(p->in), matmul_dtype(p->out), p->rows, p->cols, p->depth, p->batch, p->left_t,
             p->right_t, p->left_ld, p->right_ld, p->out_ld, p->left_next, p->right_next, p->out_next,
             p->epilogue);
    return 0;
}

// Returns whether a line, without its newline, is unchanged since it was written.
static int is_whole(const char *line, size_t n) {
    static const char mark[] = ", check ";
    char end[32];
    size_t tail = sizeof mark - 1 + 8;
    if (n < tail) return 0;
    snprintf(end, sizeof end, "%s%08x", mark, (unsigned)XXH32(line, n - tail, 0));
    return memcmp(line + n - tail, end, tail) == 0;
}

static int digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

// Reads the text after the key. Returns 1: an algorithm; 0: "apart"; -1: neither.
static int read_choice(const char *text, cublasLtMatmulAlgo_t *algorithm) {
    unsigned char bytes[sizeof *algorithm];
    if (strncmp(text, "apart ", 6) == 0) return 0;
    for (size_t i = 0; i < sizeof bytes; i++) {
        int high = digit(text[2 * i]), low = high < 0 ? -1 : digit(text[2 * i + 1]);
        if (low < 0) return -1;
        bytes[i] = (unsigned char)(16 * high + low);
    }
    memcpy(algorithm, bytes, sizeof bytes);
    return text[2 * sizeof bytes] == ' ' ? 1 : -1;
}

// -------- the text

static int damaged(int line) {
    return gpt2_fail("%s, line %d: damaged: delete the line, then its matmul is timed again", tuning.name,
                     line);
}

static void forget(void) {
    free(tuning.name);
    free(tuning.text);
    tuning.name = tuning.text = NULL;
}

int layers_cuda_tune(const char *name, const char *text, int may_time) {
    forget();
    if (!text) return 0;
    tuning.name = strdup(name);
    tuning.text = strdup(*text ? text : HEADING);
    tuning.may_time = may_time;
    if (!tuning.name || !tuning.text) {
        forget();
        return gpt2_fail("no host memory for %s", name);
    }
    const char *at = tuning.text;
    for (int line = 1; *at; line++) {
        size_t n = strcspn(at, "\n");
        if (at[n] != '\n' || (*at != '#' && !is_whole(at, n))) return damaged(line);
        at += n + 1;
    }
    return 0;
}

char *layers_cuda_tuned(void) {
    char *text = tuning.text ? strdup(tuning.text) : NULL;
    if (!text) gpt2_fail("no text for a tuning file, or no memory for it");
    return text;
}

int tune_wanted(void) { return tuning.text ? tuning.may_time : -1; }

int tune_find(const Matmul *p, cublasLtMatmulAlgo_t *algorithm, int *apart, int *line) {
    char key[KEY];
    if (!tuning.text) return 0;
    if (write_key(p, key) != 0) return -1;
    *line = 1;
    for (const char *at = tuning.text; *at; ++*line) {
        if (strncmp(at, key, strlen(key)) == 0) {
            int choice = read_choice(at + strlen(key), algorithm);
            *apart = choice == 0;
            return choice < 0 || (*apart && !matmul_splits(p)) ? damaged(*line) : 1;
        }
        at += strcspn(at, "\n") + 1;
    }
    return 0;
}

int tune_refused(int line, const char *status) {
    return gpt2_fail(
        "%s, line %d: cuBLASLt rejects this algorithm (%s): delete the line, then its matmul is timed again",
        tuning.name, line, status);
}

int tune_add(const Matmul *p, const cublasLtMatmulAlgo_t *algorithm, double ms) {
    char line[LINE];
    if (write_key(p, line) != 0) return -1;
    size_t n = strlen(line), bytes = strlen(tuning.text);
    const unsigned char *byte = (const unsigned char *)algorithm;
    if (algorithm) {
        for (size_t i = 0; i < sizeof *algorithm; i++) n += snprintf(line + n, LINE - n, "%02x", byte[i]);
    } else {
        n += snprintf(line + n, LINE - n, "apart");
    }
    n += snprintf(line + n, LINE - n, " %.4f ms", ms);
    n += snprintf(line + n, LINE - n, ", check %08x\n", (unsigned)XXH32(line, n, 0));
    char *text = realloc(tuning.text, bytes + n + 1);
    if (!text) return gpt2_fail("no host memory for another line of %s", tuning.name);
    memcpy(text + bytes, line, n + 1);
    tuning.text = text;
    return 0;
}
