// Tests checkpoints whose files need many disk requests: mpirun -np N mpi_large, for any N. Every number of
// ranks up to N saves, and all N ranks load, with and without the page cache, and with requests that complete
// only in part. If a request fails, a save keeps the previous checkpoint unchanged, and a load leaves the
// plugin unchanged.
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "faults.h"
#include "saves.h"

enum { TENSORS = 3, LAYERS = 4, UNITS = LAYERS + 1, LARGEST = 1200 * 1000 };
static const zero_tensor tensors[TENSORS] = {
    { "wte", 2, { 1200, 1000 }, 1, 0, 1, 1 },
    { "w", 2, { 300, 1001 }, LAYERS, 1, 1, 1 },
    { "b", 1, { 33 }, LAYERS, 1, 0, 0 },
};

static zero_config usual(void) {
    zero_config c = zero_defaults();
    c.stage = 2;
    c.numbers.dtype = ZERO_BF16;
    return c;
}

static zero *plugin_of(const zero_config *c) {
    const zero_unit units[UNITS] = {
        { "emb", 2, 2, 1 }, { "a", 1, 1, 0 }, { "b", 1, 1, 0 }, { "c", 1, 1, 0 }, { "d", 1, 1, 0 }
    };
    zero *z = NULL;
    MUST(zero_create(&z, c, tensors, TENSORS, units, UNITS));
    return z;
}

// on: the communicator; NULL: all ranks.
static zero *plugin(MPI_Comm *on) {
    zero_config c = usual();
    c.start.mpi_comm = on;
    return plugin_of(&c);
}

static void fill(zero *z, int seed) {
    static const zero_value saved[] = { ZERO_PARAM, ZERO_MOMENT1, ZERO_MOMENT2 };
    float *values = malloc(LARGEST * sizeof *values);
    for (int w = 0; w < 3; w++)
        for (int t = 0; t < TENSORS; t++)
            for (int l = 0; l < tensors[t].layers; l++) {
                const int64_t n = zero_tensor_elems(&tensors[t]);
                for (int64_t i = 0; i < n; i++)
                    values[i] = (float)((i * 7919 + w * 31 + t * 7 + l * 3 + seed) % 1000003) * 1e-6f;
                MUST(zero_set(z, saved[w], t, l, 0, n, values));
            }
    free(values);
}

// Makes call `at` of the operation fail on the last rank, counted from 0; -1: none.
static void fail_on_last(file_operation what, long at) {
    set_fault(what, at + 1, checks.rank == checks.ranks - 1 && at >= 0, -EIO);
}

// -------- all numbers of ranks

static void save_by(int ranks, const char *path, char hash[17]) {
    MPI_Comm some;
    MPI_Comm_split(MPI_COMM_WORLD, checks.rank < ranks ? 0 : 1, checks.rank, &some);
    if (checks.rank < ranks) {
        zero *z = plugin(&some);
        fill(z, ranks);
        MUST(zero_hash(z, 1, hash));
        MUST(zero_save(z, path, NULL));
        zero_destroy(z);
    }
    MPI_Comm_free(&some);
    MPI_Bcast(hash, 17, MPI_CHAR, 0, MPI_COMM_WORLD);
}

static void check_ranks(void) {
    const char *path = in_folder("any");
    char hash[17];
    for (int ranks = 1; ranks <= checks.ranks; ranks++)
        for (int way = 0; way < 4; way++) {
            static const file_operation operations[] = { FILE_DIRECT, FILE_WRITE, FILE_READ, FILE_DIRECT };
            CHECK_SETTING("saved by %d ranks, way %d", ranks, way);
            set_fault(operations[way], 1, way ? INT64_MAX / 2 : 0, -EINVAL);
            if (way == 1 || way == 2) fault.most = 300 << 10;  // requests complete only in part
            save_by(ranks, path, hash);
            zero *z = plugin(NULL);
            MUST(zero_load(z, path, NULL));  // into zeros: reads the files once
            CHECK(has_hash(z, hash));
            fill(z, 99);
            MUST(zero_load(z, path, NULL));  // into values: verifies the files first
            CHECK(has_hash(z, hash));
            zero_destroy(z);
        }
}

// -------- failures

static void must_not_save(zero *z, const char *path, file_operation what, long at) {
    CHECK_SETTING("save, call %ld of operation %d fails", at, what);
    fail_on_last(what, at);
    CHECK(zero_save(z, path, "{\"new\":1}") == ZERO_ERR_IO && strstr(zero_last_error(), ".states: "));
    must_have(path, "{}");  // each rank has removed its own file
}

