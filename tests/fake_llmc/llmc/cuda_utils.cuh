/* In llm.c the types and reductions of the kernels: here there is nothing to add to cuda_common.h and kernels.cuh. */
#include "cuda_common.h"
