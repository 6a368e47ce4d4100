#define XXH_INLINE_ALL
#include "sockets.h"
#include "../base/clock.h"
#include "../base/error.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

// -------- addresses

uint64_t net_machine(char host[NET_NAME]) {
    char boot[64] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f && !fgets(boot, sizeof boot, f)) *boot = 0;
    if (f) fclose(f);
    memset(host, 0, NET_NAME);
    if (gethostname(host, NET_NAME - 1)) strcpy(host, "unknown");
    return XXH3_64bits_withSeed(host, strlen(host), XXH3_64bits(boot, strlen(boot)));
}

int net_split(const char *text, char host[NET_HOST], int *port) {
    long number = NET_PORT;
    int used = 0, found = sscanf(text, *text == '[' ? "[%255[^]]]%n:%ld%n" : "%255[^:]%n:%ld%n", host, &used,
                                 &number, &used);
    if (found < 1 || text[used] || number < 1 || number > 65535)
        return zero_fail(
            ZERO_ERR_ARGUMENT,
            "\"%s\" is not an address of rank 0: it must be host:port, or [address]:port with IPv6; "
            "ports are 1 to 65535, by default %d",
            text, NET_PORT);
    *port = (int)number;
    return 0;
}

static in_port_t *port_in(net_address *a) {
    return a->any.sa_family == AF_INET ? &a->v4.sin_port : &a->v6.sin6_port;
}

// An IPv4-mapped IPv6 address, ::ffff:a.b.c.d, becomes IPv4, because the host may have no IPv6.
net_address net_from(const struct sockaddr *from, int port) {
    net_address a = { .v6 = { 0 } };
    memcpy(&a, from, from->sa_family == AF_INET ? sizeof a.v4 : sizeof a.v6);
    if (a.any.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&a.v6.sin6_addr)) {
        net_address v4 = { .v4 = { .sin_family = AF_INET } };
        memcpy(&v4.v4.sin_addr, &a.v6.sin6_addr.s6_addr[12], sizeof v4.v4.sin_addr);
        a = v4;
    }
    *port_in(&a) = htons((uint16_t)port);
    return a;
}

static int end_of(int fd, net_address *a, int (*name)(int, struct sockaddr *, socklen_t *)) {
    socklen_t bytes = sizeof *a;
    if (name(fd, &a->any, &bytes)) return -errno;
    *a = net_from(&a->any, ntohs(*port_in(a)));
    return 0;
}

int net_other_end(int fd, net_address *a) { return end_of(fd, a, getpeername); }

int net_resolve(const char *host, int port, net_address *found, int most, const char **why) {
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM }, *all = NULL;
    int rc = getaddrinfo(host, NULL, &hints, &all), n = 0;
    if (rc && !strcmp(host, "localhost"))
        rc = getaddrinfo("127.0.0.1", NULL, &hints, &all);  // small containers have no /etc/hosts
    *why = rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc);
    if (rc) return rc == EAI_AGAIN || rc == EAI_SYSTEM ? 0 : -1;
    for (struct addrinfo *a = all; a && n < most; a = a->ai_next) {
        if (a->ai_family != AF_INET && a->ai_family != AF_INET6) continue;
        found[n++] = net_from(a->ai_addr, port);
    }
    freeaddrinfo(all);
    return n;
}

int net_is_loopback(const net_address *a) {
    if (a->any.sa_family == AF_INET) return ntohl(a->v4.sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&a->v6.sin6_addr);
}

const char *net_text(const net_address *a, char text[NET_NAME]) {
    const int numbers = NI_NUMERICHOST | NI_NUMERICSERV;
    char host[INET6_ADDRSTRLEN], port[8];
    if (getnameinfo(&a->any, sizeof *a, host, sizeof host, port, sizeof port, numbers))
        return strcpy(text, "an unknown address");
    snprintf(text, NET_NAME, a->any.sa_family == AF_INET ? "%s:%s" : "[%s]:%s", host, port);
    return text;
}

// -------- connections

static int set(int fd, int level, int option, int value) {
    return setsockopt(fd, level, option, &value, sizeof value) ? -errno : 0;
}

static int listen_by(int family, int port, int backlog) {
    net_address all = { .any = { .sa_family = (sa_family_t)family } };
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -errno;
    *port_in(&all) = htons((uint16_t)port);
    int rc = set(fd, SOL_SOCKET, SO_REUSEADDR, 1);  // connections of an earlier run may linger on the port
    if (!rc && family == AF_INET6) rc = set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (!rc && (bind(fd, &all.any, sizeof all) || listen(fd, backlog))) rc = -errno;
    if (rc) close(fd);
    return rc ? rc : fd;
}

