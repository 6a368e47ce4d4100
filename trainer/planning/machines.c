#include "machines.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../running/run.h"

// The table is part of the program.
__asm__(".section .rodata\n"
        "machine_table: .incbin \"trainer/planning/machines.json\"\n"
        ".byte 0\n"
        ".previous\n");
extern const char machine_table[];

// -------- figures: arrays of numbers, whose last element is a sentence about their source

typedef struct {
    const json_t *table, *row;
    json_t *file;    // NULL: the row is in the table
    const char *of;  // the name of the table or file, for messages
    Machine *m;
} Source;

// A row has the figures of the row that it is like, unless it has its own.
static const json_t *figure(const Source *s, const char *name) {
    const json_t *row = s->row, *found = json_object_get(row, name);
    for (int depth = 0; !found && depth < 8; depth++) {
        const json_t *like = json_array_get(json_object_get(row, "like"), 0);
        row = like ? json_object_get(s->table, json_string_value(like)) : NULL;
        if (!row) return NULL;
        found = json_object_get(row, name);
    }
    return found;
}

// Returns 1 if the list, "copy, gelu", has this name, not only one that contains it.
static int lists(const char *list, const char *name) {
    const size_t length = strlen(name);
    for (; *list; list += strcspn(list, " "), list += *list == ' ')
        if (strcspn(list, ",") == length && !strncmp(list, name, length)) return 1;
    return 0;
}

static void note_assumed(const Source *s, const json_t *f, const char *name) {
    const char *why = json_string_value(json_array_get(f, json_array_size(f) - 1));
    Machine *m = s->m;
    const size_t used = strlen(m->assumed);
    if (!why || !strstr(why, "assumed") || lists(m->assumed, name)) return;
    snprintf(m->assumed + used, sizeof m->assumed - used, "%s%s", used ? ", " : "", name);
}

static double number(const Source *s, const char *name, int i) {
    const json_t *f = figure(s, name), *value = json_array_get(f, i);
    if (!json_is_number(value)) die("machine %s: %s has no number for %s", s->m->name, s->of, name);
    const double x = json_number_value(value);
    if (!(x >= 0)) die("machine %s: %s: %s is negative", s->m->name, s->of, name);
    if (i == 0) note_assumed(s, f, name);
    return x;
}

static double positive(const Source *s, const char *name, int i) {
    const double x = number(s, name, i);
    if (!(x > 0)) die("machine %s: %s: %s must be above 0", s->m->name, s->of, name);
    return x;
}

static double number_or(const Source *s, const char *name, double otherwise) {
    return figure(s, name) ? number(s, name, 0) : otherwise;
}

static void text(const Source *s, const char *name, char *to, size_t size) {
    const char *value = json_string_value(json_array_get(figure(s, name), 0));
    snprintf(to, size, "%s", value ? value : s->m->name);
}

// Figures of the plugin's operations, by zero_time.
static const char *const time_names[ZERO_TIMES] = { "copy",    "clear", "sum",  "squares", "update",
                                                    "update",  "copy",  "copy", "gather",  "reduce",
                                                    "between", "share", "read", "write" };

// -------- a GPU: its data sheet, and the part of it that each operation reaches

