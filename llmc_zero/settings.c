// zero_config: the defaults, and what is refused before anything is done.
#include "settings.h"
#include "device/kernels.h"
#include "error.h"
#include <math.h>
#include <string.h>

zero_config zero_defaults(void) {
    return (zero_config){
        .size = sizeof(zero_config),
        .stage = 0,
        .micro_batches = 1,
        .device = ZERO_CPU,
        .cuda_device = -1,
        .prefetch = 1,
        .max_open = 1,
        .overlap = 0,
        .numbers = {
            .dtype = ZERO_F32,
            .initial_scale_power = 16,
            .loss_scale_window = 1000,
            .hysteresis = 2,
            .min_loss_scale = 1,
        },
        .comm = {
            .shared_window = 1,
            .nccl = -1,
            .timeout_s = 300,
        },
        .start = {
            .method = ZERO_START_AUTO,
            .rank = -1,
        },
        .offload = {
            .sub_group_size = 4 << 20,
            .optimizer_ratio = 1,
            .nvme_block_bytes = 1 << 20,
            .nvme_depth = 32,
            .nvme_threads = 4,
        },
        .debug = {
            .poison = -1,
        },
    };
}

static int check_numbers(const zero_config *c) {
    if (c->numbers.dtype != ZERO_F32 && c->numbers.dtype != ZERO_BF16 && c->numbers.dtype != ZERO_F16)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "numbers.dtype", " %d: ZERO_F32, ZERO_BF16 or ZERO_F16",
                                 (int)c->numbers.dtype);
    if (c->numbers.no_master && c->numbers.dtype != ZERO_BF16)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "numbers.no_master",
                                 " with %s: only bf16 parameters are rounded stochastically",
                                 dtype_name(c->numbers.dtype));
    if (!(c->numbers.loss_scale >= 0) || isinf(c->numbers.loss_scale))
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "numbers.loss_scale", " %g: at least 0, and finite",
                                 c->numbers.loss_scale);
    if (c->numbers.initial_scale_power < 0 || c->numbers.initial_scale_power > 126)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "numbers.initial_scale_power", " %d: 0 to 126",
                                 c->numbers.initial_scale_power);
    if (c->numbers.loss_scale_window < 1)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "numbers.loss_scale_window", " %d: at least 1",
                                 c->numbers.loss_scale_window);
    if (c->numbers.hysteresis < 1)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "numbers.hysteresis", " %d: at least 1",
                                 c->numbers.hysteresis);
    if (!(c->numbers.min_loss_scale >= 0x1p-126) || isinf(c->numbers.min_loss_scale))
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "numbers.min_loss_scale",
                                 " %g: at least 2^-126, and finite", c->numbers.min_loss_scale);
    return 0;
}

// -------- where model states have their home

static int check_tier(const char *setting, zero_tier tier) {
    if (tier >= ZERO_DEVICE && tier <= ZERO_NVME) return 0;
    return zero_fail_setting(ZERO_ERR_ARGUMENT, setting, " %d: ZERO_DEVICE, ZERO_HOST or ZERO_NVME",
                             (int)tier);
}

// What the stages shard can lie elsewhere.
static int check_tiers(const zero_config *c) {
    const zero_offload_config *o = &c->offload;
    ZERO_TRY(check_tier("offload.params", o->params));
    ZERO_TRY(check_tier("offload.optimizer", o->optimizer));
    ZERO_TRY(check_tier("offload.gradients", o->gradients));
    if (o->params && c->stage < 3)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "offload.params stage",
                                 ": parameters are whole on every device at stage %d; use stage 3", c->stage);
    if (o->optimizer && c->stage < 1)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "offload.optimizer stage",
                                 ": stage 0 does not shard the optimizer's states; use stage 1, 2 or 3");
    if (o->gradients && c->stage < 2)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "offload.gradients stage",
                                 ": gradients are whole on every device at stage %d; use stage 2 or 3",
                                 c->stage);
    if (o->gradients > o->optimizer)
        return zero_fail_setting(
            ZERO_ERR_ARGUMENT, "offload.gradients offload.optimizer",
            ": the update needs the gradients beside the optimizer's states, or nearer to "
            "the device; move offload.optimizer as far");
    if (o->delayed_update < 0)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "offload.delayed_update",
                                 " %d: the number of the first update that is delayed, or 0",
                                 o->delayed_update);
    if (o->delayed_update && c->numbers.no_master)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "offload.delayed_update numbers.no_master",
                                 ": the new parameters wait in the master weights; keep those");
    if (o->delayed_update && !o->optimizer)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "offload.delayed_update offload.optimizer",
                                 ": an update on the device is not delayed; move offload.optimizer to "
                                 "ZERO_HOST or ZERO_NVME");
    return 0;
}

