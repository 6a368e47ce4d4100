#include "memory.h"
#include "error.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

zero_memory_line *memory_find_line(zero_memory_line *lines, int n, const memory_request *r) {
    for (int i = 0; i < n; i++) {
        zero_memory_line *l = &lines[i];
        if (l->class_ == r->class_ && l->tier == r->tier && !strcmp(l->purpose, r->purpose)) return l;
    }
    return NULL;
}

// Appends an empty line. Returns NULL if out of memory.
static zero_memory_line *add_line(memory *m, const memory_request *r) {
    zero_memory_line *lines = realloc(m->lines, (m->n_lines + 1) * sizeof *lines);
    char *name = lines ? strdup(r->purpose) : NULL;
    if (lines) m->lines = lines;
    if (!name) return NULL;
    lines[m->n_lines] =
        (zero_memory_line){ .purpose = name, .class_ = r->class_, .tier = r->tier, .moved_by = r->moved_by };
    return &lines[m->n_lines++];
}

static int add_block(memory *m, const memory_request *r, const memory_block *block) {
    zero_memory_line *line = memory_find_line(m->lines, m->n_lines, r);
    memory_block *b = malloc(sizeof *b);
    if (!line) line = add_line(m, r);
    if (!line || !b) {
        free(b);
        return zero_fail(ZERO_ERR_MEMORY, "out of memory for the allocator's table");
    }
    *b = *block;
    b->line = (int)(line - m->lines);
    b->next = m->blocks;
    m->blocks = b;
    line->bytes += b->bytes;
    return 0;
}

size_t memory_whole_pages(size_t bytes) {
    enum { PAGE = 4096 };
    size_t pages = (bytes + PAGE - 1) / PAGE;
    return (pages ? pages : 1) * PAGE;
}

static int allocate(memory *m, device *d, const char *purpose, size_t bytes, char **base) {
    const char *why = "";
    size_t held = 0;
    *base = d->f->alloc(d, bytes, &why);
    if (*base) return 0;
    for (int i = 0; i < m->n_lines; i++) held += m->lines[i].bytes;
    return zero_fail(ZERO_ERR_MEMORY, "no memory for %s: %.1f MiB more than the %.1f MiB held (%s)", purpose,
                     bytes / 1048576.0, held / 1048576.0, why);
}

int memory_reserve(memory *m, size_t bytes) {
    if (m->device->asynchronous) return 0;
    ZERO_TRY(allocate(m, m->device, "states and working memory", bytes, &m->reserved));
    m->reserved_bytes = bytes;
    return 0;
}

static char *take_reserved(memory *m, size_t bytes) {
    if (bytes > m->reserved_bytes - m->taken_bytes) return NULL;
    m->taken_bytes += bytes;
    return m->reserved + m->taken_bytes - bytes;
}

void *memory_alloc(memory *m, const memory_request *r) {
    device *d = r->moved_by && m->mover ? m->mover : m->device;
    if (r->tier == ZERO_HOST && !d->time) d = &device_host;
    const size_t bytes = memory_whole_pages(r->bytes);
    char *reserved = take_reserved(m, bytes), *base = reserved;
    if (!reserved && allocate(m, d, r->purpose, bytes, &base)) return NULL;
    memory_block block = { base, bytes, .owner = reserved ? NULL : d, .moved_by = r->moved_by };
    if (!add_block(m, r, &block)) return base;
    if (!reserved) d->f->release(d, base, bytes);
    return NULL;
}

void *memory_alloc_pinned(memory *m, const memory_request *r) {
    void *base = memory_alloc(m, r);
    if (!base) return NULL;
    if (m->device->f->pin(m->device, base, m->blocks->bytes)) {
        zero_fail(ZERO_ERR_MEMORY, "no pinned memory for %s, %.1f MiB: %s", r->purpose, r->bytes / 1048576.0,
                  zero_last_error());
        return NULL;
    }
    m->blocks->pinned = 1;
    return base;
}

int memory_note(memory *m, const memory_request *r) {
    return add_block(m, r, &(memory_block){ .bytes = r->bytes });
}

struct memory_array {
    struct memory_array *next;
    _Alignas(max_align_t) char data[];
};

void *memory_array(memory *m, size_t n, size_t elem_bytes) {
    size_t bytes;
    struct memory_array *t = NULL;
    if (!__builtin_mul_overflow(n, elem_bytes, &bytes) && bytes < SIZE_MAX - sizeof *t)
        t = calloc(1, sizeof *t + bytes);
    if (!t) {
        zero_fail(ZERO_ERR_MEMORY, "out of memory for a table of %zu times %zu bytes", n, elem_bytes);
        return NULL;
    }
    t->next = m->tables;
    m->tables = t;
    return t->data;
}

static int is_used(const memory *m, const device *owner) {
    return m->disk_hangs && owner && !owner->asynchronous;
}

void memory_free_all(memory *m) {
    for (memory_block *b = m->blocks, *next; b; b = next) {
        next = b->next;
        if (b->pinned && !is_used(m, b->owner)) m->device->f->unpin(m->device, b->base);
        if (b->owner && !is_used(m, b->owner)) b->owner->f->release(b->owner, b->base, b->bytes);
        free(b);
    }
    if (m->reserved && !is_used(m, m->device))
        m->device->f->release(m->device, m->reserved, m->reserved_bytes);
    for (struct memory_array *t = m->tables, *next; t; t = next) {
        next = t->next;
        free(t);
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