static void check_failed_saves(void) {
    const char *path = in_folder("fails");
    char before[17];
    save_by(checks.ranks, path, before);
    zero *z = plugin(NULL);
    fill(z, 7);
    set_fault(FILE_WRITE, 0, 0, 0);
    MUST(zero_save(z, path, NULL));
    const int writes = check_any((int)fault_seen);
    CHECK(writes > 8);
    for (int at = 0; at < 3; at++) must_not_save(z, path, FILE_WRITE, at);
    for (int at = writes - 3; at < writes; at++) must_not_save(z, path, FILE_WRITE, at);
    must_not_save(z, path, FILE_RESERVE, 0);
    fail_on_last(FILE_WRITE, -1);
    MUST(zero_save(z, path, "{\"new\":1}"));
    must_have(path, "{\"new\":1}");
    zero_destroy(z);
}

// Checks that a load fails and leaves the plugin's values, or zeros, unchanged.
static void must_leave(zero *z, const char *path, const char *hash, const char *words) {
    CHECK(zero_load(z, path, NULL) == ZERO_ERR_IO && strstr(zero_last_error(), words));
    CHECK(has_hash(z, hash));
}

static void check_failed_loads(void) {
    const char *path = in_folder("good"), *damaged = in_folder("damaged");
    char file[2 * PATH_BYTES], saved[17], empty[17], other[17];
    save_by(checks.ranks, path, saved);
    save_by(checks.ranks, damaged, other);
    MPI_Barrier(MPI_COMM_WORLD);
    file_in(file, damaged, checks.ranks - 1);
    if (!checks.rank) flip(file, size_of(file) - 1, 1);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int used = 0; used < 2; used++) {
        CHECK_SETTING("load, %s", used ? "into values" : "into zeros");
        zero *z = plugin(NULL);
        if (used) fill(z, 5);
        MUST(zero_hash(z, 1, empty));
        must_leave(z, damaged, empty, "does not match its checksum");
        for (long at = 0; at < 6; at++) {
            fail_on_last(FILE_READ, at);
            must_leave(z, path, empty, ".states: the read of ");
        }
        fail_on_last(FILE_READ, -1);
        MUST(zero_load(z, path, NULL));
        CHECK(has_hash(z, saved));
        must_leave(z, damaged, saved, "does not match its checksum");
        zero_destroy(z);
    }
}

// I/O on the file of a rank's offloaded states fails, during a save (which only reads states) or a load
// (which only writes them). The error must not blame the checkpoint.
static void check_failed_states(void) {
    const char *path = in_folder("good");
    char hex[17];
    for (int saves = 0; saves < 2; saves++)
        for (int used = 0; used < 2; used++) {
            CHECK_SETTING("the file of offloaded states fails in a %s, %s", saves ? "save" : "load",
                          used ? "with values" : "with zeros");
            zero_config c = usual();
            c.offload.optimizer = ZERO_NVME;
            c.offload.nvme = folder;
            zero *z = plugin_of(&c);
            if (used) fill(z, 5);
            MUST(zero_hash(z, 1, hex));  // waits for pending writes
            fail_on_last(saves ? FILE_READ : FILE_WRITE, 0);
            CHECK((saves ? zero_save(z, path, NULL) : zero_load(z, path, NULL)) == ZERO_ERR_TIER);
            CHECK(strstr(zero_last_error(), "llmc_zero.rank") != NULL);
            fail_on_last(FILE_READ, -1);
            zero_destroy(z);
        }
}

// -------- a slow disk

static double timeout_s = 4;
static const char *slow_path;

static int save_at_once(zero *z) { return zero_save(z, slow_path, NULL); }
static int load(zero *z) { return zero_load(z, slow_path, NULL); }
static int save_async(zero *z) {
    int rc = zero_save_begin(z, slow_path, NULL);
    return rc ? rc : zero_save_end(z);
}

static const struct {
    const char *name;
    int (*call)(zero *z);
    file_operation what;
} slow_calls[] = {
    { "save", save_at_once, FILE_WRITE },
    { "load", load, FILE_READ },
    { "asynchronous save", save_async, FILE_WRITE },
};
enum { SLOW_CALLS = 3 };

static zero *slow_plugin(int overlap) {
    zero_config c = usual();
    c.overlap = overlap;
    c.async_save = 1;
    c.comm.timeout_s = timeout_s;
    return plugin_of(&c);
}

