// How the stand-in for CUDA behaves, and its interface for tests.
//
// Work on a stream is queued and runs later, as on a GPU. CUDA_STAND_IN in the environment chooses when:
//   eager (default)  as soon as the stream's waits allow
//   lazy             only when a call waits for it, and then only the work that the call needs
//   rival            the default stream is lazy, all others eager: a side stream that does not wait for the
//                    computation gives wrong results
//   lag              the default stream is eager, all others lazy: a computation that does not wait for a
//                    side stream gives wrong results
// A query that finds unfinished work runs one operation, so repeated queries eventually succeed. Streams wait
// for each other only through events. Even the default stream behaves as if it were created with
// cudaStreamNonBlocking.
//
// New device memory is filled with 0xff bytes (NaN). A host access to device memory fails with SIGSEGV. Other
// variables:
//   CUDA_STAND_IN_DEVICES=n      number of devices, default 1; 0: cudaErrorNoDevice
//   CUDA_VISIBLE_DEVICES=i,j     shows only these devices, in this order, as on GPUs. They must be numbers;
//                                the list ends at the first that does not exist
//   CUDA_STAND_IN_MIG=1          the devices are MIG instances of one GPU, with the same bus id
//   CUDA_STAND_IN_CAPABILITY=nn  compute capability, default 90
//   CUDA_STAND_IN_FIRST=nn       that of the first device, default that of the others
//   STAND_IN_SMS=n               multiprocessors of a device, default 4; an H200 has 132
//   STAND_IN_BLOCKS=n            blocks of up to 128 threads that a multiprocessor runs at once, default 2;
//                                larger blocks are limited by 64 registers per thread. For sm_90, ptxas
//                                reports 40 registers for the column sums (12 blocks), 48 in bf16 (10
//                                blocks), and 64 for layernorm's backward (2 blocks of 512)
//   CUDA_STAND_IN_MEMORY=bytes   memory of a device, default 2 GiB
//   CUDA_STAND_IN_PROTECT=0      lets the host access device memory, which is faster
//   CUDA_STAND_IN_ORDER=backward blocks, warps and lanes run from the last to the first, which exposes a
//                                missing barrier that the usual order hides
//   CUDA_STAND_IN_FAIL=name:k    the k-th call of an API function fails; for kernels launch:k. kernel:k: the
//                                k-th kernel or matmul fails when it runs. The next call and every later one
//                                return its error, and the device does nothing more
//   CUDA_STAND_IN_REFUSED=n      the first n of the 8 algorithms that cuBLASLt offers for a matmul fail when
//                                called
//   CUDA_STAND_IN_ALIGNED=n      the first n fail when called if a matrix does not start at a multiple of 16
//                                bytes
//   CUDA_STAND_IN_SPLIT=1        matmuls sum in two to four parts, depending on the shape
//   CUDA_STAND_IN_FASTEST=k[:ms] events show simulated times: matmuls take 10 ms with algorithm k, longer
//                                with the others, and ms more with an epilogue; kernels take 5 ms
//   CUDA_STAND_IN_CUBLASLT=n     cuBLASLt's version, default 130100
//   CUDA_STAND_IN_COUNT=1        prints counts to stderr at exit
#ifndef CUDA_STAND_IN_H
#define CUDA_STAND_IN_H
#include <stdlib.h>
#include "cuda_runtime_api.h"
#ifdef __cplusplus
extern "C" {
#endif

// Counts since the start: kernels and matmuls queued; calls in which the host waited for the device, or a
// query found unfinished work; calls of cudaMalloc and cudaHostAlloc. Any pointer may be NULL.
void cuda_stand_in_counts(long *launches, long *waits, long *allocations);
// Returns the number of searches for an algorithm, by cublasLtMatmulAlgoGetHeuristic or by a matmul called
// without an algorithm.
long cuda_stand_in_heuristics(void);
// Reads the variables again, except CUDA_STAND_IN_MEMORY, restarts the count of CUDA_STAND_IN_FAIL, and ends
// a kernel's failure.
void cuda_stand_in_settings(void);
// Sets a variable, or removes it if the value is NULL, and reads all again.
static inline void cuda_stand_in_set(const char *name, const char *value) {
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
    cuda_stand_in_settings();
}

#ifdef __cplusplus
}
#include <functional>

// For the stand-in's other files. --------------------------------------------

// Returns the number that a variable has, or `usual` if it is not set.
long cuda_stand_in_number(const char *name, long usual);
// Returns true if CUDA_STAND_IN_FAIL names this call.
bool cuda_stand_in_fails(const char *call);
// Returns true if [p, p + size) is in one allocation of device memory, or in pinned host memory, which
// kernels may read too.
bool cuda_stand_in_reaches(const void *p, size_t size);
// Running work calls this to add to the time that events show.
void cuda_stand_in_takes(double ms);
// Queues work, which can access device memory while it runs. If the work depends on another process, the
// stream waits until `ready` returns true. Calls that wait or query check `ready`, and other threads can call
// CUDA functions meanwhile.
cudaError_t cuda_stand_in_queue(cudaStream_t stream, std::function<void()> work,
                                std::function<bool()> ready = nullptr);
// Queues a kernel; body runs one thread. `kernel` is its address, for messages.
cudaError_t cuda_stand_in_launch(const cudaLaunchConfig_t *config, const void *kernel,
                                 std::function<void()> body);
#endif
#endif
