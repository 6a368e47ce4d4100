/* In llm.c: types and reductions for kernels. The stand-in needs none of them. */
#include "cuda_common.h"
