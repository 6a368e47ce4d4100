// A model state: the parameters, the gradients, the master weights, the first or the second moment. Each has
// one dtype, lies in a store, and is opened and closed part by part: the part of one unit that belongs to one
// rank, or the whole unit where every rank keeps all of it.
//
//     state_part p;
//     ZERO_TRY(state_open(&p, s, COMPUTE, unit, part, STATE_READ));
//     ... work queued on COMPUTE reads p.at ...
//     ZERO_TRY(state_close(&p));
//
// The device's store hands out the memory itself, so opening is pointer arithmetic and closing does nothing.
// Another store may hand out copies. Its users therefore keep to four rules, which tests/mpi_states.c checks
// with a store that punishes every breach:
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
#include "zero.h"

enum { STATES = ZERO_GRADIENT + 1 };  // one for each zero_value
enum { STATE_WHOLE = -1 };            // in place of a part: the unit with all its parts

// STATE_WRITE: every tensor element is going to be written. What was there is lost, in the padding as well.
typedef enum { STATE_READ, STATE_WRITE, STATE_CHANGE } state_intent;

typedef struct state state;
typedef struct {
    state *of;         // NULL: not open
    device_stream on;  // the stream whose work uses it
    int unit, part;
    state_intent intent;
    char *at;  // its first element, in memory of the device
} state_part;

// Where a state lies. All return 0, or a negative error with the sentence set.
typedef struct {
    int (*create)(state *s, memory *m, const memory_request *planned);  // zeroed
    int (*open)(state_part *p);                                         // sets p->at
    int (*close)(state_part *p);
} state_store;

struct state {
    const char *name;  // as the memory table has it
    zero_dtype dtype;
    int kept;      // 0: this configuration does without, there is nothing to open
    int sharded;   // each rank keeps only its own part of every unit
    int own_only;  // each rank's own part is up to date, and only that
    int rank;
    const layout *layout;
    device *device;   // in whose memory parts are opened
    device *updater;  // runs its AdamW
    const state_store *store;
    char *array;  // all of it on the device, each part at its offset; NULL: the store has no such array
};

// What a configuration makes of a state. The layout and the device must outlive it.
state state_of(zero_value what, const zero_config *c, const layout *l, int rank, device *d);
size_t state_bytes(const state *s);
// Returns 0 with the planned memory allocated, or at once if the state is not kept.
int state_create(state *s, memory *m, const memory_request *planned);

// Returns 0 with p->at valid until state_close(p). part: a rank, or STATE_WHOLE; only the own rank's of a
// state that is sharded. Any thread may call it.
int state_open(state_part *p, state *s, device_stream on, int unit, int part, state_intent intent);
// Returns 0. Work queued on p->on before this call may still be using the part. Does nothing if p is not
// open.
int state_close(state_part *p);
// Closes n parts. Returns rc if it is not 0, else the first error of closing.
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

// n elements from element `at` of an open part on as fp32 on the host, and back; done when they return.
// staging: of VALUES_CHUNK elements of fp32, on a device whose memory the host cannot read.
enum { VALUES_CHUNK = 1 << 16 };
int state_read(const state_part *p, int64_t at, int64_t n, float *values, void *staging);
int state_write(const state_part *p, int64_t at, int64_t n, const float *values, void *staging);

extern const state_store state_on_device;
extern const state_store *state_default_store;  // for tests to set before zero_create

#endif
