// A stand-in for NCCL between processes on one machine, based on the stand-in for CUDA. It has the names,
// types and values that this project uses, and enforces NCCL's rules. The library is called libnccl.so.2 and
// loaded like NCCL. Ranks connect through a file in /dev/shm. Work waits on its stream for the other ranks'
// work, while the calling threads continue.
//
// It is stricter than NCCL, so that tests find mistakes that might otherwise appear only on a cluster:
// - The work of a non-blocking communicator is on its stream only after a call of ncclCommGetAsyncError. Any
//   other call before that returns ncclInvalidUsage.
// - A send completes only when it has been received.
// - Nothing detects a dead rank.
// - Buffers must be in device memory, and all work of a communicator must use one stream.
// - ncclReduceScatter adds in ring order and rounds after each addition.
// - If two ranks differ in operation, count or type, both get an asynchronous ncclInvalidUsage.
// - A collective that has failed, or whose rank is gone, never ends, and nothing ends its communicator.
// - Only memory from ncclMemAlloc can be registered. It must be deregistered before it is freed, and before
//   the communicator ends.
// - ncclCommSplit needs a non-blocking communicator, and sets the new one once all of its ranks have joined.
// - A communicator uses device memory, and more for each rank to which it connects.
// Variables:
//   CUDA_STAND_IN_NCCL=hang:rank:k       the k-th operation of that rank (counted over its communicators; a
//                                        group counts as one) never progresses
//   CUDA_STAND_IN_NCCL=error:rank:k      that operation fails with an asynchronous ncclSystemError
//   CUDA_STAND_IN_NCCL=stop:rank:k       the process stops (SIGSTOP) before that operation
//   CUDA_STAND_IN_NCCL_VERSION=n         ncclGetVersion's result; from 23000 on the stand-in supports
//                                        NCCL_MULTI_RANK_GPU_ENABLE
#ifndef CUDA_STAND_IN_NCCL_H
#define CUDA_STAND_IN_NCCL_H
#include <limits.h>
#include "cuda_runtime_api.h"

#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_VERSION(x, y, z) ((x)*10000 + (y)*100 + (z))
#define NCCL_VERSION_CODE NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, 9)
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_CONFIG_INITIALIZER                                                                            \
    {                                                                                                      \
        sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION_CODE, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT,    \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT     \
    }

#ifdef __cplusplus
extern "C" {
#endif
typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare, trafficClass;
    const char *commName;
    int collnetEnable, CTAPolicy;
} ncclConfig_t;
typedef enum {
    ncclSuccess,
    ncclUnhandledCudaError,
    ncclSystemError,
    ncclInternalError,
    ncclInvalidArgument,
    ncclInvalidUsage,
    ncclRemoteError,
    ncclInProgress
} ncclResult_t;
typedef enum { ncclInt8 = 0, ncclFloat16 = 6, ncclFloat32 = 7, ncclBfloat16 = 9 } ncclDataType_t;
typedef enum { ncclSum } ncclRedOp_t;

ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *child, ncclConfig_t *config);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state);
const char *ncclGetErrorString(ncclResult_t rc);
const char *ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclCommRegister(ncclComm_t comm, void *base, size_t bytes, void **handle);
ncclResult_t ncclCommDeregister(ncclComm_t comm, void *handle);
ncclResult_t ncclMemAlloc(void **p, size_t bytes);
ncclResult_t ncclMemFree(void *p);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream);

// For tests: the number of groups so far, where a call outside a group counts as one (NCCL starts a thread
// for each group of a non-blocking communicator); the bytes that are now registered.
long nccl_stand_in_groups(void);
size_t nccl_stand_in_registered(void);
#ifdef __cplusplus
}
#endif
#endif
