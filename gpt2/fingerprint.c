#define XXH_INLINE_ALL
#include <oneapi/dnnl/dnnl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>
#include "disk.h"
#include "gpt2_error.h"
#include "fingerprint.h"

static int digest_file(int fd, const char *path, int64_t size, int blocks, uint64_t *h) {
    char *block = malloc(FINGERPRINT_BLOCK);
    int64_t all = (size + FINGERPRINT_BLOCK - 1) / FINGERPRINT_BLOCK, n = all < blocks ? all : blocks;
    int failed = block ? 0 : gpt2_fail("%s: no memory to read it", path);
    *h = XXH3_64bits(&size, sizeof size);
    for (int64_t i = 0; i < n && !failed; i++) {
        int64_t at = (n > 1 ? i * (all - 1) / (n - 1) : 0) * FINGERPRINT_BLOCK, left = size - at;
        size_t bytes = left < FINGERPRINT_BLOCK ? (size_t)left : FINGERPRINT_BLOCK;
        failed = disk_read(fd, path, at, bytes, block);
        if (!failed) *h = XXH3_64bits_withSeed(block, bytes, *h);
    }
    free(block);
    return failed;
}

int fingerprint_of_file(const char *path, int blocks, char text[FINGERPRINT]) {
    int64_t size;
    uint64_t h;
    int fd;
    if (disk_open(path, &fd, &size)) return -1;
    int failed = digest_file(fd, path, size, blocks, &h);
    close(fd);  // nothing was written
    if (failed) return -1;
    snprintf(text, FINGERPRINT, "%lld bytes, digest %016llx", (long long)size, (unsigned long long)h);
    return 0;
}

void fingerprint_of_processor(char text[FINGERPRINT]) {
    const char *vectors = "";
#if defined(__x86_64__)
    vectors = __builtin_cpu_supports("avx512f") ? "AVX-512, "
              : __builtin_cpu_supports("avx2")  ? "AVX2, "
                                                : "SSE2, ";
#endif
    snprintf(text, FINGERPRINT, "%soneDNN's level %#x", vectors, (unsigned)dnnl_get_effective_cpu_isa());
}