static int check_folders(const zero_offload_config *o) {
    const int wanted = o->params == ZERO_NVME || o->optimizer == ZERO_NVME || o->gradients == ZERO_NVME;
    const char *names = o->nvme ? o->nvme : "";
    if (!*names && wanted)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "offload.nvme",
                                 ": no folder, but model states are to lie on NVMe; name one on each disk");
    if (*names == ',' || strstr(names, ",,") || (*names && names[strlen(names) - 1] == ','))
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "offload.nvme", " '%s': a name between commas is empty",
                                 names);
    return 0;
}

// The ZeRO-Infinity paper (arXiv 2104.07857) reads and writes 512 KiB at least.
static int check_nvme(const zero_offload_config *o) {
    ZERO_TRY(check_folders(o));
    if (o->nvme_block_bytes % 4096 || o->nvme_block_bytes < 512 << 10 || o->nvme_block_bytes > 1 << 30)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "offload.nvme_block_bytes",
                                 " %lld: a multiple of 4096, 524288 to 1073741824",
                                 (long long)o->nvme_block_bytes);
    if (o->nvme_depth < 1 || o->nvme_depth > 4096)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "offload.nvme_depth", " %d: 1 to 4096 requests",
                                 o->nvme_depth);
    if (o->nvme_threads < 1 || o->nvme_threads > 256)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "offload.nvme_threads", " %d: 1 to 256 threads",
                                 o->nvme_threads);
    return 0;
}

int settings_check_offload(const zero_config *c) {
    const zero_offload_config *o = &c->offload;
    ZERO_TRY(check_tiers(c));
    if (!(o->optimizer_ratio >= 0 && o->optimizer_ratio <= 1))
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "offload.optimizer_ratio", " %g: 0 to 1",
                                 o->optimizer_ratio);
    if (o->params_in_host < 0)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "offload.params_in_host", " %lld: at least 0 elements",
                                 (long long)o->params_in_host);
    if (o->sub_group_size < 2048)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "offload.sub_group_size",
                                 " %lld: at least 2048 elements, a page of bf16",
                                 (long long)o->sub_group_size);
    return check_nvme(o);
}

// -------- all settings

int settings_check(const zero_config *c) {
    if (!c || c->size != sizeof *c)
        return zero_fail(
            ZERO_ERR_ARGUMENT,
            "zero_config.size is not that of this library: start from zero_defaults() and the same zero.h");
    if (c->stage < 0 || c->stage > 3)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "stage", " %d: the stages are 0, 1, 2 and 3", c->stage);
    if (c->debug.naive && c->stage)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "debug.naive stage",
                                 ": the naive path is plain data parallel: stage 0, not %d", c->stage);
    ZERO_TRY(check_numbers(c));
    if (c->comm.nccl < -1 || c->comm.nccl > 1)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "comm.nccl", " %d: -1, 0 or 1", c->comm.nccl);
    if (c->device == ZERO_CPU && (c->comm.nccl > 0 || c->comm.reduce_nccl))
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "comm.nccl device",
                                 ": NCCL is for CUDA devices: device ZERO_CUDA");
    if (c->comm.reduce_nccl && c->comm.nccl != 1)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "comm.reduce_nccl", " needs comm.nccl 1");
    if (c->device != ZERO_CPU && c->device != ZERO_CUDA)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "device", " %d: ZERO_CPU or ZERO_CUDA", (int)c->device);
    if (c->debug.naive && c->device == ZERO_CUDA)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "debug.naive device",
                                 ": the naive path computes on the processor: device ZERO_CPU");
    if (c->debug.naive && c->inference)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "debug.naive inference",
                                 ": the naive path only trains: inference 0");
    if (c->micro_batches < 1)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "micro_batches", " %d: at least 1", c->micro_batches);
    if (c->reduce_bucket_size < 0)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "reduce_bucket_size", " %lld: at least 0",
                                 (long long)c->reduce_bucket_size);
    if (c->prefetch < 0 || c->prefetch > 1024)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "prefetch", " %d: 0 to 1024 units", c->prefetch);
    if (c->max_open < 1 || c->max_open > 1024)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "max_open", " %d: 1 to 1024 units", c->max_open);
    if (c->comm.window_bytes && (c->comm.window_bytes < 64 << 10 || c->comm.window_bytes > 16 << 20))
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "comm.window_bytes", " %lld: 0, or 64 KiB to 16 MiB",
                                 (long long)c->comm.window_bytes);
    if (!(c->comm.timeout_s > 0 && c->comm.timeout_s <= 1e6))
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "comm.timeout_s", " %g: above 0, at most 1e6",
                                 c->comm.timeout_s);
    if (c->start.method < ZERO_START_AUTO || c->start.method > ZERO_START_FILE)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "start.method",
                                 " %d: ZERO_START_AUTO, _MPI, _TCP or _FILE", (int)c->start.method);
    if (c->debug.trace_events < 0)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "debug.trace_events", " %d: at least 0",
                                 c->debug.trace_events);
    return settings_check_offload(c);
}
