#include "step_time.h"
#include <math.h>
#include "../running/machine.h"
#include "../running/run.h"

// Waits for nothing, because a step may end while its update goes on.
StepTime time_now(void) {
    StepTime t = { .seconds = zero_virtual_now(run.z) };
    for (int i = 0; i < ZERO_TIMES; i++) t.busy[i] = zero_virtual_busy(run.z, i);
    return t;
}

StepTime time_between(const StepTime *from, const StepTime *to) {
    StepTime t = { .seconds = to->seconds - from->seconds };
    for (int i = 0; i < ZERO_TIMES; i++) t.busy[i] = to->busy[i] - from->busy[i];
    return t;
}

static const struct {
    const char *name;
    zero_time of[4];
} links[LINKS] = {
    [NETWORK] = { "collectives", { ZERO_TIME_GATHER, ZERO_TIME_REDUCE, ZERO_TIME_BETWEEN, ZERO_TIME_SHARE } },
    [BUS] = { "copies over the bus", { ZERO_TIME_TO_HOST, ZERO_TIME_TO_DEVICE } },
    [DISK] = { "files", { ZERO_TIME_READ, ZERO_TIME_WRITE } },
};
enum { MOST = sizeof links->of / sizeof *links->of };

zero_machine machine_without(int link) {
    zero_machine m = machine_of_plan()->plugin;
    for (int i = 0; i < MOST; i++)
        if (links[link].of[i]) m.of[links[link].of[i]] = (zero_rate){ 0 };
    return m;
}

double share_busy(const StepTimes *times, int link) {
    double busy = 0;
    for (int i = 0; i < MOST; i++)
        if (links[link].of[i]) busy += times->is.busy[links[link].of[i]];
    return busy / times->is.seconds;
}

double share_exposed(const StepTimes *times, int link) {
    return fmax(0, 1 - times->without[link] / times->is.seconds);
}

double share_of_peak(const GPT2 *model, double tokens, const StepTimes *times) {
    const double peak = machine_of_plan()->peak_flops[model->dtype] * run.ranks;
    return peak > 0 ? tokens / times->is.seconds * flops_per_token(model) / peak : 0;
}

void print_times(const GPT2 *model, double tokens, const StepTimes *times) {
    const Machine *m = machine_of_plan();
    const double rate = tokens / times->is.seconds, best = m->best_flops[model->dtype] * run.ranks;
    print0("time of a step on %s, %d per host%s\n", m->title, run.ranks_on_host,
           m->is_gpu ? ": a model, not measured on a GPU" : "");
    print0("  %-34s %11.4f s, %.0f tokens/s\n", "step", times->is.seconds, rate);
    if (best > 0)
        print0("  %-34s %10.1f %% of the best matmul's rate\n", "arithmetic of the model",
               100 * rate * flops_per_token(model) / best);
    if (m->peak_flops[model->dtype] > 0)
        print0("  %-34s %10.1f %% of the data sheet's rate\n", "", 100 * share_of_peak(model, tokens, times));
    for (int i = 0; i < LINKS; i++)
        if (share_busy(times, i) > 0)
            print0("  %-34s %10.1f %% of the step, %.1f %% exposed\n", links[i].name,
                   100 * share_busy(times, i), 100 * share_exposed(times, i));
    if (*m->assumed) print0("  assumed: %s\n", m->assumed);
}
