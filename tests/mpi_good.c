// What is saved as good: mpirun -np N mpi_good, for any N. A value that is not finite is not saved, whatever
// it is and whichever rank has it, and the checkpoint before stays; values at the edge are.
// zero_checkpoint_verify finds what has changed: every byte of the manifest, and one in each 4 KiB of states.
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "check.h"
#include "settings.h"
#include "toy.h"
#include "../llmc_zero/internal.h"

enum { PATH_BYTES = 200 };
static char folder[100];

static zero_config config_of(int stage, zero_dtype dtype) {
    zero_config c = zero_defaults();
    c.stage = stage;
    c.numbers.dtype = dtype;
    return c;
}

static void steps(toy *t, int from, int to) {
    for (int step = from; step <= to; step++) MUST(toy_step(t, 1, step, NULL));
}

static int entries(const char *path) {
    struct dirent **list;
    int n = scandir(path, &list, NULL, alphasort);
    for (int i = 0; i < n; i++) free(list[i]);
    if (n >= 0) free(list);
    return n - 2;
}

// -------- what is not finite

// An element of the first and of the last tensor, so that they are the first rank's and the last one's.
typedef struct {
    zero_value what;
    int last;  // 1: of the last tensor
    float value;
    const char *words;
} bad_value;

static void last_place(const toy *t, int *tensor, int *layer, int64_t *element) {
    const zero_tensor *table = t->z->layout.tensors;
    *tensor = t->z->layout.n_tensors - 1;
    *layer = table[*tensor].layers - 1;
    *element = zero_tensor_elems(&table[*tensor]) - 1;
}

