// Reads a whole checkpoint and checks every digest. Needs neither a plugin nor the ranks that wrote it.
#include "block_sums.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct {
    zero_verified told;
    void *ctx;
} listener;

static void tell(const listener *l, const char *path, int64_t bytes) {
    if (l->told) l->told(l->ctx, path, bytes);
}

// No block of an empty file is ever read, so nothing else would notice that it is missing.
static int check_empty(const char *path) {
    struct stat st;
    if (lstat(path, &st)) return zero_fail(ZERO_ERR_IO, "%s: %s", path, strerror(errno));
    if (S_ISREG(st.st_mode) && !st.st_size) return 0;
    return zero_fail(ZERO_ERR_IO, "%s: ends at offset %lld, and the manifest says 0", path,
                     (long long)st.st_size);
}

static int read_file(block_reader *b, int file, char *block) {
    const manifest_file *f = &b->m->files[file];
    const int64_t size = b->m->block_bytes;
    for (int64_t at = 0; at < f->bytes; at += size)
        ZERO_TRY(blocks_read(b, file, at, f->bytes - at < size ? f->bytes - at : size, block));
    return 0;
}

static int verify_files(const manifest *m, const char *folder, const listener *l) {
    block_reader b;
    char path[PATH_MAX];
    int rc = blocks_begin(&b, m, NULL);
    char *block = malloc((size_t)m->block_bytes);
    if (!rc && !block) rc = zero_fail(ZERO_ERR_MEMORY, "%s: out of memory for a block", m->path);
    for (int i = 0; i < m->n_files; i++) {
        if (rc) break;
        rc = folder_path(path, folder, m->files[i].name);
        if (!rc) rc = m->files[i].bytes ? read_file(&b, i, block) : check_empty(path);
        if (!rc) tell(l, path, m->files[i].bytes);
    }
    free(block);
    blocks_end(&b);
    return rc;
}

int zero_checkpoint_verify(const char *path, zero_verified told, void *ctx) {
    const listener l = { told, ctx };
    manifest m;
    struct stat st = { 0 };
    int rc = manifest_read(&m, path);
    if (!rc && stat(m.path, &st)) rc = zero_fail(ZERO_ERR_IO, "%s: %s", m.path, strerror(errno));
    if (!rc) tell(&l, m.path, st.st_size);
    if (!rc) rc = verify_files(&m, path, &l);
    manifest_free(&m);
    return rc;
}
