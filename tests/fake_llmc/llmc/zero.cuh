/* Supports one process. MULTI_GPU would need NCCL, which a patched trainer must not use. */
#ifndef ZERO_CUH
#define ZERO_CUH
#include "cuda_common.h"
#ifdef MULTI_GPU
#include <nccl_which_is_not_there.h>
#endif

typedef struct {
    int process_rank;
    int num_processes;
    int local_device_idx;
    int zero_stage;
    size_t shard_num_parameters;
} MultiGpuConfig;
inline MultiGpuConfig multi_gpu_config;

#define printf0(...) if (multi_gpu_config.process_rank == 0) { printf(__VA_ARGS__); }

static MultiGpuConfig multi_gpu_config_init(int, int, int, char *, char *, char *) { return { 0, 1, 0, 0, 0 }; }
static void multi_gpu_config_free(MultiGpuConfig *) {}
static void multi_gpu_barrier(MultiGpuConfig *) {}
static float multi_gpu_cpu_float_sum(float value, MultiGpuConfig *) { return value; }
static void set_zero_configs(MultiGpuConfig *config, int zero_stage, size_t total_parameters) {
    if (zero_stage > 1) { printf0("no stages 2 and 3\n"); }
    config->zero_stage = zero_stage == 1;
    config->shard_num_parameters = total_parameters;
}
template<int N>
static void multi_gpu_async_reduce_gradient(floatX* const (&)[N], const size_t (&)[N], MultiGpuConfig *, cudaStream_t) {}
#endif
