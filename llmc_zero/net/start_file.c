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

static const char beginning[sizeof((start_file *)NULL)->begins] = "llmc_zero start file 3\n";
static const double most_written = 1e12;  // a later time is invalid

// Collects the addresses at which another host may reach this one.
static void find_addresses(start_file *f) {
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all)) return;
    for (struct ifaddrs *i = all; i && f->n < START_FILE_ADDRESSES; i = i->ifa_next) {
        int family = i->ifa_addr ? i->ifa_addr->sa_family : 0, off = !(i->ifa_flags & IFF_UP);
        if (off || (i->ifa_flags & IFF_LOOPBACK) || (family != AF_INET && family != AF_INET6)) continue;
        net_address a = net_from(i->ifa_addr, f->port);
        // Another host cannot use a link-local address.
        if (family == AF_INET || !IN6_IS_ADDR_LINKLOCAL(&a.v6.sin6_addr)) f->at[f->n++] = a;
    }
    freeifaddrs(all);
}

static int is_valid(start_file *f) {
    zero_plain(f->host, sizeof f->host);
    int has_time = f->written >= 0 && f->written < most_written;
    int has_place = f->port > 0 && f->port <= UINT16_MAX && f->n >= 0 && f->n <= START_FILE_ADDRESSES;
    return has_time && has_place && f->pid > 0;
}

// Anyone who can read the key can join the job; anyone who can write the file can redirect ranks.
static int is_private(const struct stat *st) { return st->st_uid == geteuid() && !(st->st_mode & 077); }

// Opens and reads a start file. O_NONBLOCK: does not wait for the writer of a pipe. Returns the descriptor,
// or an errno as start_file_read does.
static int open_start_file(const char *path, int flags, start_file *f) {
    struct stat st;
    int error = EBADMSG, fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    memset(f, 0, sizeof *f);
    if (fd < 0) return errno == ELOOP ? -EBADMSG : -errno;
    if (fstat(fd, &st) || (S_ISREG(st.st_mode) && read(fd, f, sizeof *f) < 0))
        error = errno;
    else if (!memcmp(f->begins, beginning, sizeof beginning) && !is_private(&st))
        error = EPERM;
    else if (!memcmp(f->begins, beginning, sizeof beginning) && st.st_size == sizeof *f && is_valid(f))
        return fd;
    close(fd);
    memset(f, 0, sizeof *f);
    return -error;
}

const char *start_file_fault(int error) {
    if (error == EBADMSG) return "it is not a start file";
    if (error == EPERM) return "it belongs to another user, or other users may read or write it";
    return strerror(error);
}

int start_file_read(const char *path, start_file *f) {
    int fd = open_start_file(path, O_RDONLY, f);
    if (fd >= 0) close(fd);
    return fd < 0 ? fd : 0;
}

// Writes through the descriptor, so that a different file that gets this name in the meantime stays
// unchanged. Refuses a file system that cannot keep a file private. Returns an errno.
static int overwrite(const char *path, const start_file *f) {
    start_file old;
    struct stat st;
    int created = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600), fd = created, error = 0;
    if (fd < 0) fd = errno == EEXIST ? open_start_file(path, O_RDWR, &old) : -errno;
    if (fd < 0) return -fd;
    if (fstat(fd, &st)) error = errno;
    if (!error && !is_private(&st)) error = EPERM;
    ssize_t written = error ? 0 : pwrite(fd, f, sizeof *f, 0);
    if (!error && written != sizeof *f) error = written < 0 ? errno : ENOSPC;
    if (close(fd) && !error) error = errno;
    if (error && created >= 0) unlink(path);
    return error;
}

void start_file_path(const char *given, char path[PATH_MAX]) {
    struct stat st;
    snprintf(path, PATH_MAX, "%s%s", given,
             !stat(given, &st) && S_ISDIR(st.st_mode) ? "/llmc_zero.start" : "");
}

int start_file_write(const char *path, start_file *f) {
    memcpy(f->begins, beginning, sizeof beginning);
    f->written = clock_of(CLOCK_REALTIME);
    find_addresses(f);
    ZERO_TRY(secret_draw(&f->key, sizeof f->key));
    int error = overwrite(path, f), is_other = error == EBADMSG;
    if (!error) return 0;
    return zero_fail_setting(
        ZERO_ERR_IO, "start.file",
        is_other ? " %s: exists, is not a start file, and stays unchanged: name a file that does not exist"
                 : " %s: rank 0 cannot write it: %s: name one in a folder that all hosts can see and write",
        path, start_file_fault(error));
}

static int is_same(const char *path, const start_file *f) {
    start_file now;
    return !start_file_read(path, &now) && !memcmp(&now.key, &f->key, sizeof now.key);
}

// Another run may overwrite the file after the check, so this moves it aside, checks it again, and puts it
// back if it is not ours.
void start_file_remove(const char *path, const start_file *f) {
    char aside[PATH_MAX];
    const int n = snprintf(aside, sizeof aside, "%s.%d.old", path, (int)f->pid);
    if (n >= (int)sizeof aside || !is_same(path, f) || rename(path, aside)) return;
    if (is_same(aside, f) || !link(aside, path)) unlink(aside);
}
