#include "settings.h"
#include <string.h>
#include "die.h"
#include "machine.h"
#include "run.h"

// Gradients go where the optimizer's states are, but no further than host memory unless they are asked to.
static void set_tier_of_gradients(zero_config *config, const char *asked) {
    if (asked)
        zero_setting_set(zero_setting_named("offload.gradients"), config, asked);
    else
        config->offload.gradients = config->offload.optimizer && config->stage >= 2 ? ZERO_HOST : ZERO_DEVICE;
}

zero_config settings_of(const Options *o) {
    zero_config config = o->zero;
    config.inference = o->prompts != NULL;
    config.device = on_cuda() ? ZERO_CUDA : ZERO_CPU;
    config.numbers.no_master = !o->master;
    config.numbers.rounding_seed = (unsigned)o->seed;
    config.overlap = run.overlap;
    config.async_save = o->async_save;
    config.comm.shared_window = !o->messages;
    config.comm.nccl = !strcmp(o->comm, "auto") ? -1 : !strcmp(o->comm, "nccl");
    config.comm.reduce_nccl = !strcmp(o->reduce, "nccl");
    config.comm.reduce_fp32 = !strcmp(o->comm_type, "fp32");
    config.start.method = start_method();
    config.debug.trace_events = o->trace ? 1 << 16 : 0;
    set_tier_of_gradients(&config, o->offload_gradients);
    return config;
}

zero_config settings_with_options(const zero_config *config) {
    zero_config c = *config;
    c.stage = opt.zero.stage;
    c.debug.naive = opt.zero.debug.naive;
    c.offload = settings_of(&opt).offload;
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

// The options have taken over the file. Now that the numbers and micro-batches are known, it is judged again;
// the micro-batches, which follow from several options, must be the file's.
static void check_zero_file(const zero_config *config) {
    static zero_deepspeed said;
    zero_config asked = *config;
    zero_check(zero_deepspeed_read(&asked, &said, opt.zero_config));
    if (asked.micro_batches != config->micro_batches)
        die("option --zero-config %s: gradient_accumulation_steps is %d, but -d, -b, -t and the ranks make "
            "%d micro-batches a step",
            opt.zero_config, asked.micro_batches, config->micro_batches);
}

static zero_config effective;

zero_config plugin_settings(gpt2_dtype dtype, int micro_batches) {
    zero_config config = settings_of(&opt);
    config.numbers.dtype = (zero_dtype)dtype;  // both types have the same order
    config.micro_batches = micro_batches;
    if (opt.zero_config) check_zero_file(&config);
    effective = config;
    return config;
}

const zero_config *effective_settings(void) { return &effective; }

int settings_use_nvme(void) {
    const zero_offload_config *o = &effective.offload;
    return o->params == ZERO_NVME || o->optimizer == ZERO_NVME || o->gradients == ZERO_NVME;
}
