#include "start_file.h"
#include "../base/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char beginning[sizeof((card *)NULL)->begins] = "llmc_zero start file 3\n";
static const double most_written = 1e12;  // no clock is this far ahead

// Collects the addresses at which another host may reach this one.
static void find_addresses(card *c) {
    struct ifaddrs *all = NULL;
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

static int is_card(card *c) {
    zero_plain(c->host, sizeof c->host);
    int has_time = c->written >= 0 && c->written < most_written;
    int has_place = c->port > 0 && c->port <= UINT16_MAX && c->n >= 0 && c->n <= CARD_ADDRESSES;
    return has_time && has_place && c->pid > 0;
}

// With the key one can join the job, and with write access lead the ranks elsewhere.
static int is_private(const struct stat *st) { return st->st_uid == geteuid() && !(st->st_mode & 077); }

// Opens a card and reads it. Returns the descriptor, or a negative errno: EBADMSG if it is not a card, EPERM
// if other users can access it. Does not wait for a pipe's writer.
static int open_card(const char *path, int flags, card *c) {
    struct stat st;
    int error = EBADMSG, fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    ssize_t n = 0;
    memset(c, 0, sizeof *c);
    if (fd < 0) return errno == ELOOP ? -EBADMSG : -errno;
    if (fstat(fd, &st) || (S_ISREG(st.st_mode) && (n = read(fd, c, sizeof *c)) < 0))
        error = errno;
    else if (!memcmp(c->begins, beginning, sizeof beginning) && !is_private(&st))
        error = EPERM;
    else if (!memcmp(c->begins, beginning, sizeof beginning) && st.st_size == sizeof *c && is_card(c))
        return fd;
    close(fd);
    memset(c, 0, sizeof *c);
    return -error;
}

const char *card_fault(int error) {
    if (error == EBADMSG) return "it is not a start file";
    if (error == EPERM) return "it belongs to another user, or other users may read or write it";
    return strerror(error);
}

int card_read(const char *path, card *c) {
    int fd = open_card(path, O_RDONLY, c);
    if (fd >= 0) close(fd);
    return fd < 0 ? fd : 0;
}

// Overwrites through the descriptor, so a file that takes the name meanwhile is not touched. A file system
// that cannot keep a file private is refused. Returns an errno.
static int put_card(const char *path, const card *c) {
    card old;
    struct stat st;
    int created = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600), fd = created, error = 0;
    if (fd < 0) fd = errno == EEXIST ? open_card(path, O_RDWR, &old) : -errno;
    if (fd < 0) return -fd;
    if (fstat(fd, &st)) error = errno;
    if (!error && !is_private(&st)) error = EPERM;
    ssize_t written = error ? 0 : pwrite(fd, c, sizeof *c, 0);
    if (!error && written != sizeof *c) error = written < 0 ? errno : ENOSPC;
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
    memcpy(c->begins, beginning, sizeof beginning);
    c->written = clock_of(CLOCK_REALTIME);
    find_addresses(c);
    ZERO_TRY(secret_draw(&c->key, sizeof c->key));
    int error = put_card(path, c), is_other = error == EBADMSG;
    if (!error) return 0;
    return zero_fail_setting(
        ZERO_ERR_IO, "start.file",
        is_other ? " %s: exists, is not a start file, and stays unchanged: name a file that does not exist"
                 : " %s: rank 0 cannot write it: %s: name one in a folder that all hosts can see and write",
        path, card_fault(error));
}

static int is_same(const char *path, const card *c) {
    card now;
    return !card_read(path, &now) && !memcmp(&now.key, &c->key, sizeof now.key);
}

// Another run may overwrite the card after the check. So the card is moved aside, checked again, and put back
// if it is not ours.
void card_remove(const char *path, const card *c) {
    char aside[PATH_MAX];
    const int n = snprintf(aside, sizeof aside, "%s.%d.old", path, (int)c->pid);
    if (n >= (int)sizeof aside || !is_same(path, c) || rename(path, aside)) return;
    if (is_same(aside, c) || !link(aside, path)) unlink(aside);
}
