#include "door.h"
#include <errno.h>

// Returns the place of the stranger that arrived first, or with `empty` the first free place; NULL: none.
static contact *find_place(const door *d, int empty) {
    contact *first = NULL;
    for (int i = 0; i < d->most; i++) {
        contact *c = &d->strangers[i];
        if ((c->fd < 0) == empty && (!first || c->number < first->number)) first = c;
    }
    return first;
}

int door_is_full(int rc) { return rc == -EMFILE || rc == -ENFILE; }

int door_drop_first(door *d) {
    contact *first = find_place(d, 0);
    if (first) contact_close(first);
    return first != NULL;
}

static int greet(const door *d, const party *p, contact *c) {
    net_address from;
    ZERO_TRY(net_other_end(c->fd, &from));
    if (d->is_local && !net_is_loopback(&from)) return -EACCES;
    ZERO_TRY(net_await(c->fd, sizeof(seat)));
    return contact_challenge(p, c);
}

static void let_in(door *d, const party *p, int fd) {
    if (!find_place(d, 1)) door_drop_first(d);
    contact *c = find_place(d, 1);
    *c = (contact){ .fd = fd, .number = d->came++ };
    if (greet(d, p, c)) contact_close(c);
}

int door_let_in(door *d, const party *p) {
    for (int i = 0; i < d->most / 4; i++) {
        int fd = net_accept(d->listener);
        if (fd >= 0)
            let_in(d, p, fd);
        else if (!door_is_full(fd) || !door_drop_first(d))
            return fd == -EAGAIN ? 0 : fd;
    }
    return 0;
}

void door_turn_away(door *d, const party *p, contact *stranger) {
    net_address from = { .v6 = { 0 } };
    head h;
    d->refused++;
    net_other_end(stranger->fd, &from);
    net_text(&from, d->last);
    contact_say(p, stranger, NO_KEY, &h, 1, sizeof h);  // the stranger may be gone
    contact_close(stranger);
}
