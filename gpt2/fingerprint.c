#define XXH_INLINE_ALL
#include <errno.h>
#include <fcntl.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "gpt2_error.h"
#include "fingerprint.h"

// Reads a block from `at` on, or up to the end of the file. Returns the number of bytes; -1: see errno.
static ssize_t read_block(int fd, char *block, int64_t at) {
    size_t done = 0;
    while (done < FINGERPRINT_BLOCK) {
        ssize_t n = pread(fd, block + done, FINGERPRINT_BLOCK - done, at + (int64_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        if (n == 0) break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

static int digest_file(int fd, int64_t size, int blocks, uint64_t *h) {
    char *block = malloc(FINGERPRINT_BLOCK);
    int64_t all = (size + FINGERPRINT_BLOCK - 1) / FINGERPRINT_BLOCK, n = all < blocks ? all : blocks;
    int failed = !block;
    *h = XXH3_64bits(&size, sizeof size);
    for (int64_t i = 0; i < n; i++) {
        if (failed) break;
        int64_t which = n > 1 ? i * (all - 1) / (n - 1) : 0;
        ssize_t bytes = read_block(fd, block, which * FINGERPRINT_BLOCK);
        failed = bytes < 0;
        if (!failed) *h = XXH3_64bits_withSeed(block, (size_t)bytes, *h);
    }
    free(block);
    return failed;
}

int fingerprint_of_file(const char *path, int blocks, char text[FINGERPRINT]) {
    struct stat st;
    uint64_t h;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return gpt2_fail("%s: cannot open: %s", path, strerror(errno));
    int failed = fstat(fd, &st) || digest_file(fd, st.st_size, blocks, &h);
    if (failed)
        gpt2_fail("%s: cannot read: %s", path, strerror(errno));
    else
        snprintf(text, FINGERPRINT, "%lld bytes, digest %016llx", (long long)st.st_size,
                 (unsigned long long)h);
    close(fd);  // nothing was written
    return failed ? -1 : 0;
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
