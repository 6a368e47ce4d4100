#include "memory.h"
#include "error.h"
#include <stdlib.h>
#include <string.h>

static int find_line(memory *m, zero_memory_class class_, const char *purpose, zero_tier tier) {
    for (int i = 0; i < m->n_lines; i++)
        if (m->lines[i].class_ == class_ && m->lines[i].tier == tier && !strcmp(m->lines[i].purpose, purpose))
            return i;
    zero_memory_line *lines = realloc(m->lines, (m->n_lines + 1) * sizeof *lines);
    char *name = strdup(purpose);
    if (lines) m->lines = lines;
    if (!lines || !name) {
        free(name);
        return -1;
    }
    m->lines[m->n_lines] = (zero_memory_line){ name, class_, 0, tier };
    return m->n_lines++;
}

static int add_block(memory *m, zero_memory_class class_, const char *purpose, zero_tier tier,
                     const memory_block *block) {
    int line = find_line(m, class_, purpose, tier);
    memory_block *b = malloc(sizeof *b);
    if (line < 0 || !b) {
        free(b);
        return zero_fail(ZERO_ERR_MEMORY, "out of memory for the allocator's table");
    }
    *b = *block;
    b->line = line;
    b->next = m->blocks;
    m->blocks = b;
    m->lines[line].bytes += b->bytes;
    return 0;
}

static void *alloc_from(memory *m, device *d, zero_tier tier, zero_memory_class class_, const char *purpose,
                        size_t bytes, int moves) {
    size_t page = 4096, rounded = (bytes + page - 1) / page * page;
    const char *why = "";
    if (!rounded) rounded = page;
    void *base = d->f->alloc(d, rounded, &why);
    if (!base) {
        zero_fail(ZERO_ERR_MEMORY, "no memory for %s: %.1f MiB more than the %.1f MiB held (%s)", purpose,
                  bytes / 1048576.0,
                  (memory_bytes(m, ZERO_STATES) + memory_bytes(m, ZERO_WORKING) +
                   memory_bytes(m, ZERO_ACTIVATIONS)) /
                      1048576.0,
                  why);
        return NULL;
    }
    memory_block block = { .base = base, .bytes = rounded, .owner = d, .moves = moves };
    if (!add_block(m, class_, purpose, tier, &block)) return base;
    d->f->release(d, base, rounded);
    return NULL;
}

void *memory_alloc(memory *m, zero_memory_class class_, const char *purpose, size_t bytes) {
    return alloc_from(m, m->device, ZERO_DEVICE, class_, purpose, bytes, MOVED_BY_NONE);
}

void *memory_alloc_moved(memory *m, zero_memory_class class_, const char *purpose, size_t bytes, int moves) {
    device *from = m->mover && moves ? m->mover : m->device;
    return alloc_from(m, from, ZERO_DEVICE, class_, purpose, bytes, moves);
}

static zero_tier host_tier(const memory *m) { return m->device->asynchronous ? ZERO_HOST : ZERO_DEVICE; }

void *memory_alloc_host(memory *m, zero_memory_class class_, const char *purpose, size_t bytes) {
    return alloc_from(m, &device_host, host_tier(m), class_, purpose, bytes, MOVED_BY_NONE);
}

int memory_note(memory *m, zero_memory_class class_, const char *purpose, size_t bytes) {
    return add_block(m, class_, purpose, host_tier(m), &(memory_block){ .bytes = bytes });
}

int memory_note_device(memory *m, zero_memory_class class_, const char *purpose, size_t bytes) {
    return add_block(m, class_, purpose, ZERO_DEVICE, &(memory_block){ .bytes = bytes });
}

void memory_free_all(memory *m) {
    for (memory_block *b = m->blocks, *next; b; b = next) {
        next = b->next;
        if (b->owner) b->owner->f->release(b->owner, b->base, b->bytes);
        free(b);
    }
    for (int i = 0; i < m->n_lines; i++) free((char *)m->lines[i].purpose);
    free(m->lines);
    *m = (memory){ 0 };
}

size_t memory_bytes(const memory *m, zero_memory_class class_) {
    size_t sum = 0;
    for (int i = 0; i < m->n_lines; i++)
        if (m->lines[i].class_ == class_) sum += m->lines[i].bytes;
    return sum;
}
