#include "advice.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../options/options.h"
#include "../running/machine.h"
#include "../running/run.h"
#include "memory_table.h"
#include "search.h"

// -------- after a run was refused: the cheapest changes

// Lists the first level that fits, and then the first that needs less of that level's costliest change.
// Changes of the batch do not count as costly. Returns the number of levels listed.
static int list_what_fits(Search *s, FILE *list) {
    int costliest = -1, less_than = 0, tier;
    while (next_level(s)) {
        if (costliest >= 0 && s->level[costliest] >= less_than) continue;
        const Bytes bytes = bytes_of_level(s);
        if (missing(s, &bytes, &tier)) continue;
        fprintf(list, "\n ");
        write_changes(list, s);
        write_bytes(list, s, &bytes);
        if (costliest >= 0) return 2;
        for (int i = 0; i < BATCHES; i++)
            if (s->level[i]) costliest = i;
        if (costliest < 0) return 1;
        less_than = s->level[costliest];
    }
    return costliest >= 0;
}

// Lists what fits. The current options have just failed, so they do not fit, whatever their plan.
static int search_for_room(Search *s, FILE *list) {
    int tier;
    const Bytes now = bytes_of_level(s);
    if (!missing(s, &now, &tier)) s->room.on[ZERO_DEVICE] = now.on[ZERO_DEVICE] - 1;
    const int listed = list_what_fits(s, list);
    if (listed || !s->now.zero.offload.nvme) return listed;
    s->now.zero.offload.nvme = NULL;  // once more without the limits of these disks
    s->room.on[ZERO_NVME] = SIZE_MAX;
    return list_what_fits(s, list);
}

void out_of_memory(const GPT2 *model, const zero_config *config) {
    static Search s;
    Text text;
    zero_failure failure = *zero_last_failure();
    const char *more = on_cuda() ? "more ranks or larger devices" : "more ranks or more memory";
    // Before the plugin exists, rank 0 reports the failure, and can advise only on its own memory.
    if (!run.z && (run.rank > 0 || failure.rank > 0)) die_of_plugin(&failure, "");
    if (run.z) print_memory();
    if (on_cuda()) gpt2_check(layers_cuda_tune(NULL, NULL, 0));  // no tuning: only the memory matters
    search_from_request(&s, model, config);
    if (find_room(&s.room, model, config)) die_of_plugin(&failure, "");
    text_begin(&text);
    const size_t beside = bytes_beside(model, config);
    if (beside) fprintf(text.f, ", with %.0f MiB for the process itself", mib(beside));
    fprintf(text.f, ". What would fit:");
    const int listed = search_for_room(&s, text.f);
    if (!listed && model->inference)
        fprintf(text.f, " nothing, at any stage or tier; use fewer or shorter prompts, a lower -g, or %s",
                more);
    else if (!listed)
        fprintf(text.f,
                " nothing, at any stage, tier, --sub-group-size, -r, -b, -t, -d or --units: "
                "the model needs %s",
                more);
    else if (opt.zero_config)
        fprintf(text.f, "\n  (%s sets some of these; change them there)", opt.zero_config);
    opt = s.now;
    die_of_plugin(&failure, text_end(&text));
}

// -------- --fit: the fastest options

// A set of options: a level of the search.
typedef struct {
    int level[CHANGES];
    Bytes bytes;
    size_t missing;  // bytes, on this tier; 0: it fits
    int tier;
    double seconds;
} Choice;

enum { MOST_CHOICES = 1024, MOST_MISSES = 64, SHOWN = 3 };
typedef struct {
    Search s;
    StepTimer timer;
    void *trainer;
    Choice fits[MOST_CHOICES], misses[MOST_MISSES];
    int n_fits, n_misses, n_compared;
} Fit;

// Inserts a choice into a list of at most `most`, sorted by seconds or, if misses, by what is missing.
static void insert(Choice *list, int *n, int most, const Choice *c, int by_seconds) {
    int at = *n;
    while (at > 0 && (by_seconds ? list[at - 1].seconds > c->seconds : list[at - 1].missing > c->missing))
        at--;
    if (at == most) return;
    if (*n < most) ++*n;
    memmove(list + at + 1, list + at, (*n - at - 1) * sizeof *list);
    list[at] = *c;
}

static Choice choice_now(Fit *f) {
    Choice c = { .bytes = bytes_of_level(&f->s) };
    memcpy(c.level, f->s.level, sizeof c.level);
    c.missing = missing(&f->s, &c.bytes, &c.tier);
    return c;
}

static double seconds_with(Fit *f, int micro_batches) {
    GPT2 model = f->s.model;
    model.micro_batches = micro_batches;
    settle_overlap();
    return f->timer(f->trainer, &model);
}

// Sets the options of a choice and returns the seconds of a step. Each further micro-batch takes as long as
// those before, so of many it times only some, unless `exactly` is 1.
static double seconds_of(Fit *f, const Choice *c, int exactly) {
    enum { SOME = 4 };
    memcpy(f->s.level, c->level, sizeof c->level);
    bytes_of_level(&f->s);
    const int all = f->s.model.micro_batches;
    if (exactly || all <= 2 * SOME) return seconds_with(f, all);
    const double of_some = seconds_with(f, SOME), of_more = seconds_with(f, 2 * SOME);
    return of_more + (of_more - of_some) / SOME * (all - 2 * SOME);
}

// Returns 1 if a choice that fits has the same stage, accumulation and groups, and no less of anything that
// saves memory and costs time.
static int is_dominated(const Fit *f) {
    static const int costs_time[] = { RECOMPUTE, TIERS, BATCHES, UNITS };
    const int *level = f->s.level;
    for (const Choice *c = f->fits; c < f->fits + f->n_fits; c++) {
        int is_less = c->level[STAGES] != level[STAGES] || c->level[ACCUMULATE] != level[ACCUMULATE] ||
                      c->level[GROUPS] != level[GROUPS];
        for (int i = 0; i < 4; i++) is_less |= c->level[costs_time[i]] > level[costs_time[i]];
        if (!is_less) return 1;
    }
    return 0;
}

