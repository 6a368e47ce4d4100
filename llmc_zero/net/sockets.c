#define XXH_INLINE_ALL
#include "sockets.h"
#include "../clock.h"
#include "../error.h"
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

int net_split(const char *text, char *host, size_t host_bytes, int *port) {
    int bracket = *text == '[';
    const char *name = text + bracket, *end = bracket ? strchr(text, ']') : strchrnul(text, ':'),
               *after = end ? end + bracket : NULL;
    char *rest = "";
    long number = !after ? 0 : !*after ? NET_PORT : *after == ':' ? strtol(after + 1, &rest, 10) : 0;
    if (number < 1 || number > 65535 || *rest || end == name || (size_t)(end - name) >= host_bytes)
        return zero_fail(
            ZERO_ERR_ARGUMENT,
            "\"%s\" is no address of rank 0: host:port, or [address]:port with IPv6; ports are 1 to 65535, "
            "%d where none is given",
            text, NET_PORT);
    memcpy(host, name, (size_t)(end - name));
    host[end - name] = 0;
    *port = (int)number;
    return 0;
}

int net_resolve(const char *host, int port, net_address *found, int most, const char **why, int *for_good) {
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM }, *all = NULL;
    int rc = getaddrinfo(host, NULL, &hints, &all), n = 0;
    if (rc && !strcmp(host, "localhost"))
        rc = getaddrinfo("127.0.0.1", NULL, &hints, &all);  // without /etc/hosts, as in small containers
    *why = rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc);
    *for_good = rc != EAI_AGAIN && rc != EAI_SYSTEM;
    if (rc) return 0;
    for (struct addrinfo *a = all; a && n < most; a = a->ai_next) {
        if (a->ai_addrlen > sizeof found[n].v6) continue;
        found[n].bytes = a->ai_addrlen;
        memcpy(&found[n].any, a->ai_addr, a->ai_addrlen);
        if (a->ai_family == AF_INET6)
            found[n].v6.sin6_port = htons((uint16_t)port);
        else
            found[n].v4.sin_port = htons((uint16_t)port);
        n++;
    }
    freeaddrinfo(all);
    return n;
}

static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };  // ::ffff:0:0/96

net_address net_from_bytes(const unsigned char bytes[16], int port) {
    net_address a;
    memset(&a, 0, sizeof a);
    if (!memcmp(bytes, mapped, sizeof mapped)) {
        a.bytes = sizeof a.v4;
        a.v4.sin_family = AF_INET;
        a.v4.sin_port = htons((uint16_t)port);
        memcpy(&a.v4.sin_addr, bytes + 12, 4);
    } else {
        a.bytes = sizeof a.v6;
        a.v6.sin6_family = AF_INET6;
        a.v6.sin6_port = htons((uint16_t)port);
        memcpy(&a.v6.sin6_addr, bytes, 16);
    }
    return a;
}

void net_to_bytes(const net_address *a, unsigned char bytes[16]) {
    if (a->any.sa_family == AF_INET6) {
        memcpy(bytes, &a->v6.sin6_addr, 16);
        return;
    }
    memcpy(bytes, mapped, sizeof mapped);
    memcpy(bytes + 12, &a->v4.sin_addr, 4);
}

int net_is_loopback(const net_address *a) {
    unsigned char bytes[16];
    net_to_bytes(a, bytes);
    return memcmp(bytes, mapped, sizeof mapped) ? IN6_IS_ADDR_LOOPBACK(&a->v6.sin6_addr) : bytes[12] == 127;
}

const char *net_text(const net_address *a, char text[NET_NAME]) {
    unsigned char bytes[16];
    char number[INET6_ADDRSTRLEN] = "?";
    net_to_bytes(a, bytes);
    int v4 = !memcmp(bytes, mapped, sizeof mapped);
    inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? bytes + 12 : bytes, number, sizeof number);
    int port = ntohs(a->any.sa_family == AF_INET ? a->v4.sin_port : a->v6.sin6_port);
    snprintf(text, NET_NAME, v4 ? "%s:%d" : "[%s]:%d", number, port);
    return text;
}

// -------- connections

static int set(int fd, int level, int option, int value) {
    return setsockopt(fd, level, option, &value, sizeof value) ? -errno : 0;
}

