#include "start_table.h"
#include <string.h>
#include "die.h"
#include "machine.h"
#include "memory.h"
#include "options.h"
#include "run.h"

static void print_model(const GPT2 *model, const zero_effective *e, int resume_step) {
    const GPT2Config *c = &model->config;
    print0("model      %s: %lld parameters, L %d, NH %d, C %d, V %d, longest sequence %d\n",
           resume_step >= 0 ? "checkpoint" : opt.model, (long long)e->num_parameters, c->num_layers,
           c->num_heads, c->channels, c->vocab_size, c->max_seq_len);
}

static void print_batch(const GPT2 *model, int micro_batches, int steps) {
    long long tokens = (long long)model->B * model->T * run.ranks * micro_batches;
    print0("batch      B %d x T %d x %d ranks x %d micro-batches = %lld tokens a step, %d steps\n", model->B,
           model->T, run.ranks, micro_batches, tokens, steps);
}

static void print_numbers(const GPT2 *model, const zero_effective *e) {
    const char *weights = opt.master ? " with fp32 master weights" : " without master weights";
    if (model->dtype == GPT2_F32) weights = "";
    const char *how_chosen = opt.recompute < 0 && on_cuda() ? " (the lowest that memory allows)" : "";
    print0("numbers    %s%s, recompute %d%s, ", dtype_name(model->dtype), weights, model->recompute,
           how_chosen);
    if (on_cuda())
        print0("on %s (device %d), attention by %s\n", e->device, e->cuda_device, layers_cuda_attention());
    else
        print0("%d thread%s a rank\n", run.threads, run.threads == 1 ? "" : "s");
}

// How the head and attention's backward go through the batch.
static void print_cuda(const GPT2 *model) {
    layers_attention_backward backward = layers_cuda_attention_backward();
    int BT = model->B * model->T, parts = (BT + model->chunk - 1) / model->chunk;
    int last = BT - (parts - 1) * model->chunk;
    print0("head       logits in %d part%s of %d rows", parts, parts == 1 ? "" : "s", model->chunk);
    if (last < model->chunk) print0(", the last of %d", last);
    print0("\n");
    print0("attention  backward takes %d of %d rows of the batch at a time: %.1f MiB of scratch, "
           "limit %.0f MiB%s\n",
           backward.rows, model->B, mib(backward.bytes), mib(backward.limit),
           backward.bytes > backward.limit ? ", which one row exceeds" : "");
}

static void print_zero(const zero_effective *e) {
    const char *overlap = strcmp(opt.overlap, "0") ? "off (no spare core for a progress thread)" : "off";
    if (run.overlap) overlap = "on";
    print0("ZeRO       stage %d%s, %s, overlap %s, prefetch %d\n", opt.stage,
           opt.naive ? " (naive path)" : "", e->comm, overlap, opt.prefetch);
}

static void print_hosts(const zero_effective *e) {
    if (e->ranks_on_host != run.ranks)
        print0("hosts      %d of the %d ranks are on rank 0's\n", e->ranks_on_host, run.ranks);
    if (!opt.threads && e->ranks_on_host != run.ranks_on_host)
        print0("threads    were settled for %d rank%s on a host: say it with -pg %d, or --threads\n",
               run.ranks_on_host, run.ranks_on_host == 1 ? "" : "s", e->ranks_on_host);
}

static void print_traffic(const zero_effective *e, int micro_batches) {
    zero_step_traffic traffic = zero_expected_traffic(run.z, micro_batches);
    print0("buckets    %lld elements, %.1f MiB; slots %d\n", (long long)e->bucket_elems, mib(e->bucket_bytes),
           e->slots);
    if (!opt.naive)
        print0("traffic    a rank sends %.2f MiB a step: gathers %.2f, reductions %.2f\n",
               mib(traffic.all_gather + traffic.reduce_scatter), mib(traffic.all_gather),
               mib(traffic.reduce_scatter));
    if (run.ranks > 1 && !strcmp(opt.comm_type, "fp32"))
        print0("wire       gradients travel to their sum as fp32\n");
}

void print_start(const GPT2 *model, int micro_batches, int steps, int resume_step) {
    zero_effective e;
    zero_get_effective(run.z, &e);
    print_model(model, &e, resume_step);
    print_batch(model, micro_batches, steps);
    print_numbers(model, &e);
    if (on_cuda()) print_cuda(model);
    print_zero(&e);
    print_hosts(&e);
    print_traffic(&e, micro_batches);
    print_memory();
}
