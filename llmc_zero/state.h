// A model state: the parameters, the gradients, the master weights, the first or the second moment. Each has
// one dtype, lies in a store, and is opened and closed part by part: the part of one unit that belongs to one
// rank, or the whole unit where every rank keeps all of it; or elements of such a part.
//
//     state_part p;
//     ZERO_TRY(state_open(&p, s, COMPUTE, unit, part, STATE_READ));
//     ... work queued on COMPUTE reads p.at ...
//     ZERO_TRY(state_close(&p));
//
// The device's store hands out the memory itself, so opening is pointer arithmetic and closing does nothing.
// Other stores hand out copies (state_file.c: read from files; state_across.c: from the other side of the
// bus). What is going to be opened soon is therefore
// begun early: state_begin starts the copy, state_ready waits for it. Users keep to four rules, which
// tests/mpi_states.c checks with a store that punishes every breach:
//   - whoever touches a part has opened it, in the task that touches it, and closes it after the last access;
//   - nothing is written that was not opened for writing;
//   - no part is opened for writing while it is open for something else;
//   - no more is open at a time than the work at hand needs: the units in use, the units of one collective,
//     or all states of the one unit that is being updated.
#ifndef LLMC_ZERO_STATE_H
#define LLMC_ZERO_STATE_H
#include "device/device.h"
#include "layout.h"
#include "memory.h"
#include "store/file.h"
#include "zero.h"

enum { STATES = ZERO_GRADIENT + 1 };  // one for each zero_value
enum { STATE_WHOLE = -1 };            // in place of a part: the unit with all its parts

// STATE_WRITE: every tensor element is going to be written. What was there is lost, in the padding as well.
typedef enum { STATE_READ, STATE_WRITE, STATE_CHANGE } state_intent;

// Elements [from, from + elems) of a part.
typedef struct {
    int unit, part;
    int64_t from, elems;
} state_range;

typedef struct state state;
typedef struct {
    state *of;         // NULL: not open
    device_stream on;  // the stream whose work uses it; PROCESSOR: the host's own threads do
    state_range range;
    state_intent intent;
    char *into;  // where a copy goes that is only read: see state_begin
    char *at;    // the first element that is open, in memory of the device; for PROCESSOR, of the host
    struct across_block *block;  // of states that are copied across the bus
    struct file_buffer *buffer;  // of the files' store
    file_transfer transfer;
} state_part;

// Where a state lies. All return 0, or a negative error with the sentence set.
typedef struct {
    int (*create)(state *s, memory *m, const memory_request *planned);  // zeroed
    int (*begin)(state_part *p);
    int (*ready)(state_part *p);  // sets p->at
    int (*close)(state_part *p);
    void (*abandon)(state_part *p);  // after a failure, ready or not: what was written is lost
    int64_t (*span)(const state *s, state_range r);  // see state_span; NULL: all of it
    int (*on_host)(const state *s, state_range r);   // see state_on_host; NULL: never
    int reuses;  // 1: the memory of a part that is closed is soon used for another one
} state_store;

struct state {
    const char *name;  // as the memory table has it
    zero_dtype dtype;
    int kept;      // 0: this configuration does without, there is nothing to open
    int sharded;   // each rank keeps only its own part of every unit
    int own_only;  // each rank's own part is up to date, and only that
    int rank;
    const layout *layout;
    device *device;   // in whose memory parts are opened, unless for PROCESSOR
    device *updater;  // runs its AdamW
    const state_store *store;
    char *array;  // all of it on the device, each part at its offset; NULL: the store has no such array
    struct state_host *host;        // beside a device: what of it lies on the host's side (state_host.h)
    struct state_crossed *crossed;  // how it comes to the other side (state_across.h); NULL: it need not
    struct state_files *files;      // where the rest lies, if not all of it is on the device (state_file.h)
    int number;                     // which of their states it is
    int64_t piece;  // what can be opened at once ends at multiples of this, counted in the unit
};

// What a configuration makes of a state. The layout and the device must outlive it.
state state_of(zero_value what, const zero_config *c, const layout *l, int rank, device *d);
size_t state_bytes(const state *s);
// Returns 0 with the planned memory allocated, or at once if the state is not kept.
int state_create(state *s, memory *m, const memory_request *planned);
// For stores of states that lie elsewhere: allocates what is kept in memory, if there is any.
int state_create_kept(state *s, memory *m, const memory_request *planned);

// Returns 0: the range is on its way, and state_ready(p) comes next. part: a rank, or STATE_WHOLE; only the
// own rank's of a state that is sharded. Any thread may call it. p stays where it is until it is closed.
// on: PROCESSOR needs the host to have waited for the device's work that writes or reads the part.
// into: where the store may put the elements instead of into memory of its own, if they are only read: `on`
// may write there. Up to a page before and behind them is written over too. NULL: nowhere.
int state_begin(state_part *p, state *s, device_stream on, state_range r, state_intent intent, char *into);
// Returns 0 with p->at valid until state_close(p).
int state_ready(state_part *p);
// Both.
int state_open_range(state_part *p, state *s, device_stream on, state_range r, state_intent intent);
int state_open(state_part *p, state *s, device_stream on, int unit, int part, state_intent intent);
// The whole part.
state_range state_all(const state *s, int unit, int part);
// Returns how many elements of the range, from its first on, can be opened at once.
int64_t state_span(const state *s, state_range r);
// Returns 1 if the range lies on the host's side of the bus, so that PROCESSOR opens it without a copy.
int state_on_host(const state *s, state_range r);
// Returns 0. Work queued on p->on before this call may still be using the part. Does nothing if p is not
// open.
int state_close(state_part *p);
// Closes n parts, or after a failure gives them up: rc is returned if it is not 0, else the first error of
// closing.
int state_close_after(int rc, state_part *parts, int n);

// What this rank holds of each unit: STATE_WHOLE or its rank.
static inline int state_held(const state *s) { return s->sharded ? s->rank : STATE_WHOLE; }
// This rank's part inside an open one, which is that part or the whole unit.
char *state_own(const state_part *p);
// The elements of the unit before the part; 0 for STATE_WHOLE.
int64_t state_before(const state *s, int unit, int part);
// Of elements [begin, begin + count) of the unit those that are in `part`: *n of them, from *from on, counted
// inside the part. *n = 0: none.
void state_intersect(const state *s, int unit, int part, int64_t begin, int64_t count, int64_t *from,
                     int64_t *n);

// Elements of a part as fp32 on the host, and back; done when they return. on: the stream that they are
// opened for, unless they lie on the host. staging: of VALUES_CHUNK elements of fp32, on a device whose
// memory the host cannot read.
enum { VALUES_CHUNK = 1 << 16 };
int state_read(state *s, device_stream on, state_range r, float *values, void *staging);
int state_write(state *s, device_stream on, state_range r, state_intent intent, const float *values,
                void *staging);

extern const state_store state_on_device;
extern const state_store *state_default_store;  // for tests to set before zero_create

#endif
