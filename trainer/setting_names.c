#include "setting_names.h"
#include <stdio.h>
#include <string.h>

// plugin_settings fills each setting from its option.
// clang-format off
static const struct { const char *setting, *option; } table[] = {
    { "stage",                 "-z" },
    { "device",                "--device" },
    { "reduce_bucket_size",    "--bucket" },
    { "prefetch",              "--prefetch" },
    { "overlap",               "--overlap" },
    { "numbers.dtype",         "--dtype" },
    { "numbers.no_master",     "-w" },
    { "numbers.rounding_seed", "--seed" },
    { "numbers.loss_scale",    "--loss-scale" },
    { "comm.window_bytes",     "--window" },
    { "comm.shared_window",    "--messages" },
    { "comm.nccl",             "--comm" },
    { "comm.reduce_nccl",      "--reduce" },
    { "comm.reduce_fp32",      "--comm-type" },
    { "comm.timeout_s",        "--comm-timeout" },
    { "start.method",          "-pi" },
    { "start.rank",            "-pr" },
    { "start.ranks",           "-pn" },
    { "start.server",          "-ps" },
    { "start.file",            "-pf" },
    { "debug.naive",           "--naive" },
    { "debug.trace_events",    "--trace" },
};
// clang-format on

void options_of_settings(const char *settings, char *options, size_t size) {
    *options = 0;
    for (const char *name = settings; *name; name += strspn(name, " ")) {
        size_t length = strcspn(name, " "), used = strlen(options);
        for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
            if (strlen(table[i].setting) != length || strncmp(table[i].setting, name, length)) continue;
            snprintf(options + used, size - used, "%s%s", used ? ", " : "", table[i].option);
        }
        name += length;
    }
}
