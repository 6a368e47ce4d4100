// Non-blocking TCP sockets. Every wait is a poll with a deadline. Functions return 0 or what they say, or a
// negative errno.
#ifndef LLMC_ZERO_SOCKETS_H
#define LLMC_ZERO_SOCKETS_H
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>

// An address with its port. What is not used is 0, so that memcmp compares two.
typedef union {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} net_address;

enum { NET_NAME = 64 };     // longest name of a machine, text of an address with its port
enum { NET_HOST = 256 };    // of a host, as a user gives it
enum { NET_PORT = 12345 };  // of rank 0 where none is given, as in llm.c

// Returns a number for this machine until it is started again, and its name in host. Containers and network
// namespaces count as machines of their own if their names differ.
uint64_t net_machine(char host[NET_NAME]);

// Takes "host:port" or "[address]:port" apart; the port may be missing. 0, or ZERO_ERR_ARGUMENT with the
// sentence.
int net_split(const char *text, char host[NET_HOST], int *port);
// Finds up to `most` addresses of a host, which only may be a number where is_number, and returns how many.
// Without one *why has the resolver's words, and a negative number says that asking again is of no use. The
// resolver has its own time limits (/etc/resolv.conf).
int net_resolve(const char *host, int port, int is_number, net_address *found, int most, const char **why);
net_address net_from(const struct sockaddr *from, int port);  // of either kind
int net_other_end(int fd, net_address *a);                    // 0, or a negative errno
int net_is_loopback(const net_address *a);
const char *net_text(const net_address *a, char text[NET_NAME]);  // "10.0.0.1:4567"

// Listens at all of this machine's addresses, on `port`, 0 for any that is free. Returns the socket.
int net_listen(int port, int backlog);
int net_port(int fd);
int net_accept(int listener);                             // -EAGAIN: nobody is there
int net_connect(const net_address *to, double deadline);  // returns the socket
int net_wait(int fd, int events, double deadline);        // 0, or -ETIMEDOUT
int net_write(int fd, const void *data, size_t bytes, double deadline);
int net_read(int fd, void *data, size_t bytes, double deadline);  // -ECONNRESET where it ends in order too
int net_await(int fd, size_t bytes);  // poll is silent about fewer; net_tune ends that
// Small messages go at once, and a host that is silent for silence_s while nothing is being sent counts as
// gone.
int net_tune(int fd, int silence_s);
// 1: for silence_s the host has not acknowledged what is being sent. A host that only does not read is not
// silent.
int net_is_silent(int fd, int silence_s);

#endif
