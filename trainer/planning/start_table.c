#include "start_table.h"
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "../options/config_table.h"
#include "fit.h"
#include "memory_table.h"
#include "../running/machine.h"
#include "../options/options.h"
#include "../running/run.h"

static const char *plural(int n) { return n == 1 ? "" : "s"; }

// -------- lines of a run and of a plan

static void print_model(const GPT2 *model, int resume_step) {
    print0("model      %s: %lld parameters, %s\n", resume_step >= 0 ? "checkpoint" : opt.model,
           (long long)gpt2_num_parameters(&model->config), sizes_of(&model->config));
}

// steps: -1: not known. A run that answers prompts has passes, not steps.
static void print_batch(const GPT2 *model, int micro_batches, int steps) {
    const int BT = model->B * model->T;
    if (model->inference) {
        print0("passes     %d row%s per rank, %d tokens in the first pass, keys and values of %d positions\n",
               model->cache_rows, plural(model->cache_rows), BT, model->cache_positions);
        return;
    }
    print0("batch      B %d x T %d x %d rank%s x %d micro-batch%s = %lld tokens per step", model->B, model->T,
           run.ranks, plural(run.ranks), micro_batches, micro_batches == 1 ? "" : "es",
           (long long)BT * run.ranks * micro_batches);
    if (model->by_layers) print0(", by layers");
    if (steps >= 0) print0(", %d step%s", steps, plural(steps));
    print0("\n");
}

// With --any-ranks 1: what the results still depend on.
static void print_bits(void) {
    if (!opt.any_ranks) return;
    print0("bits       depend on the model, the data, B, T, the tokens per step, the options of the "
           "optimizer and\n"
           "           the numbers, and on the %s; not on ranks, stage, tiers, buckets, transport\n"
           "           or threads\n",
           on_cuda() ? "GPU's type and its libraries" : "processor's instruction set and oneDNN");
}

// job: NULL for a plan.
static void print_numbers(const GPT2 *model, const zero_job *job) {
    const char *weights = opt.master ? " with fp32 master weights" : " without master weights";
    if (model->dtype == GPT2_F32 || model->inference) weights = "";
    const char *how_chosen = opt.recompute < 0 && on_cuda() ? " (the lowest that memory allows)" : "";
    print0("numbers    %s%s", dtype_name(model->dtype), weights);
    if (!model->inference) print0(", recompute %d%s", model->recompute, how_chosen);
    if (model->inputs_on_host) print0(", inputs of blocks on the host");
    if (on_cuda() && job)
        print0(", on %s (device %d), attention by %s", job->device, job->cuda_device,
               model->inference ? "a kernel over the cache" : layers_cuda_attention());
    if (!on_cuda()) print0(", %d thread%s per rank", run.threads, plural(run.threads));
    print0("\n");
}

// Prints how the LM head divides the batch.
static void print_head(const GPT2 *model) {
    int BT = model->B * model->T, parts = (BT + model->chunk - 1) / model->chunk;
    int last = BT - (parts - 1) * model->chunk;
    print0("head       logits in %d part%s of %d rows", parts, plural(parts), model->chunk);
    if (last < model->chunk) print0(", the last of %d", last);
    print0("\n");
}

// -------- a run

// Prints how attention's backward divides the batch.
static void print_attention(const GPT2 *model) {
    layers_attention_backward backward = layers_cuda_attention_backward();
    print0("attention  backward takes %d of %d rows of the batch at a time: %.1f MiB of scratch, "
           "limit %.0f MiB%s\n",
           backward.rows, model->B, mib(backward.bytes), mib(backward.limit),
           backward.bytes > backward.limit ? ", which one row exceeds" : "");
}

