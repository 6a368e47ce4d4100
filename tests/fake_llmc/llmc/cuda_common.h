/* The parts of CUDA that train_gpt2.cu calls, on the CPU. Work on a stream runs immediately. */
#ifndef CUDA_COMMON_H
#define CUDA_COMMON_H
#include <stddef.h>
#include <string.h>
#include "utils.h"

typedef float floatX;
enum PrecisionMode { PRECISION_FP32, PRECISION_FP16, PRECISION_BF16 };
#define PRECISION_MODE PRECISION_FP32
#define NVTX_RANGE_FN()

typedef int cudaError_t;
typedef struct cudaStream *cudaStream_t;
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
const size_t fake_device_memory = 64 << 20;

static void cudaCheck(cudaError_t error) { if (error != 0) { fail("CUDA", "error"); } }
static cudaError_t cudaMalloc(void **memory, size_t bytes) { return (*memory = malloc(bytes)) == NULL; }
static cudaError_t cudaFree(void *memory) { free(memory); return 0; }
template<class T> static void cudaFreeCheck(T **memory) { cudaCheck(cudaFree(*memory)); *memory = nullptr; }
static cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind) { memcpy(to, from, bytes); return 0; }
static cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t) { memset(memory, value, bytes); return 0; }
static cudaError_t cudaMemGetInfo(size_t *left, size_t *total) { *left = *total = fake_device_memory; return 0; }
static cudaError_t cudaGetDeviceCount(int *devices) { *devices = 1; return 0; }
static cudaError_t cudaSetDevice(int device) { return device != 0; }
static cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaMalloc((void**)stream, 1); }
static cudaError_t cudaStreamDestroy(cudaStream_t stream) { return cudaFree(stream); }
static cudaError_t cudaDeviceSynchronize() { return 0; }

static void device_to_file(FILE *file, void *memory, size_t bytes, size_t, cudaStream_t) { fwriteCheck(memory, 1, bytes, file); }
static void file_to_device(void *memory, FILE *file, size_t bytes, size_t, cudaStream_t) { freadCheck(memory, 1, bytes, file); }
#endif
