// Tests the rules for opening and closing model states (llmc_zero/tiers/state.h): mpirun -np N mpi_states,
// for any N. Every path and setting must give the same bits with the store in memory and with one that hands
// out copies and detects every breach of the rules (copies.h).
#include <stdint.h>
#include <stdio.h>
#include "check.h"
#include "copies.h"
#include "settings.h"
#include "outcome.h"

// -------- the table of settings

// With frozen tensors, blocks have so few gradients that a bucket of any size may hold all of them.
static int bucket_units(const settings_variation *v) {
    return v->bucket > (toy_frozen_set ? 1 : TOY_LARGEST) ? TOY_BLOCKS : 1;
}

// Each pool has only as many slots as the rules require. For parameters: a unit in use and a unit being
// gathered, each with its frozen part. For gradients: the bucket being reduced and, below stage 2, the
// embeddings, which are open throughout backward, and the current block.
static void start_copies(const zero_config *c, const settings_variation *v) {
    copies_start(toy_frozen_set ? 4 : 2, (c->stage < 2 ? 2 : 0) + bucket_units(v));
}

static void stop_copies(zero *z) { CHECK(copies_stop() == 0); }

static void check_setting(const settings_path *path, const settings_format *format, int micro_batches,
                          const settings_variation *v, int with_files, const outcome *want) {
    zero_config c = settings_begin(toy_is_frozen(), path, format, micro_batches, v);
    start_copies(&c, v);
    outcome o = outcome_of(&c, with_files, stop_copies);
    if (copies.breach[0]) fprintf(stderr, "rank %d: [%s] %s\n", checks.rank, checks.setting, copies.breach);
    CHECK(!copies.breach[0]);
    CHECK(copies.opened > 100);
    CHECK(!memcmp(&o, want, sizeof o));
}

// The variations rotate, so that each is combined with every path.
static void check_same_bits(void) {
    const int each = toy_frozen_set ? 1 : 2;
    for (int f = 0; f < SETTINGS_COUNT(settings_formats); f++)
        for (int m = 0; m < SETTINGS_COUNT(settings_micro_batches); m++)
            for (int p = 0; p < SETTINGS_COUNT(settings_paths); p++) {
                static outcome want;
                const settings_path *path = &settings_paths[p];
                int micro_batches = settings_micro_batches[m];
                zero_config c = settings_config(path, &settings_formats[f], micro_batches,
                                                &settings_variations[0]);
                if (p == 0 || (path->stage == 2 && micro_batches > 1)) want = outcome_of(&c, 0, NULL);
                for (int i = 0; i < each; i++) {
                    int turn = 2 * (p + 2 * f + m) + i + checks.ranks + toy_frozen_set;
                    int v = turn % SETTINGS_COUNT(settings_variations);
                    check_setting(path, &settings_formats[f], micro_batches, &settings_variations[v], i == 0,
                                  &want);
                }
            }
}

// The reduction sums the squares of sharded gradients, so the norm does not open them again.
static void check_norm(void) {
    for (int stage = 1; stage <= 3; stage++) {
        toy t;
        zero_config c = settings_config(&settings_paths[stage + 1], &settings_formats[1], 3,
                                        &settings_variations[0]);
        CHECK_SETTING("norm of copies, stage %d", stage);
        start_copies(&c, &settings_variations[0]);
        MUST(toy_create(&t, &c, NULL));
        MUST(toy_passes(&t, 3));
        long opened = copies.opened;
        MUST(zero_finish_gradients(t.z, NULL));
        CHECK(copies.opened - opened == (stage == 1 ? TOY_UNITS : 0));
        CHECK(copies_stop() == 0);
        zero_destroy(t.z);
    }
}

// -------- every breach is detected

typedef enum {
    NO_BREACH,
    LEFT_OPEN,
    WRITES_WHAT_IT_READS,
    WRITES_PAST_END,
    WRITES_AFTER_CLOSE,
    OPENS_TOO_MANY,
    OPENS_TWICE,
    OPENS_ANOTHERS,
    CLOSES_TWICE,
    BREACHES
} breach;

