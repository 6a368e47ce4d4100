// How the stand-in for CUDA behaves, and what a test can ask it.
//
// Work on a stream is queued and runs later, as on a card; when, is chosen by CUDA_STAND_IN in the
// environment:
//   eager (default)  as soon as the stream's waits allow
//   lazy             only when someone waits for it, and then only what that wait needs
//   rival            the default stream lazily, all others eagerly: shows a side stream that does not wait
//   for the computation lag              the default stream eagerly, all others lazily: shows a computation
//   that does not wait for a side stream
// A query that finds work unfinished runs one operation of it, so that asking again and again comes to an
// end. Streams never wait for each other but through events: the default stream too is like one made with
// cudaStreamNonBlocking.
//
// Device memory is 0xff bytes (NaN) when new and cannot be touched by the host (SIGSEGV). Other variables:
//   CUDA_STAND_IN_DEVICES=n      devices, default 1; 0: cudaErrorNoDevice
//   CUDA_VISIBLE_DEVICES=i,j     of these only those, in this order, as on cards: numbers; the list ends at
//   one that is not there CUDA_STAND_IN_MIG=1          the devices are MIG's instances of one card: they have
//   one bus id CUDA_STAND_IN_CAPABILITY=nn  compute capability, default 90 CUDA_STAND_IN_MEMORY=bytes   of a
//   device, default 2 GiB CUDA_STAND_IN_PROTECT=0      the host may touch device memory: faster
//   CUDA_STAND_IN_ORDER=backward blocks, warps and lanes run from the last to the first: shows a missing
//   barrier that the usual order hides CUDA_STAND_IN_FAIL=name:k    the k-th call of an API function fails;
//   kernels: launch:k CUDA_STAND_IN_REFUSED=n      of the 8 algorithms that cuBLASLt offers for a product the
//   first n are refused when they are to run CUDA_STAND_IN_FASTEST=k[:ms] work takes a time that only events
//   show: products 10 ms by algorithm k, more by the
//                                others, and with an epilogue ms more; kernels 5 ms
//   CUDA_STAND_IN_CUBLASLT=n     cuBLASLt's version, default 130100
//   CUDA_STAND_IN_COUNT=1        counts are printed to stderr at exit
#ifndef CUDA_STAND_IN_H
#define CUDA_STAND_IN_H
#include "cuda_runtime_api.h"
#ifdef __cplusplus
extern "C" {
#endif

// Since the start: kernels and products queued; calls in which the host waited for the device; calls of
// cudaMalloc and cudaHostAlloc. Any may be NULL.
void cuda_stand_in_counts(long *launches, long *waits, long *allocations);
// Calls of cublasLtMatmulAlgoGetHeuristic, and products without an algorithm, which ask for one by
// themselves.
long cuda_stand_in_heuristics(void);
// Reads the environment again (all but the memory's size) and counts calls for CUDA_STAND_IN_FAIL anew.
void cuda_stand_in_settings(void);

#ifdef __cplusplus
}
#include <functional>

// For the stand-in's own parts. ----------------------------------------------

// Whether CUDA_STAND_IN_FAIL names this call.
bool cuda_stand_in_fails(const char *call);
// Whether [p, p + size) lies in one allocation of device memory, or in pinned host memory, which kernels may
// read as well.
bool cuda_stand_in_reaches(const void *p, size_t size);
// To be called by work as it runs: events show it to have taken so much longer.
void cuda_stand_in_takes(double ms);
// Queues work that computes, with device memory accessible while it runs.
cudaError_t cuda_stand_in_queue(cudaStream_t stream, std::function<void()> work);
// The same for work that needs another process: its stream waits until ready(), asked now and then by whoever
// waits or asks, says so. The calling threads of the CUDA functions go on meanwhile.
#define CUDA_STAND_IN_QUEUE_WHEN
cudaError_t cuda_stand_in_queue_when(cudaStream_t stream, std::function<bool()> ready,
                                     std::function<void()> work);
// Queues a kernel; body runs one thread. `kernel` is its address, for messages.
cudaError_t cuda_stand_in_launch(const cudaLaunchConfig_t *config, const void *kernel,
                                 std::function<void()> body);
#endif
#endif
