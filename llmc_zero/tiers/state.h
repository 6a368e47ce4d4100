// A model state: the parameters, the gradients, the master weights, or the first or second moment. Each has
// one dtype, resides in a store, and is opened and closed in parts. A part is one rank's part of a unit, or
// all that this rank keeps of it, or a range of elements of either.
//
//     state_part p;
//     ZERO_TRY(state_open(&p, s, COMPUTE, unit, part, STATE_READ));
//     ... work queued on COMPUTE reads p.at ...
//     ZERO_TRY(state_close(&p));
//
// The store in memory returns pointers into it, so opening is pointer arithmetic and closing does nothing.
// Other stores return copies, from files (state_file.c) or across the bus (state_across.c), so callers begin
// early: state_begin starts the copy, state_ready waits for it. tests/mpi_bits.c enforces four rules with a
// store that fails if one is broken:
//   - a part is opened in the task that accesses it, before the first access, and closed after the last;
//   - only parts opened for writing are written;
//   - no part is opened for writing while it is open elsewhere;
//   - only what the current work needs is open: the units in use, the units of one collective,
//     or all states of the one unit that is being updated.
#ifndef LLMC_ZERO_TIERS_STATE_H
#define LLMC_ZERO_TIERS_STATE_H
#include "../device/device.h"
#include "../layout.h"
#include "../base/memory.h"
#include "file.h"
#include "../zero.h"

enum { STATES = ZERO_GRADIENT + 1 };  // one for each zero_value
enum { STATE_WHOLE = -1 };            // instead of a part number: all parts that this rank keeps

// STATE_WRITE: the caller writes every element of the tensors; the old contents, even padding, are lost.
typedef enum { STATE_READ, STATE_WRITE, STATE_CHANGE } state_intent;

// Elements [from, from + elems) of a part.
typedef struct {
    int unit, part;
    int64_t from, elems;
} state_range;

typedef struct {
    int64_t read, written;  // bytes from and to files
} state_moved;

typedef struct state state;
typedef struct {
    state *of;         // NULL: not open
    device_stream on;  // the stream that uses it; PROCESSOR: the CPU
    state_range range;
    state_intent intent;
    char *into;                  // destination of a read-only copy: see state_begin
    state_moved *moved;          // where its bytes count; NULL: with those of the steps
    char *at;                    // the first open element, in device memory or, for PROCESSOR, in host memory
    struct across_block *block;  // for states copied across the bus
    struct file_buffer *buffer;  // for states in files
    file_transfer transfer;
} state_part;

// A store. Its functions return 0, or a negative error.
typedef struct {
    int (*create)(state *s, memory *m, const memory_request *planned);  // zeroed
    int (*begin)(state_part *p);
    int (*ready)(state_part *p);  // sets p->at
    int (*close)(state_part *p);
    void (*abandon)(state_part *p);  // after a failure, whether ready or not: writes are lost
    int reuses;                      // 1: the memory of a closed part is soon reused for another part
} state_store;

// The first elements of each part that a rank keeps may be away: in files or, with a GPU, in host memory
// (ZeRO-Offload, Ren et al. 2021, arXiv 2101.06840). The rest is in the state's own array.
typedef struct {
    int64_t away;    // elements of a part
    int64_t region;  // their byte offset in the files or in state.away
    int64_t gone;    // number of elements away in this and all previous units, of all parts
} state_split;

struct state {
    const char *name;  // in the memory table
    zero_value what;
    zero_dtype dtype;
    int kept;      // 0: this configuration has no such state
    int sharded;   // 1: a rank keeps only some parts of every unit
    int group;     // it keeps every group-th one, its own included; 1: all; as many as ranks: only its own
    int own_only;  // 1: only this rank's own part is up to date
    int rank;
    const layout *layout;
    device *device;  // parts are opened in its memory, except for PROCESSOR
    const state_store *store;
    char *array;                    // on the device, with each part at its offset; NULL: the store has none
    state_split *units;             // by unit; NULL: nothing is away
    char *away;                     // pinned host memory; NULL: nothing is away, or it is in files
    int kept_on_host;               // 1: with a GPU, `array` is in host memory too (offload.params_in_host)
    struct state_crossed *crossed;  // how it is copied across the bus (state_across.h); NULL: it is not
    struct state_files *files;      // of the elements that are away (state_file.h); NULL: none are in files
    int64_t piece;                  // elements of a piece (placement_piece_elems)
};

