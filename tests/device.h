// Runs the toy's kernels on a CUDA device. With the stand-in (cuda/stand_in.h), a manner sets the order in
// which streams run.
#ifndef TESTS_DEVICE_H
#define TESTS_DEVICE_H
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include "check.h"
#include "toy_kernels.h"

#define CUDA_MUST(call)                                                  \
    do {                                                                 \
        cudaError_t rc_ = (call);                                        \
        if (rc_ != cudaSuccess) {                                        \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(rc_)); \
            MPI_Abort(MPI_COMM_WORLD, 1);                                \
        }                                                                \
    } while (0)

#ifdef CUDA_STAND_IN
#include "cuda/stand_in.h"
static const char *const manners[] = { "eager", "lazy", "rival", "lag" };
static inline void set_manner(const char *manner) { cuda_stand_in_set("CUDA_STAND_IN", manner); }
static inline int use_devices(int n) {
    char number[16];
    snprintf(number, sizeof number, "%d", n);
    cuda_stand_in_set("CUDA_STAND_IN_DEVICES", number);
    return 1;
}
// With protection, host access to device memory ends the program. Tests run twice as fast without it.
static inline void protect_device(int on) { cuda_stand_in_set("CUDA_STAND_IN_PROTECT", on ? "1" : "0"); }
#else
static const char *const manners[] = { "GPU" };
static inline void set_manner(const char *manner) {}
static inline int use_devices(int n) { return zero_cuda_devices() >= n; }
static inline void protect_device(int on) {}
#endif
enum { MANNERS = sizeof manners / sizeof *manners };

// The toy's activation: `host` if it runs on the CPU (on: NULL).
static inline float device_activation(const toy_device *on, void *stream, const float *activation,
                                      float host) {
    if (!on) return host;
    CUDA_MUST(cudaMemcpyAsync(&host, activation, sizeof host, cudaMemcpyDeviceToHost, stream));
    CUDA_MUST(cudaStreamSynchronize(stream));
    return host;
}

#endif
