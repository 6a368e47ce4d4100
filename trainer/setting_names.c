#include "setting_names.h"
#include <stdio.h>
#include <string.h>

// plugin_settings fills each setting from its option.
// clang-format off
static const struct { const char *setting, *option; } table[] = {
    { "stage",                   "-z" },
    { "inference",               "--prompts" },
    { "device",                  "--device" },
    { "reduce_bucket_size",      "--bucket" },
    { "prefetch",                "--prefetch" },
    { "overlap",                 "--overlap" },
    { "async_save",              "--async-save" },
    { "numbers.dtype",           "--dtype" },
    { "numbers.no_master",       "-w" },
    { "numbers.rounding_seed",   "--seed" },
    { "numbers.loss_scale",      "--loss-scale" },
    { "comm.window_bytes",       "--window" },
    { "comm.shared_window",      "--messages" },
    { "comm.nccl",               "--comm" },
    { "comm.reduce_nccl",        "--reduce" },
    { "comm.reduce_fp32",        "--comm-type" },
    { "comm.timeout_s",          "--comm-timeout" },
    { "start.method",            "-pi" },
    { "start.rank",              "-pr" },
    { "start.ranks",             "-pn" },
    { "start.server",            "-ps" },
    { "start.file",              "-pf" },
    { "offload.params",          "--offload-param" },
    { "offload.optimizer",       "--offload-optimizer" },
    { "offload.gradients",       "--offload-gradients" },
    { "offload.optimizer_ratio", "--offload-ratio" },
    { "offload.params_in_host",  "--max-in-cpu" },
    { "offload.sub_group_size",  "--sub-group-size" },
    { "offload.delayed_update",  "--delayed-update" },
    { "offload.nvme",            "--nvme" },
    { "offload.nvme_verify",     "--nvme-verify" },
    { "debug.naive",             "--naive" },
    { "debug.trace_events",      "--trace" },
    // What a DeepSpeed file asks of a trainer.
    { "micro_batches",           "-d" },
    { "trainer.rows_a_step",     "-d" },
    { "trainer.rows",            "-b" },
    { "trainer.grad_clip",       "--clip" },
    { "trainer.lr",              "-l" },
    { "trainer.beta1",           "--beta1" },
    { "trainer.beta2",           "--beta2" },
    { "trainer.eps",             "--eps" },
    { "trainer.weight_decay",    "-c" },
    { "trainer.schedule",        "-k" },
    { "trainer.schedule",        "-u" },
    { "trainer.schedule",        "-q" },
    { "trainer.logs",            "-o" },
    { "trainer.offload_activations", "--cpu-checkpointing" },
};
// clang-format on

void options_of_settings(const char *settings, char *options, size_t size) {
    *options = 0;
    for (const char *name = settings; *name; name += strspn(name, " ")) {
        size_t length = strcspn(name, " ");
        for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
            if (strlen(table[i].setting) != length || strncmp(table[i].setting, name, length)) continue;
            const size_t used = strlen(options);
            snprintf(options + used, size - used, "%s%s", used ? ", " : "", table[i].option);
        }
        name += length;
    }
}

const char *option_of_setting(const char *setting) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].setting, setting)) return table[i].option;
    return NULL;
}
