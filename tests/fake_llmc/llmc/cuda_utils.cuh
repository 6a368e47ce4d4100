/* llm.c's types and reductions for kernels; the stand-in needs none. */
#include "cuda_common.h"
