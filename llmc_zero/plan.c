// Memory and traffic by formula, from the settings and the tables alone.
#include "internal.h"
#include <math.h>

size_t zero_states_bytes(const zero_config *c, int64_t parameters, int ranks, int stage) {
    int mixed = c->numbers.dtype != ZERO_F32, sums = c->micro_batches > 1;
    double psi = (double)parameters, n = ranks;
    double params = mixed ? 2 : 4, grads = sums || !mixed ? 4 : 2,
           optimizer = mixed && !c->numbers.no_master ? 12 : 8;  // bytes a parameter
    return (size_t)ceil(psi * (params / (stage == 3 ? n : 1) + grads / (stage >= 2 ? n : 1) +
                               optimizer / (stage >= 1 ? n : 1)));
}

size_t zero_states_formula(const zero *z, int stage) {
    return zero_states_bytes(&z->config, z->layout.elems, z->comm.ranks, stage);
}

// How often stage 3 gathers a unit in a micro-batch: at each use that reads it, but once for the last forward
// use and the backward use that follows it. The tables do not say where a unit's further uses stand: forward
// is taken to end with the unit that is used again (tied weights), else with the table's last.
static int gathers_per_pass(const layout *l, int unit) {
    const layout_unit *u = &l->units[unit];
    int last = l->n_units - 1;
    for (int i = l->n_units - 1; i >= 0; i--)
        if (l->units[i].forward_uses > 1) last = i;
    return u->forward_uses + u->reading_uses - (unit == last && u->reading_uses > 0);
}

zero_step_traffic zero_expected_traffic(const zero *z, int micro_batches) {
    const layout *l = &z->layout;
    int stage = z->config.stage;
    int64_t low = dtype_bytes(z->config.numbers.dtype), sum = dtype_bytes(grad_type(z)),
            wire = dtype_bytes(wire_type(z)), others = z->comm.ranks - 1;
    zero_step_traffic t = { 0, 0 };
    for (int i = 0; i < l->n_units; i++) {
        int64_t elems = l->units[i].shard * others;
        t.reduce_scatter += elems * wire * (stage < 2 ? 1 : micro_batches);
        t.all_gather += stage == 0  ? elems * sum
                        : stage < 3 ? elems * low
                                    : elems * low * micro_batches * gathers_per_pass(l, i);
    }
    return t;
}
