// Finds options for a run that does not fit into memory. It compares plans and allocates nothing.
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include "../checkpoints/saving.h"
#include "fit.h"
#include "../running/machine.h"
#include "../options/options.h"
#include "../running/run.h"
#include "start_table.h"

// Changes that a user may make, cheapest first. The first four do not change a step's results. A smaller
// batch, and then shorter rows, keep the tokens per step by adding micro-batches. A single micro-batch per
// step reduces them, but needs no memory for gradient accumulation.
enum { STAGES, RECOMPUTE, TIERS, SUB_GROUPS, BATCHES, ONE_MICRO_BATCH, CHANGES };

// Combinations of tiers to try, one value per option; NULL: as requested.
enum { TIER_OPTIONS = 3 };
static const char *const tier_options[TIER_OPTIONS] = { "--offload-optimizer", "--offload-param",
                                                        "--offload-gradients" };
static const char *const tiers[][TIER_OPTIONS] = {
    { NULL },           { "cpu", "none" },          { "none", "cpu" },         { "cpu", "cpu" },
    { "nvme", "none" }, { "none", "nvme" },         { "nvme", "cpu" },         { "cpu", "nvme" },
    { "nvme", "nvme" }, { "nvme", "none", "nvme" }, { "nvme", "cpu", "nvme" }, { "nvme", "nvme", "nvme" }
};
enum { DOUBLINGS = 32 };  // of the number of micro-batches
enum { MIXTURES = sizeof tiers / sizeof *tiers, SUB_GROUP_SIZES = 5, PLACES = ZERO_NVME + 1 };

typedef struct {
    size_t on[PLACES];  // indexed by zero_tier
} Bytes;
static const Bytes nowhere = { { SIZE_MAX / 2 } };  // fits nowhere

// The search for options that fit.
typedef struct {
    const zero_config *config;
    Options now;       // the requested options, with their effective values
    long long tokens;  // per step
    Bytes room;        // available to a rank
    size_t beside;     // the room leaves these bytes to the process (bytes_beside)
    size_t more;       // bytes that the process needs in addition with the options of this level
    int level[CHANGES], levels[CHANGES];
    GPT2 model;  // with the options of this level
    Text list;   // one line per set of options
    int n_listed;
    // the plugin's memory by accumulation, sub-group size, tiers and stage; 0 on the device: not planned yet
    Bytes plans[DOUBLINGS][SUB_GROUP_SIZES][MIXTURES][4];
} Search;

// Returns the total space that each rank of this host may use in the folders of --nvme. Blocks alternate
// between folders, so the fullest limits the total. A rank's file is up to two blocks larger than its states.
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

// Fills in the memory available to a rank, including what it already holds. Returns 0, or -1 with the
// plugin's error.
static int find_room(Bytes *room, const zero_config *config) {
    zero_config host = *config;
    host.device = ZERO_CPU;
    if (memory_left(config, &room->on[ZERO_DEVICE]) || memory_left(&host, &room->on[ZERO_HOST])) return -1;
    room->on[ZERO_NVME] = config->offload.nvme ? disk_left(&config->offload) : SIZE_MAX;
    for (int tier = 0; tier < PLACES; tier++)
        if (room->on[tier] < SIZE_MAX) room->on[tier] += bytes_held_on(tier);
    return 0;
}

// Returns the bytes available on a tier to a rank with the options of this level.
static size_t room_on(const Search *s, int tier) {
    const size_t room = s->room.on[tier], more = tier == ZERO_DEVICE ? s->more : 0;
    return room > more ? room - more : 0;
}

// Leaves 1/64 free for memory outside the plan: the program itself, and other programs.
static int fits(const Search *s, const Bytes *bytes) {
    for (int i = 0; i < PLACES; i++)
        if (bytes->on[i] > room_on(s, i) - room_on(s, i) / 64) return 0;
    return 1;
}

// --------
// one combination of changes

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

