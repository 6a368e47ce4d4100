// Lesson 6: plays a step with frees_slot and gather_ahead, runs the same step through the library at stage
// 3 on two ranks, and compares the bytes gathered before each use begins to compute, and the memory of
// the slots.
#include <string.h>
#include "lesson.h"

// Sizes are multiples of RANKS * 128 elements, which need no padding, and powers of two, so that a number of
// bytes identifies the units that were gathered.
enum { RANKS = 2, MOST_UNITS = 8, MOST_USES = 2 * MOST_UNITS, LEAST = RANKS * 128 };

typedef struct {
    const char *name;
    int n_units, n_slots;
    int forward[MOST_UNITS];  // the order of units; backward uses the last unit first, as buckets need it
} model;
static const model models[] = {
    { "4 units, 2 slots", 4, 2, { 0, 1, 2, 3 } },
    { "6 units, 2 slots", 6, 2, { 0, 1, 2, 3, 4, 5 } },
    { "6 units, 3 slots", 6, 3, { 0, 1, 2, 3, 4, 5 } },
    { "a forward pass in another order: 2 0 1 3 4", 5, 2, { 2, 0, 1, 3, 4 } },
};

typedef struct {
    int64_t bytes[MOST_USES];  // that this rank has sent for gathers when the use computes
    int64_t all;
    int64_t slot_bytes;  // the most memory that held whole units
    int late;            // gathers that a use had to wait for
} step;

static int64_t unit_elems(int unit) { return (int64_t)LEAST << unit; }
// Each rank sends its part of the unit to every other rank.
static int64_t gather_bytes(int unit) {
    return unit_elems(unit) / RANKS * (RANKS - 1) * (int64_t)sizeof(float);
}

// -------- what the reader's functions do

typedef struct {
    const model *m;
    int held[MOST_UNITS];
    int n_held, most_held, gathers;
    step result;
} play;

static void gather(play *p, int unit) {
    p->held[unit] = 1;
    if (++p->n_held > p->most_held) p->most_held = p->n_held;
    p->result.all += gather_bytes(unit);
}

static void gather_all_ahead(play *p, const int *uses, int n, int at) {
    for (int tries = 0; tries <= p->m->n_slots; tries++) {
        const int unit = gather_ahead(uses, n, at, p->m->n_slots, p->held);
        if (unit == -1) return;
        if (unit < 0 || unit >= p->m->n_units || p->held[unit] || p->n_held == p->m->n_slots) {
            lesson_off("use %d: you gather unit %d, which %s", at, unit,
                       unit < 0 || unit >= p->m->n_units ? "does not exist"
                       : p->held[unit]                   ? "is held already"
                                                         : "finds no free slot");
            return;
        }
        gather(p, unit);
    }
}

// If no slot is free when a use begins, drops a unit that a later use may need.
static void make_room(play *p, int at, int unit) {
    if (p->n_held < p->m->n_slots) return;
    lesson_off("use %d: unit %d finds all %d slots taken", at, unit, p->m->n_slots);
    for (int u = 0; u < p->m->n_units && p->n_held == p->m->n_slots; u++)
        if (p->held[u]) p->n_held--, p->held[u] = 0;
}

static step play_step(const model *m, const int *uses, int n) {
    play p = { .m = m };
    for (int at = 0; at < n; at++) {
        const int unit = uses[at];
        if (!p.held[unit]) {
            make_room(&p, at, unit);
            gather(&p, unit);
            p.result.late++;
        }
        gather_all_ahead(&p, uses, n, at);
        p.result.bytes[at] = p.result.all;
        if (!frees_slot(uses, n, at)) continue;
        p.held[unit] = 0;
        p.n_held--;
    }
    p.result.slot_bytes = p.most_held * unit_elems(m->n_units - 1) * (int64_t)sizeof(float);
    return p.result;
}

// -------- what the library does

// Bytes gathered ahead count as unused until a use begins.
static int64_t gathered_bytes(zero *z, int ahead) {
    zero_traffic t;
    zero_traffic_info(z, &t);
    return t.all_gather[ZERO_FOR_STEP] + (ahead ? t.all_gather[ZERO_FOR_UNUSED] : 0);
}

// Runs a step. Without overlap a gather runs within the hook that starts it, so the counter of bytes
// shows after each hook what has been gathered.
static void engine_step(zero *z, const int *uses, int n, step *s) {
    const zero_hyper hyper = { .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .t = 1 };
    const int64_t before = gathered_bytes(z, 0);  // the last update has gathered the first unit for this step
    lesson_must(zero_begin_train(z, 0, 1));
    for (int at = 0; at < n; at++) {
        const int backward = at >= n / 2, unit = uses[at];
        lesson_must(backward ? zero_pre_backward(z, unit) : zero_pre_forward(z, unit));
        s->bytes[at] = gathered_bytes(z, 1) - before;
        if (backward) memset(zero_grad(z, unit, 0), 0, (size_t)unit_elems(unit) * sizeof(float));
        lesson_must(backward ? zero_post_backward(z, unit) : zero_post_forward(z, unit));
    }
    s->all = gathered_bytes(z, 1) - before;
    lesson_must(zero_finish_gradients(z, NULL));
    lesson_must(zero_update(z, &hyper));
}

static int64_t slots_of(const zero *z) {
    zero_memory_line line;
    for (int i = 0; zero_memory(z, i, &line); i++)
        if (!strcmp(line.purpose, "slots")) return (int64_t)line.bytes;
    return 0;
}

// The library records the order in the first step, so the second one is compared.
static step engine_steps(const model *m, const int *uses, int n) {
    step s = { 0 };
    int64_t elems[MOST_UNITS];
    zero_config config = zero_defaults();
    for (int u = 0; u < m->n_units; u++) elems[u] = unit_elems(u);
    config.stage = 3;
    config.prefetch = m->n_slots - 1;
    zero *z = lesson_engine(&config, elems, m->n_units);
    for (int i = 0; i < 2; i++) engine_step(z, uses, n, &s);
    s.slot_bytes = slots_of(z);
    zero_destroy(z);
    return s;
}

// -------- the comparison

static void compare(const model *m) {
    const int n = 2 * m->n_units;
    int uses[MOST_USES];
    for (int i = 0; i < m->n_units; i++) {
        uses[i] = m->forward[i];
        uses[n - 1 - i] = i;
    }
    const step engine = engine_steps(m, uses, n), yours = play_step(m, uses, n);
    for (int at = 0; at < n; at++)
        if (yours.bytes[at] != engine.bytes[at])
            lesson_off("%s of unit %d: when it computes, you have gathered %lld bytes; the library %lld",
                       at < m->n_units ? "forward" : "backward", uses[at], (long long)yours.bytes[at],
                       (long long)engine.bytes[at]);
    lesson_check("%s: bytes gathered when each use computes", m->name);
    if (yours.all != engine.all)
        lesson_off("you send %lld bytes for gathers in a step; the library %lld", (long long)yours.all,
                   (long long)engine.all);
    lesson_check("    bytes of a step");
    if (yours.slot_bytes != engine.slot_bytes)
        lesson_off("you fill %lld bytes of slots at most; the library %lld", (long long)yours.slot_bytes,
                   (long long)engine.slot_bytes);
    if (yours.late != 1)
        lesson_off("%d uses wait for a gather that begins only then; with gathers ahead only the first does",
                   yours.late);
    lesson_check("    every slot is used, and no use but the first waits");
}

int main(int argc, char **argv) {
    lesson_begin(argv, RANKS, 6, "who holds layer 7 right now?");
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) compare(&models[i]);
    return lesson_end();
}
