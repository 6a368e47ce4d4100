#include "room.h"
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include "../options/options.h"
#include "../running/machine.h"
#include "../running/run.h"

// -------- the process

// A step allocates nothing, so threads need not allocate at the same time.
void use_one_arena(void) {
#ifdef M_ARENA_MAX
    mallopt(M_ARENA_MAX, 1);  // without it a run only takes more address space
#endif
}

static int is_limited(int resource) {
    struct rlimit limit;
    return !getrlimit(resource, &limit) && limit.rlim_cur != RLIM_INFINITY;
}

// Returns the most threads that there will be at once: OpenMP's, the plugin's (on a CPU, NVMe implies
// overlap), and those that read and write checkpoints.
static int threads_to_come(const zero_config *c, int has_checkpoints) {
    const zero_offload_config *o = &c->offload;
    const int on_nvme = o->optimizer == ZERO_NVME || o->params == ZERO_NVME || o->gradients == ZERO_NVME;
    const int lanes = (c->overlap || on_nvme) + (on_nvme || o->delayed_update);
    return run.threads - 1 + lanes + on_nvme * o->nvme_threads + 5 * has_checkpoints;
}

// Returns the size of a thread's stack, which glibc takes from ulimit -s.
static size_t stack_bytes(void) {
    pthread_attr_t defaults;
    size_t bytes = 8 << 20;
    if (pthread_attr_init(&defaults)) return bytes;
    pthread_attr_getstacksize(&defaults, &bytes);  // if it fails, bytes is unchanged
    pthread_attr_destroy(&defaults);
    return bytes;
}

// Little of the address space is ever touched, so it counts only under a limit on address space or data.
static int is_limited_in_space(void) {
    return !run.machine && (is_limited(RLIMIT_AS) || is_limited(RLIMIT_DATA));
}

// Returns about what a thread's matmuls take of the heap, where oneDNN packs their operands and leaves gaps.
// Measured with 128 to 4096 rows, 256 to 1600 channels and 1 to 4 threads; most took less.
static size_t packing_bytes(const GPT2 *model) {
    const size_t most = 16 << 20, rows = (size_t)model->B * model->T;
    const size_t bytes = rows * 6 * model->config.channels * gpt2_dtype_size(model->dtype);
    return bytes < most ? bytes : most;
}

size_t process_bytes(const GPT2 *model, const zero_config *config) {
    // On AVX-512 oneDNN's kernels take 10 to 37 MiB of address space for a model, and half as much again for
    // samples. Up to 4 MiB of it is touched; heap, libraries and MPI take the other 6 of `touched`.
    const size_t space = 52 << 20, touched = 10 << 20, checkpoint_buffers = 8 << 20;
    const int has_checkpoints = opt.output || opt.resume_path;
    if (on_cuda()) return 0;
    const size_t own = has_checkpoints * checkpoint_buffers;
    if (is_limited_in_space()) return own + space + threads_to_come(config, has_checkpoints) * stack_bytes();
    return own + touched + run.threads * packing_bytes(model);
}

size_t bytes_beside(const GPT2 *model, const zero_config *config) {
    const size_t at_start = 4 << 20;  // a process has so much of it when it asks what is left
    const size_t all = process_bytes(model, config);
    return all ? all - at_start : 0;
}

// -------- a plan, and what is held

size_t bytes_on(const zero_memory_line *lines, int n, zero_tier tier) {
    size_t bytes = 0;
    for (int i = 0; i < n; i++)
        if (lines[i].tier == tier) bytes += lines[i].bytes;
    return bytes;
}

size_t bytes_held_on(zero_tier tier) {
    zero_memory_line line;
    size_t bytes = 0;
    for (int i = 0; run.z && zero_memory(run.z, i, &line); i++)
        if (line.tier == tier) bytes += line.bytes;
    return bytes;
}

// -------- what is available

// Before the plugin exists, a rank counts only itself.
int ranks_on_device(void) {
    zero_job job = { .ranks_on_device = 1 };
    if (run.z) zero_job_info(run.z, &job);
    return job.ranks_on_device;
}

size_t bytes_estimated(int of) {
    const Machine *m = machine_of_plan();
    if (!run.machine || !m->is_gpu) return 0;
    if (of == CUDA_CONTEXT) return (size_t)m->context_bytes;
    if (run.ranks == 1 || !strcmp(opt.comm, "host")) return 0;
    return (size_t)(m->nccl_bytes + (run.ranks_on_host - 1) * m->nccl_peer_bytes);
}

// Returns a rank's share of memory or disk; SIZE_MAX if the machine has no such figure.
static size_t share_of(double bytes, int ranks) { return bytes > 0 ? (size_t)(bytes / ranks) : SIZE_MAX; }

// Ranks on the same device share its memory evenly.
int memory_left(const GPT2 *model, const zero_config *config, size_t *left) {
    const Machine *m = run.machine ? machine_of_plan() : NULL;
    const int cuda = config->device == ZERO_CUDA;
    size_t taken = bytes_beside(model, config);
    if (m) {
        *left = cuda ? share_of(m->device_bytes, 1) : share_of(m->host_bytes, run.ranks_on_host);
        taken = cuda ? bytes_estimated(CUDA_CONTEXT) + bytes_estimated(NCCL_BUFFERS)
                     : process_bytes(model, config);
        if (*left == SIZE_MAX) return 0;
    } else {
        int rc = zero_memory_left(config, run.ranks_on_host, left);
        if (rc) return rc;
        if (cuda) *left /= ranks_on_device();
    }
    *left -= taken < *left ? taken : *left;
    return 0;
}

// Returns the total space that each rank of this host may use in the folders of --nvme. Blocks alternate
// between folders, so the fullest limits the total. A rank's file is up to two blocks larger than its states.
static size_t disk_left(const zero_offload_config *o) {
    enum { MOST = 16 };
    struct statvfs disk[MOST];
    char folder[PATH_MAX];
    size_t least = SIZE_MAX, beside = 2 * o->nvme_block_bytes;
    int n = 0;
    for (const char *name = o->nvme; *name; n++) {
        const size_t length = strcspn(name, ",");
        size_t sharing = 1;
        snprintf(folder, sizeof folder, "%.*s", (int)length, name);
        if (n == MOST || statvfs(folder, &disk[n])) return 0;
        for (int i = 0; i < n; i++) sharing += disk[i].f_fsid == disk[n].f_fsid;
        const size_t left = disk[n].f_bavail * disk[n].f_frsize / (sharing * run.ranks_on_host);
        if (left < least) least = left;
        name += length + (name[length] == ',');
    }
    return least > beside ? n * (least - beside) : 0;
}

int find_room(Bytes *room, const GPT2 *model, const zero_config *config) {
    zero_config host = *config;
    host.device = ZERO_CPU;
    if (memory_left(model, config, &room->on[ZERO_DEVICE])) return -1;
    if (memory_left(model, &host, &room->on[ZERO_HOST])) return -1;
    room->on[ZERO_NVME] = run.machine            ? share_of(machine_of_plan()->disk_bytes, run.ranks_on_host)
                          : config->offload.nvme ? disk_left(&config->offload)
                                                 : SIZE_MAX;
    if (run.machine) return 0;
    for (int tier = 0; tier < PLACES; tier++)
        if (room->on[tier] < SIZE_MAX) room->on[tier] += bytes_held_on(tier);
    return 0;
}
