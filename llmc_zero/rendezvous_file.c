#include "rendezvous_file.h"
#include "error.h"
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FORMAT = 1 };

/* All that another host may reach. */
static void find_addresses(card *c) {
    struct ifaddrs *all = NULL;
    c->n = 0;
    if (getifaddrs(&all)) return;
    for (struct ifaddrs *i = all; i && c->n < CARD_ADDRESSES; i = i->ifa_next) {
        net_address *a = &c->at[c->n];
        int family = i->ifa_addr ? i->ifa_addr->sa_family : 0;
        if (!(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK) || (family != AF_INET && family != AF_INET6)) continue;
        a->bytes = family == AF_INET ? sizeof a->v4 : sizeof a->v6;
        memcpy(&a->any, i->ifa_addr, a->bytes);
        if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&a->v6.sin6_addr)) continue;        /* means nothing on another host */
        if (family == AF_INET) a->v4.sin_port = htons((uint16_t)c->port);
        else a->v6.sin6_port = htons((uint16_t)c->port);
        c->n++;
    }
    freeifaddrs(all);
}

/* 0, or errno */
static int write_text(const char *name, const card *c) {
    int fd = open(name, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600), error;
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f) {
        error = errno;
        if (fd >= 0) close(fd);
        return error;
    }
    fprintf(f, "llmc_zero rendezvous %d\nhost %s pid %d port %d\nrun %" PRIx64 " node %" PRIx64 " time %lld\n", FORMAT, c->host, c->pid,
            c->port, c->run, c->node, c->written);
    for (int i = 0; i < c->n; i++) {
        char text[NET_NAME];
        fprintf(f, "address %s\n", net_text(&c->at[i], text));
    }
    error = fflush(f) || fsync(fd) ? errno : 0;
    return fclose(f) && !error ? errno : error;
}

int card_write(const char *path, card *c) {
    char name[4096];
    if (snprintf(name, sizeof name, "%s.%d", path, c->pid) >= (int)sizeof name)
        return zero_fail(ZERO_ERR_ARGUMENT, "rendezvous file %.60s...: too long a name", path);
    c->written = (long long)time(NULL);
    find_addresses(c);
    int error = write_text(name, c);
    if (!error && rename(name, path)) error = errno;
    if (!error) return 0;
    unlink(name);
    return zero_fail(ZERO_ERR_IO, "rank 0 cannot write the rendezvous file %s: %s: name one in a folder that all hosts see and may write",
                     path, strerror(error));
}

int card_read(const char *path, card *c) {
    FILE *f = fopen(path, "re");
    char text[NET_NAME], host[NET_NAME];
    const char *why;
    int format = 0, port, for_good;
    if (!f) return -errno;
    *c = (card){ .n = 0 };
    int fields = fscanf(f, " llmc_zero rendezvous %d host %63s pid %d port %d run %" SCNx64 " node %" SCNx64 " time %lld", &format, c->host,
                        &c->pid, &c->port, &c->run, &c->node, &c->written);
    while (c->n < CARD_ADDRESSES && fscanf(f, " address %63s", text) == 1)
        if (!net_split(text, host, sizeof host, &port)) c->n += net_resolve(host, port, &c->at[c->n], 1, &why, &for_good);
    fclose(f);
    return fields == 7 && format == FORMAT && c->port > 0 && c->port < 65536 ? 0 : -EBADMSG;
}

void card_remove(const char *path, uint64_t run) {
    card c;
    if (!card_read(path, &c) && c.run == run) unlink(path);
}