// The next two operations of this kind take this long on the last rank.
static void slow_on_last(file_operation what, double each_s) {
    set_fault(what, 1, checks.rank == checks.ranks - 1 ? 2 : 0, 0);
    fault.each_s = each_s;
}

static void must_wait(zero *z, int i, const char *hash) {
    slow_on_last(slow_calls[i].what, 0.65 * timeout_s);
    MUST(slow_calls[i].call(z));
    CHECK(checks.rank < checks.ranks - 1 || fault_seen >= 2);
    fail_on_last(FILE_WRITE, -1);
    CHECK(has_hash(z, hash));
}

// Two requests take longer than comm.timeout_s. The other ranks wait, because the last one makes progress.
static void check_slow(void) {
    char hash[17];
    zero *z = slow_plugin(1);
    fill(z, 1);
    MUST(zero_hash(z, 1, hash));
    for (int i = 0; i < SLOW_CALLS; i++) {
        CHECK_SETTING("a slow %s", slow_calls[i].name);
        must_wait(z, i, hash);
    }
    zero_destroy(z);
    CHECK_SETTING("a slow load into zeros");
    z = slow_plugin(1);
    must_wait(z, 1, hash);
    zero_destroy(z);
}

// A hung request keeps its memory and descriptor, so it cannot write to memory or files that are allocated or
// opened later.
static void check_hang(zero *z, int i) {
    enum { BYTES = 8 << 20 };
    char name[] = "/tmp/llmc_zero_test.XXXXXX";
    int64_t other = 0;
    CHECK_SETTING("a disk that does not answer a %s", slow_calls[i].name);
    set_fault(slow_calls[i].what, 0, 0, 0);
    fault_waits = checks.rank == checks.ranks - 1;
    CHECK(slow_calls[i].call(z) == ZERO_ERR_IO && strstr(zero_last_error(), "the disk does not answer"));
    int fd = mkstemp(name);
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(fd >= 0 && memory != MAP_FAILED);
    memset(memory, 7, BYTES);
    fault_waits = 0;
    fault_nap(0.2);  // the hung request resumes
    for (int k = 0; k < BYTES; k++) other += memory[k] != 7;
    CHECK(!other);
    CHECK(lseek(fd, 0, SEEK_END) == 0);
    munmap(memory, BYTES);
    close(fd);
    unlink(name);
}

static void check_hangs(void) {
    zero *z = slow_plugin(0);
    fill(z, 1);
    for (int i = 0; i < SLOW_CALLS; i++) {
        check_hang(z, i);
        if (slow_calls[i].call == save_async)
            CHECK(save_async(z) == ZERO_ERR_IO && strstr(zero_last_error(), "memory for copies"));
        else
            MUST(slow_calls[i].call(z));
    }
    MUST(zero_save(z, slow_path, NULL));
    zero_destroy(z);
}

// A rank that blocks while it reserves space for a file does not report progress.
static void check_late(void) {
    zero *z = slow_plugin(0);
    CHECK_SETTING("a silent rank");
    slow_on_last(FILE_RESERVE, 2.5 * timeout_s);
    CHECK(zero_save(z, slow_path, NULL) == ZERO_ERR_COMM);
    if (checks.rank < checks.ranks - 1)
        CHECK(strstr(zero_last_error(), " s in an all-gather of scalars for "));
    fail_on_last(FILE_RESERVE, -1);
    MPI_Barrier(MPI_COMM_WORLD);
    zero_destroy(z);
}

static void check_slow_disks(void) {
    check_make_folder(folder, sizeof folder, "/tmp");
    slow_path = in_folder("checkpoint");
    check_slow();
    check_hangs();
    check_late();
    remove_checkpoint(slow_path);
}

static void check_disks(const char *parent) {
    check_make_folder(folder, sizeof folder, parent);
    check_ranks();
    check_failed_saves();
    check_failed_loads();
    check_failed_states();
    for (int i = 0; i < 4; i++)
        remove_checkpoint(in_folder((const char *const[]){ "any", "fails", "good", "damaged" }[i]));
}

static void check_all(const char *asked) {
    if (strcmp(asked, "slow")) {
        check_disks(*asked ? asked : "build");
    } else {
        if (checks.arguments[2]) timeout_s = atof(checks.arguments[2]);
        check_slow_disks();
    }
    check_remove_folder(folder);
}

int main(int argc, char **argv) { return checks_main(argc, argv, "mpi_large", check_all); }
