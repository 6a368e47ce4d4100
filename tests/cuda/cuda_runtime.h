// The stand-in's device code: the part of CUDA that the kernels of this project may use, in plain C++. The
// threads of a block are fibers (blocks.h), and only one runs at a time, so shared memory is static and
// atomics are plain operations.
#ifndef CUDA_STAND_IN_RUNTIME_H
#define CUDA_STAND_IN_RUNTIME_H
#include "../../llmc_zero/device/numbers.h"  // bf16 and fp16, for device code of gpt2/cuda.h
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <tuple>
#include "cuda_runtime_api.h"
#include "stand_in.h"

#define __host__
#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(...)

struct uint3 {
    unsigned x, y, z;
};
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

// --------
// waiting for other threads

enum cuda_stand_in_op { CUDA_STAND_IN_SHUFFLE, CUDA_STAND_IN_BALLOT };
struct cuda_stand_in_lanes {
    uint64_t value[32];
    unsigned alive;  // lanes that took part
    unsigned exist;  // lanes that exist in the warp
};
// Waits for all lanes of the warp, and returns all their values. The result is valid until the lane's next
// call.
const cuda_stand_in_lanes *cuda_stand_in_gather(cuda_stand_in_op op, unsigned mask, uint64_t value);
unsigned cuda_stand_in_lane();
void __syncthreads();

inline unsigned __ballot_sync(unsigned mask, int predicate) {
    const cuda_stand_in_lanes *lanes = cuda_stand_in_gather(CUDA_STAND_IN_BALLOT, mask, predicate != 0);
    unsigned bits = 0;
    for (int i = 0; i < 32; i++) {
        bits |= (unsigned)(lanes->alive >> i & 1 && lanes->value[i]) << i;
    }
    return bits;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }

// Returns the value of lane `from`: this lane's own value if the warp has no such lane, 0xff bytes if that
// lane has left the kernel.
template <class T> T cuda_stand_in_shuffle(unsigned mask, T x, int from) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle needs a type of 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &x, sizeof x);
    const cuda_stand_in_lanes *lanes = cuda_stand_in_gather(CUDA_STAND_IN_SHUFFLE, mask, bits);
    if (lanes->exist >> from & 1) {
        bits = lanes->alive >> from & 1 ? lanes->value[from] : ~0ull;
        memcpy(&x, &bits, sizeof x);
    }
    return x;
}
// The warp is divided into independent pieces of `width` lanes, a power of 2.
template <class T> T __shfl_sync(unsigned mask, T x, int from, int width = 32) {
    int lane = (int)cuda_stand_in_lane(), first = lane & ~(width - 1);
    return cuda_stand_in_shuffle(mask, x, first + (from & (width - 1)));
}
template <class T> T __shfl_xor_sync(unsigned mask, T x, int bits, int width = 32) {
    int lane = (int)cuda_stand_in_lane(), last = lane | (width - 1), from = lane ^ bits;
    return cuda_stand_in_shuffle(mask, x, from > last ? lane : from);
}

// --------
// atomics: return the previous value

inline unsigned long long atomicAdd(unsigned long long *p, unsigned long long x) {
    unsigned long long old = *p;
    *p = old + x;
    return old;
}

// --------
// arithmetic; build with -ffp-contract=off, or the compiler may fuse these operations

inline unsigned __float_as_uint(float x) {
    unsigned u;
    memcpy(&u, &x, 4);
    return u;
}
inline float __uint_as_float(unsigned u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}
inline float __fmul_rn(float a, float b) { return a * b; }

// --------
// launching

// A pointer passed to a kernel must be NULL, or point into (or to the end of) memory that a device can reach.
template <class T> bool cuda_stand_in_argument(const T &) { return true; }
template <class T> bool cuda_stand_in_argument(T *const &p) {
    return p == nullptr || cuda_stand_in_reaches((const void *)p, 0);
}
cudaError_t cuda_stand_in_refuse(const void *kernel);

template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...), A &&...args) {
    static_assert(sizeof...(P) == sizeof...(A), "the kernel has a different number of parameters");
    std::tuple<P...> values(static_cast<P>(args)...);
    bool reached = std::apply([](const P &...p) { return (cuda_stand_in_argument(p) && ...); }, values);
    if (!reached) {
        return cuda_stand_in_refuse((const void *)kernel);
    }
    return cuda_stand_in_launch(config, (const void *)kernel,
                                [kernel, values] { std::apply(kernel, values); });
}

cudaError_t cuda_stand_in_occupancy(int *blocks, int threads);
template <class F>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, F, int threads, size_t) {
    return cuda_stand_in_occupancy(blocks, threads);
}
#endif
