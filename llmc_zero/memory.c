#include "memory.h"
#include "error.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int find_line(memory *m, zero_memory_class class_, const char *purpose) {
    for (int i = 0; i < m->n_lines; i++)
        if (m->lines[i].class_ == class_ && !strcmp(m->lines[i].purpose, purpose)) return i;
    zero_memory_line *lines = realloc(m->lines, (m->n_lines + 1) * sizeof *lines);
    char *name = strdup(purpose);
    if (lines) m->lines = lines;
    if (!lines || !name) { free(name); return -1; }
    m->lines[m->n_lines] = (zero_memory_line){ name, class_, 0 };
    return m->n_lines++;
}

static int add_block(memory *m, zero_memory_class class_, const char *purpose, void *base, size_t bytes, int mapped) {
    int line = find_line(m, class_, purpose);
    memory_block *b = malloc(sizeof *b);
    if (line < 0 || !b) { free(b); return zero_fail(ZERO_ERR_MEMORY, "out of memory for the allocator's table"); }
    *b = (memory_block){ base, bytes, line, mapped, m->blocks };
    m->blocks = b;
    m->lines[line].bytes += bytes;
    return 0;
}

void *memory_alloc(memory *m, zero_memory_class class_, const char *purpose, size_t bytes) {
    size_t page = 4096, rounded = (bytes + page - 1) / page * page;
    if (!rounded) rounded = page;
    void *base = mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        zero_fail(ZERO_ERR_MEMORY, "no memory for %s: %.1f MiB more than the %.1f MiB held (%s)", purpose, bytes / 1048576.0,
                  (memory_bytes(m, ZERO_STATES) + memory_bytes(m, ZERO_WORKING) + memory_bytes(m, ZERO_ACTIVATIONS)) / 1048576.0, strerror(errno));
        return NULL;
    }
    madvise(base, rounded, MADV_HUGEPAGE);      /* advice only: fewer TLB misses where the system grants it */
    if (add_block(m, class_, purpose, base, rounded, 1)) { munmap(base, rounded); return NULL; }
    return base;
}

int memory_note(memory *m, zero_memory_class class_, const char *purpose, size_t bytes) {
    return add_block(m, class_, purpose, NULL, bytes, 0);
}

void memory_free_all(memory *m) {
    for (memory_block *b = m->blocks, *next; b; b = next) {
        next = b->next;
        if (b->mapped) munmap(b->base, b->bytes);
        free(b);
    }
    for (int i = 0; i < m->n_lines; i++) free((char *)m->lines[i].purpose);
    free(m->lines);
    *m = (memory){ 0 };
}

size_t memory_bytes(const memory *m, zero_memory_class class_) {
    size_t sum = 0;
    for (int i = 0; i < m->n_lines; i++) if (m->lines[i].class_ == class_) sum += m->lines[i].bytes;
    return sum;
}
