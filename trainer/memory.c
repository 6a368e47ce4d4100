#include "memory.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "die.h"
#include "options.h"
#include "run.h"
#include "settings.h"
#include "tuning.h"

// --------
// what a rank would hold

zero_plan_info plan_of(const GPT2 *model, const zero_config *config) {
    const PluginTables *t = &model->tables;
    zero_plan_info plan;
    zero_check(zero_plan(&plan, config, t->tensors, NUM_PARAMETER_TENSORS, t->units, t->n_units, run.ranks,
                         run.ranks_on_host));
    return plan;
}

// Bytes that the plugin takes of the device's memory. What NCCL takes is not among them.
size_t device_bytes_of(const zero_plan_info *plan) {
    size_t bytes = 0;
    for (int i = 0; i < plan->n_lines; i++)
        if (plan->lines[i].tier == ZERO_DEVICE) bytes += plan->lines[i].bytes;
    return bytes;
}

static size_t plugin_bytes(const GPT2 *model, zero_config config, int stage) {
    const zero_config at_stage = settings_at_stage(&config, stage);
    zero_plan_info plan = plan_of(model, &at_stage);
    return device_bytes_of(&plan);
}

// Activations at this level, without the logits and the layers' scratch.
static size_t buffer_bytes(GPT2 model, int recompute) {
    model.recompute = recompute;
    model.chunk = 0;
    model.scratch_bytes = 0;
    return activation_bytes(&model, ZERO_DEVICE);
}

// Ranks that share a device share its memory evenly. Nothing is known of the others before there is a plugin.
static int ranks_on_device(void) {
    zero_job_info job = { .ranks_on_device = 1 };
    if (run.z) zero_get_job(run.z, &job);
    return job.ranks_on_device;
}

// The rank's part of its device, used or not.
static size_t device_bytes(void) {
    size_t total;
    LAYER(device_bytes(&total));
    return total / ranks_on_device();
}

// What a device has left with nothing recomputed at the stage that takes most. It follows from the size of
// the device, the model and the batch alone, and not from the stage, from what is free at the moment or from
// settings that change no bits, so that bits may depend on it. An eighth of the device is for the CUDA
// context, NCCL and the layers' scratch.
static size_t left_at_any_stage(const GPT2 *model, const zero_config *config) {
    zero_config plain = zero_defaults();
    plain.device = config->device;
    plain.micro_batches = config->micro_batches;
    plain.numbers = config->numbers;
    plain.comm.nccl = 0;
    size_t device = device_bytes(), largest = 0;
    for (int stage = 0; stage <= 3; stage++) {
        size_t bytes = plugin_bytes(model, plain, stage);
        if (bytes > largest) largest = bytes;
    }
    size_t taken = largest + buffer_bytes(*model, 0) + device / 8;
    return taken < device ? device - taken : 0;
}

// --------
// the head's parts

enum { MOST_PARTS = 8, TILE_ROWS = 256 };  // few parts: each rounds the gradient once more

// How many bytes of logits may exist at once. The run's bits depend on it: the classifier's bf16 gradient is
// rounded once a part. On CUDA it is what any stage leaves. It is at least 1 GiB, on a small device a
// sixteenth of it. It is at most 4 GiB, since little is gained beyond: each part reads and writes the
// gradient (V, C) once more, and by an H100's data sheet the products of 4 GiB (42000 rows with GPT-2's
// vocabulary in bf16) take more than 100 times as long.
static size_t logits_at_once(const GPT2 *model, const zero_config *config) {
    const size_t most = (size_t)4 << 30;
    if (!on_cuda()) return 128 << 20;
    size_t device = device_bytes(), least = device / 16 < 1 << 30 ? device / 16 : 1 << 30;
    size_t left = left_at_any_stage(model, config);
    if (left < least) return least;
    return left < most ? left : most;
}

static int parts_of_head(const GPT2 *model, const zero_config *config) {
    if (model->inference) return 1;
    size_t at_once = logits_at_once(model, config), all = logits_bytes(model, (size_t)model->B * model->T);
    size_t parts = (all + at_once - 1) / at_once;
    return parts < MOST_PARTS ? (int)parts : MOST_PARTS;
}

