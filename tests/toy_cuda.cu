// The toy on a CUDA device. Compiled without contraction, like the plugin's kernels, so that it gives the
// same bits as the CPU.
#include <cuda_runtime.h>
#include "toy_kernels.h"
#define static static __host__ __device__
#include "../dev/examples/optimizers.h"
#undef static

namespace {

enum { THREADS = 64 };

__global__ void set_activation(float *activation, float value) { *activation = value; }

__global__ void read_parameters(float *activation, zero_dtype dtype, const void *p,
                                int64_t n) {  // a chain, so it uses one thread
    float a = *activation;
    for (int64_t i = 0; i < n; i++) a = toy_add_parameter(a, toy_load(dtype, p, i), i);
    *activation = a;
}

__global__ void add_gradient(toy_use u, const float *activation, const void *p, void *g, int64_t n) {
    float a = *activation;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) toy_add_gradient(&u, a, p, g, i);
}

// The update treats elements independently, so each thread passes one at a time.
template <zero_update_with UPDATE> __global__ void update_elements(zero_piece p, zero_hyper h) {
    for (int64_t i = threadIdx.x; i < p.n; i += THREADS) {
        zero_piece one = p;
        one.n = 1;
        one.hyper = &h;
        one.weights += i;
        one.gradient += i;
        for (float *&state : one.states)
            if (state) state += i;
        UPDATE(nullptr, &one);
    }
}

template <class... P, class... A> int launch(void *stream, int threads, void (*kernel)(P...), A... args) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1);
    config.blockDim = dim3(threads);
    config.stream = (cudaStream_t)stream;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

int start(void *stream, float *activation, float value) {
    return launch(stream, 1, set_activation, activation, value);
}
int read(void *stream, float *activation, zero_dtype dtype, const void *p, int64_t n) {
    return launch(stream, 1, read_parameters, activation, dtype, p, n);
}
int add(void *stream, const toy_use *u, const float *activation, const void *p, void *g, int64_t n) {
    return launch(stream, THREADS, add_gradient, *u, activation, p, g, n);
}

template <zero_update_with UPDATE> void update(const zero_piece *p) {
    launch(p->stream, THREADS, update_elements<UPDATE>, *p, *p->hyper);
}

}  // namespace

extern "C" const toy_device toy_cuda = {
    start, read, add, update<toy_sgd>, update<sgd_momentum>, update<lion>
};
