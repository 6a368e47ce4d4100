#include "search.h"
#include <limits.h>
#include <stdint.h>
#include <string.h>
#include "../checkpoints/saving.h"
#include "../running/machine.h"
#include "../running/run.h"
#include "fit.h"

// One value per option; NULL: as requested.
static const char *const tier_options[TIER_OPTIONS] = { "--offload-optimizer", "--offload-param",
                                                        "--offload-gradients" };
static const char *const tiers[MIXTURES][TIER_OPTIONS] = {
    { NULL },           { "cpu", "none" },          { "none", "cpu" },         { "cpu", "cpu" },
    { "nvme", "none" }, { "none", "nvme" },         { "nvme", "cpu" },         { "cpu", "nvme" },
    { "nvme", "nvme" }, { "nvme", "none", "nvme" }, { "nvme", "cpu", "nvme" }, { "nvme", "nvme", "nvme" }
};
static const Bytes nowhere = { { SIZE_MAX / 2 } };  // fits nowhere

int is_possible(const Bytes *bytes) { return bytes->on[ZERO_DEVICE] < nowhere.on[ZERO_DEVICE]; }

size_t room_on(const Search *s, int tier) {
    const size_t room = s->room.on[tier], more = tier == ZERO_DEVICE ? s->more : 0;
    return room > more ? room - more : 0;
}

size_t missing(const Search *s, const Bytes *bytes, int *tier) {
    size_t most = 0;
    *tier = ZERO_DEVICE;
    if (!is_possible(bytes)) return SIZE_MAX;
    for (int i = 0; i < PLACES; i++) {
        const size_t room = room_on(s, i) - room_on(s, i) / 64;  // the rest is for other programs
        if (bytes->on[i] <= room || bytes->on[i] - room < most) continue;
        most = bytes->on[i] - room;
        *tier = i;
    }
    return most;
}

// -------- the options of a level

// Returns the *down-th divisor of n below n, or 1 if n has fewer; *down is then the number missing.
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

// Sets the tiers. Returns 0 if the user has set another one.
static int set_tiers(const Search *s) {
    const char *const *tier = tiers[s->level[TIERS]];
    zero_offload_config *o = &opt.zero.offload;
    for (int i = 0; i < TIER_OPTIONS; i++) {
        if (tier[i] && s->tier_is_fixed[i]) return 0;
        if (tier[i]) option_set(option_named(tier_options[i]), tier[i]);
    }
    if (!o->nvme && (o->optimizer == ZERO_NVME || o->params == ZERO_NVME)) o->nvme = "FOLDER";
    return 1;
}

// Sets the options to the search's level. Returns 0 if they cannot be combined.
static int set_options(const Search *s) {
    const int sub_group = (16 << 20) >> 2 * s->level[SUB_GROUPS];
    int down = s->level[BATCHES];
    opt = s->now;
    opt.zero.stage += s->level[STAGES];
    opt.zero.debug.naive = opt.zero.debug.naive && !opt.zero.stage;
    opt.recompute += s->level[RECOMPUTE];
    if (opt.recompute > MOST_RECOMPUTE) {
        opt.recompute = MOST_RECOMPUTE;
        opt.cpu_checkpointing = 1;
    }
    if (s->level[SUB_GROUPS] && sub_group < opt.zero.offload.sub_group_size)
        opt.zero.offload.sub_group_size = sub_group;
    opt.B = divisor_below(opt.B, &down);
    opt.T = divisor_below(opt.T, &down);
    if (opt.B != s->given.B || opt.T != s->given.T) opt.total_batch = (int)s->tokens;
    if (s->level[ONE_MICRO_BATCH]) opt.total_batch = opt.B * opt.T * run.ranks;
    if (s->level[ACCUMULATE]) opt.accumulate = "layers";
    if (s->level[UNITS]) opt.units = "matrix";
    if (s->level[GROUPS]) opt.zero.param_group = run.ranks_on_host;
    if (s->level[BUCKETS]) opt.zero.reduce_bucket_size = s->bucket_elems << s->level[BUCKETS];
    opt.zero.prefetch <<= s->level[PREFETCH];
    return set_tiers(s);
}

// -------- the memory of a level

static int doublings(int n) {
    int doublings = 0;
    while (doublings < DOUBLINGS - 1 && 1 << doublings < n) doublings++;
    return doublings;
}