int net_listen(int port, int backlog) {
    int fd = listen_by(AF_INET6, port, backlog);  // accepts IPv4 too
    return fd >= 0 || fd == -EADDRINUSE || fd == -EACCES ? fd : listen_by(AF_INET, port, backlog);
}

int net_port(int fd) {
    net_address a;
    int rc = end_of(fd, &a, getsockname);
    return rc ? rc : ntohs(*port_in(&a));
}

int net_is_out_of_files(int rc) { return rc == -EMFILE || rc == -ENFILE; }

int net_accept(int listener) {
    int fd;
    do fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    if (fd >= 0) return fd;
    // These errors belong to a connection that failed before it was accepted; the listener still works.
    int theirs = errno == ECONNABORTED || errno == EPROTO || errno == ENETDOWN || errno == EHOSTUNREACH ||
                 errno == ENETUNREACH;
    return theirs ? -EAGAIN : -errno;
}

int net_wait(int fd, int events, double deadline) {
    for (;;) {
        double left = deadline - clock_now();
        struct pollfd p = { fd, (short)events, 0 };
        int n = poll(&p, 1, left > 0 ? (int)(left * 1e3) + 1 : 0);
        if (n > 0) return 0;
        if (n < 0 && errno != EINTR) return -errno;
        if (left <= 0) return -ETIMEDOUT;
    }
}

// When a socket connects to a local port without a listener, the system may assign it that same port, so that
// it connects to itself.
static int is_own_echo(int fd) {
    net_address here, there;
    if (end_of(fd, &here, getsockname) || net_other_end(fd, &there)) return 0;
    return !memcmp(&here, &there, sizeof here);
}

int net_connect(const net_address *to, double deadline) {
    int fd = socket(to->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -errno;
    int rc = connect(fd, &to->any, sizeof *to) ? -errno : 0;
    if (rc == -EINPROGRESS || rc == -EINTR) {
        rc = net_wait(fd, POLLOUT, deadline);
        if (!rc && connect(fd, &to->any, sizeof *to) && errno != EISCONN) rc = -errno;  // the result
    }
    if (!rc && is_own_echo(fd)) rc = -ECONNREFUSED;
    if (rc) close(fd);
    return rc ? rc : fd;
}

static int move(int fd, char *at, size_t bytes, double deadline, int events) {
    while (bytes) {
        ssize_t n = events == POLLOUT ? send(fd, at, bytes, MSG_NOSIGNAL) : recv(fd, at, bytes, 0);
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
            continue;
        }
        if (!n) return -ECONNRESET;
        int rc = errno == EINTR ? 0 : errno == EAGAIN ? net_wait(fd, events, deadline) : -errno;
        if (rc) return rc;
    }
    return 0;
}

int net_write(int fd, const void *data, size_t bytes, double deadline) {
    return move(fd, (char *)data, bytes, deadline, POLLOUT);
}
int net_read(int fd, void *data, size_t bytes, double deadline) {
    return move(fd, data, bytes, deadline, POLLIN);
}

int net_await(int fd, size_t bytes) { return set(fd, SOL_SOCKET, SO_RCVLOWAT, (int)bytes); }

int net_tune(int fd, int silence_s) {
    int step = silence_s / 5 > 0 ? silence_s / 5 : 1, rc = set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    if (!rc) rc = net_await(fd, 1);
    if (!rc) rc = set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    if (!rc) rc = set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 2 * step);
    if (!rc) rc = set(fd, IPPROTO_TCP, TCP_KEEPINTVL, step);
    return rc ? rc : set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

// TCP_USER_TIMEOUT is not used, because with it Linux would also end a connection to a late rank that answers
// but has full buffers. Keepalive is off while data is in flight. So a host counts as silent when segments,
// or window probes, have been retransmitted more than once without an answer.
int net_is_silent(int fd, int silence_s) {
    struct tcp_info i;
    socklen_t bytes = sizeof i;
    memset(&i, 0, sizeof i);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &bytes)) return 0;
    return (i.tcpi_retransmits > 1 || i.tcpi_probes > 1) && i.tcpi_last_ack_recv > (unsigned)silence_s * 1000;
}
