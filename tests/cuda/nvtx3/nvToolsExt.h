/* The stand-in's NVTX: ranges are only counted; a pop without its push ends the program. */
#ifndef CUDA_STAND_IN_NVTX_H
#define CUDA_STAND_IN_NVTX_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
int nvtxRangePushA(const char *message);  // the depth before, from 0
int nvtxRangePop(void);                   // the depth after
#ifdef __cplusplus
}
#endif
#endif