static void print_zero(const zero_job *job) {
    const int S = opt.zero.param_group;
    print0("ZeRO       stage %d%s, %s, overlap %s (%s), prefetch %d\n", opt.zero.stage,
           opt.zero.debug.naive ? " (naive path)" : "", job->comm, run.overlap ? "on" : "off",
           reason_of("overlap"), opt.zero.prefetch);
    if (S && S < run.ranks) print0("groups     parameters are sharded over %d rank%s\n", S, plural(S));
}

static void print_units(const GPT2 *model) {
    if (model->units_a_block == 1) return;
    print0("units      %d: %d a block, one for each matrix, and one for the embeddings\n",
           model->tables.n_units, model->units_a_block);
}

static void print_hosts(const zero_job *job) {
    if (job->ranks_on_host != run.ranks)
        print0("hosts      %d of the %d ranks are on rank 0's host\n", job->ranks_on_host, run.ranks);
    if (!opt.threads && job->ranks_on_host != run.ranks_on_host)
        print0("threads    chosen for %d rank%s per host: set -pg %d, or --threads\n", run.ranks_on_host,
               plural(run.ranks_on_host), job->ranks_on_host);
}

static void print_traffic(const zero_plan *plan) {
    int64_t gathers = plan->traffic.all_gather[ZERO_FOR_STEP];
    int64_t reductions = plan->traffic.reduce_scatter[ZERO_FOR_STEP];
    if (!opt.zero.debug.naive)
        print0("traffic    a rank sends %.2f MiB per step: gathers %.2f, reductions %.2f\n",
               mib(gathers + reductions), mib(gathers), mib(reductions));
    if (run.ranks > 1 && !strcmp(opt.comm_type, "fp32")) print0("wire       gradients are sent as fp32\n");
}

// Also prints the writes of all ranks, which wear the disks.
static void print_files(const zero_plan *plan) {
    zero_files files;
    zero_files_info(run.z, &files);
    if (!settings_use_nvme()) return;
    double written = plan->file_written;
    zero_check(zero_sum(run.z, &written, 1));
    print0("NVMe       %s", files.how ? files.how : "rank 0 has no files");
    if (written > 0)  // otherwise parameters are only read
        print0("; a rank reads %.2f MiB per step and writes %.2f, all ranks write %.2f", mib(plan->file_read),
               mib(plan->file_written), mib(written));
    print0("\n");
}

void print_start(const GPT2 *model, int micro_batches, int steps, int resume_step) {
    zero_plan plan;
    zero_job job;
    zero_plan_info(run.z, &plan);
    zero_job_info(run.z, &job);
    print_model(model, resume_step);
    print_batch(model, micro_batches, steps);
    print_numbers(model, &job);
    print_bits();
    if (on_cuda() && !model->inference) {
        print_head(model);
        print_attention(model);
    }
    print_zero(&job);
    print_units(model);
    print_config_lines();
    print_hosts(&job);
    if (!model->inference) {
        print_buckets(&plan);
        print_traffic(&plan);
    }
    print_files(&plan);
    print_memory();
}

// -------- a plan: assumptions, and the activations one by one

static void print_assumptions(const MemoryTable *t) {
    for (const zero_memory_line *l = t->lines; l < t->lines + t->n; l++)
        if (l->assumed)
            print0("  %s: %s\n", l->purpose,
                   l->bytes ? "as configured; a run may not get it" : "not counted; a run measures it");
    if (on_cuda())
        print0("  %s: %s; cuBLASLt and cuDNN report it when a run starts\n", SCRATCH_OF_LAYERS,
               run.machine ? "estimated" : "not counted");
}

static void print_activations(const GPT2 *model) {
    GPT2Activation table[NUM_ACTIVATIONS];
    activation_table(model, table);
    print0("activations per rank, recompute %d            MiB\n", model->recompute);
    for (int i = 0; i < NUM_ACTIVATIONS; i++)
        if (table[i].bytes)
            print0("  %-18s x %-5d               %9.1f\n", table[i].name,
                   table[i].layers * (table[i].each ? model->micro_batches : 1),
                   mib(activation_pages(model, &table[i])));
}

