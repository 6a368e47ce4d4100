#include "start_table.h"
#include <stdio.h>
#include <string.h>
#include "config_table.h"
#include "die.h"
#include "machine.h"
#include "memory.h"
#include "options.h"
#include "run.h"
#include "settings.h"

static void print_model(const GPT2 *model, int resume_step) {
    const GPT2Config *c = &model->config;
    print0("model      %s: %lld parameters, L %d, NH %d, C %d, V %d, longest sequence %d\n",
           resume_step >= 0 ? "checkpoint" : opt.model, (long long)gpt2_num_parameters(c), c->num_layers,
           c->num_heads, c->channels, c->vocab_size, c->max_seq_len);
}

static void print_batch(const GPT2 *model, int micro_batches, int steps) {
    long long tokens = (long long)model->B * model->T * run.ranks * micro_batches;
    print0("batch      B %d x T %d x %d ranks x %d micro-batches = %lld tokens a step, %d steps\n", model->B,
           model->T, run.ranks, micro_batches, tokens, steps);
}

void print_passes(const GPT2 *model) {
    print0("passes     %d row%s a rank, %d tokens in the first pass, keys and values of %d positions\n",
           model->cache_rows, model->cache_rows == 1 ? "" : "s", model->B * model->T, model->cache_positions);
}

static void print_numbers(const GPT2 *model, const zero_job *job) {
    const char *weights = opt.master ? " with fp32 master weights" : " without master weights";
    if (model->dtype == GPT2_F32 || model->inference) weights = "";
    const char *how_chosen = opt.recompute < 0 && on_cuda() ? " (the lowest that memory allows)" : "";
    print0("numbers    %s%s, ", dtype_name(model->dtype), weights);
    if (!model->inference) print0("recompute %d%s, ", model->recompute, how_chosen);
    if (model->inputs_on_host) print0("inputs of blocks on the host, ");
    if (on_cuda())
        print0("on %s (device %d), attention by %s\n", job->device, job->cuda_device,
               model->inference ? "a kernel over the cache" : layers_cuda_attention());
    else
        print0("%d thread%s a rank\n", run.threads, run.threads == 1 ? "" : "s");
}

// How the LM head and attention's backward divide the batch.
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

static void print_zero(const zero_job *job) {
    const char *overlap = strcmp(opt.overlap, "0") ? "off (no spare core for a progress thread)" : "off";
    if (run.overlap) overlap = "on";
    print0("ZeRO       stage %d%s, %s, overlap %s, prefetch %d\n", opt.zero.stage,
           opt.zero.debug.naive ? " (naive path)" : "", job->comm, overlap, opt.zero.prefetch);
}

static void print_hosts(const zero_job *job) {
    if (job->open_start)
        print0("start      without ZERO_JOB_KEY: whoever reached rank 0's port could have taken part\n");
    if (job->ranks_on_host != run.ranks)
        print0("hosts      %d of the %d ranks are on rank 0's\n", job->ranks_on_host, run.ranks);
    if (!opt.threads && job->ranks_on_host != run.ranks_on_host)
        print0("threads    were settled for %d rank%s on a host: say it with -pg %d, or --threads\n",
               run.ranks_on_host, run.ranks_on_host == 1 ? "" : "s", job->ranks_on_host);
}

// All ranks' writes together wear the disks.
static void print_files(void) {
    char moved[120] = "";  // nothing, if the parameters are only read
    zero_plan plan;
    zero_files files;
    zero_plan_info(run.z, &plan);
    zero_files_info(run.z, &files);
    if (!settings_use_nvme()) return;
    double written = plan.file_written;
    zero_check(zero_sum(run.z, &written, 1));
    if (written > 0)
        snprintf(moved, sizeof moved, "; a rank reads %.2f MiB a step and writes %.2f, all ranks write %.2f",
                 mib(plan.file_read), mib(plan.file_written), mib(written));
    print0("NVMe       %s%s\n", files.how ? files.how : "nothing of rank 0", moved);
}

static void print_traffic(void) {
    zero_plan plan;
    zero_plan_info(run.z, &plan);
    int64_t gathers = plan.traffic.all_gather[ZERO_FOR_STEP];
    int64_t reductions = plan.traffic.reduce_scatter[ZERO_FOR_STEP];
    print0("buckets    %lld elements, %.1f MiB; slots %d\n", (long long)plan.bucket_elems,
           mib(plan.bucket_bytes), plan.slots);
    if (!opt.zero.debug.naive)
        print0("traffic    a rank sends %.2f MiB a step: gathers %.2f, reductions %.2f\n",
               mib(gathers + reductions), mib(gathers), mib(reductions));
    if (run.ranks > 1 && !strcmp(opt.comm_type, "fp32"))
        print0("wire       gradients travel to their sum as fp32\n");
}

void print_inference_start(const GPT2 *model) {
    zero_job job;
    zero_job_info(run.z, &job);
    print_model(model, -1);
    print_passes(model);
    print_numbers(model, &job);
    print_zero(&job);
    print_config_lines();
    print_hosts(&job);
    print_files();
    print_memory();
}

void print_start(const GPT2 *model, int micro_batches, int steps, int resume_step) {
    zero_job job;
    zero_job_info(run.z, &job);
    print_model(model, resume_step);
    print_batch(model, micro_batches, steps);
    print_numbers(model, &job);
    if (on_cuda()) print_cuda(model);
    print_zero(&job);
    print_config_lines();
    print_hosts(&job);
    print_traffic();
    print_files();
    print_memory();
}