// Rows of logits at a time. On CUDA they fill whole tiles of the products; the last part takes the rest.
static int rows_of_part(const GPT2 *model, int parts) {
    size_t BT = (size_t)model->B * model->T, rows = (BT + parts - 1) / parts;
    if (on_cuda()) rows = (rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    return (int)(rows < BT ? rows : BT);
}

// Sets the rows of a part and asks the layers for their scratch. In inference each row of the cache gets the
// logits of its last token.
static void plan_layers(GPT2 *model, int parts) {
    const GPT2Config *c = &model->config;
    if (model->inference) {
        model->chunk = model->cache_rows;
        LAYER(plan_cached(model->dtype, model->B * model->T, model->cache_rows, model->cache_T, c->channels,
                          c->num_heads, c->padded_vocab_size, &model->scratch_bytes));
        return;
    }
    model->chunk = rows_of_part(model, parts);
    LAYER(plan(model->dtype, model->B, model->T, c->channels, c->num_heads, c->padded_vocab_size,
               model->chunk, &model->scratch_bytes));
}

// --------
// the level of recompute

// The lowest level whose activations fit into what the device has left once the plugin holds its own memory.
// A thirty-second of the device stays free: kernels are loaded and NCCL connects later, and allocations
// leave gaps. Where the forward product computes GELU itself, level 0 has other bits than the others, so it
// is taken only where it fits at every stage.
static int lowest_recompute(const GPT2 *model, const zero_config *config, size_t left) {
    size_t reserve = device_bytes() / 32;
    GPT2 tried = *model;
    tried.recompute = 0;
    if (layers_cuda_gelu_fused(4 * model->config.channels)) {
        if (logits_bytes(model, model->chunk) <= left_at_any_stage(model, config)) return 0;
        tried.recompute = 1;
    }
    while (tried.recompute < MOST_RECOMPUTE) {
        if (activation_bytes(&tried, ZERO_DEVICE) + reserve <= left) break;
        tried.recompute++;
    }
    return tried.recompute;
}

static size_t memory_left(const zero_config *config) {
    size_t left;
    zero_check(zero_memory_left(config, run.ranks_on_host, &left));
    return left / ranks_on_device();
}

// The largest of the ranks' numbers, each from 0 to `most`, which is at most 64.
static int largest_of_ranks(int number, int most) {
    double ranks_above[64];
    int largest = 0;
    for (int i = 0; i < most; i++) ranks_above[i] = number > i;
    zero_check(zero_sum(run.z, ranks_above, most));
    while (largest < most && ranks_above[largest] > 0) largest++;
    return largest;
}

// On a processor parts and level are fixed.
void settle_memory(GPT2 *model, const zero_config *config) {
    int parts = parts_of_head(model, config);
    if (on_cuda()) parts = largest_of_ranks(parts, MOST_PARTS);
    char *tuning = opt.tune ? tuning_begin() : NULL;
    plan_layers(model, parts);
    if (tuning) tuning_end(tuning);
    // Ranks that share a device have freed what they tried products in.
    if (on_cuda()) zero_check(zero_barrier(run.z));
    if (model->recompute >= 0) return;
    if (!on_cuda()) {
        model->recompute = 1;
        return;
    }
    int lowest = lowest_recompute(model, config, memory_left(config));
    model->recompute = largest_of_ranks(lowest, MOST_RECOMPUTE);
}

void settle_memory_alone(GPT2 *model, const zero_config *config) {
    int parts = parts_of_head(model, config);
    if (!on_cuda()) {
        plan_layers(model, parts);
        if (model->recompute < 0) model->recompute = 1;
        return;
    }
    model->chunk = model->inference ? model->cache_rows : rows_of_part(model, parts);
    if (model->recompute >= 0) return;
    size_t left = memory_left(config), taken = plugin_bytes(model, *config, config->stage);
    model->recompute = lowest_recompute(model, config, taken < left ? left - taken : 0);
}

size_t activations_to_come(GPT2 model, const zero_config *config) {
    if (on_cuda()) return 0;
    settle_memory_alone(&model, config);
    return activation_bytes(&model, ZERO_DEVICE);
}

// --------
// nothing fits

// What a user may change to make the run fit.
typedef struct {
    int stage, recompute, B;
    int inputs_on_host;
    int on_nvme;  // of the model states: 1: the optimizer's, 2: the parameters too
} Remedy;

// Known once the ranks are connected.
static size_t taken_by_nccl(void) {
    zero_plan_info plan = { .nccl_bytes = 0 };
    if (run.z) zero_get_plan(run.z, &plan);
    return plan.nccl_bytes;
}

// Bytes of a rank with other values. A smaller batch takes more micro-batches, so a step keeps its tokens.
static size_t bytes_with(GPT2 model, zero_config config, Remedy r) {
    config.micro_batches *= model.B / r.B;
    model.B = r.B;
    model.recompute = r.recompute;
    model.inputs_on_host = r.inputs_on_host;
    if (r.on_nvme) config.offload.optimizer = ZERO_NVME;
    if (r.on_nvme > 1) config.offload.params = ZERO_NVME;
    if (!config.offload.nvme) config.offload.nvme = "DIR";
    if (on_cuda()) gpt2_check(layers_cuda_tune(NULL, NULL, 0));  // only its memory counts
    plan_layers(&model, parts_of_head(&model, &config));
    return plugin_bytes(&model, config, r.stage) + taken_by_nccl() + activation_bytes(&model, ZERO_DEVICE);
}

// The search for remedies, and what it has found.
typedef struct {
    const GPT2 *model;
    const zero_config *config;
    size_t room;  // bytes that a rank can have
    Remedy now;
    char list[256];  // of remedies found: " -z 3, or -r 2"
} Search;

static int fits(const Search *s, Remedy r) { return bytes_with(*s->model, *s->config, r) < s->room; }

static void suggest(Search *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void suggest(Search *s, const char *fmt, ...) {
    if (*s->list) strcat(s->list, ", or");
    size_t used = strlen(s->list);
    va_list args;
    va_start(args, fmt);
    vsnprintf(s->list + used, sizeof s->list - used, fmt, args);
    va_end(args);
}

static long long tokens_a_step(const Search *s) {
    return (long long)s->now.B * s->model->T * run.ranks * s->config->micro_batches;
}

static void try_higher_stages(Search *s, int most) {
    Remedy r = s->now;
    for (r.stage = s->now.stage + 1; r.stage <= most; r.stage++) {
        if (s->model->inference && r.stage < 3) continue;  // only the parameters can be sharded
        if (!fits(s, r)) continue;
        suggest(s, " -z %d", r.stage);
        return;
    }
}

static void try_more_recompute(Search *s) {
    Remedy r = s->now;
    if (s->model->inference) return;  // there is no backward
    for (r.recompute = s->now.recompute + 1; r.recompute <= MOST_RECOMPUTE; r.recompute++) {
        if (!fits(s, r)) continue;
        suggest(s, " -r %d", r.recompute);
        return;
    }
    r.recompute = MOST_RECOMPUTE;
    r.inputs_on_host = on_cuda();
    if (!s->now.inputs_on_host && r.inputs_on_host && fits(s, r)) suggest(s, " --cpu-checkpointing");
}

static void try_smaller_batches(Search *s) {
    Remedy r = s->now;
    if (s->model->inference) return;  // the batch is the prompts
    for (r.B = s->now.B / 2; r.B >= 1; r.B /= 2) {
        if (s->now.B % r.B || !fits(s, r)) continue;
        suggest(s, " -b %d -d %lld", r.B, tokens_a_step(s));
        return;
    }
}

// The files of states are built for the processor.
static void try_nvme(Search *s) {
    Remedy r = s->now;
    const char *dir = s->config->offload.nvme ? "" : " --nvme DIR";
    if (on_cuda()) return;
    if (r.stage < 1) r.stage = 3;
    for (r.on_nvme = s->now.on_nvme + 1; r.on_nvme <= 2; r.on_nvme++) {
        if (r.on_nvme == 2) r.stage = 3;
        if (!fits(s, r) || (s->model->inference && r.on_nvme == 1)) continue;
        suggest(s, " -z %d%s%s%s", r.stage, s->model->inference ? "" : " --offload-optimizer nvme",
                r.on_nvme == 2 ? " --offload-param nvme" : "", dir);
        return;
    }
}

static void try_all_at_once(Search *s, int most_stage, int on_nvme) {
    Remedy r = { most_stage, MOST_RECOMPUTE, s->now.B, s->now.inputs_on_host, on_nvme };
    const int moves = on_nvme > s->now.on_nvme;
    if (s->model->inference) return;
    for (; r.B >= 1; r.B /= 2) {
        if (s->now.B % r.B || !fits(s, r)) continue;
        suggest(s, " -z %d -r %d -b %d -d %lld%s", r.stage, r.recompute, r.B, tokens_a_step(s),
                moves ? " --offload-optimizer nvme --offload-param nvme --nvme DIR" : "");
        return;
    }
}

void out_of_memory(const GPT2 *model, const zero_config *config) {
    zero_failure failure = *zero_last_failure();
    if (run.z) print_memory();

    const int on_nvme = config->offload.params == ZERO_NVME ? 2 : config->offload.optimizer == ZERO_NVME;
    const Remedy now = { config->stage, model->recompute, model->B, model->inputs_on_host, on_nvme };
    Search s = { model, config, 0, now, "" };
    if (zero_memory_left(config, run.ranks_on_host, &s.room)) die_of_plugin(&failure, "");
    s.room /= ranks_on_device();
    if (run.z) s.room += bytes_held_on(ZERO_DEVICE);
    if (s.now.recompute < 0) s.now.recompute = on_cuda() ? MOST_RECOMPUTE : 1;  // it is not settled yet

    int most_stage = run.ranks > 1 ? 3 : config->stage;
    try_higher_stages(&s, most_stage);
    try_more_recompute(&s);
    try_smaller_batches(&s);
    try_nvme(&s);
    if (!*s.list) try_all_at_once(&s, most_stage, on_nvme);
    if (!*s.list && !on_cuda()) try_all_at_once(&s, 3, 2);
    if (!*s.list && model->inference)
        strcpy(s.list, " not a higher stage; take fewer or shorter prompts, a lower -g, or more ranks");
    if (!*s.list)
        strcpy(s.list, on_cuda()
                           ? " neither a higher stage, nor -r 3, nor a smaller -b: the model needs more "
                             "ranks or larger devices"
                           : " neither a higher stage, nor -r 3, nor a smaller -b, nor states on NVMe: the "
                             "model needs more ranks or more memory");
    char advice[1024];
    snprintf(advice, sizeof advice, "; a rank can have %.0f MiB. What would fit:%s", mib(s.room), s.list);
    die_of_plugin(&failure, advice);
}

// --------
// the memory table

static size_t bytes_on(const MemoryTable *t, zero_tier tier) {
    size_t bytes = 0;
    for (int i = 0; i < t->n_lines; i++)
        if (t->lines[i].tier == tier) bytes += t->lines[i].bytes;
    return bytes;
}

static void print_class(const MemoryTable *t, zero_memory_class class_, const char *name) {
    static const char *const places[] = {
        [ZERO_DEVICE] = "", [ZERO_HOST] = "  on the host", [ZERO_NVME] = "  on NVMe"
    };
    for (int i = 0; i < t->n_lines; i++) {
        const zero_memory_line *line = &t->lines[i];
        if (line->class_ != class_) continue;
        print0("  %-12s %-24s %7.1f%s\n", name, line->purpose, mib(line->bytes), places[line->tier]);
    }
}

void print_memory_table(const MemoryTable *t, const zero_plan_info *plan) {
    double bytes[ZERO_MEMORY_CLASSES] = { 0 };
    for (int i = 0; i < t->n_lines; i++) bytes[t->lines[i].class_] += t->lines[i].bytes;
    double states = bytes[ZERO_STATES], working = bytes[ZERO_WORKING], activations = bytes[ZERO_ACTIVATIONS];
    double everything_on_every_rank = plan->formulas[0].bytes;
    print0("memory of a rank                          MiB\n");
    print_class(t, ZERO_STATES, "model states");
    print_class(t, ZERO_WORKING, "working");
    print_class(t, ZERO_ACTIVATIONS, "activations");
    print0("  model states %.1f (formula %.1f), working %.1f, activations %.1f, together %.1f MiB\n",
           mib(states), mib(plan->formulas[opt.stage].bytes), mib(working), mib(activations),
           mib(states + working + activations));
    if (bytes_on(t, ZERO_NVME))
        print0("  %.1f MiB of it are on NVMe, %.1f MiB in memory\n", mib(bytes_on(t, ZERO_NVME)),
               mib(states + working + activations - bytes_on(t, ZERO_NVME)));
    print0("  plain data parallel would hold %.1f MiB of model states on every rank: stage %d holds %.0f %% "
           "of that\n",
           mib(everything_on_every_rank), opt.stage, 100 * states / everything_on_every_rank);
}

// What the run holds.
static MemoryTable table_of_run(void) {
    MemoryTable t = { .n_lines = 0 };
    while (t.n_lines < MEMORY_LINES && !zero_memory(run.z, t.n_lines, &t.lines[t.n_lines])) t.n_lines++;
    return t;
}

void print_memory(void) {
    const MemoryTable t = table_of_run();
    zero_plan_info plan;
    zero_get_plan(run.z, &plan);
    print_memory_table(&t, &plan);
}

size_t bytes_held_on(zero_tier tier) {
    const MemoryTable t = table_of_run();
    return bytes_on(&t, tier);
}
