#include "late.h"
#include "../error.h"
#include <stdio.h>
#include <string.h>

double comm_waited(comm_patience *p) {
    enum { LOOKS_PER_S = 5 };  // at least, of a process that is not stopped
    double now = comm_now(), since = now - p->last;
    p->last = now;
    return p->waited += since < 1.0 / LOOKS_PER_S ? since : 1.0 / LOOKS_PER_S;
}

const char *comm_exchange_name(comm_exchange x) {
    static const char *const names[] = { [EXCHANGE_SCATTER] = "a reduce-scatter",
                                         [EXCHANGE_GATHER] = "an all-gather",
                                         [EXCHANGE_ROOT] = "a broadcast",
                                         [EXCHANGE_BARRIER] = "a barrier" };
    return names[x];
}

const char *comm_units(const comm_use *use, char text[COMM_UNITS]) {
    const char *format = use->units > 1 ? "units %d to %d" : "unit %d";
    snprintf(text, COMM_UNITS, format, use->unit, use->unit + use->units - 1);
    return text;
}

const char *comm_where(const comm *c, comm_exchange x, char text[COMM_WHERE]) {
    char units[COMM_UNITS];
    const char *name = c->part_of ? c->part_of : comm_exchange_name(x);
    if (x == EXCHANGE_BARRIER && !c->part_of)
        snprintf(text, COMM_WHERE, "%s", name);
    else if (!c->use.units)
        snprintf(text, COMM_WHERE, "%s of scalars", name);
    else
        snprintf(text, COMM_WHERE, "%s of %s", name, comm_units(&c->use, units));
    return text;
}

// Most often one of the first ranks fails too, and ends the others; a job of a thousand is not to wait
// minutes for that.
double comm_turn_s(int before) { return before < 15 ? before * 0.2 : 3 + (before - 15) * 5e-3; }

const char *comm_host(const comm *c, int rank) {
    return c->hosts && *c->hosts[rank] ? c->hosts[rank] : "unknown";
}

const char *comm_list(const comm *c, const char *chosen, char list[COMM_LIST]) {
    int more = 0;
    *list = 0;
    for (int r = 0; r < c->ranks; r++) {
        size_t used = strlen(list);
        if (!chosen[r]) continue;
        if (used > COMM_LIST - 110)
            more++;
        else
            snprintf(list + used, COMM_LIST - used, "%srank %d (host %s)", used ? ", " : "", r,
                     comm_host(c, r));
    }
    size_t used = strlen(list);
    if (more) snprintf(list + used, COMM_LIST - used, " and %d more", more);
    return list;
}

int comm_fail_late(const comm *c, comm_exchange x, const char *missing) {
    char list[COMM_LIST], in[COMM_WHERE];
    return zero_fail(
        ZERO_ERR_COMM,
        "rank %d (host %s) waited %.3g s in %s for %s: stuck, gone, or calls the hooks in another order",
        c->rank, comm_host(c, c->rank), c->timeout_s, comm_where(c, x, in), comm_list(c, missing, list));
}
