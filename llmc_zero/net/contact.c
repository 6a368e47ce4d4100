#include "contact.h"
#include "../base/clock.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAGIC = 0x4c5a5256, PROTOCOL = 6 };
static const double most_left_s = 1e7;  // the most that a rank may claim to have left

// Key for messages from rank `from` to rank `to`.
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

// -------- sending

int contact_say(const party *p, const contact *c, int kind, head *first, int n, size_t bytes) {
    int is_stranger = kind < HELLO;
    for (int i = 0; i < n; i++) {
        head *h = (head *)((char *)first + (size_t)i * bytes);
        *h = (head){ MAGIC, (uint32_t)kind, (uint32_t)(bytes - sizeof *h), PROTOCOL, 0, c->nonce, { { 0 } } };
        if (is_stranger) continue;
        h->run = p->run;
        h->tag = secret_add(c->out, h, bytes);
    }
    return net_write(c->fd, first, (size_t)n * bytes, is_stranger ? 0 : clock_now() + ANSWER_S);
}

int contact_say_words(const party *p, const contact *c, int kind, const char *text) {
    words w = { .text = "" };
    int length = snprintf(w.text, sizeof w.text, "%s", text);
    return contact_say(p, c, kind, &w.h, 1, sizeof w.h + (size_t)length + 1);
}

int contact_challenge(const party *p, contact *c) {
    head h;
    c->state = CHALLENGED;
    if (secret_draw(&c->nonce, sizeof c->nonce)) return -EIO;
    return contact_say(p, c, CHALLENGE, &h, 1, sizeof h);
}

// -------- receiving

// Another program may send less than a head.
static int receive(message *in, int fd, double until) {
    head *h = &in->h;
    memset(in, 0, sizeof *in);
    ZERO_TRY(net_read(fd, &h->magic, sizeof h->magic, until));
    if (h->magic != MAGIC) return -EPROTO;
    ZERO_TRY(net_read(fd, &h->kind, 3 * sizeof h->kind, until));
    if (h->protocol != PROTOCOL) return -EPROTONOSUPPORT;
    if (h->bytes > SENTENCE) return -EBADMSG;
    ZERO_TRY(net_read(fd, &h->run, sizeof *h - offsetof(head, run), until));
    return net_read(fd, h + 1, h->bytes, until);
}

static int answer(party *p, contact *c) {
    const head *h = &p->in.h;
    if (h->kind != CHALLENGE || h->bytes) return -EPROTO;
    if (secret_draw(&c->nonce, sizeof c->nonce)) return -EIO;
    contact_make_keys(p, c, c->rank, h->nonce);
    c->state = ANSWERED;
    return 0;
}

static int is_sealed(head *h, secret key) {
    secret given = h->tag;
    h->tag = (secret){ { 0 } };
    return secret_is_same(given, secret_add(key, h, sizeof *h + h->bytes));
}

// Makes the texts of a seat safe to print. Returns 0 for values that no rank sends.
static int is_sound(seat *s) {
    zero_plain(s->host, sizeof s->host);
    zero_plain(s->version, sizeof s->version);
    int has_time = s->left_s > -most_left_s && s->left_s < most_left_s;  // false for NaN
    return has_time && s->pid > 0 && s->port > 0 && s->port <= UINT16_MAX;
}

int contact_hear(party *p, contact *c, double until) {
    message *in = &p->in;
    ZERO_TRY(receive(in, c->fd, until));
    int is_seat = in->h.kind == HELLO && in->h.bytes == sizeof(seat) - sizeof(head);
    if (in->h.kind == NO_KEY) return -EACCES;
    if (c->state == CALLED) return answer(p, c);
    if (in->h.kind < HELLO) return -EBADMSG;
    if ((in->h.kind == HELLO || c->state == CHALLENGED) && !is_seat) return -EBADMSG;
    if (c->state == CHALLENGED) contact_make_keys(p, c, in->seat.rank, in->h.nonce);
    if (!is_sealed(&in->h, c->in)) return -EACCES;
    if (!is_seat) {
        zero_plain(in->words.text, sizeof in->words.text);
        return 0;
    }
    if (!is_sound(&in->seat)) return -EBADMSG;
    c->state = MET;
    return 0;
}

void contact_close(contact *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
}