static int listen_at(const net_address *at, int backlog) {
    int fd = socket(at->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -errno;
    int rc = set(fd, SOL_SOCKET, SO_REUSEADDR,
                 1);  // connections of an earlier run that linger do not hold the port
    if (!rc && at->any.sa_family == AF_INET6) rc = set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (!rc && (bind(fd, &at->any, at->bytes) || listen(fd, backlog))) rc = -errno;
    if (rc) close(fd);
    return rc ? rc : fd;
}

int net_listen(const net_address *at, int port, int backlog) {
    static const unsigned char any6[16], any4[16] = { [10] = 0xff, [11] = 0xff };
    if (at) return listen_at(at, backlog);
    net_address all = net_from_bytes(any6, port);  // takes IPv4 too
    int fd = listen_at(&all, backlog);
    if (fd >= 0 || fd == -EADDRINUSE || fd == -EACCES) return fd;
    all = net_from_bytes(any4, port);
    return listen_at(&all, backlog);
}

int net_port(int fd) {
    net_address a = { .bytes = sizeof a.v6 };
    if (getsockname(fd, &a.any, &a.bytes)) return -errno;
    return ntohs(a.any.sa_family == AF_INET ? a.v4.sin_port : a.v6.sin6_port);
}

int net_accept(int listener) {
    int fd;
    do fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    if (fd >= 0) return fd;
    // what went wrong with one connection before it was taken is not the listener's affair
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

// A loop of attempts at a port that nobody listens at may be given that same port as its own, and then
// connects to itself.
static int is_own_echo(int fd) {
    net_address here = { .bytes = sizeof here.v6 }, there = { .bytes = sizeof there.v6 };
    if (getsockname(fd, &here.any, &here.bytes) || getpeername(fd, &there.any, &there.bytes)) return 0;
    unsigned char a[16], b[16];
    net_to_bytes(&here, a);
    net_to_bytes(&there, b);
    return here.any.sa_family == there.any.sa_family && here.v4.sin_port == there.v4.sin_port &&
           !memcmp(a, b, 16);
}

static int finish_connect(int fd, const net_address *to, double deadline) {
    if (!connect(fd, &to->any, to->bytes)) return 0;
    if (errno != EINPROGRESS && errno != EINTR) return -errno;
    int rc = net_wait(fd, POLLOUT, deadline), error = 0;
    socklen_t bytes = sizeof error;
    if (rc) return rc;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes)) return -errno;
    return error ? -error : 0;
}

int net_connect(const net_address *to, double deadline) {
    int fd = socket(to->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -errno;
    int rc = finish_connect(fd, to, deadline);
    if (!rc && is_own_echo(fd)) rc = -ECONNREFUSED;
    if (rc) close(fd);
    return rc ? rc : fd;
}

int net_write(int fd, const void *data, size_t bytes, double deadline) {
    for (const char *at = data; bytes;) {
        ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
            continue;
        }
        int rc = errno == EINTR ? 0 : errno == EAGAIN ? net_wait(fd, POLLOUT, deadline) : -errno;
        if (rc) return rc;
    }
    return 0;
}

int net_read(int fd, void *data, size_t bytes, double deadline) {
    for (char *at = data; bytes;) {
        ssize_t n = recv(fd, at, bytes, 0);
        if (!n) return -ECONNRESET;
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
            continue;
        }
        int rc = errno == EINTR ? 0 : errno == EAGAIN ? net_wait(fd, POLLIN, deadline) : -errno;
        if (rc) return rc;
    }
    return 0;
}

int net_tune(int fd, int silence_s) {
    int step = silence_s / 5 > 0 ? silence_s / 5 : 1, rc = set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    if (!rc) rc = set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    if (!rc) rc = set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 2 * step);
    if (!rc) rc = set(fd, IPPROTO_TCP, TCP_KEEPINTVL, step);
    return rc ? rc : set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

// TCP_USER_TIMEOUT would do it, but Linux also ends a connection whose other side answers and has only no
// room left: a rank that is late. While anything is on its way, keepalive is off; what is sent again, or asks
// for room, twice in vain is no answer.
int net_is_silent(int fd, int silence_s) {
    struct tcp_info i;
    socklen_t bytes = sizeof i;
    memset(&i, 0, sizeof i);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &bytes)) return 0;
    return (i.tcpi_retransmits > 1 || i.tcpi_probes > 1) && i.tcpi_last_ack_recv > (unsigned)silence_s * 1000;
}