static Bytes plan_of_level(const Search *s, const zero_config *config) {
    Bytes b;
    zero_plan plan;
    if (try_plan(&s->model, config, &plan)) return nowhere;
    for (int tier = 0; tier < PLACES; tier++) b.on[tier] = bytes_on(plan.lines, plan.n_lines, tier);
    if (run.z) zero_plan_info(run.z, &plan);
    if (run.z) b.on[ZERO_DEVICE] += plan.nccl_bytes;  // unknown until the ranks are connected
    return b;
}

// Returns the plugin's memory at this level. It does not depend on the batch, on recompute only if a block
// has several units, and on the number of micro-batches only through the sums over them.
static Bytes plugin_bytes_of_level(Search *s, const zero_config *config) {
    const int is_usual = !s->level[GROUPS] && !s->level[BUCKETS] && !s->level[PREFETCH];
    if (!is_usual) return plan_of_level(s, config);
    const int sums = doublings(config->micro_batches);
    const int units = s->model.units_a_block == 1 ? 0 : 1 + opt.recompute;
    Bytes *b =
        &s->plans[units][s->level[ACCUMULATE]][sums][s->level[SUB_GROUPS]][s->level[TIERS]][opt.zero.stage];
    if (!b->on[ZERO_DEVICE]) *b = plan_of_level(s, config);
    return *b;
}

static zero_config config_of_level(const Search *s) {
    const zero_config of_options = settings_of(&opt);
    zero_config config = *s->config;
    config.stage = opt.zero.stage;
    config.debug.naive = opt.zero.debug.naive;
    config.offload = of_options.offload;
    config.accumulate_layers = of_options.accumulate_layers;
    config.reduce_bucket_size = opt.zero.reduce_bucket_size;
    config.prefetch = opt.zero.prefetch;
    config.param_group = opt.zero.param_group;
    // A smaller batch needs more micro-batches for the same tokens per step.
    config.micro_batches = (int)(s->tokens / ((long long)opt.B * opt.T * run.ranks));
    if (s->level[ONE_MICRO_BATCH]) config.micro_batches = 1;
    return config;
}

// Units of less than a block depend on the level of recompute.
static void describe_units(Search *s) {
    GPT2 *m = &s->model;
    const int units_a_block = strcmp(opt.units, "matrix") ? 1 : 4;
    if (units_a_block == 1 && m->units_a_block == 1) return;
    if (s->is_described) free_tables(m);
    m->units_a_block = units_a_block;
    run.describe(m);
    s->is_described = 1;
}

void search_end(Search *s) {
    if (s->is_described) free_tables(&s->model);
}

Bytes bytes_of_level(Search *s) {
    GPT2 *m = &s->model;
    if (!set_options(s)) return nowhere;
    const zero_config config = config_of_level(s);
    const int A = config.micro_batches;
    if ((opt.any_ranks && A & (A - 1)) || (A <= 1 && s->level[ACCUMULATE])) return nowhere;
    const int is_planned = m->chunk && m->B == opt.B && m->T == opt.T;
    m->B = opt.B;
    m->T = opt.T;
    if (!m->inference) m->cache_T = m->T;
    m->micro_batches = config.micro_batches;
    m->by_layers = config.accumulate_layers;
    m->recompute = opt.recompute;
    m->inputs_on_host = opt.cpu_checkpointing && on_cuda();
    const size_t process = process_bytes(m, &config);
    s->more = process > s->process ? process - s->process : 0;
    describe_units(s);
    if (m->units_a_block > 1 && m->by_layers && m->inputs_on_host) return nowhere;
    if (!is_planned && plan_layers(m, &config)) {
        m->chunk = 0;
        return nowhere;
    }
    Bytes bytes = plugin_bytes_of_level(s, &config);
    for (int tier = ZERO_DEVICE; tier < ZERO_NVME; tier++) bytes.on[tier] += activation_bytes(m, tier);
    return bytes;
}

// -------- text

void write_changes(FILE *f, const Search *s) {
    char before[PATH_MAX], now[PATH_MAX];
    for (const Option *o = option_table; o < option_table + num_options; o++) {
        if (!o->value) continue;
        option_text(o, &s->given, before, sizeof before);
        option_text(o, &opt, now, sizeof now);
        if (strcmp(before, now))
            fprintf(f, " %s%s%s", o->name, o->kind == FLAG ? "" : " ", o->kind == FLAG ? "" : now);
    }
}

