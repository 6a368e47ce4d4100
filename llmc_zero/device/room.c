#include "room.h"
#include "../error.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static double mib(double bytes) { return bytes / 1048576; }

// The number behind `key` in a file of lines "key number", or at its beginning where key is "". Returns 1 if
// it is there.
static int number_in(const char *path, const char *key, unsigned long long *n) {
    char line[512];
    size_t length = strlen(key);
    int found = 0;
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    while (!found && fgets(line, sizeof line, f))
        found = !strncmp(line, key, length) && sscanf(line + length, "%llu", n) == 1;
    fclose(f);
    return found;
}

// Takes over a limit that leaves less than those before.
static void lower(host_room *room, size_t left, const char *sentence) {
    if (left >= room->left) return;
    room->left = left;
    snprintf(room->limit, sizeof room->limit, "%s", sentence);
}

static int machine_room(host_room *room, int ranks, const char *root) {
    char path[PATH_MAX], sentence[sizeof room->limit];
    unsigned long long kib;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (!number_in(path, "MemAvailable:", &kib))
        return zero_fail(ZERO_ERR_IO, "/proc/meminfo does not say how much memory is available");
    snprintf(sentence, sizeof sentence, "the machine has %.1f MiB available for %d rank%s", mib(kib * 1024.0),
             ranks, ranks == 1 ? "" : "s");
    lower(room, kib * 1024 / ranks, sentence);
    return 0;
}

// -------- cgroups

typedef struct {
    const char *mount, *limit, *used, *inactive, *active;
} cgroup_files;
static const cgroup_files version_1 = { "/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                        "memory.usage_in_bytes", "total_inactive_file ",
                                        "total_active_file " };
static const cgroup_files version_2 = { "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file ",
                                        "active_file " };

// One folder's limit. "max", or version 1's huge number, is none. Pages of files are given back when others
// need room.
static void folder_room(host_room *room, int ranks, const char *root, const cgroup_files *v,
                        const char *group) {
    char path[PATH_MAX], sentence[sizeof room->limit];
    unsigned long long limit, used, inactive = 0, active = 0;
    snprintf(path, sizeof path, "%s%s%s/%s", root, v->mount, group, v->limit);
    if (!number_in(path, "", &limit) || limit > (unsigned long long)LLONG_MAX / 2) return;
    snprintf(path, sizeof path, "%s%s%s/%s", root, v->mount, group, v->used);
    if (!number_in(path, "", &used)) return;
    snprintf(path, sizeof path, "%s%s%s/memory.stat", root, v->mount, group);
    number_in(path, v->inactive, &inactive);
    number_in(path, v->active, &active);
    inactive += active;
    used -= inactive < used ? inactive : used;
    snprintf(sentence, sizeof sentence,
             "the cgroup's limit (%s%.100s) is %.1f MiB, of which %.1f are used, for %d rank%s", v->limit,
             group, mib(limit), mib(used), ranks, ranks == 1 ? "" : "s");
    lower(room, used < limit ? (limit - used) / ranks : 0, sentence);
}

// A group is limited by those above it too. In a container the group's own folder may not be there, but the
// container's is at the top.
static void group_room(host_room *room, int ranks, const char *root, const cgroup_files *v, char *group) {
    for (char *end; (end = strrchr(group, '/')); *end = 0)
        folder_room(room, ranks, root, v, end[1] ? group : "");
    folder_room(room, ranks, root, v, "");
}

// Lines of /proc/self/cgroup are "4:memory:/group", in version 2 "0::/group".
static void cgroup_room(host_room *room, int ranks, const char *root) {
    char path[PATH_MAX], line[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        if (!controllers[1]) group_room(room, ranks, root, &version_2, group);
        if (strstr(controllers, "memory")) group_room(room, ranks, root, &version_1, group);
    }
    if (f) fclose(f);
}

// -------- limits of the process

static void process_room(host_room *room, int resource, const char *name, const char *key, const char *root) {
    char path[PATH_MAX], sentence[sizeof room->limit];
    struct rlimit limit;
    unsigned long long kib;
    snprintf(path, sizeof path, "%s/proc/self/status", root);
    if (getrlimit(resource, &limit) || limit.rlim_cur == RLIM_INFINITY || !number_in(path, key, &kib)) return;
    snprintf(sentence, sizeof sentence, "%s is %.1f MiB, of which this rank has taken %.1f", name,
             mib(limit.rlim_cur), mib(kib * 1024.0));
    lower(room, kib * 1024 < limit.rlim_cur ? limit.rlim_cur - kib * 1024 : 0, sentence);
}

int host_room_find(host_room *room, int ranks_on_host, const char *root) {
    *room = (host_room){ .left = SIZE_MAX };
    ZERO_TRY(machine_room(room, ranks_on_host, root));
    cgroup_room(room, ranks_on_host, root);
    process_room(room, RLIMIT_AS, "RLIMIT_AS", "VmSize:", root);
    process_room(room, RLIMIT_DATA, "RLIMIT_DATA", "VmData:", root);
    return 0;
}
