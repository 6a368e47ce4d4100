// Finds cuBLASLt's functions at run time, and stores the precision of its matmuls.
#include <dlfcn.h>
#include "cublaslt_cuda.h"
#include "gpt2_error.h"

static int round_to_tf32;

void matmul_set_tf32(int tf32) { round_to_tf32 = tf32; }

int matmul_rounds(gpt2_dtype dt) { return dt == GPT2_F32 && round_to_tf32; }

const char *matmul_dtype(gpt2_dtype dt) {
    return matmul_rounds(dt) ? "tf32" : dt == GPT2_F32 ? "fp32" : dt == GPT2_BF16 ? "bf16" : "fp16";
}

#ifdef CUDA_STAND_IN
int cublaslt_load(void) { return 0; }
#else
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define LIBRARY "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)  // the version of the headers

CublasLt cublaslt;

int cublaslt_load(void) {
    static void *library;
    if (library) return 0;
    void *opened = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!opened) return gpt2_fail("cuBLASLt cannot be loaded: %s", dlerror());
#define FIND(name)                                              \
    *(void **)&cublaslt.name = dlsym(opened, "cublasLt" #name); \
    if (!cublaslt.name) return gpt2_fail(LIBRARY " has no cublasLt" #name);
    CUBLASLT_FUNCTIONS(FIND)
#undef FIND
    library = opened;
    return 0;
}
#endif
