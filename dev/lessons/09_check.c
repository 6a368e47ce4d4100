// Lesson 9: compares kept_values with the table of activations that the trainer prints, and slot_bytes with
// the plan of the library.
#include <stdio.h>
#include <string.h>
#include "lesson.h"

// Adds up the values of the eight activations in the output of --plan: "  NAME   x COPIES   MiB".
static int64_t planned_values(int recompute, int layers, int64_t btc) {
    static const struct {
        const char *name;
        int multiple;  // of btc
    } large[] = { { "ln1", 1 }, { "qkv", 3 }, { "atty", 1 },     { "residual2", 1 },
                  { "ln2", 1 }, { "fch", 4 }, { "fch_gelu", 4 }, { "residual3", 1 } };
    char command[200], line[200], name[40];
    int64_t values = 0;
    int copies;
    snprintf(command, sizeof command,
             "./train_gpt2_zero --plan -z 3 -e l%dh2c64v256t32 -b 2 -r %d --dtype fp32 --threads 1 2>&1",
             layers, recompute);
    FILE *plan = popen(command, "r");
    while (plan && fgets(line, sizeof line, plan)) {
        if (sscanf(line, " %39s x %d ", name, &copies) != 2) continue;
        for (size_t i = 0; i < sizeof large / sizeof *large; i++)
            if (!strcmp(name, large[i].name)) values += copies * large[i].multiple * btc;
    }
    if (!plan || pclose(plan)) lesson_off("no plan from ./train_gpt2_zero: first run make train_gpt2_zero");
    return values;
}

static void check_activations(int recompute) {
    const int64_t btc = 2 * 32 * 64;
    for (int layers = 2; layers <= 12; layers += 5) {
        const int64_t yours = kept_values(recompute, layers, btc),
                      planned = planned_values(recompute, layers, btc);
        if (yours != planned)
            lesson_off("%d blocks: you get %lld values; the trainer plans %lld", layers, (long long)yours,
                       (long long)planned);
    }
    lesson_check("recompute %d: values that the blocks keep", recompute);
}

// Returns the bytes of the plan's line "slots".
static int64_t planned_slots(int stage, int ranks, int prefetch, const int64_t *elems, int n_units,
                             zero_dtype dtype) {
    zero_config config = zero_defaults();
    int64_t bytes = 0;
    config.stage = stage;
    config.prefetch = prefetch;
    config.numbers.dtype = dtype;
    const zero_plan plan = lesson_plan(&config, elems, n_units, ranks);
    for (int i = 0; i < plan.n_lines; i++)
        if (!strcmp(plan.lines[i].purpose, "slots")) bytes += (int64_t)plan.lines[i].bytes;
    return bytes;
}

// The sizes are multiples of 2048 x ranks elements, so that the library adds no padding and slots are whole
// pages.
static void check_slots(int ranks) {
    const int64_t piece = 2048 * 12, elems[] = { 3 * piece, piece, 7 * piece, 5 * piece, 2 * piece };
    for (int stage = 0; stage <= 3; stage++)
        for (int prefetch = 0; prefetch <= 6; prefetch++)
            for (int size = 2; size <= 4; size += 2) {
                const zero_dtype dtype = size == 2 ? ZERO_BF16 : ZERO_F32;
                const int64_t yours = slot_bytes(stage, ranks, prefetch, elems, 5, size);
                const int64_t planned = planned_slots(stage, ranks, prefetch, elems, 5, dtype);
                if (yours != planned)
                    lesson_off("stage %d, prefetch %d, %d bytes per value: you get %lld bytes; the "
                               "library plans %lld",
                               stage, prefetch, size, (long long)yours, (long long)planned);
            }
    lesson_check("%d rank%s: bytes of the slots at stages 0 to 3", ranks, ranks > 1 ? "s" : "");
}

int main(int argc, char **argv) {
    lesson_begin(argv, 1, 9, "what does ZeRO not shrink?");
    for (int recompute = 0; recompute <= 3; recompute++) check_activations(recompute);
    for (int ranks = 1; ranks <= 6; ranks += ranks) check_slots(ranks);
    return lesson_end();
}