// -------- a plan: the four stages side by side

// Returns "4P + 12P/N", as in the papers; S stands for --param-group.
static const char *formula_text(const zero_formula *f) {
    static char text[48];
    int n = 0;
    if (f->whole) n += snprintf(text, sizeof text, "%dP", f->whole);
    if (f->grouped) n += snprintf(text, sizeof text, "%dP/S", f->grouped);
    if (f->sharded) snprintf(text + n, sizeof text - n, "%s%dP/N", n ? " + " : "", f->sharded);
    return text;
}

// Returns the bytes of the part that is not offloaded.
static size_t bytes_needed(const GPT2 *model, const zero_plan *plan) {
    return bytes_on(plan->lines, plan->n_lines, ZERO_DEVICE) + activation_bytes(model, ZERO_DEVICE);
}

// Prints one stage: all memory of a rank at each level of recompute, with a star if it fits into memory.
static void print_stage(const GPT2 *model, const zero_config *config, int stage, size_t room) {
    const zero_config at_stage = settings_at_stage(config, stage);
    const zero_plan plan = plan_of(model, &at_stage);
    const zero_formula *f = &plan.formulas[stage];
    const double of_plugin = (double)plan.bytes[ZERO_STATES] + plan.bytes[ZERO_WORKING];
    GPT2 tried = *model;
    print0("  %d  %-14s %11.1f %11.1f %11.1f ", stage, formula_text(f), mib(f->bytes),
           mib(plan.bytes[ZERO_STATES]), mib(plan.bytes[ZERO_WORKING]));
    for (tried.recompute = 0; tried.recompute <= (model->inference ? 0 : MOST_RECOMPUTE); tried.recompute++) {
        size_t activations = activation_bytes(&tried, ZERO_DEVICE) + activation_bytes(&tried, ZERO_HOST);
        print0(" %10.1f%s", mib(of_plugin + activations), bytes_needed(&tried, &plan) <= room ? "*" : " ");
    }
    print0("\n");
}

// Explains the stars, and says whether a run with this plan would start.
static void print_verdict(const GPT2 *model, const zero_config *config, const zero_plan *plan, size_t room) {
    const int sharing = on_cuda() ? 1 : run.ranks_on_host;
    const size_t needed = bytes_needed(model, plan), process = process_bytes(model, config);
    const int starts = needed <= room;
    print0("  * %s\n", config->offload.optimizer || config->offload.params
                           ? "the part that is not offloaded fits into memory; the figures include both"
                           : "fits into memory");
    char shared[40] = "", own[48] = "";
    if (sharing > 1) snprintf(shared, sizeof shared, " to each of %d ranks", sharing);
    if (process) snprintf(own, sizeof own, ", of which the process itself about %.0f", mib(process));
    print0("  stage %d %s: it needs %.0f MiB per rank%s; %.0f are available%s%s\n", config->stage,
           starts ? "fits" : "does not fit", mib(needed + process), own, mib(room + process), shared,
           starts        ? ""
           : run.machine ? ". --fit lists options that fit"
                         : ". The error of a run would list options that fit");
}

// If the room cannot be determined, it is 0 and not printed.
static void print_stages(const GPT2 *model, const zero_config *config, const zero_plan *plan) {
    size_t room;
    if (memory_left(model, config, &room) || room == SIZE_MAX) room = 0;
    print0("stages, MiB per rank (P parameters, N ranks)                      all memory%s\n",
           model->inference ? "" : ", by level of recompute");
    print0("     formula            bytes      states     working%s\n",
           model->inference ? "" : "           0          1          2          3");
    for (int stage = 0; stage <= 3; stage++) print_stage(model, config, stage, room);
    if (room) print_verdict(model, config, plan, room);
}

// -------- a plan: the machine of --machine

