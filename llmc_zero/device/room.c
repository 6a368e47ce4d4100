#include "room.h"
#include "../base/error.h"
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static double mib(double bytes) { return bytes / 1048576; }

// Reads the number after `key` from a file of lines "key number", or the first one. Returns 1 if found.
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

// Applies a limit if it leaves less than the earlier ones.
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
        return zero_fail(ZERO_ERR_IO, "/proc/meminfo does not report the available memory");
    snprintf(sentence, sizeof sentence, "the machine has %.1f MiB available for %d rank%s", mib(kib * 1024.0),
             ranks, ranks == 1 ? "" : "s");
    lower(room, kib * 1024 / ranks, sentence);
    return 0;
}

// -------- cgroups

typedef struct {
    const char *type, *controller;  // of its mount; version 2 has all controllers in one hierarchy
    const char *limits[2];          // a group that exceeds them is killed or slowed down
    const char *used, *inactive, *active;
} cgroup_version;
static const cgroup_version version_1 = { "cgroup",
                                          "memory",
                                          { "memory.limit_in_bytes" },
                                          "memory.usage_in_bytes",
                                          "total_inactive_file ",
                                          "total_active_file " };
static const cgroup_version version_2 = {
    "cgroup2", "", { "memory.max", "memory.high" }, "memory.current", "inactive_file ", "active_file "
};

// Where a hierarchy is mounted, and the group at the top of the mount: perhaps a container's own group.
typedef struct {
    char point[PATH_MAX], top[PATH_MAX];
} cgroup_mount;

// Returns 1 if the word is in a comma-separated list.
static int is_listed(const char *list, const char *word) {
    const size_t length = strlen(word);
    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",\n") == length && !strncmp(at, word, length)) return 1;
    return 0;
}

// Lines of /proc/self/mountinfo are "35 31 0:32 TOP POINT options.. - TYPE source SUPER_OPTIONS".
static int find_mount(const cgroup_version *v, const char *root, cgroup_mount *m) {
    char path[PATH_MAX], line[3 * PATH_MAX], type[64], options[512];
    int found = 0;
    snprintf(path, sizeof path, "%s/proc/self/mountinfo", root);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    while (!found && fgets(line, sizeof line, f)) {
        const char *dash = strstr(line, " - ");
        if (!dash || sscanf(line, "%*s %*s %*s %4095s %4095s", m->top, m->point) != 2) continue;
        if (sscanf(dash, " - %63s %*s %511s", type, options) != 2 || strcmp(type, v->type)) continue;
        found = !*v->controller || is_listed(options, v->controller);
    }
    fclose(f);
    return found;
}

// Returns the group's path below the mount. A group outside the mount's top counts as the top, which in a
// container is the container's own group.
static const char *below(const cgroup_mount *m, const char *group) {
    const size_t length = strlen(m->top);
    if (!strcmp(m->top, "/")) return group;
    return !strncmp(group, m->top, length) && (group[length] == '/' || !group[length]) ? group + length : "";
}

// Applies one folder's limit. "max", or a huge number in version 1, means none. Page cache counts as free,
// because the system reclaims it on demand.
static void folder_room(host_room *room, int ranks, const char *folder, const cgroup_version *v,
                        const char *file, const char *group) {
    char path[3 * PATH_MAX + 64], sentence[sizeof room->limit];
    unsigned long long limit, used, inactive = 0, active = 0;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    if (!number_in(path, "", &limit) || limit > (unsigned long long)LLONG_MAX / 2) return;
    snprintf(path, sizeof path, "%s/%s", folder, v->used);
    if (!number_in(path, "", &used)) return;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    number_in(path, v->inactive, &inactive);
    number_in(path, v->active, &active);
    inactive += active;
    used -= inactive < used ? inactive : used;
    snprintf(sentence, sizeof sentence,
             "the cgroup's limit (%s%.100s) is %.1f MiB, of which %.1f are used, for %d rank%s", file, group,
             mib(limit), mib(used), ranks, ranks == 1 ? "" : "s");
    lower(room, used < limit ? (limit - used) / ranks : 0, sentence);
}

// Applies the limits of a group and its ancestors.
static void group_room(host_room *room, int ranks, const char *root, const cgroup_version *v,
                       const char *name) {
    char folder[2 * PATH_MAX + 64], group[PATH_MAX];
    cgroup_mount m;
    if (!find_mount(v, root, &m)) return;
    snprintf(group, sizeof group, "%s", below(&m, name));
    for (char *end = group;; *end = 0) {
        if (!strcmp(group, "/")) *group = 0;
        snprintf(folder, sizeof folder, "%s%s%s", root, m.point, group);
        for (int i = 0; i < 2 && v->limits[i]; i++) folder_room(room, ranks, folder, v, v->limits[i], group);
        end = strrchr(group, '/');
        if (!end) return;
    }
}

// Lines of /proc/self/cgroup are "4:memory:/group", in version 2 "0::/group". If both versions are mounted,
// the one with the memory controller sets the limit; the other has no limit files.
static void cgroup_room(host_room *room, int ranks, const char *root) {
    char path[PATH_MAX], line[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        controllers++;
        if (!*controllers) group_room(room, ranks, root, &version_2, group);
        if (is_listed(controllers, "memory")) group_room(room, ranks, root, &version_1, group);
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
    snprintf(sentence, sizeof sentence, "%s is %.1f MiB, of which this rank uses %.1f", name,
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
