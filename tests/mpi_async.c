// Saves that go on while training does: mpirun -np N mpi_async, for any N. What was begun is the state of its
// begin, whatever came after; a run that trains meanwhile has the bits of one that does not save; until the
// end the folder has the checkpoint that it had, and so it has after a failure.
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include "saves.h"
#include "../llmc_zero/tiers/file_folder.h"

static char path[PATH_BYTES];

// -------- a disk that waits, or fails

static struct {
    int holds, fails;
    long writes;  // asked for
    pthread_mutex_t lock;
    pthread_cond_t change;
} disk = { .lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER };

static long decide(file_operation what, size_t bytes) {
    if (what != FILE_WRITE) return (long)bytes;
    pthread_mutex_lock(&disk.lock);
    disk.writes++;
    pthread_cond_broadcast(&disk.change);
    while (disk.holds) pthread_cond_wait(&disk.change, &disk.lock);
    int fails = disk.fails;
    pthread_mutex_unlock(&disk.lock);
    return fails ? -ENOSPC : (long)bytes;
}

static void set_disk(int holds, int fails) {
    pthread_mutex_lock(&disk.lock);
    disk.holds = holds;
    disk.fails = fails;
    pthread_cond_broadcast(&disk.change);
    pthread_mutex_unlock(&disk.lock);
}

// -------- what is saved

// holds: 1: nothing is written before the steps are done.
static void check_saved(const zero_config *c, int holds) {
    toy t;
    char begun[17], end[17];
    MUST(toy_create(&t, c, NULL));
    steps(&t, 1, 4);
    MUST(zero_hash(t.z, 1, end));
    zero_destroy(t.z);
    MUST(toy_create(&t, c, NULL));
    MUST(zero_save(t.z, path, "{\"step\":0}"));
    steps(&t, 1, 2);
    MUST(zero_hash(t.z, 1, begun));
    set_disk(holds, 0);
    MUST(zero_save_begin(t.z, path, "{\"step\":2}"));
    CHECK(!holds || !zero_save_written(t.z));
    steps(&t, 3, 4);
    CHECK(has_hash(t.z, end));
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(has_text(path, "{\"step\":0}"));
    MPI_Barrier(MPI_COMM_WORLD);
    set_disk(0, 0);
    while (!zero_save_written(t.z)) nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    MUST(zero_save_end(t.z));
    must_have(path, "{\"step\":2}");
    MUST(zero_load(t.z, path, NULL));
    CHECK(has_hash(t.z, begun));
    steps(&t, 3, 4);
    CHECK(has_hash(t.z, end));
    zero_destroy(t.z);
}

static void check_settings(void) {
    for (int f = 0; f < SETTINGS_COUNT(settings_formats); f++)
        for (int stage = 0; stage <= 3; stage++) {
            zero_config c = config_at(stage, f);
            c.async_save = 1;
            CHECK_SETTING("%s, stage %d", settings_formats[f].name, stage);
            check_saved(&c, 1);
        }
    zero_config c = config_at(3, 0);
    c.async_save = 1;
    c.offload.params = c.offload.optimizer = ZERO_NVME;
    c.offload.nvme = folder;
    c.offload.sub_group_size = 2048;
    CHECK_SETTING("states in files");
    check_saved(&c, 0);
}

// -------- what ends it

static void check_ends(void) {
    zero_config c = config_at(3, 1);
    toy t;
    c.async_save = 1;
    CHECK_SETTING("ends");
    MUST(toy_create(&t, &c, NULL));
    CHECK(zero_save_written(t.z));
    MUST(zero_save_end(t.z));  // none has begun
    MUST(zero_save(t.z, path, "{\"step\":0}"));
    MUST(zero_save_begin(t.z, path, "{\"step\":1}"));
    MUST(zero_save_begin(t.z, path, "{\"step\":2}"));  // ends the one before
    CHECK(has_text(path, "{\"step\":1}"));
    MUST(zero_save(t.z, path, "{\"step\":3}"));
    must_have(path, "{\"step\":3}");
    MUST(zero_begin_train(t.z, 0, 1));
    MUST(zero_save_end(t.z));  // none has begun, so the step that has does not matter
    zero_destroy(t.z);

    CHECK_SETTING("dropped with the plugin");
    MUST(toy_create(&t, &c, NULL));
    MUST(zero_save_begin(t.z, path, "{\"step\":4}"));
    zero_destroy(t.z);
    must_have(path, "{\"step\":3}");

    CHECK_SETTING("not asked for");
    c.async_save = 0;
    MUST(toy_create(&t, &c, NULL));
    CHECK(zero_save_begin(t.z, path, NULL) == ZERO_ERR_ARGUMENT &&
          strstr(zero_last_error(), "async_save is 0"));
    zero_destroy(t.z);
}

// The last rank's disk fills up after the begin.
static void check_failure(void) {
    zero_config c = config_at(2, 1);
    toy t;
    char before[17];
    c.async_save = 1;
    CHECK_SETTING("a disk that fills up");
    MUST(toy_create(&t, &c, NULL));
    steps(&t, 1, 1);
    MUST(zero_save(t.z, path, "{\"step\":1}"));
    const int last = checks.rank == checks.ranks - 1;
    set_disk(last, last);
    MUST(zero_save_begin(t.z, path, "{\"step\":2}"));
    steps(&t, 2, 2);
    MUST(zero_hash(t.z, 1, before));
    set_disk(0, last);
    CHECK(zero_save_end(t.z) == ZERO_ERR_IO && strstr(zero_last_error(), "No space left"));
    set_disk(0, 0);
    must_have(path, "{\"step\":1}");
    CHECK(has_hash(t.z, before));
    MUST(zero_save_begin(t.z, path, "{\"step\":3}"));  // and it goes on
    MUST(zero_save_end(t.z));
    must_have(path, "{\"step\":3}");
    zero_destroy(t.z);
}

int main(int argc, char **argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
    checks_begin();
    check_make_folder(folder, sizeof folder, "build");
    path_of(path, "checkpoint");
    file_fault = decide;
    check_settings();
    check_ends();
    check_failure();
    remove_checkpoint(path);
    return saves_end("mpi_async");
}
