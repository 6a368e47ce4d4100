#include "settings.h"
#include <string.h>
#include "die.h"
#include "machine.h"
#include "options.h"
#include "run.h"

static zero_tier tier_of(const char *name) {
    if (!strcmp(name, "cpu")) return ZERO_HOST;
    return strcmp(name, "nvme") ? ZERO_DEVICE : ZERO_NVME;
}

// Gradients go where the optimizer's states are, but no further than host memory unless they are asked to.
static zero_tier tier_of_gradients(const zero_config *config) {
    if (opt.offload_gradients) return tier_of(opt.offload_gradients);
    return config->offload.optimizer && config->stage >= 2 ? ZERO_HOST : ZERO_DEVICE;
}

static void set_offload(zero_config *config) {
    zero_offload_config *o = &config->offload;
    o->params = tier_of(opt.offload_param);
    o->optimizer = tier_of(opt.offload_optimizer);
    o->gradients = tier_of_gradients(config);
    o->optimizer_ratio = opt.offload_ratio;
    o->params_in_host = (int64_t)opt.max_in_cpu;
    o->sub_group_size = (int64_t)opt.sub_group_size;
    o->delayed_update = opt.delayed_update;
    o->nvme = opt.nvme;
    o->nvme_verify = opt.nvme_verify;
}

zero_config settings_of_options(void) {
    zero_config config = zero_defaults();
    config.stage = opt.stage < 0 ? 3 : opt.stage;
    config.inference = opt.prompts != NULL;
    config.debug.naive = opt.naive;
    config.device = on_cuda() ? ZERO_CUDA : ZERO_CPU;
    config.numbers.no_master = !opt.master;
    config.numbers.rounding_seed = (unsigned)opt.seed;
    config.numbers.loss_scale = opt.loss_scale;
    config.micro_batches = 0;
    config.reduce_bucket_size = (int64_t)opt.bucket;
    config.prefetch = opt.prefetch;
    config.overlap = run.overlap;
    config.async_save = opt.async_save;
    config.comm.window_bytes = (int64_t)opt.window;
    config.comm.shared_window = !opt.messages;
    config.comm.nccl = !strcmp(opt.comm, "auto") ? -1 : !strcmp(opt.comm, "nccl");
    config.comm.reduce_nccl = !strcmp(opt.reduce, "nccl");
    config.comm.reduce_fp32 = !strcmp(opt.comm_type, "fp32");
    config.start.method = start_method();
    config.start.ranks = opt.processes;
    config.start.rank = opt.process_rank;
    config.start.server = opt.server;
    config.start.file = opt.start_file;
    config.comm.timeout_s = opt.comm_timeout;
    config.debug.trace_events = opt.trace ? 1 << 16 : 0;
    set_offload(&config);
    return config;
}

zero_config settings_with_options(const zero_config *config) {
    zero_config c = *config;
    c.stage = opt.stage;
    c.debug.naive = opt.naive;
    set_offload(&c);
    return c;
}

zero_config settings_at_stage(const zero_config *config, int stage) {
    zero_config c = *config;
    zero_offload_config *o = &c.offload;
    c.stage = stage;
    c.debug.naive = config->debug.naive && stage == 0;
    if (stage < 3) o->params = ZERO_DEVICE;
    if (stage < 2) o->gradients = ZERO_DEVICE;
    if (stage < 1) o->optimizer = ZERO_DEVICE;
    if (stage < 1) o->delayed_update = 0;
    return c;
}

zero_config default_settings(void) {
    const Options now = opt;
    opt = default_options;
    zero_config config = settings_of_options();
    config.micro_batches = 1;
    opt = now;
    return config;
}

// The options have taken over what they can of the file, so that here it adds only settings without an
// option. The micro-batches, which follow from several options, must be the file's.
static void add_zero_file(zero_config *config) {
    static zero_deepspeed said;
    zero_config asked = *config;
    zero_check(zero_deepspeed_read(&asked, &said, opt.zero_config));
    if (asked.micro_batches != config->micro_batches)
        die("option --zero-config %s: gradient_accumulation_steps is %d, but -d, -b, -t and the ranks make "
            "%d micro-batches a step",
            opt.zero_config, asked.micro_batches, config->micro_batches);
    *config = asked;
}

static zero_config effective;

zero_config plugin_settings(gpt2_dtype dtype, int micro_batches) {
    zero_config config = settings_of_options();
    config.numbers.dtype = (zero_dtype)dtype;  // both types have the same order
    config.micro_batches = micro_batches;
    if (opt.zero_config) add_zero_file(&config);
    opt.stage = config.stage;
    effective = config;
    return config;
}

const zero_config *effective_settings(void) { return &effective; }
