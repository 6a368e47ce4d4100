// Finds NCCL's functions at run time.
#ifdef ZERO_HAVE_NCCL
#include "nccl_library.h"
#include "../base/error.h"
#include <dlfcn.h>

#define LIBRARY "libnccl.so.2"  // the same name since version 2.0

nccl_functions nccl;

int nccl_load(void) {
    static void *library;
    if (library) return 0;
    void *opened = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!opened) {
        zero_fail(ZERO_ERR_COMM, LIBRARY " cannot be loaded: %s", dlerror());
        return zero_failed_advice(
            "install NVIDIA's package libnccl2, or set LD_LIBRARY_PATH to the folder that has it");
    }
#define FIND(name)                                                                     \
    if (!(*(void **)&nccl.name = dlsym(opened, "nccl" #name))) {                       \
        zero_fail(ZERO_ERR_COMM, LIBRARY " has no nccl" #name ": it is too old");      \
        return zero_failed_advice("install NVIDIA's package libnccl2, 2.26 or newer"); \
    }
    NCCL_FUNCTIONS(FIND)
#undef FIND
    library = opened;
    return 0;
}
#endif
