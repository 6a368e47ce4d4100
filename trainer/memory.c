#include "memory.h"
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include "checkpoint.h"
#include "die.h"
#include "options.h"
#include "run.h"
#include "settings.h"
#include "tuning.h"

// --------
// the memory of a rank

// Returns 0, or the plugin's error if it rejects the settings.
static int try_plan(const GPT2 *model, const zero_config *config, zero_plan *plan) {
    const PluginTables *t = &model->tables;
    return zero_make_plan(plan, config, t->tensors, NUM_PARAMETER_TENSORS, t->units, t->n_units, run.ranks,
                          run.ranks_on_host);
}

zero_plan plan_of(const GPT2 *model, const zero_config *config) {
    zero_plan plan;
    zero_check(try_plan(model, config, &plan));
    return plan;
}

size_t bytes_planned_on(const zero_plan *plan, zero_tier tier) {
    size_t bytes = 0;
    for (int i = 0; i < plan->n_lines; i++)
        if (plan->lines[i].tier == tier) bytes += plan->lines[i].bytes;
    return bytes;
}

static size_t plugin_bytes(const GPT2 *model, zero_config config, int stage) {
    const zero_config at_stage = settings_at_stage(&config, stage);
    zero_plan plan = plan_of(model, &at_stage);
    return bytes_planned_on(&plan, ZERO_DEVICE);
}

// Activations at this level, without the logits and the layers' scratch.
static size_t buffer_bytes(GPT2 model, int recompute) {
    model.recompute = recompute;
    model.chunk = 0;
    model.scratch_bytes = 0;
    return activation_bytes(&model, ZERO_DEVICE);
}

// Ranks that share a device share its memory evenly. Before the plugin exists, nothing is known of the
// others.
static int ranks_on_device(void) {
    zero_job job = { .ranks_on_device = 1 };
    if (run.z) zero_job_info(run.z, &job);
    return job.ranks_on_device;
}

// The rank's share of its device, used or not.
static size_t device_bytes(void) {
    size_t total;
    LAYER(device_bytes(&total));
    return total / ranks_on_device();
}

// What is left on a device without recomputation, at the stage that needs most. It depends only on the size
// of the device, the model and the batch, not on the stage, the memory free at the moment or settings that
// change no bits, so that bits may depend on it. An eighth of the device is for the CUDA context, NCCL and
// the layers' scratch.
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
// the LM head's parts

enum { MOST_PARTS = 8, TILE_ROWS = 256 };  // few: each part rounds the gradient once more

// How many bytes of logits may exist at once. The run's bits depend on it: the classifier's bf16 gradient is
// rounded once a part. On CUDA it is what any stage leaves: at least 1 GiB, on a small device a sixteenth of
// it; at most 4 GiB, since more gains little: each part reads and writes the gradient (V, C) once more, and
// by an H100's data sheet the matmuls of 4 GiB (42000 rows with GPT-2's vocabulary in bf16) take more than
// 100 times as long.
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

