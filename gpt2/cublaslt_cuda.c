// Finds cuBLASLt's functions at run time.
#include <dlfcn.h>
#include "cublaslt_cuda.h"
#include "error.h"

#ifdef CUDA_STAND_IN
int cublaslt_load(void) { return 0; }
#else
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define LIBRARY "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)  // the one that the headers belong to

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
