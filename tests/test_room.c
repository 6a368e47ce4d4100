// Tests how much host memory a rank may use, with made-up system files and real limits on a child process.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include "files.h"
#include "unit.h"
#include "../llmc_zero/device/room.h"

enum { MIB = 1 << 20 };
static char root[64];

// Writes the file root/path, creating its folders.
static void put(const char *path, const char *text) {
    char full[512];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *slash = full + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(full, 0777);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static int begin(void **state) {
    strcpy(root, "/tmp/llmc_zero_room.XXXXXX");
    assert_non_null(mkdtemp(root));
    put("proc/meminfo", "MemTotal:  8388608 kB\nMemAvailable:    4194304 kB\n");
    put("proc/self/status", "VmSize:\t  204800 kB\nVmData:\t  102400 kB\n");
    return 0;
}

static int end(void **state) { return remove_tree(root); }

static void expect(int ranks, size_t mib, const char *limit) {
    host_room room;
    assert_int_equal(host_room_find(&room, ranks, root), 0);
    if (!strstr(room.limit, limit)) fail_msg("\"%s\" lacks \"%s\"", room.limit, limit);
    assert_int_equal(room.left / MIB, mib);
}

static void the_machine(void **state) {
    expect(1, 4096, "the machine has 4096.0 MiB available for 1 rank");
    expect(4, 1024, "for 4 ranks");
    put("proc/meminfo", "MemTotal:  8388608 kB\n");
    host_room room;
    assert_int_equal(host_room_find(&room, 1, root), ZERO_ERR_IO);
}

// A machine with systemd. Limits of outer groups count too; reclaimable pages do not count as used.
static const char version_2[] =
    "22 26 0:20 / /sys rw,nosuid shared:2 - sysfs sysfs rw\n"
    "35 22 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
static void cgroups_of_version_2(void **state) {
    put("proc/self/mountinfo", version_2);
    put("proc/self/cgroup", "0::/jobs/one\n");
    put("sys/fs/cgroup/jobs/one/memory.max", "max\n");
    put("sys/fs/cgroup/jobs/one/memory.current", "104857600\n");
    put("sys/fs/cgroup/jobs/one/memory.swap.max", "0\n");  // limits only swap, so it must be ignored
    put("sys/fs/cgroup/jobs/memory.max", "1073741824\n");
    put("sys/fs/cgroup/jobs/memory.current", "629145600\n");
    put("sys/fs/cgroup/jobs/memory.stat", "anon 1\ninactive_file 84857600\nactive_file 20000000\n");
    expect(2, 262, "(memory.max/jobs) is 1024.0 MiB, of which 500.0 are used, for 2 ranks");
    put("sys/fs/cgroup/jobs/one/memory.max", "209715200\n");
    expect(1, 100, "(memory.max/jobs/one) is 200.0 MiB");
    put("sys/fs/cgroup/jobs/one/memory.current", "314572800\n");
    expect(1, 0, "of which 300.0 are used");
}

// The kernel slows a group above memory.high to a crawl, so a run must stay below that.
static void memory_high(void **state) {
    const char *group = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-7.scope\n";
    put("proc/self/mountinfo", version_2);
    put("proc/self/cgroup", group);
    put("sys/fs/cgroup/user.slice/user-1000.slice/memory.max", "max\n");
    put("sys/fs/cgroup/user.slice/user-1000.slice/memory.high", "536870912\n");
    put("sys/fs/cgroup/user.slice/user-1000.slice/memory.current", "104857600\n");
    expect(1, 412, "(memory.high/user.slice/user-1000.slice) is 512.0 MiB, of which 100.0 are used");
    put("sys/fs/cgroup/user.slice/user-1000.slice/memory.max", "209715200\n");
    expect(1, 100, "(memory.max/user.slice/user-1000.slice) is 200.0 MiB");
    put("sys/fs/cgroup/user.slice/user-1000.slice/memory.max", "max\n");
    put("sys/fs/cgroup/user.slice/user-1000.slice/memory.high", "max\n");
    expect(1, 4096, "the machine");
}

// A container with a separate cgroup namespace: its group is the root.
static void container_of_version_2(void **state) {
    put("proc/self/mountinfo",
        "921 907 0:26 / /sys/fs/cgroup ro,nosuid,nodev - cgroup2 cgroup rw,nsdelegate\n");
    put("proc/self/cgroup", "0::/\n");
    put("sys/fs/cgroup/memory.max", "1073741824\n");
    put("sys/fs/cgroup/memory.current", "536870912\n");
    expect(1, 512, "(memory.max) is 1024.0 MiB, of which 512.0 are used");
    // If a process entered the container from outside, its path is not below the mount.
    put("proc/self/cgroup", "0::/../../kubepods/burstable/pod7/0a1b\n");
    expect(1, 512, "(memory.max) is 1024.0 MiB");
}

// A container in the host's cgroup namespace, with only its own group mounted. Groups inside it count too.
static void container_in_the_host_namespace(void **state) {
    put("proc/self/mountinfo",
        "921 907 0:26 /docker/4f5e /sys/fs/cgroup ro,relatime master:9 - cgroup2 cgroup rw\n");
    put("proc/self/cgroup", "0::/docker/4f5e/jobs\n");
    put("sys/fs/cgroup/memory.max", "2147483648\n");
    put("sys/fs/cgroup/memory.current", "1073741824\n");
    put("sys/fs/cgroup/jobs/memory.max", "536870912\n");
    put("sys/fs/cgroup/jobs/memory.current", "104857600\n");
    expect(1, 412, "(memory.max/jobs) is 512.0 MiB");
    put("sys/fs/cgroup/jobs/memory.max", "max\n");
    expect(1, 1024, "(memory.max) is 2048.0 MiB");
    // a different group whose name begins with that of the mount's group
    put("proc/self/cgroup", "0::/docker/4f5e77/jobs\n");
    put("sys/fs/cgroup/jobs/memory.max", "209715200\n");
    expect(1, 1024, "(memory.max) is 2048.0 MiB");
}

static const char version_1[] =
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:4 - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:5 - cgroup cgroup rw,memory\n";
static void cgroups_of_version_1(void **state) {
    put("proc/self/mountinfo", version_1);
    put("proc/self/cgroup", "5:devices:/x\n4:memory:/slurm/job_17\n2:cpu,cpuacct:/y\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
    put("sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "2147483648\n");
    put("sys/fs/cgroup/memory/slurm/memory.usage_in_bytes", "1073741824\n");
    put("sys/fs/cgroup/memory/slurm/memory.stat", "total_inactive_file 536870912\n");
    put("sys/fs/cgroup/memory/slurm/job_17/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/slurm/job_17/memory.usage_in_bytes", "4096\n");
    expect(1, 1536, "(memory.limit_in_bytes/slurm) is 2048.0 MiB, of which 512.0 are used");
    put("sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "9223372036854771712\n");
    expect(1, 4096, "the machine");
}

// A container sees its own group as the root of a mount with any path, perhaps with other controllers.
static void container_of_version_1(void **state) {
    put("proc/self/mountinfo",
        "731 722 0:32 /docker/17 /cgroups/all ro - cgroup cgroup rw,cpu,memory,pids\n");
    put("proc/self/cgroup", "4:cpu,memory,pids:/docker/17\n0::/\n");
    put("cgroups/all/memory.limit_in_bytes", "2147483648\n");
    put("cgroups/all/memory.usage_in_bytes", "1073741824\n");
    expect(1, 1024, "(memory.limit_in_bytes) is 2048.0 MiB, of which 1024.0 are used");
}

// Both versions are mounted, and version 1 controls memory.
static void both_versions(void **state) {
    char mounts[1024];
    snprintf(mounts, sizeof mounts,
             "%s41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n", version_1);
    put("proc/self/mountinfo", mounts);
    put("proc/self/cgroup", "9:name=systemd:/memory\n4:memory:/job\n0::/job\n");
    put("sys/fs/cgroup/unified/job/cgroup.procs", "1\n");
    put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1073741824\n");
    put("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "0\n");
    expect(1, 1024, "(memory.limit_in_bytes/job) is 1024.0 MiB");
    put("proc/self/cgroup", "9:name=memory_service:/job\n4:memory:/\n0::/job\n");
    expect(1, 4096, "the machine");
}

// No cgroups are mounted, or the mounts cannot be parsed.
static void no_cgroups(void **state) {
    put("proc/self/cgroup", "0::/job\nnonsense\n3:memory\n");
    put("sys/fs/cgroup/job/memory.max", "1048576\n");
    put("sys/fs/cgroup/job/memory.current", "0\n");
    expect(1, 4096, "the machine");
    put("proc/self/mountinfo", "35 22 0:30 /\n35 22 0:30 / /sys/fs/cgroup rw\n - cgroup2\n");
    expect(1, 4096, "the machine");
}

// -------- a real group, if the test can create one

static int write_line(const char *folder, const char *name, long long n) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    if (!f) return -1;
    fprintf(f, "%lld\n", n);
    return fclose(f);
}

// Creates a group of version 1 or 2 with a limit of 256 MiB. Returns 0 or -1.
static int make_group(char *folder, size_t size) {
    static const char *const of[][2] = { { "/sys/fs/cgroup/memory", "memory.limit_in_bytes" },
                                         { "/sys/fs/cgroup", "memory.max" } };
    for (int i = 0; i < 2; i++) {
        snprintf(folder, size, "%s/llmc_zero_room_%d", of[i][0], (int)getpid());
        if (mkdir(folder, 0777)) continue;
        if (!write_line(folder, of[i][1], 256 * MIB)) return 0;
        rmdir(folder);
    }
    return -1;
}

static void a_real_group(void **state) {
    char folder[128];
    if (make_group(folder, sizeof folder)) skip();
    pid_t child = fork();
    if (!child) {
        host_room room;
        if (write_line(folder, "cgroup.procs", getpid()) || host_room_find(&room, 1, "")) _exit(2);
        int is_limit = strstr(room.limit, "/llmc_zero_room_") && strstr(room.limit, ") is 256.0 MiB");
        if (!is_limit) fprintf(stderr, "%s\n", room.limit);
        _exit(!is_limit || room.left > 256 * (size_t)MIB || room.left < 128 * (size_t)MIB);
    }
    int status, removed;
    assert_int_equal(waitpid(child, &status, 0), child);
    for (int tries = 0; (removed = rmdir(folder)) && tries < 3000; tries++) usleep(20000);
    assert_int_equal(status, 0);
    assert_int_equal(removed, 0);
}

static void limited(int resource, const char *name) {
    pid_t child = fork();
    if (!child) {
        host_room room;
        struct rlimit limit = { 300 * (rlim_t)MIB, RLIM_INFINITY };
        if (setrlimit(resource, &limit) || host_room_find(&room, 1, root)) _exit(2);
        int mib = resource == RLIMIT_AS ? 100 : 200;
        _exit(!strstr(room.limit, name) || room.left / MIB != (size_t)mib);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void limits_of_the_process(void **state) {
    limited(RLIMIT_AS, "RLIMIT_AS is 300.0 MiB, of which this rank uses 200.0");
    limited(RLIMIT_DATA, "RLIMIT_DATA is 300.0 MiB, of which this rank uses 100.0");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(the_machine),
        TEST(cgroups_of_version_2),
        TEST(memory_high),
        TEST(container_of_version_2),
        TEST(container_in_the_host_namespace),
        TEST(cgroups_of_version_1),
        TEST(container_of_version_1),
        TEST(both_versions),
        TEST(no_cgroups),
        cmocka_unit_test(a_real_group),
        TEST(limits_of_the_process),  // last: under ASan, it needs memory that the others have left
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
