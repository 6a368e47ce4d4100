// Lesson 10: compares file_bytes with the plan of the library, and with what it reads and writes in a step.
#include <sys/stat.h>
#include "lesson.h"

enum { UNITS = 3, MOST_MICRO_BATCHES = 4 };

static const char folder[] = "build/tutorial/lesson_10";

// Parts of units are whole pages for 1 to 4 ranks, so that nothing is padded.
static const int64_t elems[UNITS] = { 12 * 4096, 3 * 12 * 4096, 2 * 12 * 4096 };

static zero_config with_files(int micro_batches, int gradients) {
    zero_config config = zero_defaults();
    config.stage = 3;
    config.micro_batches = micro_batches;
    config.prefetch = 0;
    config.numbers.dtype = ZERO_BF16;
    config.offload.params = config.offload.optimizer = ZERO_NVME;
    config.offload.gradients = gradients ? ZERO_NVME : ZERO_DEVICE;
    config.offload.nvme = folder;
    return config;
}

static void compare(int ranks, int A, int gradients, const char *whose, int64_t read, int64_t written) {
    int64_t your_read = -1, your_written = -1;
    file_bytes(elems, UNITS, ranks, A, gradients, &your_read, &your_written);
    if (your_read == read && your_written == written) return;
    lesson_off("%d ranks, %d micro-batches: you get %lld bytes read, %lld written; the library %s %lld, %lld",
               ranks, A, (long long)your_read, (long long)your_written, whose, (long long)read,
               (long long)written);
}

static void check_plans(int gradients) {
    for (int ranks = 1; ranks <= 4; ranks++)
        for (int A = 1; A <= MOST_MICRO_BATCHES; A++) {
            zero_config config = with_files(A, gradients);
            const zero_plan plan = lesson_plan(&config, elems, UNITS, ranks);
            compare(ranks, A, gradients, "plans", plan.file_read, plan.file_written);
        }
    lesson_check("planned, %s", gradients ? "gradients on NVMe too" : "gradients in memory");
}

static float gradient(int rank, int micro, int unit, int64_t i) {
    return lesson_number((uint64_t)i + rank + micro + unit);
}

static zero_files moved_so_far(zero *z) {
    zero_files files;
    zero_files_info(z, &files);
    return files;
}

// Counts the second of two steps. A gather may take a part from the update's buffers instead of its file:
// such bytes count as read.
static void check_step(int A, int gradients) {
    zero_config config = with_files(A, gradients);
    const zero_hyper hyper = { .lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .t = 1 };
    zero *z = lesson_engine(&config, elems, UNITS);
    zero_files before = { .how = NULL };
    for (int step = 0; step < 2; step++) {
        before = moved_so_far(z);
        for (int micro = 0; micro < A; micro++)
            lesson_micro_batch(z, micro, A, &config, elems, UNITS, gradient);
        lesson_must(zero_step(z, &hyper, NULL));
    }
    const zero_files after = moved_so_far(z);
    const int step = ZERO_FOR_STEP;
    compare(2, A, gradients, "moved",
            after.read[step] + after.not_read[step] - before.read[step] - before.not_read[step],
            after.written[step] - before.written[step]);
    zero_destroy(z);
    lesson_check("moved by a step of %d micro-batch%s, %s", A, A > 1 ? "es" : "",
                 gradients ? "gradients on NVMe too" : "gradients in memory");
}

int main(int argc, char **argv) {
    mkdir("build/tutorial", 0777);
    mkdir(folder, 0777);
    lesson_begin(argv, 2, 10, "states on disk");
    for (int gradients = 0; gradients <= 1; gradients++) check_plans(gradients);
    check_step(1, 0);
    check_step(3, 0);
    check_step(3, 1);
    return lesson_end();
}
