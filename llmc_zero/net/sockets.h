// Non-blocking TCP sockets. Every wait is a poll with a deadline. Unless a comment states otherwise,
// functions return 0 or a negative errno.
#ifndef LLMC_ZERO_NET_SOCKETS_H
#define LLMC_ZERO_NET_SOCKETS_H
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>

// An address with its port. Unused bytes are 0, so that memcmp can compare two addresses.
typedef union {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} net_address;

enum { NET_NAME = 64 };     // size of a machine's name, or of an address with port as text
enum { NET_HOST = 256 };    // size of a host as given by the user
enum { NET_PORT = 12345 };  // rank 0's default port, as in llm.c

// Returns a number that identifies this machine until it reboots, and sets host to its name. Containers and
// network namespaces count as separate machines if their names differ.
uint64_t net_machine(char host[NET_NAME]);

// Splits "host:port" or "[address]:port"; the port is optional. Returns 0 or ZERO_ERR_ARGUMENT.
int net_split(const char *text, char host[NET_HOST], int *port);
// Finds up to `most` addresses of a host and returns their number. If it finds none, sets *why to the
// resolver's message, and returns a negative number if retrying is useless. The resolver has its own time
// limits (/etc/resolv.conf).
int net_resolve(const char *host, int port, net_address *found, int most, const char **why);
net_address net_from(const struct sockaddr *from, int port);  // from: IPv4 or IPv6
int net_other_end(int fd, net_address *a);
int net_is_loopback(const net_address *a);
const char *net_text(const net_address *a, char text[NET_NAME]);  // "10.0.0.1:4567"

// Listens on all of this machine's addresses, at `port` (0: any free one). Returns the socket.
int net_listen(int port, int backlog);
int net_port(int fd);                                     // returns the socket's port
int net_is_out_of_files(int rc);                          // 1: no descriptor is left for a socket
int net_accept(int listener);                             // returns the socket; -EAGAIN: none is waiting
int net_connect(const net_address *to, double deadline);  // returns the socket
int net_wait(int fd, int events, double deadline);        // 0, or -ETIMEDOUT
int net_write(int fd, const void *data, size_t bytes, double deadline);
int net_read(int fd, void *data, size_t bytes, double deadline);  // -ECONNRESET even after an orderly end
int net_await(int fd, size_t bytes);  // poll reports the socket only with this many bytes; net_tune resets it
// Makes the socket send small messages at once, and end the connection if the other host is silent for
// silence_s while nothing is being sent.
int net_tune(int fd, int silence_s);
// Returns 1 if the other host has not acknowledged sent data for silence_s. A host with a process that does
// not read still acknowledges.
int net_is_silent(int fd, int silence_s);

#endif