static void print_place(const char *name, size_t needed, double available) {
    if (!needed) return;
    print0("  %-28s %11.1f", name, mib(needed));
    if (available > 0)
        print0(" %11.1f %s\n", mib(available), needed <= available ? "fits" : "does not fit");
    else
        print0("   not known\n");
}

// Compares what all ranks of a host need with what the machine has.
static void print_places(const MemoryTable *t, size_t process) {
    const Machine *m = machine_of_plan();
    const int here = run.ranks_on_host;
    const size_t device = bytes_on(t->lines, t->n, ZERO_DEVICE);
    const size_t host = here * (bytes_on(t->lines, t->n, ZERO_HOST) + process);
    print0("%-30s %11s %11s\n", "on this machine, MiB", "needed", "available");
    if (m->is_gpu) print_place("a GPU", device, m->device_bytes);
    print_place("a host's memory", host + (m->is_gpu ? 0 : here * device), m->host_bytes);
    print_place("a host's disks", here * bytes_on(t->lines, t->n, ZERO_NVME), m->disk_bytes);
}

// -------- a plan: what a rank sends and moves

static void print_sent(const zero_plan *plan, int inference) {
    const zero_traffic *all = &plan->traffic, *between = &plan->traffic_between_nodes;
    enum { STEP = ZERO_FOR_STEP, EVAL = ZERO_FOR_EVAL, SCALARS = ZERO_FOR_SCALARS };
    const struct {
        const char *what;
        int shown;
        int64_t bytes, between;  // between: to other hosts; -1: not sent
    } rows[] = {
        { "step: gathers", !inference, all->all_gather[STEP], between->all_gather[STEP] },
        { "step: reductions", !inference, all->reduce_scatter[STEP], between->reduce_scatter[STEP] },
        { "step: gradients to all ranks", all->other[STEP] > 0, all->other[STEP], between->other[STEP] },
        { "step: scalars of the norm", !inference, all->other[SCALARS], between->other[SCALARS] },
        { "step: read from NVMe", plan->file_written > 0, plan->file_read, -1 },
        { "step: written to NVMe", plan->file_written > 0, plan->file_written, -1 },
        { "step: copied to the host", plan->copied_down || plan->copied_up, plan->copied_down, -1 },
        { "step: copied to the device", plan->copied_down || plan->copied_up, plan->copied_up, -1 },
        { inference ? "passes after the first: gathers" : "validation batch: gathers", 1,
          all->all_gather[EVAL], between->all_gather[EVAL] },
    };
    const int several_hosts = run.ranks_on_host < run.ranks;
    print0("sent by a rank                             MiB%s\n", several_hosts ? "  to other hosts" : "");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!rows[i].shown) continue;
        print0("  %-34s %11.2f", rows[i].what, mib(rows[i].bytes));
        if (several_hosts && rows[i].between >= 0) print0(" %11.2f", mib(rows[i].between));
        print0("\n");
    }
}

void print_plan(GPT2 *model, int micro_batches) {
    zero_config config = plugin_settings(model->dtype, micro_batches);
    config.start.rank = 0;
    settle_memory(model, &config);
    const zero_plan plan = plan_of(model, &config);
    const MemoryTable table = table_of_plan(model, &plan);
    print0("plan       stage %d%s%s for %d rank%s, %d per host; nothing is started or allocated\n",
           config.stage, config.debug.naive ? " (naive path)" : "", model->inference ? ", inference" : "",
           run.ranks, plural(run.ranks), run.ranks_on_host);
    print_model(model, -1);
    print_batch(model, micro_batches, -1);
    print_numbers(model, NULL);
    print_units(model);
    if (!model->inference) {
        print_head(model);
        print_buckets(&plan);
    }
    print_table(&table, &plan);
    print_assumptions(&table);
    print_activations(model);
    print_stages(model, &config, &plan);
    if (run.machine) print_places(&table, process_bytes(model, &config));
    print_sent(&plan, model->inference);
}
