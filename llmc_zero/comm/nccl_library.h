// NCCL is loaded when it is first needed, so that runs on CPUs or with one rank avoid its 200 MiB and the
// time to link it. After nccl_load its functions are available as nccl.AllGather and so on.
#ifndef LLMC_ZERO_COMM_NCCL_LIBRARY_H
#define LLMC_ZERO_COMM_NCCL_LIBRARY_H
#include <nccl.h>

int nccl_load(void);  // returns 0 or ZERO_ERR_COMM; call it from one thread

// NCCL 2.26 has all of them
// clang-format off
#define NCCL_FUNCTIONS(F) \
    F(AllGather) F(CommDeregister) F(CommDestroy) F(CommFinalize) F(CommGetAsyncError) F(CommInitRankConfig) \
    F(CommRegister) F(CommSplit) F(GetErrorString) F(GetLastError) F(GetUniqueId) F(GetVersion) F(GroupEnd) \
    F(GroupStart) F(MemAlloc) F(MemFree) F(Recv) F(ReduceScatter) F(Send)
// clang-format on

#define NCCL_POINTER(name) __typeof__(nccl##name) *name;
typedef struct {
    NCCL_FUNCTIONS(NCCL_POINTER)
} nccl_functions;
#undef NCCL_POINTER
extern nccl_functions nccl;

#endif