// Returns the state that a configuration defines. The layout and the device must outlive it.
state state_of(zero_value what, const zero_config *c, const layout *l, int rank, device *d);
// Returns the number of units that have the state: frozen ones have parameters only.
static inline int state_units(const state *s) {
    return s->what == ZERO_PARAM ? s->layout->n_stored : s->layout->n_units;
}
size_t state_bytes(const state *s);
// Fills s->units (n_units), with regions in s->away.
int state_split_units(state *s, const zero_config *c, memory *m, int n_units);
// Allocates the planned memory. Does nothing if the state is not kept.
int state_create(state *s, memory *m, const memory_request *planned);
// Allocates s->array if it is planned.
int state_create_kept(state *s, memory *m, const memory_request *planned);
char *state_kept_at(const state *s, state_range r);  // in s->array

// Starts opening the range; state_ready(p) completes it. Any thread may call it. p->moved is set; p must stay
// at its address until it is closed. r.part: a rank (for a sharded state, only this rank), or STATE_WHOLE.
// on: if PROCESSOR, the host must have waited for the device's work on the part. into: memory that `on` may
// write. The store may copy a read-only range there instead of into its own memory, and then also overwrites
// up to a page before and after it. NULL: it must not.
int state_begin(state_part *p, state *s, device_stream on, state_range r, state_intent intent, char *into);
// Returns 0 when the part is open; p->at is then valid until state_close(p).
int state_ready(state_part *p);
// state_begin and state_ready.
int state_open_range(state_part *p, state *s, device_stream on, state_range r, state_intent intent);
int state_open(state_part *p, state *s, device_stream on, int unit, int part, state_intent intent);
state_range state_all(const state *s, int unit, int part);
// Returns how many elements from the start of the range can be opened together.
int64_t state_span(const state *s, state_range r);
// Returns 1 if the range is on the host's side of the bus, so that PROCESSOR can open it without a copy.
int state_on_host(const state *s, state_range r);
// Closes the part; work queued on p->on before this call may still use it. Does nothing if p is not open.
int state_close(state_part *p);
// Closes n parts, or abandons them if rc is an error. Returns rc or, if rc is 0, the first error of closing.
int state_close_after(int rc, state_part *parts, int n);

// Returns the number of parts of each unit that this rank keeps, and the first of them.
static inline int state_parts(const state *s) { return s->layout->ranks / s->group; }
static inline int state_first_part(const state *s) { return s->rank % s->group; }
// Returns all that this rank keeps of a unit: STATE_WHOLE or, if that is only its own part, its rank.
static inline int state_held(const state *s) {
    return s->sharded && state_parts(s) == 1 ? s->rank : STATE_WHOLE;
}
// Returns the address of this rank's part within p, which is open and covers that part.
char *state_own(const state_part *p);
// Returns the number of elements of the unit before the part; 0 for STATE_WHOLE.
int64_t state_before(const state *s, int unit, int part);
// Intersects the unit's elements [begin, begin + count) with `part`: *n elements from the part's *from on.
void state_intersect(const state *s, int unit, int part, int64_t begin, int64_t count, int64_t *from,
                     int64_t *n);

// Copies elements of a part to `read` or from `written`, fp32 on the host, and waits; the other one is NULL.
// on: the stream that opens them, unless they are on the host. staging: VALUES_CHUNK fp32 elements, needed if
// the host cannot read device memory. moved: where the bytes of files count.
enum { VALUES_CHUNK = 1 << 16 };
int state_move(state *s, device_stream on, state_range r, state_intent intent, float *read,
               const float *written, void *staging, state_moved *moved);

extern const state_store state_in_memory;
extern const state_store *state_default_store;  // for tests to set before zero_create

#endif
