// A connection during startup: its messages, and the proof that the other side knows the job's secret.
//
//   CHALLENGE  from the listening side: a nonce
//   HELLO      from the connecting side: its seat and a nonce; then from the listening side: its seat. Now
//              they have met. Rank 0 later sends all seats
//   REPORT     from rank r to rank 0, then from rank 0 to all: all are connected; or, at any time, what went
//              wrong
//   NOT_MINE   rank 0 belongs to another job
//   NO_KEY     the HELLO does not prove that its sender knows the secret
//
// The key of a message's tag depends on the secret, on sender and receiver, and on both nonces. So a recorded
// message cannot be replayed on another connection, nor reflected on its own. Until its HELLO the other side
// is a stranger: it gets no information, and nothing waits for it.
#ifndef LLMC_ZERO_NET_CONTACT_H
#define LLMC_ZERO_NET_CONTACT_H
#include "../base/error.h"
#include "secret.h"
#include "sockets.h"

enum { CHALLENGE = 1, NO_KEY, HELLO, REPORT, NOT_MINE };  // messages from HELLO on carry a tag
enum { ANSWER_S = 5 };                                    // time limit for taking or answering a message
enum { SENTENCE = sizeof((zero_failure *)NULL)->sentence };

typedef struct {
    uint32_t magic, kind, bytes, protocol;
    uint64_t run;  // 0: not known to the sender, or withheld
    nonce nonce;   // the sender's, for this connection
    secret tag;    // of the whole message with 0 here
} head;
typedef struct {  // of a rank
    head h;
    uint64_t job, node;
    double left_s;                   // until it gives up; rank 0's: left for the ranks to connect
    int32_t rank, ranks, pid, port;  // port: where it listens. pid 0: not known yet
    char host[NET_NAME], version[48];
    net_address at;  // where it listens, as rank 0 sees it
} seat;
typedef struct {
    head h;
    char text[SENTENCE + 1];
} words;
typedef union {
    head h;
    seat seat;
    words words;
} message;

// Shared by all connections of a rank.
typedef struct {
    int rank;
    uint64_t run;   // random, for this startup; all ranks use rank 0's
    secret secret;  // the job's
    message in;     // the last one received
} party;

typedef enum { CALLED, ANSWERED, CHALLENGED, MET, REPORTED } contact_state;
typedef struct {
    int fd;  // -1: none
    contact_state state;
    int rank;         // the rank that this one has called
    uint64_t number;  // of strangers, in the order of arrival
    nonce nonce;      // this rank's
    secret in, out;   // keys of received and sent messages
} contact;

// Each returns 0 or a negative errno. contact_say seals n messages of the same length and sends them
// together.
int contact_say(const party *p, const contact *c, int kind, head *first, int n, size_t bytes);
int contact_say_words(const party *p, const contact *c, int kind, const char *text);
int contact_challenge(const party *p, contact *c);
// Receives a message into p->in, and draws the nonce that answers a CHALLENGE. Its texts are safe to print.
// EPROTO: the other side is another program. EPROTONOSUPPORT: another version of this one. EACCES: one side
// does not know the other's secret. EBADMSG: no rank sends this.
int contact_hear(party *p, contact *c, double until);
void contact_make_keys(const party *p, contact *c, int other, nonce theirs);  // both nonces are known
void contact_close(contact *c);

#endif
