// A connection of the start: what is said on it, and the proof that the other side knows the secret of the
// job.
//
//   CHALLENGE  who listens, to whoever connects: a nonce
//   HELLO      who connects: its seat, and a nonce of its own; then who listens: its seat. Now they have met.
//              Rank 0 later says everybody's seat
//   REPORT     rank r to rank 0, and then rank 0 to all: everybody is connected; or, at any time, what went
//              wrong
//   NOT_MINE   rank 0 belongs to another job
//   NO_KEY     the HELLO does not prove that its sender knows the secret
//
// The key of a message's tag is made of the secret, of who says it to whom, and of the nonces of both. So a
// message that was overheard is of no use on another connection, and one that is sent back none on its own.
// Until a HELLO whoever has connected is a stranger: it is told nothing, and nothing waits for it.
#ifndef LLMC_ZERO_CONTACT_H
#define LLMC_ZERO_CONTACT_H
#include "../error.h"
#include "secret.h"
#include "sockets.h"

enum { CHALLENGE = 1, NO_KEY, HELLO, REPORT, NOT_MINE };  // from HELLO on they carry a tag
enum { ANSWER_S = 5 };                                    // a message is taken, or answered
enum { SENTENCE = sizeof((zero_failure *)NULL)->sentence };

typedef struct {
    uint32_t magic, kind, bytes, protocol;
    uint64_t run;  // 0: not known to the sender, or not told
    nonce nonce;   // of the sender, for this connection
    secret tag;    // of the whole message with 0 in this place
} head;
typedef struct {  // a rank
    head h;
    uint64_t job, node;
    double left_s;                   // until it gives up; of rank 0's: to connect to each other, from now on
    int32_t rank, ranks, pid, port;  // port: where it listens. pid 0: nobody yet
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

// What the connections of a rank have in common.
typedef struct {
    int rank;
    uint64_t run;   // random, of this start; rank 0's is everybody's
    secret secret;  // of the job
    message in;     // the last that was heard
} party;

typedef enum { CALLED, ANSWERED, CHALLENGED, MET, REPORTED } contact_state;
typedef struct {
    int fd;  // -1: none
    contact_state state;
    int rank;         // that this one has called
    uint64_t number;  // of strangers, in the order in which they came
    nonce nonce;      // of this rank
    secret in, out;   // keys of what is heard and said
} contact;

// Each returns 0 or a negative errno. contact_say seals n messages of as many bytes and sends them together.
int contact_say(const party *p, const contact *c, int kind, head *first, int n, size_t bytes);
int contact_say_words(const party *p, const contact *c, int kind, const char *text);
int contact_challenge(const party *p, contact *c);
// Receives a message into p->in, and draws the nonce that answers a CHALLENGE. Texts in it are fit to be
// printed. EPROTO: the other side is another program. EPROTONOSUPPORT: it is another version of this one.
// EACCES: one side does not know the other's secret. EBADMSG: no rank sends this.
int contact_hear(party *p, contact *c, double until);
void contact_make_keys(const party *p, contact *c, int other, nonce theirs);  // both nonces are known
void contact_close(contact *c);

#endif
