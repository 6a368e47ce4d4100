// Tests saves during training: mpirun -np N mpi_async, for any N. A checkpoint contains the states at
// zero_save_begin, and saving does not change the bits of training. Until the save ends, and after a failure,
// the folder keeps the previous checkpoint.
#include <errno.h>
#include <stdint.h>
#include "faults.h"
#include "saves.h"
#include "../llmc_zero/base/clock.h"

static const char *path;

// -------- saved states

// holds 1: writes block until training has continued.
static void check_saved(const zero_config *c, int holds) {
    toy t;
    char begun[17], end[17];
    create_and_train(&t, c, 4);
    MUST(zero_hash(t.z, 1, end));
    zero_destroy(t.z);
    MUST(toy_create(&t, c, NULL));
    MUST(zero_save(t.z, path, "{\"step\":0}"));
    steps(&t, 1, 2);
    MUST(zero_hash(t.z, 1, begun));
    fault_waits = holds;
    MUST(zero_save_begin(t.z, path, "{\"step\":2}"));
    CHECK(!holds || !zero_save_written(t.z));
    steps(&t, 3, 4);
    CHECK(has_hash(t.z, end));
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(has_text(path, "{\"step\":0}"));
    MPI_Barrier(MPI_COMM_WORLD);
    fault_waits = 0;
    while (!zero_save_written(t.z)) clock_nap(1e-3);
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
    for (int set = 1; set < TOY_FROZEN_SETS; set++) {
        zero_config c = config_at(set - 1, set - 1);
        c.async_save = 1;
        CHECK_SETTING("%s, stage %d", toy_freeze(set), c.stage);
        check_saved(&c, 1);
    }
    toy_freeze(0);
    zero_config c = config_at(3, 0);
    c.async_save = 1;
    c.offload.params = c.offload.optimizer = ZERO_NVME;
    c.offload.nvme = folder;
    c.offload.sub_group_size = 2048;
    CHECK_SETTING("states in files");
    check_saved(&c, 0);
}

// -------- the end of a save

static void check_ends(void) {
    zero_config c = config_at(3, 1);
    toy t;
    c.async_save = 1;
    CHECK_SETTING("every way to end a save");
    MUST(toy_create(&t, &c, NULL));
    CHECK(zero_save_written(t.z));
    MUST(zero_save_end(t.z));  // no save was begun
    MUST(zero_save(t.z, path, "{\"step\":0}"));
    MUST(zero_save_begin(t.z, path, "{\"step\":1}"));
    MUST(zero_save_begin(t.z, path, "{\"step\":2}"));  // ends the previous save
    CHECK(has_text(path, "{\"step\":1}"));
    MUST(zero_save(t.z, path, "{\"step\":3}"));
    must_have(path, "{\"step\":3}");
    MUST(zero_begin_train(t.z, 0, 1));
    MUST(zero_save_end(t.z));  // no save is in progress, so the open step is not an error
    zero_destroy(t.z);

    CHECK_SETTING("zero_destroy drops the save");
    MUST(toy_create(&t, &c, NULL));
    MUST(zero_save_begin(t.z, path, "{\"step\":4}"));
    zero_destroy(t.z);
    must_have(path, "{\"step\":3}");

    CHECK_SETTING("async_save 0");
    c.async_save = 0;
    MUST(toy_create(&t, &c, NULL));
    CHECK(zero_save_begin(t.z, path, NULL) == ZERO_ERR_ARGUMENT &&
          strstr(zero_last_error(), "async_save is 0"));
    zero_destroy(t.z);
}

// The last rank's disk fills up after zero_save_begin.
static void check_failure(void) {
    zero_config c = config_at(2, 1);
    toy t;
    char before[17];
    c.async_save = 1;
    CHECK_SETTING("a disk that fills up");
    create_and_train(&t, &c, 1);
    MUST(zero_save(t.z, path, "{\"step\":1}"));
    const int last = checks.rank == checks.ranks - 1;
    fault_waits = last;
    set_fault(FILE_WRITE, 1, last ? INT64_MAX / 2 : 0, -ENOSPC);
    MUST(zero_save_begin(t.z, path, "{\"step\":2}"));
    steps(&t, 2, 2);
    MUST(zero_hash(t.z, 1, before));
    fault_waits = 0;
    CHECK(zero_save_end(t.z) == ZERO_ERR_IO && strstr(zero_last_error(), "No space left"));
    set_fault(FILE_WRITE, 0, 0, 0);
    must_have(path, "{\"step\":1}");
    CHECK(has_hash(t.z, before));
    MUST(zero_save_begin(t.z, path, "{\"step\":3}"));  // the next save works
    MUST(zero_save_end(t.z));
    must_have(path, "{\"step\":3}");
    zero_destroy(t.z);
}

static void check_all(const char *asked) {
    check_make_folder(folder, sizeof folder, "build");
    path = in_folder("checkpoint");
    set_fault(FILE_WRITE, 0, 0, 0);
    check_settings();
    check_ends();
    check_failure();
    remove_checkpoint(path);
    check_remove_folder(folder);
}

int main(int argc, char **argv) { return checks_main(argc, argv, "mpi_async", check_all); }
