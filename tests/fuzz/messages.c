// Messages on a connection during startup: from a stranger, from the rank to which this one connects, and
// from a rank that lies but knows the secret. For the third kind, the target corrects the tags.
#include "../../llmc_zero/net/contact.h"
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "fuzz.h"

enum { STATES = MET + 1 };

// An input: the contact's state, then a complete message from rank 1 to rank 0.
typedef struct {
    uint64_t state;
    seat seat;
} greeting;

static void give_seeds(void) {
    const head h = { 0x4c5a5256, HELLO, sizeof(seat) - sizeof h, 7, { { 1 } }, { { 0 } } };
    greeting g = { MET, { .h = h, .left_s = 5, .rank = 1, .ranks = 2, .pid = 12, .port = 345, .host = "a" } };
    words w = { .h = h, .text = "" };
    char report[sizeof g.state + sizeof w];
    FUZZ_MUST(!secret_draw(&g.seat.h.nonce, sizeof g.seat.h.nonce));
    fuzz_seed("hello of a rank", &g, sizeof g);
    g.state = CHALLENGED;
    fuzz_seed("hello of a stranger", &g, sizeof g);
    g.state = CALLED;
    g.seat.h.kind = CHALLENGE;
    g.seat.h.bytes = 0;
    fuzz_seed("challenge", &g, offsetof(greeting, seat) + sizeof(head));
    g.state = MET;
    w.h.kind = REPORT;
    w.h.bytes = sizeof w - sizeof w.h;
    memcpy(report, &g.state, sizeof g.state);
    memcpy(report + sizeof g.state, &w, sizeof w);
    fuzz_seed("report", report, sizeof report);
}

// Seals the bytes as a rank that knows the secret would.
static void seal(const party *p, contact *c, uint8_t *bytes, size_t n) {
    contact other = { .nonce = { { 1 } } };
    head *h = (head *)bytes;
    if (n < sizeof *h || h->bytes != n - sizeof *h) return;
    int rank = n == sizeof(seat) ? ((seat *)bytes)->rank : 1;
    contact_make_keys(&(party){ .rank = rank, .secret = p->secret }, &other, 0, c->nonce);
    contact_make_keys(p, c, rank, other.nonce);
    h->nonce = other.nonce;
    h->tag = (secret){ { 0 } };
    h->tag = secret_add(other.out, bytes, n);
}

static int read_messages(const uint8_t *bytes, size_t n) {
    int ends[2];
    party p = { .rank = 0 };
    contact c = { .rank = 1 };
    uint64_t state = 0;
    if (n < sizeof state || n > 4096) return 0;
    memcpy(&state, bytes, sizeof state);
    n -= sizeof state;
    uint8_t *text = malloc(n + 1);
    FUZZ_MUST(text && !socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends));
    memcpy(text, bytes + sizeof state, n);
    c.state = (contact_state)(state % STATES);
    c.fd = ends[0];
    if (c.state != CALLED) seal(&p, &c, text, n);
    FUZZ_MUST(!net_write(ends[1], text, n, 0));
    contact_state before = c.state;
    int rc = contact_hear(&p, &c, 0);
    free(text);
    close(ends[1]);
    contact_close(&c);
    if (rc) return 0;
    if (p.in.h.kind == HELLO) {
        FUZZ_MUST(c.state == MET && p.in.seat.pid > 0 && p.in.seat.port > 0 && p.in.seat.port <= 65535);
        FUZZ_MUST(memchr(p.in.seat.host, 0, sizeof p.in.seat.host));
        FUZZ_MUST(memchr(p.in.seat.version, 0, sizeof p.in.seat.version));
        FUZZ_MUST(p.in.seat.left_s > -1e7 && p.in.seat.left_s < 1e7);
    } else {
        FUZZ_MUST(before != CHALLENGED && (before == CALLED) == (p.in.h.kind == CHALLENGE));
        FUZZ_MUST(memchr(p.in.words.text, 0, sizeof p.in.words.text));
    }
    return 1;
}

const fuzz_target fuzz_messages = { .name = "messages", .seeds = give_seeds, .read = read_messages };
