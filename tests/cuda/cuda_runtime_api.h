// A stand-in for the CUDA runtime on a machine without a GPU: the names, types and values of the calls that
// this project uses, for C and C++. stand_in.h describes its behaviour and its interface for tests.
#ifndef CUDA_STAND_IN_RUNTIME_API_H
#define CUDA_STAND_IN_RUNTIME_API_H
#include <stddef.h>
#define CUDART_VERSION 13000

#ifdef __cplusplus
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
#define CUDA_DV(x) = x
extern "C" {
#else
typedef struct dim3 {
    unsigned x, y, z;
} dim3;
#define CUDA_DV(x)
#endif

// clang-format off
#define CUDA_ERRORS(E) \
    E(cudaSuccess, 0, "no error") \
    E(cudaErrorInvalidValue, 1, "invalid argument") \
    E(cudaErrorMemoryAllocation, 2, "out of memory") \
    E(cudaErrorInsufficientDriver, 35, "driver too old for the runtime") \
    E(cudaErrorNoDevice, 100, "no CUDA device") \
    E(cudaErrorInvalidDevice, 101, "invalid device ordinal") \
    E(cudaErrorInvalidResourceHandle, 400, "invalid resource handle") \
    E(cudaErrorNotReady, 600, "not ready") \
    E(cudaErrorIllegalAddress, 700, "illegal memory access") \
    E(cudaErrorHostMemoryAlreadyRegistered, 712, "host memory already registered") \
    E(cudaErrorHostMemoryNotRegistered, 713, "host memory not registered") \
    E(cudaErrorLaunchFailure, 719, "launch failure") \
    E(cudaErrorUnknown, 999, "unknown error")
// clang-format on
#define CUDA_ERROR(name, value, text) name = value,
typedef enum cudaError { CUDA_ERRORS(CUDA_ERROR) } cudaError_t;
#undef CUDA_ERROR

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
};

enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76
};

enum {
    cudaStreamDefault = 0,
    cudaStreamNonBlocking = 1,
    cudaEventDefault = 0,
    cudaEventDisableTiming = 2,
    cudaHostAllocDefault = 0,
    cudaHostRegisterDefault = 0
};

typedef struct {
    char bytes[16];
} cudaUUID_t;
struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    int major, minor;
    int multiProcessorCount;
};

typedef struct cudaLaunchAttribute_st cudaLaunchAttribute;  // no attribute is supported
typedef struct cudaLaunchConfig_st {
    dim3 gridDim;
    dim3 blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned int numAttrs;
} cudaLaunchConfig_t;

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device);
cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDriverGetVersion(int *version);

cudaError_t cudaGetLastError(void);
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);

cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaMalloc(void **p, size_t size);
cudaError_t cudaFree(void *p);
cudaError_t cudaHostAlloc(void **p, size_t size, unsigned int flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaHostRegister(void *p, size_t size, unsigned int flags);
cudaError_t cudaHostUnregister(void *p);
cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind,
                            cudaStream_t stream CUDA_DV(0));
cudaError_t cudaMemset(void *p, int value, size_t count);
cudaError_t cudaMemsetAsync(void *p, int value, size_t count, cudaStream_t stream CUDA_DV(0));

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags CUDA_DV(0));
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream CUDA_DV(0));
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end);
cudaError_t cudaEventDestroy(cudaEvent_t event);

#ifdef __cplusplus
}
#endif
#endif
