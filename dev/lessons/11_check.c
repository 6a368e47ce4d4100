// Lesson 11: three ranks save a checkpoint. Reads it through find_ranges for other numbers of ranks, and
// compares each value with what the library loads on two ranks.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "lesson.h"

enum { UNITS = 4, OLD = 3, STATES = 3, MOST = 5000 };

static const int64_t elems[UNITS] = { 1000, 4999, 100, 2304 };  // the third unit fits into rank 0's part
static const char folder[] = "build/tutorial/lesson_11";
static const char *const names[STATES] = { "master", "moment1", "moment2" };

// The contents of the manifest.
static struct {
    char files[OLD][80];
    int64_t unit_elems[UNITS], bytes[OLD];
    saved_part parts[UNITS][STATES][OLD];
} saved;
static float loaded[UNITS][STATES][MOST];

// -------- the checkpoint

static float gradient(int rank, int micro, int unit, int64_t i) {
    return lesson_number(((uint64_t)i * UNITS + unit) * OLD + rank + micro);
}

static zero_config at_stage_3(void) {
    zero_config config = zero_defaults();
    config.stage = 3;
    return config;
}

static void save(void) {
    zero_config config = at_stage_3();
    const zero_hyper hyper = { .lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .t = 1 };
    zero *z = lesson_engine(&config, elems, UNITS);
    lesson_micro_batch(z, 0, 1, &config, elems, UNITS, gradient);
    lesson_must(zero_step(z, &hyper, NULL));
    lesson_must(zero_save(z, folder, NULL));
    zero_destroy(z);
}

static void load(void) {
    static const zero_value values[STATES] = { ZERO_MASTER, ZERO_MOMENT1, ZERO_MOMENT2 };
    zero_config config = at_stage_3();
    zero *z = lesson_engine(&config, elems, UNITS);
    lesson_must(zero_load(z, folder, NULL));
    for (int u = 0; u < UNITS; u++)
        for (int s = 0; s < STATES; s++) lesson_must(zero_get(z, values[s], u, 0, 0, elems[u], loaded[u][s]));
    zero_destroy(z);
}

// Returns the number after "name": in a line of JSON.
static int64_t number_of(const char *json, const char *name) {
    char quoted[40];
    snprintf(quoted, sizeof quoted, "\"%s\":", name);
    const char *at = strstr(json, quoted);
    return at ? strtoll(at + strlen(quoted), NULL, 10) : 0;
}

// A file's line has its name, its size and its parts.
static void read_file_line(int r, const char *line) {
    sscanf(line, " {\"name\":\"%79[^\"]\"", saved.files[r]);
    saved.bytes[r] = number_of(line, "bytes");
    for (const char *part = line; (part = strstr(part, "{\"unit\":")); part++) {
        const int64_t u = number_of(part, "unit");
        for (int s = 0; s < STATES; s++)
            saved.parts[u][s][r] = (saved_part){ number_of(part, "from"), number_of(part, "elems"),
                                                 number_of(part, names[s]) };
    }
}

// The manifest has a line for each unit and each file. Parts that a file does not list are empty.
static void read_manifest(void) {
    static char line[100000];
    int u = 0, r = 0;
    snprintf(line, sizeof line, "%s/manifest.json", folder);
    FILE *f = fopen(line, "r");
    while (f && fgets(line, sizeof line, f)) {
        if (strstr(line, ".states\"") && r < OLD)
            read_file_line(r++, line);
        else if (strstr(line, "{\"name\":\"unit\"") && u < UNITS)
            saved.unit_elems[u++] = number_of(line, "elems");
    }
    if (f) fclose(f);
    for (u = 0; u < UNITS; u++)
        for (int s = 0; s < STATES; s++)
            for (r = 1; r < OLD; r++) {
                saved_part *p = &saved.parts[u][s][r];
                if (!p->elems) p->from = p[-1].from + p[-1].elems;
            }
}

// -------- comparison

// Reads a range of a file into `values`. Returns 0 if it is not in the file, or longer than room.
static int read_range(const file_range *range, float *values, int64_t room) {
    char path[200];
    if (range->file < 0 || range->file >= OLD || range->at < 0 || range->bytes < 0 ||
        range->bytes > 4 * room || range->at + range->bytes > saved.bytes[range->file]) {
        lesson_off(
            "a range of file %d from byte %lld, %lld bytes: not in the file, or more than the rank owns",
            range->file, (long long)range->at, (long long)range->bytes);
        return 0;
    }
    snprintf(path, sizeof path, "%s/%s", folder, saved.files[range->file]);
    FILE *f = fopen(path, "rb");
    const int ok = f && !fseek(f, range->at, SEEK_SET) &&
                   fread(values, 1, range->bytes, f) == (size_t)range->bytes;
    if (f) fclose(f);
    if (!ok) lesson_off("%s cannot be read", path);
    return ok;
}

// Compares what rank m of M reads of one state of a unit with the values that the library has loaded.
static void compare(int u, int s, int m, int M) {
    const int64_t all = saved.unit_elems[u], shard = ((all + M - 1) / M + 127) / 128 * 128, mine = m * shard;
    const int64_t owned = mine >= all ? 0 : all - mine < shard ? all - mine : shard;
    static float values[MOST + 256];
    file_range ranges[OLD + 1] = { { 0, 0, 0 } };
    int64_t n = 0;
    const int count = find_ranges(all, saved.parts[u][s], OLD, m, M, ranges);
    for (int i = 0; i < count && i < OLD; i++) {
        if (!read_range(&ranges[i], values + n, owned - n)) return;
        n += ranges[i].bytes / 4;
    }
    if (n != owned || count < 0 || count > OLD)
        lesson_off("rank %d of %d, unit %d (%lld elements): you read %lld values in %d ranges; it owns %lld",
                   m, M, u, (long long)all, (long long)n, count, (long long)owned);
    for (int64_t i = 0; i < n && mine + i < elems[u]; i++) {
        if (!memcmp(&values[i], &loaded[u][s][mine + i], 4)) continue;
        lesson_off("rank %d of %d, unit %d: %s of element %lld: you read %g; the library loads %g", m, M, u,
                   names[s], (long long)(mine + i), values[i], loaded[u][s][mine + i]);
        return;
    }
}

int main(int argc, char **argv) {
    mkdir("build/tutorial", 0777);
    lesson_begin(argv, OLD, 11, "another number of ranks");
    save();
    if (lesson_join(2)) load();
    read_manifest();
    for (int M = 1; M <= 6; M++) {
        for (int u = 0; u < UNITS && wire_rank() == 0; u++)
            for (int m = 0; m < M; m++)
                for (int s = 0; s < STATES; s++) compare(u, s, m, M);
        lesson_check("saved on %d ranks, read on %d", OLD, M);
    }
    return lesson_end();
}