// Rejects by memory, which is cheap. A level that costs more time comes after those that it is compared with.
static void find_choices(Fit *f) {
    do {
        if (is_dominated(f) || f->n_fits == MOST_CHOICES) continue;
        const Choice c = choice_now(f);
        if (!is_possible(&c.bytes)) continue;
        f->n_compared++;
        if (c.missing)
            insert(f->misses, &f->n_misses, MOST_MISSES, &c, 0);
        else
            f->fits[f->n_fits++] = c;
    } while (next_level(&f->s));
}

static void time_choices(Fit *f) {
    const int n = f->n_fits;
    f->n_fits = 0;
    for (int i = 0; i < n; i++) {
        Choice c = f->fits[i];
        c.seconds = seconds_of(f, &c, 0);
        insert(f->fits, &f->n_fits, MOST_CHOICES, &c, 1);
    }
    for (int i = 0; i < f->n_misses; i++) f->misses[i].seconds = seconds_of(f, &f->misses[i], 0);
}

// Returns 1 and the choice if it is new, fits and is faster by more than a detail.
static int improves(Fit *f, Choice *c, int change, int level) {
    const double detail = 0.002;
    Choice other;
    memcpy(f->s.level, c->level, sizeof c->level);
    f->s.level[change] = level;
    for (int i = 0; i < f->n_fits; i++)
        if (!memcmp(f->fits[i].level, f->s.level, sizeof f->s.level)) return 0;
    other = choice_now(f);
    if (other.missing) return 0;
    other.seconds = seconds_of(f, &other, 0);
    if (other.seconds > c->seconds * (1 - detail)) return 0;
    *c = other;
    return 1;
}

// Tries smaller batches for the fastest choices, whose largest batch need not be the best, then what matters
// less.
static void refine(Fit *f) {
    const Search *s = &f->s;
    Choice best[SHOWN];
    const int n = f->n_fits < SHOWN ? f->n_fits : SHOWN;
    memcpy(best, f->fits, n * sizeof *best);
    for (Choice *c = best; c < best + n; c++) {
        while (c->level[BATCHES] + 1 < s->levels[BATCHES] && improves(f, c, BATCHES, c->level[BATCHES] + 1)) {
        }
        for (int change = COARSE; change < CHANGES; change++)
            for (int level = 1; level < s->levels[change]; level++) improves(f, c, change, level);
        c->seconds = seconds_of(f, c, 1);
    }
    f->n_fits = 0;
    for (int i = 0; i < n; i++) insert(f->fits, &f->n_fits, MOST_CHOICES, &best[i], 1);
}

// Writes "  0.2790 s, 469835 tokens/s: -z 1 -r 0 (50574 of 77000 MiB)".
static void write_choice(Fit *f, FILE *out, const Choice *c) {
    Text changes;
    memcpy(f->s.level, c->level, sizeof c->level);
    bytes_of_level(&f->s);
    text_begin(&changes);
    write_changes(changes.f, &f->s);
    char *text = text_end(&changes);
    fprintf(out, "  %.4f s, %.0f tokens/s:%s", c->seconds, f->s.tokens / c->seconds,
            *text ? text : " as given");
    free(text);
    write_bytes(out, &f->s, &c->bytes);
    if (c->missing)
        fprintf(out, ": %.0f MiB too much %s", mib(c->missing),
                c->tier == ZERO_NVME                 ? "for the disk"
                : c->tier == ZERO_HOST || !on_cuda() ? "for the host"
                                                     : "for the GPU");
    fprintf(out, "\n");
}

// Writes those that nearly fit and would be faster than the fastest; the nearest, if nothing fits.
static void write_misses(Fit *f, FILE *out) {
    int written = 0;
    for (const Choice *c = f->misses; c < f->misses + f->n_misses && written < SHOWN; c++) {
        const int is_near = c->missing < c->bytes.on[c->tier] / 4;
        if (f->n_fits && (!is_near || c->seconds >= f->fits->seconds)) continue;
        if (!written++)
            fprintf(out, "nearest that %s\n", f->n_fits ? "would be faster, but do not fit" : "do not fit");
        write_choice(f, out, c);
    }
    if (f->n_misses && !written) fprintf(out, "  those that nearly fit would not be faster\n");
}

void print_fastest(const GPT2 *model, int micro_batches, StepTimer timer, void *trainer) {
    static Fit f;
    const Options given = opt;
    Text text;
    zero_config config = plugin_settings(model->dtype, micro_batches);
    config.start.rank = 0;
    f.timer = timer;
    f.trainer = trainer;
    search_all(&f.s, model, &config);
    zero_check(find_room(&f.s.room, model, &config));
    find_choices(&f);
    const int fit = f.n_fits;
    time_choices(&f);
    refine(&f);
    text_begin(&text);
    fprintf(text.f, "what to run for %lld tokens per step; options to add or change, by --fit\n", f.s.tokens);
    if (!f.n_fits) fprintf(text.f, "  nothing fits: more ranks, or a smaller model\n");
    for (int i = 0; i < f.n_fits; i++) write_choice(&f, text.f, &f.fits[i]);
    write_misses(&f, text.f);
    fprintf(text.f, "  compared: %d sets of options, of which %d were timed\n", f.n_compared, fit);
    char *all = text_end(&text);
    print0("%s", all);
    free(all);
    opt = given;
    settle_overlap();
    search_end(&f.s);
}
