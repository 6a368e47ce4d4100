#include "rendezvous_file.h"
#include "../error.h"
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

enum { FORMAT = 1 };

// Collects the addresses by which another host may reach this one.
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

// Creates the file. 0, or errno, and then there is no file.
static int write_text(const char *name, const card *c) {
    char text[NET_NAME];
    int fd = open(name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) return errno;
    int failed = dprintf(fd,
                         "llmc_zero rendezvous %d\nhost %s pid %d port %d\nrun %" PRIx64 " node %" PRIx64
                         " time %lld\n",
                         FORMAT, c->host, c->pid, c->port, c->run, c->node, c->written) < 0;
    for (int i = 0; i < c->n; i++) failed |= dprintf(fd, "address %s\n", net_text(&c->at[i], text)) < 0;
    int error = failed || fsync(fd) ? errno : 0;
    if (close(fd) && !error) error = errno;
    if (error) unlink(name);
    return error;
}

// Moves a file to a name that is free. 0, or errno, and then nothing has changed. A link does it atomically.
// On a file system without links an empty file reserves the name first.
static int give_name(const char *file, const char *name) {
    struct stat a, b;
    int error = link(file, name) ? errno : 0, fd;
    if (error == EEXIST && !lstat(file, &a) && !lstat(name, &b) && a.st_ino == b.st_ino &&
        a.st_dev == b.st_dev)
        error = 0;  // this link was made, and NFS has lost the answer
    if (error == EPERM || error == EOPNOTSUPP || error == ENOSYS) {
        if ((fd = open(name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600)) < 0) return errno;
        close(fd);
        if (!rename(file, name)) return 0;
        error = errno;
        unlink(name);
    } else if (!error)
        unlink(file);
    return error;
}

// 0: the file is the card of this run, or of any with run 0. Else errno: EBADMSG where it is something else.
static int check_card(const char *path, uint64_t run) {
    card c;
    struct stat st;
    if (lstat(path, &st)) return errno;
    if (!S_ISREG(st.st_mode)) return EBADMSG;
    int rc = card_read(path, &c);
    return rc ? -rc : run && c.run != run ? EBADMSG : 0;
}

// path.RUN.word is this process's alone, because run numbers are random. A path leaves room for it.
static void name_beside(char name[PATH_MAX], const char *path, uint64_t run, const char *word) {
    snprintf(name, PATH_MAX, "%.*s.%" PRIx64 ".%s", PATH_MAX - CARD_ROOM, path, run, word);
}

// Removes such a card, and nothing else. Because another file may take its place after the check, the file is
// moved aside, checked again, and put back if it is no such card. Returns 0 if the name is free, or errno.
static int remove_card(const char *path, uint64_t mine, uint64_t run) {
    char aside[PATH_MAX];
    int error = check_card(path, run);
    if (error) return error == ENOENT ? 0 : error;
    name_beside(aside, path, mine, "old");
    if (rename(path, aside) && errno != ENOENT)
        return errno;  // ENOENT: it is gone, or it was moved and NFS has lost the answer
    if (!(error = check_card(aside, run))) return unlink(aside) ? errno : 0;
    if (error == ENOENT) return 0;
    give_name(aside, path);
    return error;
}

// A file that is no card keeps its name. Several processes may try to put their cards there at the same time.
static int put_card(const char *path, const card *c) {
    char name[PATH_MAX];
    name_beside(name, path, c->run, "new");
    int error = write_text(name, c);
    if (error) return error;
    for (int tries = 0; (error = give_name(name, path)) == EEXIST && tries < 10; tries++) {
        error = remove_card(path, c->run, 0);
        if (error) break;
    }
    if (error) unlink(name);
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
    int error = put_card(path, c);
    if (error == EBADMSG)
        return zero_fail_setting(ZERO_ERR_IO, "start.file",
                                 " %s: something is there that is no rendezvous file, and stays as it is: "
                                 "name a file that does not exist",
                                 path);
    if (error)
        return zero_fail_setting(ZERO_ERR_IO, "start.file",
                                 " %s: rank 0 cannot write it: %s: name one in a folder that all hosts see "
                                 "and may write",
                                 path, strerror(error));
    return 0;
}

int card_read(const char *path, card *c) {
    char text[4096] = "", address[NET_NAME], host[NET_NAME];
    const char *why, *at;
    int format = 0, used = 0, port, for_good;
    *c = (card){ .n = 0 };
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // does not wait for a pipe's writer
    if (fd < 0) return -errno;
    int error = read(fd, text, sizeof text - 1) < 0 ? errno : 0;
    close(fd);
    if (error) return -error;
    int fields = sscanf(text,
                        "llmc_zero rendezvous %d host %63s pid %d port %d run %" SCNx64 " node %" SCNx64
                        " time %lld %n",
                        &format, c->host, &c->pid, &c->port, &c->run, &c->node, &c->written, &used);
    for (at = text + used; c->n < CARD_ADDRESSES && sscanf(at, "address %63s %n", address, &used) == 1;
         at += used)
        if (!net_split(address, host, sizeof host, &port))
            c->n += net_resolve(host, port, &c->at[c->n], 1, &why, &for_good);
    if (fields == 7 && !*at && format == FORMAT && c->port > 0 && c->port <= 65535) return 0;
    *c = (card){ .n = 0 };
    return -EBADMSG;
}

void card_remove(const char *path, uint64_t run) { remove_card(path, run, run); }
