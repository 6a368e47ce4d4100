// Sets of options for the same training: the changes that a user may make, and the memory that each set
// needs. Compares plans and allocates nothing. advice.h decides which sets to show.
#ifndef TRAINER_SEARCH_H
#define TRAINER_SEARCH_H
#include <stdio.h>
#include "../options/options.h"
#include "../running/activations.h"
#include "fit.h"
#include "room.h"

// Changes, cheapest first. The first four do not change a step's results. A smaller batch, and then shorter
// rows, keep the tokens per step by adding micro-batches. A single micro-batch per step reduces them, but
// needs no memory for gradient accumulation. Smaller units come last: they help only beside all of these, and
// each is gathered on its own. next_level goes through all but the last two, which matter least.
enum {
    STAGES,
    RECOMPUTE,
    TIERS,
    SUB_GROUPS,
    BATCHES,
    ONE_MICRO_BATCH,
    ACCUMULATE,
    UNITS,
    GROUPS,
    COARSE,
    BUCKETS = COARSE,
    PREFETCH,
    CHANGES
};

// Combinations of tiers to try.
enum { TIER_OPTIONS = 3, MIXTURES = 12, SUB_GROUP_SIZES = 5 };
enum { DOUBLINGS = 32 };  // of the number of micro-batches

typedef struct {
    const zero_config *config;
    Options given;     // the requested options, with their effective values
    Options now;       // those of level 0 of every change
    long long tokens;  // per step
    Bytes room;        // available to a rank
    size_t process;    // the room leaves these bytes to the process (process_bytes)
    size_t more;       // bytes that the process needs in addition with the options of this level
    int level[CHANGES], levels[CHANGES];
    int tier_is_fixed[TIER_OPTIONS];
    int is_described;      // 1: the model's tables are the search's own
    int64_t bucket_elems;  // of the default bucket
    GPT2 model;            // with the options of this level
    // the plugin's memory, by what plugin_bytes_of_level chooses; 0 on the device: not planned yet
    Bytes plans[2 + MOST_RECOMPUTE][2][DOUBLINGS][SUB_GROUP_SIZES][MIXTURES][4];
} Search;

// Begins a search from the requested options towards less memory, which may change any option.
void search_from_request(Search *s, const GPT2 *model, const zero_config *config);
// Begins a search through all sets of options with the same results, -r and micro-batches apart, that keep
// what the user has set. Level 0 has the largest batch and all activations.
void search_all(Search *s, const GPT2 *model, const zero_config *config);
void search_end(Search *s);
// Advances to the next level. Returns 0 after the last, which is followed by the first.
int next_level(Search *s);
// Sets opt and s->model to this level. Returns the memory that a rank needs; so much that it fits nowhere if
// these options cannot be combined.
Bytes bytes_of_level(Search *s);
int is_possible(const Bytes *bytes);
// Returns the bytes available on a tier to a rank with the options of this level.
size_t room_on(const Search *s, int tier);
// Returns 0 if the memory fits; otherwise the most bytes that are missing on a tier, and which it is.
// SIZE_MAX: these options cannot be combined.
size_t missing(const Search *s, const Bytes *bytes, int *tier);
// Writes the options in opt that differ from the requested ones: " -r 3 --offload-optimizer nvme".
void write_changes(FILE *f, const Search *s);
// Writes " (2893 of 2996 MiB, 23912 MiB on NVMe)".
void write_bytes(FILE *f, const Search *s, const Bytes *bytes);

#endif
