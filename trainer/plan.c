#include "plan.h"
#include <stdio.h>
#include <string.h>
#include "die.h"
#include "machine.h"
#include "memory.h"
#include "options.h"
#include "run.h"
#include "settings.h"
#include "start_table.h"

static void print_what(const GPT2 *model, const zero_config *config, const zero_plan *plan) {
    const GPT2Config *c = &model->config;
    print0("plan       stage %d%s%s for %d rank%s, %d on a host; nothing is started or allocated\n",
           config->stage, config->debug.naive ? " (naive path)" : "", model->inference ? ", inference" : "",
           run.ranks, run.ranks == 1 ? "" : "s", run.ranks_on_host);
    print0("model      %s: %lld parameters, L %d, NH %d, C %d, V %d, longest sequence %d\n", opt.model,
           (long long)plan->parameters, c->num_layers, c->num_heads, c->channels, c->vocab_size,
           c->max_seq_len);
}

static void print_batch(const GPT2 *model, const zero_config *config, const zero_plan *plan,
                        int micro_batches) {
    long long tokens = (long long)model->B * model->T * run.ranks * micro_batches;
    const char *weights = config->numbers.no_master ? " without master weights" : " with fp32 master weights";
    print0("batch      B %d x T %d x %d ranks x %d micro-batches = %lld tokens a step\n", model->B, model->T,
           run.ranks, micro_batches, tokens);
    print0("numbers    %s%s, recompute %d, logits in parts of %d rows\n", dtype_name(model->dtype),
           model->dtype == GPT2_F32 ? "" : weights, model->recompute, model->chunk);
    print0("buckets    %lld elements, %.1f MiB; slots %d\n", (long long)plan->bucket_elems,
           mib(plan->bucket_bytes), plan->slots);
}

// --------
// memory

static void add_activations(MemoryTable *t, const char *purpose, size_t bytes, zero_tier tier) {
    if (!bytes) return;
    t->lines[t->n_lines++] =
        (zero_memory_line){ .purpose = purpose, .class_ = ZERO_ACTIVATIONS, .bytes = bytes, .tier = tier };
}

// The lines of a run's table: the plugin's, and those of the activations.
static MemoryTable table_of(const GPT2 *model, const zero_plan *plan) {
    MemoryTable t = { .n_lines = plan->n_lines };
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
    return t;
}

// Prints what only a run can determine.
static void print_assumptions(const zero_plan *plan) {
    for (int i = 0; i < plan->n_lines; i++) {
        const zero_memory_line *l = &plan->lines[i];
        if (!l->assumed) continue;
        if (l->bytes)
            print0("  %s: as configured; a run may find that there is none\n", l->purpose);
        else
            print0("  %s: not counted; a run measures it\n", l->purpose);
    }
    if (on_cuda())
        print0("  %s: not counted; cuBLASLt and cuDNN say it when a run starts\n", SCRATCH_OF_LAYERS);
}

static void print_moves(const zero_plan *plan) {
    static const char *const names[] = {
        [ZERO_MOVED_BY_GATHERS] = "gathers",
        [ZERO_MOVED_BY_REDUCTIONS] = "reductions",
        [ZERO_MOVED_BY_GATHERS | ZERO_MOVED_BY_REDUCTIONS] = "gathers and reductions",
    };
    print0("moved by collectives\n");
    for (int i = 0; i < plan->n_lines; i++) {
        const zero_memory_line *l = &plan->lines[i];
        if (l->moved_by) print0("  %-27s %s\n", l->purpose, names[l->moved_by]);
    }
}

static void print_activations(const GPT2 *model) {
    GPT2Activation table[NUM_ACTIVATIONS];
    activation_table(model, table);
    if (model->inference)
        print0("activations of a rank                        MiB\n");
    else
        print0("activations of a rank, recompute %d           MiB\n", model->recompute);
    for (int i = 0; i < NUM_ACTIVATIONS; i++)
        if (table[i].bytes)
            print0("  %-18s x %-5d               %9.1f\n", table[i].name, table[i].layers,
                   mib(activation_pages(&table[i])));
}

// --------
// the four stages side by side

// "4P + 12P/N", as in the papers.
static const char *formula_text(const zero_formula *f) {
    static char text[48];
    int n = 0;
    if (f->whole) n += snprintf(text, sizeof text, "%dP", f->whole);
    if (f->sharded) snprintf(text + n, sizeof text - n, "%s%dP/N", f->whole ? " + " : "", f->sharded);
    return text;
}

// The memory left for a rank on this machine; 0: unknown. Assumes a device for each rank on CUDA.
static size_t room_of_rank(const zero_config *config) {
    size_t left;
    return zero_memory_left(config, run.ranks_on_host, &left) ? 0 : left;
}

static void print_formula(const zero_plan *plan, int stage) {
    const zero_formula *f = &plan->formulas[stage];
    print0("  %d  %-14s %11.1f %11.1f %11.1f ", stage, formula_text(f), mib(f->bytes),
           mib(plan->bytes[ZERO_STATES]), mib(plan->bytes[ZERO_WORKING]));
}

// The total of a rank, with a star if it fits.
static void print_together(const GPT2 *model, const zero_plan *plan, size_t room) {
    size_t on_device = activation_bytes(model, ZERO_DEVICE), on_host = activation_bytes(model, ZERO_HOST);
    double together = (double)plan->bytes[ZERO_STATES] + plan->bytes[ZERO_WORKING] + on_device + on_host;
    int fits = bytes_planned_on(plan, ZERO_DEVICE) + on_device < room;
    print0(" %10.1f%s", mib(together), fits ? "*" : " ");
}

