// Tests saves and loads that take longer than comm.timeout_s on one rank's disk: mpirun -np N mpi_slow
// [TIMEOUT_S], for N from 2 to 4. The other ranks wait as long as that rank makes progress. A rank without
// progress counts as late, and a disk that does not answer is reported.
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>
#include "saves.h"
#include "../llmc_zero/tiers/file_folder.h"

enum { ELEMS = 1500 * 1000, LAYERS = 2, SLOW = 2 };
static char path[PATH_BYTES];
static double timeout_s = 4;

// -------- the last rank's disk

static struct {
    int is_slow;
    file_operation what;  // the slow operation
    int left;             // number of slow calls left
    double each_s;        // duration of each slow call
    double took_s;        // duration of all slow calls so far
    int hangs;            // 1: calls hang until this is 0
    pthread_mutex_t lock;
    pthread_cond_t change;
} disk = { .lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER };

static void nap(double seconds) {
    nanosleep(&(struct timespec){ (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) }, NULL);
}

static long decide(file_operation what, size_t bytes) {
    pthread_mutex_lock(&disk.lock);
    if (disk.is_slow && what == disk.what) {
        while (disk.hangs) pthread_cond_wait(&disk.change, &disk.lock);
        const double took = disk.left-- > 0 ? disk.each_s : 0;
        nap(took);
        disk.took_s += took;
    }
    pthread_mutex_unlock(&disk.lock);
    return (long)bytes;
}

static void set_disk(file_operation what, double each_s, int hangs) {
    pthread_mutex_lock(&disk.lock);
    disk.is_slow = checks.rank == checks.ranks - 1 && (each_s > 0 || hangs);
    disk.what = what;
    disk.left = SLOW;
    disk.each_s = each_s;
    disk.took_s = 0;
    disk.hangs = hangs;
    pthread_cond_broadcast(&disk.change);
    pthread_mutex_unlock(&disk.lock);
}

static void check_was_slow(void) {
    CHECK(checks.rank < checks.ranks - 1 || disk.took_s > 1.2 * timeout_s);
    set_disk(FILE_READ, 0, 0);
}

// -------- a plugin

static zero *plugin(int overlap) {
    static const zero_tensor tensors[] = { { "w", 2, { 1500, 1000 }, LAYERS, 0, 1, 1 } };
    static const zero_unit units[] = { { "a", 1, 1, 0 }, { "b", 1, 1, 0 } };
    zero_config c = zero_defaults();
    zero *z = NULL;
    c.stage = 1;
    c.overlap = overlap;
    c.async_save = 1;
    c.comm.timeout_s = timeout_s;
    MUST(zero_create(&z, &c, tensors, 1, units, LAYERS));
    return z;
}

static void fill(zero *z) {
    float *values = malloc(ELEMS * sizeof *values);
    for (int64_t i = 0; i < ELEMS; i++) values[i] = (float)(i * 7919 % 1000003) * 1e-6f;
    for (int l = 0; l < LAYERS; l++) MUST(zero_set(z, ZERO_PARAM, 0, l, 0, ELEMS, values));
    free(values);
}

// -------- a slow disk

// The last rank's file takes longer than comm.timeout_s: each of its two slow requests takes two thirds of
// that time.
static void check_slow(void) {
    const double slow_s = 0.65 * timeout_s;
    char hash[17];
    zero *z = plugin(1);
    fill(z);
    MUST(zero_hash(z, 1, hash));
    CHECK_SETTING("a slow save");
    set_disk(FILE_WRITE, slow_s, 0);
    MUST(zero_save(z, path, NULL));
    check_was_slow();

    CHECK_SETTING("a slow asynchronous save");
    set_disk(FILE_WRITE, slow_s, 0);
    MUST(zero_save_begin(z, path, NULL));
    MUST(zero_save_end(z));
    check_was_slow();

    CHECK_SETTING("a slow load into values");
    set_disk(FILE_READ, slow_s, 0);
    MUST(zero_load(z, path, NULL));
    check_was_slow();
    CHECK(has_hash(z, hash));
    zero_destroy(z);

    CHECK_SETTING("a slow load into zeros");
    z = plugin(1);
    set_disk(FILE_READ, slow_s, 0);
    MUST(zero_load(z, path, NULL));
    check_was_slow();
    CHECK(has_hash(z, hash));
    zero_destroy(z);
}

// -------- a disk that does not answer, and a silent rank

static void let_go(void) {
    set_disk(FILE_WRITE, 0, 0);
    nap(0.2);  // the hung request resumes; it must not write to other memory or files
}

// A hung request keeps its memory and descriptor, so it cannot write to memory or files that are allocated or
// opened later.
static void check_hang(zero *z, file_operation what, int (*call)(zero *z)) {
    enum { BYTES = 8 << 20 };
    char name[] = "/tmp/llmc_zero_test.XXXXXX";
    int64_t changed = 0;
    set_disk(what, 0, 1);
    CHECK(call(z) == ZERO_ERR_IO && strstr(zero_last_error(), "the disk does not answer"));
    int fd = mkstemp(name);
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(fd >= 0 && memory != MAP_FAILED);
    memset(memory, 7, BYTES);
    let_go();
    for (int i = 0; i < BYTES; i++) changed += memory[i] != 7;
    CHECK(!changed);
    CHECK(lseek(fd, 0, SEEK_END) == 0);
    munmap(memory, BYTES);
    close(fd);
    unlink(name);
}

static int save_at_once(zero *z) { return zero_save(z, path, NULL); }
static int load(zero *z) { return zero_load(z, path, NULL); }
static int save_async(zero *z) {
    int rc = zero_save_begin(z, path, NULL);
    return rc ? rc : zero_save_end(z);
}

static void check_hangs(void) {
    zero *z = plugin(0);
    fill(z);
    CHECK_SETTING("a disk that does not answer a save");
    check_hang(z, FILE_WRITE, save_at_once);
    MUST(zero_save(z, path, NULL));
    CHECK_SETTING("a disk that does not answer a load");
    check_hang(z, FILE_READ, load);
    MUST(zero_load(z, path, NULL));
    CHECK_SETTING("a disk that does not answer an asynchronous save");
    check_hang(z, FILE_WRITE, save_async);
    CHECK(zero_save_begin(z, path, NULL) == ZERO_ERR_IO && strstr(zero_last_error(), "memory for copies"));
    MUST(zero_save(z, path, NULL));
    zero_destroy(z);
}

// A rank that blocks while it reserves space for a file does not report progress.
static void check_late(void) {
    zero *z = plugin(0);
    CHECK_SETTING("a silent rank");
    set_disk(FILE_RESERVE, 2.5 * timeout_s, 0);
    CHECK(zero_save(z, path, NULL) == ZERO_ERR_COMM);
    if (checks.rank < checks.ranks - 1)
        CHECK(strstr(zero_last_error(), " s in an all-gather of scalars for "));
    set_disk(FILE_RESERVE, 0, 0);
    MPI_Barrier(MPI_COMM_WORLD);
    zero_destroy(z);
}

int main(int argc, char **argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
    checks_begin();
    if (argc == 2) timeout_s = atof(argv[1]);
    check_make_folder(folder, sizeof folder, "/tmp");
    path_of(path, "checkpoint");
    file_fault = decide;
    check_slow();
    check_hangs();
    check_late();
    remove_checkpoint(path);
    return saves_end("mpi_slow");
}