void write_bytes(FILE *f, const Search *s, const Bytes *bytes) {
    static const char *const places[] = { "", " on the host", " on NVMe" };
    for (int i = 0; i < PLACES; i++) {
        if (!bytes->on[i]) continue;
        fprintf(f, "%s%.0f", i ? ", " : " (", mib(bytes->on[i]));
        if (s->room.on[i] < SIZE_MAX) fprintf(f, " of %.0f", mib(room_on(s, i)));
        fprintf(f, " MiB%s", places[i]);
    }
    fprintf(f, ")");
}

// -------- the levels

int next_level(Search *s) {
    for (int i = 0; i < COARSE; i++) {
        if (++s->level[i] < s->levels[i]) return 1;
        s->level[i] = 0;
    }
    return 0;
}

static int levels_of_recompute(const Options *now) {
    return MOST_RECOMPUTE + 1 - now->recompute + (on_cuda() && !now->cpu_checkpointing);
}

// Fills in the options' effective values. All changes have one level.
static void begin(Search *s, const GPT2 *model, const zero_config *config) {
    memset(s, 0, sizeof *s);
    s->config = config;
    s->model = *model;
    s->given = opt;
    s->tokens = (long long)model->B * model->T * run.ranks * config->micro_batches;
    s->given.B = model->B;
    s->given.T = model->T;
    s->process = process_bytes(model, config);
    for (int i = 0; i < CHANGES; i++) s->levels[i] = 1;
}

// If the level of recompute is not chosen yet, uses one that saves memory.
void search_from_request(Search *s, const GPT2 *model, const zero_config *config) {
    const int resumes = checkpoint_saved() && !opt.resume_anyway;  // -t and -d must not change
    begin(s, model, config);
    Options *given = &s->given;
    given->recompute = model->recompute;
    if (given->recompute < 0) given->recompute = on_cuda() ? most_chosen_recompute(model) : 1;
    s->now = *given;
    s->levels[STAGES] = 4 - given->zero.stage;
    s->levels[TIERS] = MIXTURES;
    s->levels[SUB_GROUPS] = SUB_GROUP_SIZES;
    if (!model->inference) s->levels[RECOMPUTE] = levels_of_recompute(given);
    if (model->inference || s->tokens > 1 << 30) return;  // the prompts determine the batch
    s->levels[BATCHES] = 1 + divisors_below(given->B) + (resumes ? 0 : divisors_below(given->T));
    s->levels[ONE_MICRO_BATCH] = resumes ? 1 : 2;
    if (model->units_a_block == 1) s->levels[UNITS] = 2;
}

// Returns 1 if the user has set the option.
static int is_set(const char *name) {
    const Option *o = option_named(name);
    char now[PATH_MAX], preset[PATH_MAX];
    option_text(o, &opt, now, sizeof now);
    option_text(o, &default_options, preset, sizeof preset);
    return option_is_given(o) || strcmp(now, preset);
}

void search_all(Search *s, const GPT2 *model, const zero_config *config) {
    enum { LARGER_BUCKETS = 4, LARGER_PREFETCH = 3 };
    begin(s, model, config);
    s->given.trace = NULL;  // of one step, not of all that the search tries
    s->now = s->given;
    s->given.B = opt.B;  // the model has fewer rows if these do not divide the step
    s->bucket_elems = plan_of(model, config).bucket_elems;
    Options *now = &s->now;
    for (int i = 0; i < TIER_OPTIONS; i++) s->tier_is_fixed[i] = is_set(tier_options[i]);
    s->levels[TIERS] = MIXTURES;
    if (!is_set("-z") && !now->zero.debug.naive) {
        now->zero.stage = 0;
        s->levels[STAGES] = 4;
    }
    if (now->recompute < 0) {
        now->recompute = 0;
        s->levels[RECOMPUTE] = levels_of_recompute(now);
    }
    if (!is_set("-b") && s->tokens <= 1 << 30) {
        now->B = model->B * config->micro_batches;  // the whole step
        s->levels[BATCHES] = 1 + divisors_below(now->B);
    }
    if (!is_set("--accumulate")) s->levels[ACCUMULATE] = 2;
    if (!is_set("--units")) s->levels[UNITS] = 2;
    if (!is_set("--param-group") && run.ranks_on_host < run.ranks) s->levels[GROUPS] = 2;
    if (!is_set("--bucket")) s->levels[BUCKETS] = LARGER_BUCKETS;
    if (!is_set("--prefetch")) s->levels[PREFETCH] = LARGER_PREFETCH;
}
