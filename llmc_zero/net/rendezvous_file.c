#include "rendezvous_file.h"
#include "../base/error.h"
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <limits.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FORMAT = 2 };
static const long long most_written = 1ll << 40;  // no clock is this far ahead
#define BEGINNING "llmc_zero rendezvous "
#define FIRST_LINES(host, hex, key) \
    BEGINNING "%d\nhost " host " pid %d port %d\nrun %" hex " node %" hex " time %lld\nkey " key "\n"

// Collects the addresses at which another host may reach this one.
static void find_addresses(card *c) {
    struct ifaddrs *all = NULL;
    c->n = 0;
    if (getifaddrs(&all)) return;
    for (struct ifaddrs *i = all; i && c->n < CARD_ADDRESSES; i = i->ifa_next) {
        int family = i->ifa_addr ? i->ifa_addr->sa_family : 0, off = !(i->ifa_flags & IFF_UP);
        if (off || (i->ifa_flags & IFF_LOOPBACK) || (family != AF_INET && family != AF_INET6)) continue;
        net_address a = net_from(i->ifa_addr, c->port);
        // Another host cannot use a link-local address.
        if (family == AF_INET || !IN6_IS_ADDR_LINKLOCAL(&a.v6.sin6_addr)) c->at[c->n++] = a;
    }
    freeifaddrs(all);
}

// Reads an address from a card. Only numeric addresses are allowed, so there is no name lookup, which might
// take long. Returns 1, or 0 for anything else.
static int parse_address(const char *text, net_address *a) {
    char host[NET_HOST];
    const char *why;
    int port;
    return !net_split(text, host, &port) && net_resolve(host, port, 1, a, 1, &why) == 1;
}

static int parse(const char *text, card *c) {
    char address[NET_NAME];
    int format = 0, used = 0;
    int fields = sscanf(text, FIRST_LINES("%63s", SCNx64, "%64[0-9a-f]") "%n", &format, c->host, &c->pid,
                        &c->port, &c->run, &c->node, &c->written, c->key, &used);
    zero_plain(c->host, sizeof c->host);
    for (text += used; c->n < CARD_ADDRESSES && sscanf(text, "address %63s %n", address, &used) == 1;
         text += used)
        c->n += parse_address(address, &c->at[c->n]);
    int is_whole = fields == 8 && !*text && format == FORMAT && strlen(c->key) == SECRET_TEXT - 1;
    int has_time = c->written >= 0 && c->written < most_written;
    return is_whole && has_time && c->pid > 0 && c->port > 0 && c->port <= UINT16_MAX && c->run;
}

// With the key one can join the job, and with write access lead the ranks elsewhere.
static int is_private(const struct stat *st) { return st->st_uid == geteuid() && !(st->st_mode & 077); }

// Opens a card and reads it. Returns the descriptor, or a negative errno: EBADMSG if it is not a card, EPERM
// if other users can access it. Does not wait for a pipe's writer.
static int open_card(const char *path, int flags, card *c) {
    char text[4096] = "";
    struct stat st;
    int error = EBADMSG, fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    *c = (card){ .n = 0 };
    if (fd < 0) return errno == ELOOP ? -EBADMSG : -errno;
    if (fstat(fd, &st) || (S_ISREG(st.st_mode) && read(fd, text, sizeof text - 1) < 0))
        error = errno;
    else if (!strncmp(text, BEGINNING, strlen(BEGINNING)) && !is_private(&st))
        error = EPERM;
    else if (parse(text, c)) {
        c->changed = (double)st.st_mtim.tv_sec + (double)st.st_mtim.tv_nsec * 1e-9;
        return fd;
    }
    close(fd);
    *c = (card){ .n = 0 };
    return -error;
}

const char *card_fault(int error) {
    if (error == EBADMSG) return "it is no rendezvous file";
    if (error == EPERM) return "it is another user's, or other users may read or write it";
    return strerror(error);
}

int card_read(const char *path, card *c) {
    int fd = open_card(path, O_RDONLY, c);
    if (fd >= 0) close(fd);
    return fd < 0 ? fd : 0;
}

// Overwrites through the descriptor, so a file that takes the name meanwhile is not touched.
static int write_card(int fd, const card *c) {
    char text[4096], address[NET_NAME];
    int n = snprintf(text, sizeof text, FIRST_LINES("%s", PRIx64, "%s"), FORMAT, c->host, c->pid, c->port,
                     c->run, c->node, c->written, c->key);
    for (int i = 0; i < c->n; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "address %s\n", net_text(&c->at[i], address));
    ssize_t written = pwrite(fd, text, (size_t)n, 0);
    if (written >= 0 && written < n) return ENOSPC;
    return written < 0 || ftruncate(fd, n) || fsync(fd) ? errno : 0;
}

// A file system that cannot keep a file private is refused as well.
static int put_card(const char *path, const card *c) {
    card old;
    struct stat st;
    int created = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600), fd = created;
    if (fd < 0) fd = errno == EEXIST ? open_card(path, O_RDWR, &old) : -errno;
    if (fd < 0) return -fd;
    int error = fstat(fd, &st) ? errno : is_private(&st) ? write_card(fd, c) : EPERM;
    if (close(fd) && !error) error = errno;
    if (error && created >= 0) unlink(path);
    return error;
}

void card_path(const char *given, char path[PATH_MAX]) {
    struct stat st;
    snprintf(path, PATH_MAX, "%s%s", given,
             !stat(given, &st) && S_ISDIR(st.st_mode) ? "/llmc_zero.start" : "");
}

int card_write(const char *path, card *c) {
    c->written = (long long)time(NULL);
    find_addresses(c);
    int error = put_card(path, c), is_other = error == EBADMSG;
    if (!error) return 0;
    return zero_fail_setting(ZERO_ERR_IO, "start.file",
                             is_other
                                 ? " %s: something is there that is no rendezvous file, and stays as it is: "
                                   "name a file that does not exist"
                                 : " %s: rank 0 cannot write it: %s: name one in a folder that all hosts "
                                   "see and may write",
                             path, card_fault(error));
}

static int is_run(const char *path, uint64_t run) {
    card c;
    return !card_read(path, &c) && c.run == run;
}

// Because another file may take the card's name after the check, the card is moved aside, checked again, and
// put back if it is not ours. If that fails it stays aside.
void card_remove(const char *path, uint64_t run) {
    char aside[PATH_MAX];
    snprintf(aside, sizeof aside, "%.*s.%" PRIx64 ".old", PATH_MAX - CARD_ROOM, path, run);
    if (!is_run(path, run) || rename(path, aside)) return;
    if (is_run(aside, run) || !link(aside, path)) unlink(aside);
}
