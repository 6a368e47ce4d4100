// The tuning file: reads lines with corrected checksums, and looks up the choice for one matmul. A build
// without CUDA has no reader, so this file includes its source, with a made-up GPU and library version.
#define CUDA_STAND_IN
#define cuda_check tuned_cuda_check
#define cublaslt_load tuned_cublaslt_load
#define matmul_dtype tuned_matmul_dtype
#define cudaGetDevice tuned_get_device
#define cudaGetDeviceProperties tuned_get_properties
#define cublasLtGetVersion tuned_library_version
#define layers_cuda_card tuned_card
#define layers_cuda_tune tuned_begin
#define layers_cuda_tuned tuned_text
#define tune_find tuned_find
#define tune_add tuned_add
#define tune_wanted tuned_wanted
#define tune_refused tuned_refused
#include "../../gpt2/tune_cuda.c"
#include "fuzz.h"

int cublaslt_load(void) { return 0; }
int cuda_check(cudaError_t rc, const char *what) { return rc ? gpt2_fail("%s", what) : 0; }
const char *matmul_dtype(gpt2_dtype dt) { return dt == GPT2_F32 ? "fp32" : "bf16"; }
size_t cublasLtGetVersion(void) { return 130000; }

cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    memset(p, 0, sizeof *p);
    strcpy(p->name, "A GPU");
    return cudaSuccess;
}

static const Matmul matmul = { .in = GPT2_BF16,
                               .out = GPT2_BF16,
                               .rows = 64,
                               .cols = 32,
                               .depth = 16,
                               .epilogue = CUBLASLT_EPILOGUE_BGRADB };

static void give_seeds(void) {
    cublasLtMatmulAlgo_t algorithm;
    memset(&algorithm, 7, sizeof algorithm);
    Matmul other = matmul;
    other.rows++;
    FUZZ_MUST(!layers_cuda_tune("a file", "", 1));
    FUZZ_MUST(!tune_add(&other, NULL, 0.5) && !tune_add(&matmul, &algorithm, 0.25));
    char *text = layers_cuda_tuned();
    fuzz_seed("two", text, strlen(text));
    free(text);
}

// Corrects the checksum at the end of each line that has one.
static void put_checksums(char *text) {
    char digits[9];
    for (char *line = text; *line; line += *line == '\n') {
        size_t n = strcspn(line, "\n");
        if (n >= 16 && !memcmp(line + n - 16, ", check ", 8)) {
            snprintf(digits, sizeof digits, "%08x", (unsigned)XXH32(line, n - 16, 0));
            memcpy(line + n - 8, digits, 8);
        }
        line += n;
    }
}

// Adds an entry to an accepted text. A look-up must then find it, and the new text must be accepted.
static void add_matmul(void) {
    cublasLtMatmulAlgo_t algorithm;
    int apart = 0, line = 0;
    FUZZ_MUST(!tune_add(&matmul, NULL, 0.125));
    FUZZ_MUST(tune_find(&matmul, &algorithm, &apart, &line) == 1 && apart == 1 && line > 0);
    char *text = layers_cuda_tuned();
    FUZZ_MUST(text && !layers_cuda_tune("a file", text, 0));
    free(text);
}

static const char *read_tuning(const uint8_t *bytes, size_t n) {
    cublasLtMatmulAlgo_t algorithm;
    int apart = 0, line = 0, found = -1;
    char *text = fuzz_text(bytes, n);
    put_checksums(text);
    int taken = !layers_cuda_tune("a file", text, 1);
    free(text);
    if (!taken) return gpt2_last_error();
    found = tune_find(&matmul, &algorithm, &apart, &line);
    if (found == 0) add_matmul();
    return found == 1 ? NULL : "a file: no algorithm for this matmul";
}

FUZZ_DEFINE(tuning, NULL, give_seeds, .is_text = 1, .read = read_tuning, .named = "a file");