static void read_gpu(const Source *s) {
    Machine *m = s->m;
    LayersMachine *l = &m->layers;
    zero_rate *of = m->plugin.of;
    const double memory = positive(s, "memory_bytes_per_s", 0), link = number(s, "link_bytes_per_s", 0);
    const double bus = number(s, "bus_bytes_per_s", 0), fixed = number(s, "collective_s", 0);
    const int here = m->ranks_a_host;
    m->device_bytes = number(s, "device_bytes", 0);
    l->kernel_s = number(s, "kernel_s", 0);
    for (int i = ZERO_TIME_COPY; i <= ZERO_TIME_UPDATE; i++)
        of[i] = (zero_rate){ l->kernel_s, number(s, time_names[i], 0) * memory };
    of[ZERO_TIME_HOST_UPDATE] = (zero_rate){ 0, number(s, "host_bytes_per_s", 0) / here };
    of[ZERO_TIME_TO_HOST] = of[ZERO_TIME_TO_DEVICE] = (zero_rate){ l->kernel_s, bus };
    of[ZERO_TIME_GATHER] = (zero_rate){ fixed, number(s, "gather_part", 0) * link };
    of[ZERO_TIME_REDUCE] = (zero_rate){ fixed, number(s, "reduce_part", 0) * link };
    of[ZERO_TIME_BETWEEN] = (zero_rate){ number(s, "network_s", 0), number(s, "network_bytes_per_s", 0) };
    of[ZERO_TIME_SHARE] = (zero_rate){ number(s, "share_s", 0), 0 };
    of[ZERO_TIME_READ] = (zero_rate){ 0, number(s, "disk_read_bytes_per_s", 0) / here };
    of[ZERO_TIME_WRITE] = (zero_rate){ 0, number(s, "disk_write_bytes_per_s", 0) / here };
    m->plugin.queue_s = number(s, "queue_s", 0);
    m->context_bytes = number(s, "context_bytes", 0);
    m->nccl_bytes = number(s, "nccl_bytes", 0);
    m->nccl_peer_bytes = number(s, "nccl_peer_bytes", 0);
    m->gelu_fused = number(s, "gelu_fused", 0) > 0;
    for (int dtype = 0; dtype < 3; dtype++) {
        m->peak_flops[dtype] = number(s, "peak_flops", dtype);
        m->best_flops[dtype] = positive(s, "flops", dtype);
        l->flops[dtype] = m->best_flops[dtype] * positive(s, "sustained", 0);
    }
    for (int layer = 0; layer < TIMED_LAYERS; layer++) l->reaches[layer] = positive(s, timed_names[layer], 0);
    l->bytes_per_s = memory;
    l->device_bytes = (size_t)m->device_bytes;
    l->bus_bytes_per_s = bus;
    l->workspace_bytes = (size_t)number(s, "workspace_bytes", 0);
    l->attention_bytes = (size_t)number(s, "attention_bytes", 0);
}

// -------- CPUs: measured times

// Sets `name` to the name of a list or figure with so many threads per rank, "samples_2", or with one thread
// beside idle cores, "samples_alone"; if there is none, with fewer threads. Returns the number of threads.
static int with_threads(const Source *s, const char *of, int threads, int is_alone, char name[64]) {
    snprintf(name, 64, "%s_alone", of);
    if (threads == 1 && is_alone && figure(s, name)) return 1;
    for (int n = threads; n > 0; n--) {
        snprintf(name, 64, "%s_%d", of, n);
        if (figure(s, name)) return n;
    }
    die("machine %s: %s has no %s: make calibrate writes it", s->m->name, s->of, name);
}

static int layer_named(const char *name) {
    for (int i = 0; name && i < TIMED_LAYERS; i++)
        if (!strcmp(timed_names[i], name)) return i;
    return -1;
}

// A sample: ["matmul", "bf16", 256, 768, 768, seconds]
static void read_samples(const Source *s, const json_t *list, double slower) {
    LayerSample *samples = malloc_check((json_array_size(list) + 1) * sizeof *samples);
    int n = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *row = json_array_get(list, i);
        const char *dtype = json_string_value(json_array_get(row, 1));
        const int layer = layer_named(json_string_value(json_array_get(row, 0)));
        double x[4];
        for (int k = 0; k < 4; k++) x[k] = json_number_value(json_array_get(row, 2 + k));
        if (layer < 0 || !dtype || !(x[3] > 0))
            die("machine %s: %s: sample %zu is not valid", s->m->name, s->of, i);
        samples[n++] = (LayerSample){ .layer = layer,
                                      .dtype = strcmp(dtype, "fp32") ? GPT2_BF16 : GPT2_F32,
                                      .dims = { x[0], x[1], x[2] },
                                      .seconds = x[3] * slower };
    }
    s->m->layers.samples = samples;
    s->m->layers.n_samples = n;
}