static void print_stage(const GPT2 *model, const zero_config *config, int stage, size_t room) {
    const zero_config at_stage = settings_at_stage(config, stage);
    const zero_plan plan = plan_of(model, &at_stage);
    print_formula(&plan, stage);
    GPT2 tried = *model;
    for (tried.recompute = 0; tried.recompute <= MOST_RECOMPUTE; tried.recompute++)
        print_together(&tried, &plan, room);
    print0("\n");
}

static void print_room(size_t room) {
    if (room)
        print0("  * fits into the %.0f MiB that this %s has left for each of %d rank%s\n", mib(room),
               on_cuda() ? "device" : "machine", on_cuda() ? 1 : run.ranks_on_host,
               on_cuda() || run.ranks_on_host == 1 ? "" : "s");
}

static void print_stages(const GPT2 *model, const zero_config *config) {
    const size_t room = room_of_rank(config);
    print0(
        "stages, MiB of a rank (P parameters, N ranks)                     with activations at recompute\n");
    print0("     formula            bytes      states     working           0          1          2          "
           "3\n");
    for (int stage = 0; stage <= 3; stage++) print_stage(model, config, stage, room);
    print_room(room);
}

static void print_inference_stages(const GPT2 *model, const zero_config *config) {
    const size_t room = room_of_rank(config);
    print0("stages, MiB of a rank (P parameters, N ranks)                     with activations\n");
    print0("     formula            bytes      states     working\n");
    for (int stage = 0; stage <= 3; stage++) {
        zero_config at_stage = *config;
        at_stage.stage = stage;
        const zero_plan plan = plan_of(model, &at_stage);
        print_formula(&plan, stage);
        print_together(model, &plan, room);
        print0("\n");
    }
    print_room(room);
}

// --------
// traffic

static void print_sent(const char *what, int64_t bytes, int64_t between_nodes) {
    print0("  %-34s %11.2f", what, mib(bytes));
    if (run.ranks_on_host < run.ranks) print0(" %11.2f", mib(between_nodes));
    print0("\n");
}

static void print_sent_traffic(const zero_plan *plan) {
    const zero_traffic *all = &plan->traffic, *between = &plan->traffic_between_nodes;
    const zero_purpose step = ZERO_FOR_STEP, eval = ZERO_FOR_EVAL, scalars = ZERO_FOR_SCALARS;
    print0("sent by a rank                             MiB%s\n",
           run.ranks_on_host < run.ranks ? "  to other hosts" : "");
    print_sent("step: gathers", all->all_gather[step], between->all_gather[step]);
    print_sent("step: reductions", all->reduce_scatter[step], between->reduce_scatter[step]);
    if (all->other[step]) print_sent("step: gradients to everyone", all->other[step], between->other[step]);
    print_sent("step: scalars of the norm", all->other[scalars], between->other[scalars]);
    if (plan->file_written) {
        print0("  %-34s %11.2f\n", "step: read from NVMe", mib(plan->file_read));
        print0("  %-34s %11.2f\n", "step: written to NVMe", mib(plan->file_written));
    }
    if (plan->copied_down || plan->copied_up) {
        print0("  %-34s %11.2f\n", "step: copied to the host", mib(plan->copied_down));
        print0("  %-34s %11.2f\n", "step: copied to the device", mib(plan->copied_up));
    }
    print_sent("validation batch: gathers", all->all_gather[eval], between->all_gather[eval]);
}

static void print_sent_by_pass(const zero_plan *plan) {
    print0("sent by a rank                             MiB%s\n",
           run.ranks_on_host < run.ranks ? "  to other hosts" : "");
    print_sent("pass but the first: gathers", plan->traffic.all_gather[ZERO_FOR_EVAL],
               plan->traffic_between_nodes.all_gather[ZERO_FOR_EVAL]);
}

// --------
// the whole

static void print_training(const GPT2 *model, const zero_config *config, const zero_plan *plan,
                           int micro_batches) {
    const MemoryTable table = table_of(model, plan);
    print_what(model, config, plan);
    print_batch(model, config, plan, micro_batches);
    print_memory_table(&table, plan);
    print_assumptions(plan);
    print_moves(plan);
    print_activations(model);
    print_stages(model, config);
    print_sent_traffic(plan);
}

static void print_inference(const GPT2 *model, const zero_config *config, const zero_plan *plan) {
    const MemoryTable table = table_of(model, plan);
    print_what(model, config, plan);
    print_passes(model);
    print0("numbers    %s; slots %d\n", dtype_name(model->dtype), plan->slots);
    print_memory_table(&table, plan);
    print_assumptions(plan);
    print_moves(plan);
    print_activations(model);
    print_inference_stages(model, config);
    print_sent_by_pass(plan);
}

void print_plan(GPT2 *model, int micro_batches) {
    zero_config config = plugin_settings(model->dtype, micro_batches);
    config.start.rank = 0;
    settle_memory_alone(model, &config);
    const zero_plan plan = plan_of(model, &config);
    if (model->inference)
        print_inference(model, &config, &plan);
    else
        print_training(model, &config, &plan, micro_batches);
}
