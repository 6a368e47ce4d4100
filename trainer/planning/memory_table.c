#include "memory_table.h"
#include <stdio.h>
#include <string.h>
#include "../options/options.h"
#include "../running/run.h"

static const char *const places[] = {
    [ZERO_DEVICE] = "", [ZERO_HOST] = "  on the host", [ZERO_NVME] = "  on NVMe"
};
static const char *const classes[] = { "model states", "working", "activations" };

static void add_activations(MemoryTable *t, const char *purpose, size_t bytes, zero_tier tier) {
    if (!bytes) return;
    t->lines[t->n++] =
        (zero_memory_line){ .purpose = purpose, .class_ = ZERO_ACTIVATIONS, .bytes = bytes, .tier = tier };
}

// Fills in what a run would measure, and adds what it would find taken.
static void add_estimates(MemoryTable *t) {
    for (zero_memory_line *l = t->lines; l < t->lines + t->n; l++) {
        if (strncmp(l->purpose, "NCCL", 4)) continue;
        l->purpose = "NCCL (estimated)";
        l->bytes = bytes_estimated(NCCL_BUFFERS);
    }
    t->lines[t->n++] = (zero_memory_line){ .purpose = "CUDA (estimated)",
                                           .class_ = ZERO_WORKING,
                                           .bytes = bytes_estimated(CUDA_CONTEXT) };
}

MemoryTable table_of_plan(const GPT2 *model, const zero_plan *plan) {
    MemoryTable t = { .n = plan->n_lines };
    memcpy(t.lines, plan->lines, plan->n_lines * sizeof *t.lines);
    GPT2 without = *model;
    without.scratch_bytes = 0;
    size_t with_cache = activation_bytes(&without, ZERO_DEVICE);
    without.cache_positions = 0;
    size_t activations = activation_bytes(&without, ZERO_DEVICE), all = activation_bytes(model, ZERO_DEVICE);
    add_activations(&t, "activations", activations, ZERO_DEVICE);
    add_activations(&t, INPUTS_OF_BLOCKS, activation_bytes(model, ZERO_HOST), ZERO_HOST);
    add_activations(&t, KEYS_AND_VALUES, with_cache - activations, ZERO_DEVICE);
    add_activations(&t, SCRATCH_OF_LAYERS, all - with_cache, ZERO_DEVICE);
    if (bytes_estimated(CUDA_CONTEXT)) add_estimates(&t);
    return t;
}

void write_table(FILE *f, const MemoryTable *t) {
    static const char *const tiers[] = { "device", "host", "nvme" };
    for (const zero_memory_line *l = t->lines; l < t->lines + t->n; l++) {
        fprintf(f, "%s\n  {\"class\": \"%s\", \"purpose\": ", l > t->lines ? "," : "[", classes[l->class_]);
        write_json_text(f, l->purpose);
        fprintf(f, ", \"tier\": \"%s\", \"bytes\": %zu}", tiers[l->tier], l->bytes);
    }
    fprintf(f, "]");
}

void print_table(const MemoryTable *t, const zero_plan *plan) {
    const double everything_on_every_rank = plan->formulas[0].bytes;
    double of[ZERO_MEMORY_CLASSES] = { 0 }, together = 0, on_nvme = 0;
    print0("memory per rank                           MiB\n");
    for (int class_ = 0; class_ < ZERO_MEMORY_CLASSES; class_++)
        for (const zero_memory_line *l = t->lines; l < t->lines + t->n; l++) {
            if ((int)l->class_ != class_) continue;
            print0("  %-12s %-24s %7.1f%s\n", classes[class_], l->purpose, mib(l->bytes), places[l->tier]);
            of[class_] += l->bytes;
            together += l->bytes;
            if (l->tier == ZERO_NVME) on_nvme += l->bytes;
        }
    print0("  model states %.1f (formula %.1f), working %.1f, activations %.1f, together %.1f MiB\n",
           mib(of[ZERO_STATES]), mib(plan->formulas[opt.zero.stage].bytes), mib(of[ZERO_WORKING]),
           mib(of[ZERO_ACTIVATIONS]), mib(together));
    if (on_nvme)
        print0("  of which %.1f MiB on NVMe, %.1f MiB in memory\n", mib(on_nvme), mib(together - on_nvme));
    if (run.ranks == 1) return;
    print0("  plain data parallelism would hold %.1f MiB of model states on every rank; stage %d holds "
           "%.0f %% of that\n",
           mib(everything_on_every_rank), opt.zero.stage, 100 * of[ZERO_STATES] / everything_on_every_rank);
}

void print_memory(void) {
    MemoryTable t = { .n = 0 };
    zero_plan plan;
    zero_plan_info(run.z, &plan);
    while (t.n < MOST_LINES && zero_memory(run.z, t.n, &t.lines[t.n])) t.n++;
    print_table(&t, &plan);
}
