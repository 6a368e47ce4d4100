#include "contact.h"
#include "../base/clock.h"
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// A head starts with the same four numbers in every version of the protocol.
enum { MAGIC = 0x4c5a5256, PROTOCOL = 7 };
static const double most_left_s = 1e7;  // maximum of seat.left_s

// -------- the secret: libsodium's keyed BLAKE2b

int secret_draw(void *bytes, size_t n) {
    if (sodium_init() < 0)
        return zero_fail(ZERO_ERR_COMM, "libsodium does not start, so ranks cannot authenticate");
    randombytes_buf(bytes, n);
    return 0;
}

secret secret_add(secret s, const void *bytes, size_t n) {
    secret both = { { 0 } };
    // fails only for lengths out of range
    (void)!crypto_generichash(both.bytes, sizeof both.bytes, bytes, n, s.bytes, sizeof s.bytes);
    return both;
}

// Returns the key for messages from rank `from` to rank `to`.
static secret key_of(const party *p, int from, int to, nonce of_from, nonce of_to) {
    const struct {
        int32_t from, to;
        nonce of_from, of_to;
    } all = { from, to, of_from, of_to };
    return secret_add(p->secret, &all, sizeof all);
}

void contact_make_keys(const party *p, contact *c, int other, nonce theirs) {
    c->out = key_of(p, p->rank, other, c->nonce, theirs);
    c->in = key_of(p, other, p->rank, theirs, c->nonce);
}

static int is_sealed(head *h, secret key) {
    secret given = h->tag;
    h->tag = (secret){ { 0 } };
    secret right = secret_add(key, h, sizeof *h + h->bytes);
    return !crypto_verify_32(given.bytes, right.bytes);  // in constant time
}

// -------- messages

int contact_say(const contact *c, int kind, head *first, int n, size_t bytes) {
    int is_tagged = kind >= HELLO;
    for (int i = 0; i < n; i++) {
        head *h = (head *)((char *)first + (size_t)i * bytes);
        *h = (head){ MAGIC, (uint32_t)kind, (uint32_t)(bytes - sizeof *h), PROTOCOL, c->nonce, { { 0 } } };
        if (is_tagged) h->tag = secret_add(c->out, h, bytes);
    }
    return net_write(c->fd, first, (size_t)n * bytes, is_tagged ? clock_now() + ANSWER_S : 0);
}

int contact_report(const contact *c, const char *text) {
    words w = { .text = "" };
    snprintf(w.text, sizeof w.text, "%s", text);
    return contact_say(c, REPORT, &w.h, 1, sizeof w);
}

// Reads the head in pieces, because a different program may send less than a whole head.
static int receive(message *in, int fd, double until) {
    static const size_t sizes[] = { 0, sizeof(head), sizeof(head), sizeof(seat), sizeof(words) };
    head *h = &in->h;
    memset(in, 0, sizeof *in);
    ZERO_TRY(net_read(fd, &h->magic, sizeof h->magic, until));
    if (h->magic != MAGIC) return -EPROTO;
    ZERO_TRY(net_read(fd, &h->kind, 3 * sizeof h->kind, until));
    if (h->protocol != PROTOCOL) return -EPROTONOSUPPORT;
    if (h->kind > REPORT || sizeof *h + h->bytes != sizes[h->kind]) return -EBADMSG;
    return net_read(fd, &h->nonce, sizes[h->kind] - offsetof(head, nonce), until);
}

static int answer(party *p, contact *c) {
    if (p->in.h.kind != CHALLENGE) return -EPROTO;
    if (secret_draw(&c->nonce, sizeof c->nonce)) return -EIO;
    contact_make_keys(p, c, c->rank, p->in.h.nonce);
    c->state = ANSWERED;
    return 0;
}

// Makes the texts of a seat safe to print. Returns 0 for values that no rank sends.
static int is_sound(seat *s) {
    zero_plain(s->host, sizeof s->host);
    zero_plain(s->version, sizeof s->version);
    int has_time = s->left_s > -most_left_s && s->left_s < most_left_s;  // also rejects NaN
    return has_time && s->pid > 0 && s->port > 0 && s->port <= UINT16_MAX;
}

int contact_hear(party *p, contact *c, double until) {
    message *in = &p->in;
    ZERO_TRY(receive(in, c->fd, until));
    int is_seat = in->h.kind == HELLO;
    if (in->h.kind == NO_KEY) return -EACCES;
    if (c->state == CALLED) return answer(p, c);
    if (in->h.kind < HELLO || (c->state == CHALLENGED && !is_seat)) return -EBADMSG;
    if (c->state == CHALLENGED) contact_make_keys(p, c, in->seat.rank, in->h.nonce);
    if (!is_sealed(&in->h, c->in)) return -EACCES;
    if (is_seat && !is_sound(&in->seat)) return -EBADMSG;
    if (is_seat)
        c->state = MET;
    else
        zero_plain(in->words.text, sizeof in->words.text);
    return 0;
}

void contact_close(contact *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
}

// -------- strangers

int strangers_drop(party *p) {
    for (int i = 0; i < p->most; i++) {
        contact *c = &p->strangers[(p->came + (uint64_t)i) % (uint64_t)p->most];
        if (c->fd < 0) continue;
        contact_close(c);
        return 1;
    }
    return 0;
}

static int challenge(const party *p, contact *c) {
    net_address from;
    head h;
    ZERO_TRY(net_other_end(c->fd, &from));
    if (p->is_local && !net_is_loopback(&from)) return -EACCES;
    ZERO_TRY(net_await(c->fd, sizeof(seat)));
    if (secret_draw(&c->nonce, sizeof c->nonce)) return -EIO;
    return contact_say(c, CHALLENGE, &h, 1, sizeof h);
}

int strangers_let_in(party *p) {
    for (int i = 0; i < p->most / 4; i++) {
        int fd = net_accept(p->listener);
        if (fd < 0 && net_is_out_of_files(fd) && strangers_drop(p)) continue;
        if (fd < 0) return fd == -EAGAIN ? 0 : fd;
        for (int k = 0; k < p->most && p->strangers[p->came % (uint64_t)p->most].fd >= 0; k++) p->came++;
        contact *c = &p->strangers[p->came++ % (uint64_t)p->most];  // free, or the oldest stranger's
        contact_close(c);
        *c = (contact){ .fd = fd, .state = CHALLENGED };
        if (challenge(p, c)) contact_close(c);
    }
    return 0;
}

void strangers_turn_away(party *p, contact *stranger) {
    net_address from = { .v6 = { 0 } };
    head h;
    p->refused++;
    net_other_end(stranger->fd, &from);
    net_text(&from, p->last);
    contact_say(stranger, NO_KEY, &h, 1, sizeof h);  // the stranger may be gone
    contact_close(stranger);
}