// Rows of logits at a time. On CUDA they fill whole tiles of the matmuls; the last part takes the rest.
static int rows_of_part(const GPT2 *model, int parts) {
    size_t BT = (size_t)model->B * model->T, rows = (BT + parts - 1) / parts;
    if (on_cuda()) rows = (rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    return (int)(rows < BT ? rows : BT);
}

// Sets the rows of a part and lets the layers plan their scratch. In inference each row of the cache gets the
// logits of its last token. Returns 0, or the layers' error.
static int plan_layers(GPT2 *model, int parts) {
    const GPT2Config *c = &model->config;
    if (model->inference) {
        model->chunk = model->cache_rows;
        return run.layers->plan_cached(model->dtype, model->B * model->T, model->cache_rows, model->cache_T,
                                       c->channels, c->num_heads, c->padded_vocab_size,
                                       &model->scratch_bytes);
    }
    model->chunk = rows_of_part(model, parts);
    return run.layers->plan(model->dtype, model->B, model->T, c->channels, c->num_heads, c->padded_vocab_size,
                            model->chunk, &model->scratch_bytes);
}

// --------
// the level of recompute

// The lowest level whose activations fit into the memory left by the plugin. A thirty-second of the device
// stays free: kernels are loaded and NCCL connects later, and allocations leave gaps. If the forward matmul
// computes GELU itself, level 0 has different bits from the others, so it is used only if it fits at every
// stage.
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

// The largest number of any rank, each from 0 to `most`, which is at most 64.
static int largest_of_ranks(int number, int most) {
    double ranks_above[64];
    int largest = 0;
    for (int i = 0; i < most; i++) ranks_above[i] = number > i;
    zero_check(zero_sum(run.z, ranks_above, most));
    while (largest < most && ranks_above[largest] > 0) largest++;
    return largest;
}

// On a CPU parts and level are fixed.
void settle_memory(GPT2 *model, const zero_config *config) {
    int parts = parts_of_head(model, config);
    if (on_cuda()) parts = largest_of_ranks(parts, MOST_PARTS);
    char *tuning = opt.tune ? tuning_begin() : NULL;
    gpt2_check(plan_layers(model, parts));
    if (tuning) tuning_end(tuning);
    // Waits until ranks that share a device have freed the memory of their trial matmuls
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
        gpt2_check(plan_layers(model, parts));
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

// Changes that a user may make, the cheapest first. The first four do not change a step's results. A smaller
// batch, and then shorter rows, keep the tokens per step, in more micro-batches. One micro-batch per step
// does not, but needs no sum of gradients.
enum { STAGES, RECOMPUTE, TIERS, SUB_GROUPS, BATCHES, ONE_MICRO_BATCH, CHANGES };

// The first row and gradients NULL: as requested.
static const struct {
    zero_tier optimizer, params;
    const char *gradients;
} tiers[] = {
    { ZERO_DEVICE, ZERO_DEVICE, NULL }, { ZERO_HOST, ZERO_DEVICE, NULL }, { ZERO_DEVICE, ZERO_HOST, NULL },
    { ZERO_HOST, ZERO_HOST, NULL },     { ZERO_NVME, ZERO_DEVICE, NULL }, { ZERO_DEVICE, ZERO_NVME, NULL },
    { ZERO_NVME, ZERO_HOST, NULL },     { ZERO_HOST, ZERO_NVME, NULL },   { ZERO_NVME, ZERO_NVME, NULL },
    { ZERO_NVME, ZERO_DEVICE, "nvme" }, { ZERO_NVME, ZERO_HOST, "nvme" }, { ZERO_NVME, ZERO_NVME, "nvme" },
};
enum { MIXTURES = sizeof tiers / sizeof *tiers, SIZES = 5, PLACES = ZERO_NVME + 1 };

typedef struct {
    size_t on[PLACES];  // by zero_tier
} Bytes;
static const Bytes nowhere = { { SIZE_MAX / 2 } };  // fits nowhere

// The search for options that fit, and its results.
typedef struct {
    const zero_config *config;
    Options now;       // with their effective values
    long long tokens;  // per step
    Bytes room;        // what a rank can have
    int level[CHANGES], levels[CHANGES];
    GPT2 model;                          // with the options of this level
    Bytes plans[2][SIZES][MIXTURES][4];  // by accumulation and level; none on the device: not made yet
    char list[12000];                    // a line for each set of options
} Search;

// Known once the ranks are connected.
static size_t taken_by_nccl(void) {
    zero_plan plan = { .nccl_bytes = 0 };
    if (run.z) zero_plan_info(run.z, &plan);
    return plan.nccl_bytes;
}

// The space that each rank of this host may use in the folders of --nvme, in all. Blocks alternate between
// them, so the one with the least space counts. A rank's file takes up to two blocks more than its states.
static size_t disk_left(const zero_offload_config *o) {
    enum { MOST = 16 };
    struct statvfs disk[MOST];
    char folder[PATH_MAX];
    size_t least = SIZE_MAX, beside = 2 * o->nvme_block_bytes;
    int n = 0;
    for (const char *name = o->nvme; *name; n++) {
        const size_t length = strcspn(name, ",");
        size_t sharing = 1;
        snprintf(folder, sizeof folder, "%.*s", (int)length, name);
        if (n == MOST || statvfs(folder, &disk[n])) return 0;
        for (int i = 0; i < n; i++) sharing += disk[i].f_fsid == disk[n].f_fsid;
        const size_t left = disk[n].f_bavail * disk[n].f_frsize / (sharing * run.ranks_on_host);
        if (left < least) least = left;
        name += length + (name[length] == ',');
    }
    return least > beside ? n * (least - beside) : 0;
}

// Returns the *down-th divisor of n below n, or 1 if there are not so many; *down is then how many are
// missing.
static int divisor_below(int n, int *down) {
    int divisor = n;
    while (*down && divisor > 1) *down -= n % --divisor == 0;
    return divisor;
}

static int divisors_below(int n) {
    int down = n;
    divisor_below(n, &down);
    return n - down;
}

// Sets the options to the search's level.
static void set_options(const Search *s) {
    const int mixture = s->level[TIERS], sub_group = (16 << 20) >> 2 * s->level[SUB_GROUPS];
    int down = s->level[BATCHES];
    opt = s->now;
    zero_offload_config *o = &opt.zero.offload;
    opt.zero.stage += s->level[STAGES];
    opt.zero.debug.naive = opt.zero.debug.naive && !opt.zero.stage;
    opt.recompute += s->level[RECOMPUTE];
    if (opt.recompute > MOST_RECOMPUTE) {
        opt.recompute = MOST_RECOMPUTE;
        opt.cpu_checkpointing = 1;
    }
    if (mixture) o->optimizer = tiers[mixture].optimizer;
    if (mixture) o->params = tiers[mixture].params;
    if (tiers[mixture].gradients) opt.offload_gradients = tiers[mixture].gradients;
    if (!o->nvme && (o->optimizer == ZERO_NVME || o->params == ZERO_NVME)) o->nvme = "FOLDER";
    if (s->level[SUB_GROUPS] && sub_group < o->sub_group_size) o->sub_group_size = sub_group;
    if (down) opt.total_batch = (int)s->tokens;
    opt.B = divisor_below(opt.B, &down);
    opt.T = divisor_below(opt.T, &down);
    if (s->level[ONE_MICRO_BATCH]) opt.total_batch = opt.B * opt.T * run.ranks;
}

// Goes on to the next level. Returns 0 after the last.
static int next_level(Search *s) {
    for (int i = 0; i < CHANGES; i++) {
        if (++s->level[i] < s->levels[i]) return 1;
        s->level[i] = 0;
    }
    return 0;
}

// The plugin's memory at this level.
static Bytes plugin_bytes_of_level(Search *s, const zero_config *config) {
    Bytes *b = &s->plans[config->micro_batches > 1][s->level[SUB_GROUPS]][s->level[TIERS]][opt.zero.stage];
    zero_plan plan;
    if (b->on[ZERO_DEVICE]) return *b;
    *b = nowhere;
    if (try_plan(&s->model, config, &plan)) return *b;
    for (int tier = 0; tier < PLACES; tier++) b->on[tier] = bytes_planned_on(&plan, tier);
    b->on[ZERO_DEVICE] += taken_by_nccl();
    return *b;
}

// A rank's memory at this level. A smaller batch takes more micro-batches, which keeps the tokens per step.
static Bytes bytes_of_level(Search *s) {
    GPT2 *m = &s->model;
    set_options(s);
    zero_config config = settings_with_options(s->config);
    config.micro_batches = (int)(s->tokens / ((long long)opt.B * opt.T * run.ranks));
    if (s->level[ONE_MICRO_BATCH]) config.micro_batches = 1;
    const int is_planned = m->chunk && m->B == opt.B && m->T == opt.T;
    m->B = opt.B;
    m->T = opt.T;
    if (!m->inference) m->cache_T = m->T;
    m->recompute = opt.recompute;
    m->inputs_on_host = opt.cpu_checkpointing && on_cuda();
    if (!is_planned && plan_layers(m, parts_of_head(m, &config))) {
        m->chunk = 0;
        return nowhere;
    }
    Bytes bytes = plugin_bytes_of_level(s, &config);
    for (int tier = ZERO_DEVICE; tier < ZERO_NVME; tier++) bytes.on[tier] += activation_bytes(m, tier);
    return bytes;
}

// Leaves a part free for memory that is not planned: the program itself, and other programs.
static int fits(const Bytes *bytes, const Bytes *room) {
    for (int i = 0; i < PLACES; i++)
        if (bytes->on[i] > room->on[i] - room->on[i] / 64) return 0;
    return 1;
}

static void list(Search *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void list(Search *s, const char *fmt, ...) {
    const size_t used = strlen(s->list);
    va_list args;
    va_start(args, fmt);
    vsnprintf(s->list + used, sizeof s->list - used, fmt, args);
    va_end(args);
}

// "-r 3 --offload-optimizer nvme (2893 of 2996 MiB, 23912 MiB on NVMe)": every option that this level
// changes.
static void list_level(Search *s, const Bytes *bytes) {
    static const char *const places[] = { "", " on the host", " on NVMe" };
    char before[PATH_MAX], now[PATH_MAX];
    list(s, "\n ");
    for (const Option *o = option_table; o < option_table + num_options; o++) {
        if (!o->value) continue;
        option_text(o, &s->now, before, sizeof before);
        option_text(o, &opt, now, sizeof now);
        if (strcmp(before, now))
            list(s, " %s%s%s", o->name, o->kind == FLAG ? "" : " ", o->kind == FLAG ? "" : now);
    }
    for (int i = 0; i < PLACES; i++) {
        if (!bytes->on[i]) continue;
        list(s, "%s%.0f", i ? ", " : " (", mib(bytes->on[i]));
        if (s->room.on[i] < SIZE_MAX) list(s, " of %.0f", mib(s->room.on[i]));
        list(s, " MiB%s", places[i]);
    }
    list(s, ")");
}

// Lists the first level that fits, and the first that needs less of its costliest change, not counting the
// batch.
static void list_what_fits(Search *s) {
    int costliest = -1, less_than = 0;
    while (next_level(s)) {
        if (costliest >= 0 && s->level[costliest] >= less_than) continue;
        const Bytes bytes = bytes_of_level(s);
        if (!fits(&bytes, &s->room)) continue;
        list_level(s, &bytes);
        if (costliest >= 0) return;
        for (int i = 0; i < BATCHES; i++)
            if (s->level[i]) costliest = i;
        if (costliest < 0) return;
        less_than = s->level[costliest];
    }
}

// The options with their effective values. Those not settled yet are set as they would be when little fits.
static void begin_search(Search *s, const GPT2 *model, const zero_config *config) {
    Options *now = &s->now;
    const int resumes = checkpoint_batch() && !opt.resume_anyway;  // with its rows and steps
    s->config = config;
    s->model = *model;
    s->tokens = (long long)model->B * model->T * run.ranks * config->micro_batches;
    *now = opt;
    now->B = model->B;
    now->T = model->T;
    now->recompute = model->recompute;
    if (now->recompute < 0) now->recompute = on_cuda() ? MOST_RECOMPUTE : 1;
    const int levels[CHANGES] = {
        [STAGES] = 4 - now->zero.stage,
        [RECOMPUTE] = MOST_RECOMPUTE + 1 - now->recompute + (on_cuda() && !now->cpu_checkpointing),
        [TIERS] = MIXTURES,
        [SUB_GROUPS] = SIZES,
        [BATCHES] = 1 + divisors_below(now->B) + (resumes ? 0 : divisors_below(now->T)),
        [ONE_MICRO_BATCH] = resumes ? 1 : 2,
    };
    memcpy(s->levels, levels, sizeof levels);
    if (model->inference) s->levels[RECOMPUTE] = 1;  // there is no backward, and the prompts set the batch
    if (model->inference || s->tokens > 1 << 30) s->levels[BATCHES] = s->levels[ONE_MICRO_BATCH] = 1;
}

// Returns 0 with the memory that a rank can have, including what it holds.
static int find_room(Bytes *room, const zero_config *config) {
    zero_config host = *config;
    host.device = ZERO_CPU;
    if (zero_memory_left(config, run.ranks_on_host, &room->on[ZERO_DEVICE])) return -1;
    if (zero_memory_left(&host, run.ranks_on_host, &room->on[ZERO_HOST])) return -1;
    room->on[ZERO_DEVICE] /= ranks_on_device();
    room->on[ZERO_NVME] = config->offload.nvme ? disk_left(&config->offload) : SIZE_MAX;
    for (int tier = 0; run.z && tier < PLACES; tier++)
        if (room->on[tier] < SIZE_MAX) room->on[tier] += bytes_held_on(tier);
    return 0;
}

void out_of_memory(const GPT2 *model, const zero_config *config) {
    static Search s;
    zero_failure failure = *zero_last_failure();
    const char *more = on_cuda() ? "more ranks or larger devices" : "more ranks or more memory";
    // Before the plugin exists rank 0 reports the failure, and its advice is for its own memory.
    if (!run.z && (run.rank > 0 || failure.rank > 0)) die_of_plugin(&failure, "");
    if (run.z) print_memory();
    if (find_room(&s.room, config)) die_of_plugin(&failure, "");
    if (on_cuda()) gpt2_check(layers_cuda_tune(NULL, NULL, 0));  // only its memory matters
    begin_search(&s, model, config);
    list(&s, "; a rank can have %.0f MiB. What would fit:", mib(s.room.on[ZERO_DEVICE]));
    const size_t listed = strlen(s.list);

    // a level that was refused does not fit, whatever its plan
    const Bytes now = bytes_of_level(&s);
    if (fits(&now, &s.room)) s.room.on[ZERO_DEVICE] = now.on[ZERO_DEVICE] - 1;
    list_what_fits(&s);
    if (!s.list[listed] && s.now.zero.offload.nvme) {  // on other disks
        s.now.zero.offload.nvme = NULL;
        s.room.on[ZERO_NVME] = SIZE_MAX;
        list_what_fits(&s);
    }
    if (!s.list[listed] && model->inference)
        list(&s, " nothing, at any stage or tier; take fewer or shorter prompts, a lower -g, or %s", more);
    else if (!s.list[listed])
        list(&s, " nothing, at any stage, tier, --sub-group-size, -r, -b, -t or -d: the model needs %s",
             more);
    else if (opt.zero_config)
        list(&s, "\n  (change in %s what it sets)", opt.zero_config);
    opt = s.now;
    die_of_plugin(&failure, s.list);
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

void print_memory_table(const MemoryTable *t, const zero_plan *plan) {
    double bytes[ZERO_MEMORY_CLASSES] = { 0 };
    for (int i = 0; i < t->n_lines; i++) bytes[t->lines[i].class_] += t->lines[i].bytes;
    double states = bytes[ZERO_STATES], working = bytes[ZERO_WORKING], activations = bytes[ZERO_ACTIVATIONS];
    double everything_on_every_rank = plan->formulas[0].bytes;
    print0("memory of a rank                          MiB\n");
    print_class(t, ZERO_STATES, "model states");
    print_class(t, ZERO_WORKING, "working");
    print_class(t, ZERO_ACTIVATIONS, "activations");
    print0("  model states %.1f (formula %.1f), working %.1f, activations %.1f, together %.1f MiB\n",
           mib(states), mib(plan->formulas[opt.zero.stage].bytes), mib(working), mib(activations),
           mib(states + working + activations));
    if (bytes_on(t, ZERO_NVME))
        print0("  %.1f MiB of it are on NVMe, %.1f MiB in memory\n", mib(bytes_on(t, ZERO_NVME)),
               mib(states + working + activations - bytes_on(t, ZERO_NVME)));
    print0("  plain data parallel would hold %.1f MiB of model states on every rank: stage %d holds %.0f %% "
           "of that\n",
           mib(everything_on_every_rank), opt.zero.stage, 100 * states / everything_on_every_rank);
}

// The memory of this run.
static MemoryTable table_of_run(void) {
    MemoryTable t = { .n_lines = 0 };
    while (t.n_lines < MEMORY_LINES && zero_memory(run.z, t.n_lines, &t.lines[t.n_lines])) t.n_lines++;
    return t;
}

void print_memory(void) {
    const MemoryTable t = table_of_run();
    zero_plan plan;
    zero_plan_info(run.z, &plan);
    print_memory_table(&t, &plan);
}

size_t bytes_held_on(zero_tier tier) {
    const MemoryTable t = table_of_run();
    return bytes_on(&t, tier);
}
