#include "settings.h"
#include <string.h>
#include "die.h"
#include "machine.h"
#include "options.h"
#include "run.h"

// The file goes before the options of buckets, prefetch and overlap. What options of the trainer settle as
// well must be the same in both.
static void take_zero_config(zero_config *config) {
    const char *file = opt.zero_config;
    zero_config asked = *config;
    zero_check(zero_config_from_file(&asked, file));
    if (opt.stage >= 0 && asked.stage != opt.stage)
        die("option --zero-config %s: it asks for stage %d, option -z for %d; leave one of them out", file,
            asked.stage, opt.stage);
    if (asked.numbers.dtype != config->numbers.dtype) {
        const char *theirs = dtype_name((gpt2_dtype)asked.numbers.dtype);
        die("option --zero-config %s: bf16.enabled and fp16.enabled ask for %s and the run is in %s; add "
            "--dtype %s",
            file, theirs, dtype_name((gpt2_dtype)config->numbers.dtype), theirs);
    }
    if (asked.micro_batches != config->micro_batches)
        die("option --zero-config %s: gradient_accumulation_steps is %d, but -d, -b, -t and the ranks make "
            "%d micro-batches a step",
            file, asked.micro_batches, config->micro_batches);
    if (config->comm.reduce_fp32 && !asked.comm.reduce_fp32)
        die("option --zero-config %s: its communication_data_type is not the fp32 of option --comm-type; "
            "leave one of them out",
            file);
    *config = asked;
}

zero_config plugin_settings(gpt2_dtype dtype, int micro_batches) {
    zero_config config = zero_defaults();
    config.stage = opt.stage < 0 ? 3 : opt.stage;
    config.debug.naive = opt.naive;
    config.device = on_cuda() ? ZERO_CUDA : ZERO_CPU;
    config.numbers.dtype = (zero_dtype)dtype;  // both types have the same order
    config.numbers.no_master = !opt.master;
    config.numbers.rounding_seed = (unsigned)opt.seed;
    config.numbers.loss_scale = opt.loss_scale;
    config.micro_batches = micro_batches;
    config.reduce_bucket_size = (int64_t)opt.bucket;
    config.prefetch = opt.prefetch;
    config.overlap = run.overlap;
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
    if (opt.zero_config) take_zero_config(&config);
    opt.stage = config.stage;
    opt.prefetch = config.prefetch;
    if (config.comm.reduce_fp32) opt.comm_type = "fp32";
    run.overlap = config.overlap;
    return config;
}