// Sets the options to the search's level.
static void set_options(const Search *s) {
    const char *const *tier = tiers[s->level[TIERS]];
    const int sub_group = (16 << 20) >> 2 * s->level[SUB_GROUPS];
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
    for (int i = 0; i < TIER_OPTIONS; i++)
        if (tier[i]) option_set(option_named(tier_options[i]), tier[i]);
    if (!o->nvme && (o->optimizer == ZERO_NVME || o->params == ZERO_NVME)) o->nvme = "FOLDER";
    if (s->level[SUB_GROUPS] && sub_group < o->sub_group_size) o->sub_group_size = sub_group;
    if (down) opt.total_batch = (int)s->tokens;
    opt.B = divisor_below(opt.B, &down);
    opt.T = divisor_below(opt.T, &down);
    if (s->level[ONE_MICRO_BATCH]) opt.total_batch = opt.B * opt.T * run.ranks;
}

static int doublings(int n) {
    int doublings = 0;
    while (doublings < DOUBLINGS - 1 && 1 << doublings < n) doublings++;
    return doublings;
}

// Returns the plugin's memory at this level. It does not depend on the batch or on recompute, and on the
// number of micro-batches only through the sums over them.
static Bytes plugin_bytes_of_level(Search *s, const zero_config *config) {
    const int sums = doublings(config->micro_batches);
    Bytes *b = &s->plans[sums][s->level[SUB_GROUPS]][s->level[TIERS]][opt.zero.stage];
    zero_plan plan;
    if (b->on[ZERO_DEVICE]) return *b;
    *b = nowhere;
    if (try_plan(&s->model, config, &plan)) return *b;
    for (int tier = 0; tier < PLACES; tier++) b->on[tier] = bytes_planned_on(&plan, tier);
    if (run.z) zero_plan_info(run.z, &plan);
    if (run.z) b->on[ZERO_DEVICE] += plan.nccl_bytes;  // unknown until the ranks are connected
    return *b;
}

// Returns a rank's memory at this level. A smaller batch needs more micro-batches for the same tokens per
// step.
static Bytes bytes_of_level(Search *s) {
    GPT2 *m = &s->model;
    set_options(s);
    zero_config config = *s->config;
    config.stage = opt.zero.stage;
    config.debug.naive = opt.zero.debug.naive;
    config.offload = settings_of(&opt).offload;
    config.micro_batches = (int)(s->tokens / ((long long)opt.B * opt.T * run.ranks));
    if (s->level[ONE_MICRO_BATCH]) config.micro_batches = 1;
    const size_t beside = bytes_beside(&config);
    s->more = beside > s->beside ? beside - s->beside : 0;
    const int is_planned = m->chunk && m->B == opt.B && m->T == opt.T;
    m->B = opt.B;
    m->T = opt.T;
    if (!m->inference) m->cache_T = m->T;
    m->micro_batches = config.micro_batches;
    m->recompute = opt.recompute;
    m->inputs_on_host = opt.cpu_checkpointing && on_cuda();
    if (!is_planned && plan_layers(m, &config)) {
        m->chunk = 0;
        return nowhere;
    }
    Bytes bytes = plugin_bytes_of_level(s, &config);
    for (int tier = ZERO_DEVICE; tier < ZERO_NVME; tier++) bytes.on[tier] += activation_bytes(m, tier);
    return bytes;
}

// Appends "-r 3 --offload-optimizer nvme (2893 of 2996 MiB, 23912 MiB on NVMe)": every option that this level
// changes, and the memory it needs.
static void list_level(Search *s, const Bytes *bytes) {
    static const char *const places[] = { "", " on the host", " on NVMe" };
    char before[PATH_MAX], now[PATH_MAX];
    FILE *list = s->list.f;
    fprintf(list, "\n ");
    for (const Option *o = option_table; o < option_table + num_options; o++) {
        if (!o->value) continue;
        option_text(o, &s->now, before, sizeof before);
        option_text(o, &opt, now, sizeof now);
        if (strcmp(before, now))
            fprintf(list, " %s%s%s", o->name, o->kind == FLAG ? "" : " ", o->kind == FLAG ? "" : now);
    }
    for (int i = 0; i < PLACES; i++) {
        if (!bytes->on[i]) continue;
        fprintf(list, "%s%.0f", i ? ", " : " (", mib(bytes->on[i]));
        if (s->room.on[i] < SIZE_MAX) fprintf(list, " of %.0f", mib(room_on(s, i)));
        fprintf(list, " MiB%s", places[i]);
    }
    fprintf(list, ")");
    s->n_listed++;
}

// --------
// the search

