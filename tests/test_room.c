// How much of the host's memory a rank may take: files of the system made up in a folder, and real limits of
// a child process.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "../llmc_zero/device/room.h"
#include "../llmc_zero/zero.h"

enum { MIB = 1 << 20 };
static char root[64];

// Makes root/path with this text, and the folders above it.
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
    (void)state;
    strcpy(root, "/tmp/llmc_zero_room.XXXXXX");
    assert_non_null(mkdtemp(root));
    put("proc/meminfo", "MemTotal:  8388608 kB\nMemAvailable:    4194304 kB\n");
    put("proc/self/status", "VmSize:\t  204800 kB\nVmData:\t  102400 kB\n");
    return 0;
}

static int end(void **state) {
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

static void expect(int ranks, size_t mib, const char *limit) {
    host_room room;
    assert_int_equal(host_room_find(&room, ranks, root), 0);
    if (!strstr(room.limit, limit)) fail_msg("\"%s\" lacks \"%s\"", room.limit, limit);
    assert_int_equal(room.left / MIB, mib);
}

static void the_machine(void **state) {
    (void)state;
    expect(1, 4096, "the machine has 4096.0 MiB available for 1 rank");
    expect(4, 1024, "for 4 ranks");
    put("proc/meminfo", "MemTotal:  8388608 kB\n");
    host_room room;
    assert_int_equal(host_room_find(&room, 1, root), ZERO_ERR_IO);
}

// The limit of a group above counts too, and file pages that can be given back do not.
static void cgroups_of_version_2(void **state) {
    (void)state;
    put("proc/self/cgroup", "0::/jobs/one\n");
    put("sys/fs/cgroup/jobs/one/memory.max", "max\n");
    put("sys/fs/cgroup/jobs/one/memory.current", "104857600\n");
    put("sys/fs/cgroup/jobs/memory.max", "1073741824\n");
    put("sys/fs/cgroup/jobs/memory.current", "629145600\n");
    put("sys/fs/cgroup/jobs/memory.stat", "anon 1\ninactive_file 84857600\nactive_file 20000000\n");
    expect(2, 262, "(memory.max/jobs) is 1024.0 MiB, of which 500.0 are used, for 2 ranks");
    put("sys/fs/cgroup/jobs/one/memory.max", "209715200\n");
    expect(1, 100, "(memory.max/jobs/one) is 200.0 MiB");
    put("sys/fs/cgroup/jobs/one/memory.current", "314572800\n");
    expect(1, 0, "of which 300.0 are used");
}

// A container sees its own group at the top.
static void cgroups_of_version_1(void **state) {
    (void)state;
    put("proc/self/cgroup", "5:devices:/x\n4:memory:/container/17\n0::/\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
    put("sys/fs/cgroup/memory/memory.stat", "total_inactive_file 536870912\n");
    expect(1, 1536, "is 2048.0 MiB, of which 512.0 are used");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    expect(1, 4096, "the machine");
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
    (void)state;
    limited(RLIMIT_AS, "RLIMIT_AS is 300.0 MiB, of which this rank has taken 200.0");
    limited(RLIMIT_DATA, "RLIMIT_DATA is 300.0 MiB, of which this rank has taken 100.0");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_machine, begin, end),
        cmocka_unit_test_setup_teardown(cgroups_of_version_2, begin, end),
        cmocka_unit_test_setup_teardown(cgroups_of_version_1, begin, end),
        cmocka_unit_test_setup_teardown(limits_of_the_process, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
