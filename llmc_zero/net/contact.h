// A connection during startup: its messages, the proof that the other side knows the job's secret, and
// strangers, which have not proved it yet.
//
//   CHALLENGE  listening side: a nonce
//   NO_KEY     listening side: the HELLO does not prove that its sender knows the secret
//   HELLO      connecting side: its seat and a nonce; then listening side: its seat. Both sides are now
//              proven. Rank 0 later sends all seats
//   REPORT     from rank r to rank 0, then from rank 0 to all: all are connected, or an error message
//
// The key of a message's tag depends on the secret, on sender and receiver, and on both nonces, so a recorded
// message can be neither replayed on another connection nor reflected on the same one. Strangers learn
// nothing, and no rank waits for them.
#ifndef LLMC_ZERO_NET_CONTACT_H
#define LLMC_ZERO_NET_CONTACT_H
#include "../base/error.h"
#include "sockets.h"

enum { CHALLENGE = 1, NO_KEY, HELLO, REPORT };  // HELLO and REPORT carry a tag
enum { ANSWER_S = 5 };                          // time limit for receiving or answering a message
enum { STRANGERS = 256 };                       // maximum number of strangers, besides one per rank
enum { SECRET_LEAST = 16 };                     // minimum length of a user's key, in characters

typedef struct {
    unsigned char bytes[32];
} secret;
typedef struct {  // random, used once
    unsigned char bytes[16];
} nonce;

typedef struct {
    uint32_t magic, kind, bytes, protocol;
    nonce nonce;  // the sender's, for this connection
    secret tag;   // of the whole message, computed with 0 here
} head;
typedef struct {  // describes a rank
    head h;
    uint64_t node;
    nonce startup;  // from rank 0: random, part of the secret for connections between the other ranks
    double left_s;  // seconds until its time limit; from rank 0: seconds left for the ranks to connect
    int32_t rank, ranks, pid, port;  // port: of its listener. pid 0: not known yet
    char host[NET_NAME], version[48];
    net_address at;  // of its listener, as seen from rank 0
} seat;
typedef struct {
    head h;
    char text[sizeof((zero_failure *)NULL)->sentence];
} words;
typedef union {
    head h;
    seat seat;
    words words;
} message;

typedef enum { CALLED, ANSWERED, CHALLENGED, MET, REPORTED } contact_state;
typedef struct {
    int fd;  // -1: none
    contact_state state;
    int rank;        // the rank to which this one connects
    nonce nonce;     // this rank's
    secret in, out;  // keys of received and sent messages
} contact;

// State shared by all connections of a rank.
typedef struct {
    int rank;
    secret secret;       // the job's
    message in;          // the last one received
    int listener;        // -1: none
    int is_local;        // 1: other machines are refused
    contact *strangers;  // (most) a ring: a new stranger takes a free entry or replaces the oldest one
    int most;
    uint64_t came;        // number of strangers so far
    int refused;          // how many of them did not know the secret
    char last[NET_NAME];  // address of the last one refused
} party;

// Writes n random bytes. Returns 0, or a ZERO_ERR_*. Call it before the other functions.
int secret_draw(void *bytes, size_t n);
// Returns a value that only a process that knows `s` and these bytes can compute: another secret, or the tag
// of a message.
secret secret_add(secret s, const void *bytes, size_t n);

// Each returns 0 or a negative errno.
// Seals n messages of the same length and sends them together.
int contact_say(const contact *c, int kind, head *first, int n, size_t bytes);
int contact_report(const contact *c, const char *text);
// Receives a message into p->in and makes its texts safe to print. Draws a nonce for the answer to a
// CHALLENGE. EPROTO: the other side runs a different program. EPROTONOSUPPORT: it runs a different version.
// EACCES: one side does not know the other's secret. EBADMSG: no rank sends such a message.
int contact_hear(party *p, contact *c, double until);
void contact_make_keys(const party *p, contact *c, int other, nonce theirs);  // from both nonces
void contact_close(contact *c);

// Accepts waiting connections, at most a quarter of `most`, so that strangers accepted earlier have time to
// finish. If it accepted fewer, a flood would fill the system's own queue, and the system would drop ranks
// too. Returns 0, or a negative errno.
int strangers_let_in(party *p);
int strangers_drop(party *p);  // drops the oldest, to free its descriptor; returns 0 if none is left
// Rejects a stranger without the secret. The answer has no tag, because a tag would let the stranger test
// keys.
void strangers_turn_away(party *p, contact *stranger);

#endif
