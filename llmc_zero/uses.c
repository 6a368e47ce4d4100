#include "uses.h"
#include "internal.h"

int uses_closed(const zero *z, const char *caller) {
    for (int i = 0; i < z->layout.n_units; i++)
        if (z->units[i].forward_open || z->units[i].backward_open)
            return zero_fail(ZERO_ERR_MISUSE, "%s: unit %d (%s) is still open", caller, i,
                             z->layout.units[i].name);
    return 0;
}

int uses_done(const zero *z, const char *caller) {
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

int uses_may_train(const zero *z, const char *caller) {
    if (!z->config.inference) return 0;
    return zero_fail(ZERO_ERR_MISUSE, "%s: with inference 1 the plugin holds parameters and nothing else",
                     caller);
}

int uses_outside_step(const zero *z, const char *caller) {
    if (z->begun)
        return zero_fail(ZERO_ERR_MISUSE, "%s: inside a training step; finish the step first", caller);
    return uses_closed(z, caller);
}
