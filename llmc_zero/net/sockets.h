// TCP sockets whose every wait has an end: non-blocking, waited for with poll until a deadline. Functions
// return what they say, or a negative errno.
#ifndef LLMC_ZERO_SOCKETS_H
#define LLMC_ZERO_SOCKETS_H
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    socklen_t bytes;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    };
} net_address;

enum { NET_NAME = 64 };     // longest name of a machine, text of an address with its port
enum { NET_PORT = 12345 };  // of rank 0 where none is given, as in llm.c

// This machine, until it is started again: its name is in host. Of two containers or network namespaces with
// names of their own, each is one.
uint64_t net_machine(char host[NET_NAME]);

// Takes "host:port", "[address]:port", or either without the port, apart; 0, or ZERO_ERR_ARGUMENT with the
// sentence.
int net_split(const char *text, char *host, size_t host_bytes, int *port);
// Up to `most` addresses of a host: returns how many; or 0, with the resolver's words in *why, and *for_good
// set where asking again is no use. The resolver has its own time limits (/etc/resolv.conf).
int net_resolve(const char *host, int port, net_address *found, int most, const char **why, int *for_good);
net_address net_from_bytes(const unsigned char bytes[16],
                           int port);  // an IPv6 address, which may stand for an IPv4 one
void net_to_bytes(const net_address *a, unsigned char bytes[16]);
int net_is_loopback(const net_address *a);
const char *net_text(const net_address *a, char text[NET_NAME]);  // "10.0.0.1:4567"

// Listens at this address; NULL: at all of this machine's, on `port`, 0 for any that is free. Returns the
// socket.
int net_listen(const net_address *at, int port, int backlog);
int net_port(int fd);
int net_accept(int listener);                             // -EAGAIN: nobody is there
int net_connect(const net_address *to, double deadline);  // returns the socket
int net_wait(int fd, int events, double deadline);        // 0, or -ETIMEDOUT
int net_write(int fd, const void *data, size_t bytes, double deadline);
int net_read(int fd, void *data, size_t bytes,
             double deadline);  // -ECONNRESET also where the connection ended in order
// Small messages go at once; a host that is silent for so long while nothing is being sent counts as gone.
int net_tune(int fd, int silence_s);
int net_is_silent(
    int fd,
    int silence_s);  // 1: it has not answered for so long what is being sent; not reading is no silence

#endif
