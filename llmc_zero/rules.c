// The rules of use that several callers check.
#include "internal.h"

int check_closed(const zero *z, const char *caller) {
    for (int i = 0; i < z->layout.n_units; i++)
        if (z->units[i].forward_open || z->units[i].backward_open)
            return zero_fail(ZERO_ERR_MISUSE, "%s: unit %d (%s) is still open", caller, i,
                             z->layout.units[i].name);
    return 0;
}

int check_uses_done(const zero *z, const char *caller) {
    for (int i = 0; i < z->layout.n_units; i++) {
        const layout_unit *l = &z->layout.units[i];
        const unit_state *u = &z->units[i];
        int forward = u->forward_done < l->forward_uses;
        if (forward || u->backward_done < l->backward_uses)
            return zero_fail(ZERO_ERR_MISUSE, "%s: unit %d (%s) has finished %d of its %d %s uses", caller, i,
                             l->name, forward ? u->forward_done : u->backward_done,
                             forward ? l->forward_uses : l->backward_uses, forward ? "forward" : "backward");
    }
    return 0;
}

const layout_place *find_place(const zero *z, int tensor, int layer) {
    const layout_place *p = layout_find(&z->layout, tensor, layer);
    if (p) return p;
    if (tensor < 0 || tensor >= z->layout.n_tensors)
        zero_fail(ZERO_ERR_MISUSE, "tensor %d: there are tensors 0 to %d", tensor, z->layout.n_tensors - 1);
    else
        zero_fail(ZERO_ERR_MISUSE, "tensor %s has no layer %d, only 0 to %d", z->layout.tensors[tensor].name,
                  layer, z->layout.tensors[tensor].layers - 1);
    return NULL;
}
