/* The stand-in's NVTX only counts open ranges. A pop without a push ends the program. */
#ifndef CUDA_STAND_IN_NVTX_H
#define CUDA_STAND_IN_NVTX_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
int nvtxRangePushA(const char *message);  // returns the depth before the push, from 0
int nvtxRangePop(void);                   // returns the depth after the pop
#ifdef __cplusplus
}
#endif
#endif