static int refused(state *s, int unit, int part, state_intent intent) {
    state_part p;
    return state_open(&p, s, COMPUTE, unit, part, intent) == ZERO_ERR_MISUSE;
}

// Opens and closes this rank's part of unit 0, and commits the breach `what`.
static void commit(state *s, breach what) {
    state_part p;
    MUST(state_open(&p, s, COMPUTE, 0, 1, STATE_READ));
    state_part again = p;
    float *x = (float *)p.at;
    if (what == WRITES_WHAT_IT_READS) x[3] = 1;
    if (what == WRITES_PAST_END) x[512] = 1;
    if (what == OPENS_TOO_MANY) CHECK(refused(s, 1, 1, STATE_READ));
    if (what == OPENS_TWICE) CHECK(refused(s, 0, 1, STATE_CHANGE));
    if (what == LEFT_OPEN) return;
    CHECK(state_close(&p) == (what == WRITES_PAST_END ? ZERO_ERR_MISUSE : 0));
    CHECK(isnan(x[0]) == (what != WRITES_PAST_END));
    if (what == WRITES_AFTER_CLOSE) x[3] = 1;
    if (what == OPENS_ANOTHERS) CHECK(refused(s, 0, 0, STATE_READ));
    if (what == CLOSES_TWICE) CHECK(state_close(&again) == ZERO_ERR_MISUSE);
}

// Commits the breach on a state of three units and two ranks, and checks its message.
static void check_breach(breach what, const char *message) {
    static const zero_tensor tensor = { "w", 1, { 1000 }, 3, 0, 0, 0 };
    static const zero_unit units[] = { { "a", 1, 1, 0 }, { "b", 1, 1, 0 }, { "c", 1, 1, 0 } };
    zero_config c = zero_defaults();
    device host = device_host;
    memory held = { .device = &host };
    layout l;
    CHECK_SETTING("breach %d: %.120s", what, message);
    c.stage = 3;
    MUST(layout_init(&l, 2, 0, &tensor, 1, units, 3));
    copies_start(1, 1);
    state moment = state_of(ZERO_MOMENT1, &c, &l, 1, &host);
    memory_request planned = { ZERO_STATES, moment.name, ZERO_DEVICE, state_bytes(&moment), 1, 0 };
    MUST(state_create(&moment, &held, &planned));
    commit(&moment, what);
    CHECK(copies_stop() == (what == LEFT_OPEN || what == WRITES_PAST_END));
    CHECK(!strcmp(copies.breach, message));
    memory_free_all(&held);
    layout_free(&l);
}

static void check_breaches(void) {
    static const char *const messages[BREACHES] = {
        [NO_BREACH] = "",
        [LEFT_OPEN] = "",  // only copies_stop's result shows it
        [WRITES_WHAT_IT_READS] = "first moment, unit 0, part 1: written, but opened for reading",
        [WRITES_PAST_END] = "first moment, unit 0, part 1: written past its end",
        [WRITES_AFTER_CLOSE] = "first moment: a copy was written after it was closed",
        [OPENS_TOO_MANY] = "first moment, unit 1, part 1: too many parts are open",
        [OPENS_TWICE] =
            "first moment, unit 0, part 1: opened while already open, and one of the two is for writing",
        [OPENS_ANOTHERS] = "first moment, unit 0, part 0: opened on a rank that does not own it",
        [CLOSES_TWICE] = "first moment, unit 0, part 1: closed, but not open",
    };
    for (breach what = NO_BREACH; what < BREACHES; what++) check_breach(what, messages[what]);
}

// --------

static void run(const char *asked) {
    outcome_begin("states");
    check_breaches();
    for (int set = 0; set < TOY_FROZEN_SETS; set++) {
        toy_freeze(set);
        check_same_bits();
    }
    toy_freeze(0);
    check_norm();
    outcome_end();
}

int main(int argc, char **argv) { return checks_main(argc, argv, "mpi_states", run); }