static void read_cpu(const Source *s, int threads) {
    Machine *m = s->m;
    const int here = m->ranks_a_host, cores = (int)positive(s, "cores", 0);
    m->threads = threads ? threads : here < cores ? cores / here : 1;
    const double crowded = (double)here * m->threads / cores, slower = crowded > 1 ? crowded : 1;
    const int is_alone = crowded < 1;
    char name[64];
    for (int i = 0; i < ZERO_TIMES; i++) {
        const int is_disk = i == ZERO_TIME_READ || i == ZERO_TIME_WRITE;
        const double share = is_disk ? here : i == ZERO_TIME_BETWEEN ? 1 : slower;
        double more = 1;  // threads than measured
        if (i < ZERO_TIME_GATHER)
            more = (double)m->threads / with_threads(s, time_names[i], m->threads, is_alone, name);
        else
            snprintf(name, sizeof name, "%s", time_names[i]);
        m->plugin.of[i] = (zero_rate){ number(s, name, 0) * share, number(s, name, 1) / share * more };
    }
    m->plugin.turn_s = number_or(s, "turn_s", 4e-3);
    m->plugin.disk_bursts = number_or(s, "disk_bursts", 0) > 0.5;
    if (figure(s, "between_work"))
        m->plugin.work_between = (zero_rate){ number(s, "between_work", 0), number(s, "between_work", 1) };
    const int take_turns = here > 1 && crowded > 1;  // the ranks of a host
    m->plugin.scattered = take_turns ? 0.15 : 0;     // measured with three and four ranks on two cores
    m->plugin.uneven = take_turns ? ceil(crowded) / crowded - 1 : 0;
    m->plugin.threads = m->threads;
    m->plugin.spare_core = (m->threads + 1) * here <= cores;
    for (int dtype = 0; dtype < 3; dtype++)
        m->best_flops[dtype] = m->layers.flops[dtype] = number(s, "flops", dtype) / slower;
    m->layers.bytes_per_s = m->plugin.of[ZERO_TIME_CLEAR].bytes_per_s;
    const int measured = with_threads(s, "samples", m->threads, is_alone, name);
    read_samples(s, figure(s, name), slower * measured / m->threads);
}

// -------- finding the machine

// Splits "h100x8" into the name and the number of ranks a host. Returns 0 if no number follows.
static int split_name(const char *name, char *first, size_t size) {
    const char *x = strrchr(name, 'x');
    char *end = NULL;
    const long n = x && x > name ? strtol(x + 1, &end, 10) : 0;
    if (n < 1 || n > 1 << 16 || *end) return 0;
    snprintf(first, size, "%.*s", (int)(x - name), name);
    return (int)n;
}

// path: NULL: the table.
static json_t *load(const char *path) {
    json_error_t error;
    json_t *root = path ? json_load_file(path, 0, &error) : json_loads(machine_table, 0, &error);
    if (!root && !path) die("machines.json, line %d: %s", error.line, error.text);
    if (!root && error.line < 0)
        die("option --machine: %s; make calibrate measures this machine", error.text);
    if (!root) die("option --machine %s: line %d: %s", path, error.line, error.text);
    return root;
}

// Sets s->row, and returns the number of ranks a host that the name asks for; 0: none.
static int find_row(Source *s, const char *name) {
    char first[64], names[256] = "";
    const char *key;
    json_t *row;
    s->row = json_object_get(s->table, name);
    if (s->row) return 0;
    if (!strcmp(name, "this")) name = "build/machine.json";
    if (strchr(name, '.')) {
        s->row = s->file = load(s->of = name);
        return 0;
    }
    const int each = split_name(name, first, sizeof first);
    if (each) s->row = json_object_get(s->table, first);
    if (s->row) return each;
    json_object_foreach((json_t *)s->table, key, row) {
        const size_t used = strlen(names);
        if (json_object_get(row, "title"))
            snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", key);
    }
    die("option --machine %s: is none of %s, with xN for hosts of N, nor this, which make calibrate "
        "measures, nor a file with a dot in its name",
        name, names);
}

void machine_find(Machine *m, const char *name, int ranks, int ranks_a_host, int threads) {
    Source s = { .table = load(NULL), .of = "machines.json", .m = m };
    char kind[64];
    *m = (Machine){ .ranks_a_host = 1 };
    snprintf(m->name, sizeof m->name, "%s", name);
    const int each = find_row(&s, name);
    text(&s, "kind", kind, sizeof kind);
    text(&s, "title", m->title, sizeof m->title);
    m->is_gpu = !strcmp(kind, "gpu");
    m->ranks_a_host = ranks_a_host ? ranks_a_host : each ? each : (int)number_or(&s, "ranks_a_host", ranks);
    if (m->ranks_a_host < 1) die("machine %s: %s: ranks_a_host must be at least 1", m->name, s.of);
    if (m->ranks_a_host > ranks) m->ranks_a_host = ranks;
    m->host_bytes = number_or(&s, "host_bytes", 0);
    m->disk_bytes = number_or(&s, "disk_bytes", 0);
    m->plugin.name = m->title;
    m->plugin.ranks_on_host = m->ranks_a_host;
    if (m->is_gpu)
        read_gpu(&s);
    else
        read_cpu(&s, threads);
    json_decref(s.file);
    json_decref((json_t *)s.table);
}