// Fills in the options' effective values. If the level of recompute is not chosen yet, uses one that saves
// memory.
static void begin_search(Search *s, const GPT2 *model, const zero_config *config) {
    Options *now = &s->now;
    const int resumes = checkpoint_saved() && !opt.resume_anyway;  // -t and -d must not change
    s->config = config;
    s->model = *model;
    s->tokens = (long long)model->B * model->T * run.ranks * config->micro_batches;
    *now = opt;
    now->B = model->B;
    now->T = model->T;
    now->recompute = model->recompute;
    if (now->recompute < 0) now->recompute = on_cuda() ? most_chosen_recompute(model) : 1;
    s->levels[STAGES] = 4 - now->zero.stage;
    const int can_checkpoint = on_cuda() && !(model->units_a_block > 1 && model->by_layers);
    s->levels[RECOMPUTE] = MOST_RECOMPUTE + 1 - now->recompute + (can_checkpoint && !now->cpu_checkpointing);
    s->levels[TIERS] = MIXTURES;
    s->levels[SUB_GROUPS] = SUB_GROUP_SIZES;
    s->levels[BATCHES] = 1 + divisors_below(now->B) + (resumes ? 0 : divisors_below(now->T));
    s->levels[ONE_MICRO_BATCH] = resumes ? 1 : 2;
    if (model->inference) s->levels[RECOMPUTE] = 1;  // no backward, and the prompts determine the batch
    if (model->inference || s->tokens > 1 << 30) s->levels[BATCHES] = s->levels[ONE_MICRO_BATCH] = 1;
}

// Advances to the next level. Returns 0 after the last.
static int next_level(Search *s) {
    for (int i = 0; i < CHANGES; i++) {
        if (++s->level[i] < s->levels[i]) return 1;
        s->level[i] = 0;
    }
    return 0;
}

// Lists the first level that fits, and then the first that needs less of that level's costliest change.
// Changes of the batch do not count as costly.
static void list_what_fits(Search *s) {
    int costliest = -1, less_than = 0;
    while (next_level(s)) {
        if (costliest >= 0 && s->level[costliest] >= less_than) continue;
        const Bytes bytes = bytes_of_level(s);
        if (!fits(s, &bytes)) continue;
        list_level(s, &bytes);
        if (costliest >= 0) return;
        for (int i = 0; i < BATCHES; i++)
            if (s->level[i]) costliest = i;
        if (costliest < 0) return;
        less_than = s->level[costliest];
    }
}

void out_of_memory(const GPT2 *model, const zero_config *config) {
    static Search s;
    zero_failure failure = *zero_last_failure();
    const char *more = on_cuda() ? "more ranks or larger devices" : "more ranks or more memory";
    // Before the plugin exists, rank 0 reports the failure, and can advise only on its own memory.
    if (!run.z && (run.rank > 0 || failure.rank > 0)) die_of_plugin(&failure, "");
    if (run.z) print_memory();
    text_begin(&s.list);
    if (find_room(&s.room, config)) die_of_plugin(&failure, "");
    if (on_cuda()) gpt2_check(layers_cuda_tune(NULL, NULL, 0));  // no tuning: only the memory matters
    FILE *list = s.list.f;
    begin_search(&s, model, config);
    s.beside = bytes_beside(config);
    if (s.beside) fprintf(list, ", besides %.0f MiB for compiled code and threads' stacks", mib(s.beside));
    fprintf(list, ". What would fit:");

    // The current options have just failed, so they do not fit, whatever their plan.
    const Bytes now = bytes_of_level(&s);
    if (fits(&s, &now)) s.room.on[ZERO_DEVICE] = now.on[ZERO_DEVICE] - 1;
    list_what_fits(&s);
    if (!s.n_listed && s.now.zero.offload.nvme) {  // try again without the limits of these disks
        s.now.zero.offload.nvme = NULL;
        s.room.on[ZERO_NVME] = SIZE_MAX;
        list_what_fits(&s);
    }
    if (!s.n_listed && model->inference)
        fprintf(list, " nothing, at any stage or tier; use fewer or shorter prompts, a lower -g, or %s",
                more);
    else if (!s.n_listed)
        fprintf(list, " nothing, at any stage, tier, --sub-group-size, -r, -b, -t or -d: the model needs %s",
                more);
    else if (opt.zero_config)
        fprintf(list, "\n  (%s sets some of these; change them there)", opt.zero_config);
    opt = s.now;
    die_of_plugin(&failure, text_end(&s.list));
}