static void check_refused(toy *t, const char *path, const bad_value *b, const char before[17]) {
    int tensor = 0, layer = 0;
    int64_t element = 0;
    char hex[17], words[100];
    float old;
    if (b->last) last_place(t, &tensor, &layer, &element);
    MUST(zero_get(t->z, b->what, tensor, layer, element, 1, &old));
    MUST(zero_set(t->z, b->what, tensor, layer, element, 1, &b->value));
    snprintf(words, sizeof words, "%s, layer %d, element %lld (unit ", t->z->layout.tensors[tensor].name,
             layer, (long long)element);
    for (int saves = 0; saves < 2; saves++) {
        int rc = saves ? zero_save(t->z, path, NULL) : zero_check_finite(t->z);
        CHECK(rc == ZERO_ERR_ARGUMENT);
        CHECK(strstr(zero_last_error(), b->words) != NULL);
        CHECK(strstr(zero_last_error(), words) != NULL);
        CHECK(zero_last_failure()->rank >= 0 && zero_last_failure()->unit >= 0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(entries(path) == checks.ranks + 1);  // those of before, and the manifest
    CHECK(!zero_checkpoint_verify(path, NULL, NULL));
    MUST(zero_set(t->z, b->what, tensor, layer, element, 1, &old));
    MUST(zero_check_finite(t->z));
    MUST(zero_hash(t->z, 1, hex));
    CHECK(!strcmp(hex, before));
}

static void check_not_finite(int stage, zero_dtype dtype) {
    static const bad_value values[] = {
        { ZERO_MASTER, 0, NAN, "parameters that are not finite: nan in " },
        { ZERO_MASTER, 1, -INFINITY, "parameters that are not finite: -inf in " },
        { ZERO_MOMENT1, 0, INFINITY, "first moment that are not finite: inf in " },
        { ZERO_MOMENT1, 1, NAN, "first moment that are not finite: nan in " },
        { ZERO_MOMENT2, 1, INFINITY, "second moment that are not finite: inf in " },
    };
    char path[PATH_BYTES], before[17];
    zero_config c = config_of(stage, dtype);
    toy t;
    snprintf(path, sizeof path, "%s/saved", folder);
    MUST(toy_create(&t, &c, NULL));
    steps(&t, 1, 2);
    MUST(zero_save(t.z, path, NULL));
    MUST(zero_hash(t.z, 1, before));
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        CHECK_SETTING("not finite, %s, stage %d, value %zu", dtype_name(dtype), stage, i);
        check_refused(&t, path, &values[i], before);
    }
    CHECK_SETTING("loads after, %s, stage %d", dtype_name(dtype), stage);
    steps(&t, 3, 3);
    MUST(zero_load(t.z, path, NULL));
    char hex[17];
    MUST(zero_hash(t.z, 1, hex));
    CHECK(!strcmp(hex, before));
    zero_destroy(t.z);
}

// A finite master that is rounded to infinity is no parameter any more.
static void check_edge(zero_dtype dtype, float most, float too_much) {
    char path[PATH_BYTES];
    zero_config c = config_of(3, dtype);
    toy t;
    CHECK_SETTING("the edge of %s", dtype_name(dtype));
    snprintf(path, sizeof path, "%s/saved", folder);
    MUST(toy_create(&t, &c, NULL));
    MUST(zero_set(t.z, ZERO_MASTER, 0, 0, 1, 1, &most));
    CHECK(!zero_check_finite(t.z));
    MUST(zero_save(t.z, path, NULL));
    MUST(zero_set(t.z, ZERO_MOMENT1, 0, 0, 1, 1, &too_much));
    CHECK(zero_check_finite(t.z) == (isfinite(too_much) ? 0 : ZERO_ERR_ARGUMENT));
    MUST(zero_set(t.z, ZERO_MOMENT1, 0, 0, 1, 1, &most));
    MUST(zero_set(t.z, ZERO_MASTER, 0, 0, 1, 1, &too_much));
    CHECK(zero_check_finite(t.z) == ZERO_ERR_ARGUMENT);
    CHECK(zero_save(t.z, path, NULL) == ZERO_ERR_ARGUMENT);
    CHECK(!zero_checkpoint_verify(path, NULL, NULL));
    zero_destroy(t.z);
}

// -------- bytes that have changed

static void flip(const char *path, int64_t at, int bit) {
    unsigned char byte;
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= (unsigned char)(1 << bit);
    CHECK(pwrite(fd, &byte, 1, at) == 1 && !close(fd));
}

static void flip_bits(const char *checkpoint, const char *name, int64_t stride) {
    char path[2 * PATH_BYTES];
    struct stat st;
    snprintf(path, sizeof path, "%s/%.60s", checkpoint, name);
    CHECK(!stat(path, &st));
    for (int64_t at = 0; at < st.st_size; at += stride) {
        flip(path, at, (int)(at % 8));
        CHECK(zero_checkpoint_verify(checkpoint, NULL, NULL) == ZERO_ERR_IO);
        CHECK(!strncmp(zero_last_error(), path, strlen(path)));
        flip(path, at, (int)(at % 8));
    }
}

static void count_file(void *ctx, const char *file, int64_t bytes) {
    struct stat st;
    CHECK(!stat(file, &st) && st.st_size == bytes);
    ++*(int *)ctx;
}

static void check_bytes(void) {
    char path[PATH_BYTES];
    zero_config c = config_of(2, ZERO_F32);
    struct dirent **list;
    toy t;
    int files = 0;
    CHECK_SETTING("bytes");
    snprintf(path, sizeof path, "%s/bytes", folder);
    MUST(toy_create(&t, &c, NULL));
    steps(&t, 1, 2);
    MUST(zero_save(t.z, path, "{\"step\": 2}"));
    zero_destroy(t.z);
    if (checks.rank) return;
    CHECK(!zero_checkpoint_verify(path, count_file, &files) && files == checks.ranks + 1);
    int n = scandir(path, &list, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        if (*list[i]->d_name != '.')
            flip_bits(path, list[i]->d_name, strcmp(list[i]->d_name, "manifest.json") ? 4099 : 1);
        free(list[i]);
    }
    free(list);
    CHECK(!zero_checkpoint_verify(path, NULL, NULL));
    CHECK(!zero_checkpoint_remove(path));
}

int main(int argc, char **argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
    checks_begin();
    check_make_folder(folder, sizeof folder, "/tmp");
    for (int stage = 0; stage <= 3; stage++) check_not_finite(stage, stage & 1 ? ZERO_BF16 : ZERO_F32);
    check_edge(ZERO_F32, 3.402823466e38f, INFINITY);
    check_edge(ZERO_BF16, 3.39e38f, 3.4e38f);
    check_bytes();
    MPI_Barrier(MPI_COMM_WORLD);
    if (!checks.rank) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/saved", folder);
        CHECK(!zero_checkpoint_remove(path));
        CHECK(!rmdir(folder));  // nothing else was left in it
    }
    int failed = checks_end("mpi_good");
    MPI_Finalize();
    return failed;
}
