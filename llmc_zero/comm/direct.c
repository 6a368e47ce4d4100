// Direct reads: ranks on one node copy large buffers from each other's memory (process_vm_readv), in one copy
// instead of two through the window. Sums, their order and the traffic are the same. The kernel looks up each
// page that it reads, so direct reads beat the window only with 2 MiB pages and a total of at least
// host_direct_least.
//
// Linux lets a process read another process of the same user, unless a security module or the container's
// system-call filter forbids it; Yama forbids it between ranks if kernel.yama.ptrace_scope is not 0. A trial
// at startup finds out whether reads work; if not, all data goes through the window. An administrator can
// enable direct reads with kernel.yama.ptrace_scope=0, or with CAP_SYS_PTRACE for a container.
#include "../device/kernels.h"
#include "../base/error.h"
#include "../base/clock.h"
#include "host.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

size_t host_direct_least[COMM_OTHER] = { 4 << 20, 16 << 20 };

// Touching 2 MiB takes one page fault with 2 MiB pages (under AddressSanitizer 64 more, for its shadow), and
// 512 with 4 KiB pages.
static int large_pages_granted(void) {
    enum { LARGE = 2 << 20 };
    struct rusage before, after;
    char *base = mmap(NULL, 2 * LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return 0;
    madvise(base, 2 * LARGE, MADV_HUGEPAGE);  // as device/device_cpu.c does
    volatile char *page = base + (LARGE - (uintptr_t)base % LARGE) % LARGE;
    int failed = getrusage(RUSAGE_THREAD, &before);
    for (int i = 0; i < LARGE; i += 4096) page[i] = 1;
    failed |= getrusage(RUSAGE_THREAD, &after);
    munmap(base, 2 * LARGE);
    return !failed && after.ru_minflt - before.ru_minflt < 128;
}

static int read_from(const comm *c, const comm_call *call, int src, int64_t pid, char *to, int64_t from,
                     size_t bytes) {
    char in[NET_WHERE];
    while (bytes) {
        struct iovec local = { to, bytes }, remote = { (void *)(intptr_t)from, bytes };
        ssize_t n = process_vm_readv((pid_t)pid, &local, 1, &remote, 1, 0);
        const int error = errno;
        if (n <= 0)
            return zero_fail_rank(ZERO_ERR_COMM, c->group.rank, net_host(c->net, c->group.rank),
                                  " cannot read the memory of rank %d (host %s) in %s: %s", src,
                                  net_host(c->net, src), net_where(host_net_use(call), EXCHANGE_GATHER, in),
                                  error == ESRCH ? "it is gone" : strerror(error));
        to += n;
        from += n;
        bytes -= n;
    }
    return 0;
}

// Every rank reads the bytes that every other rank has announced. The bytes also identify the process,
// because in this rank's container its id may belong to a different one.
static int others_readable(comm *c) {
    const comm_call call = { .use = comm_for_scalars, .kind = COMM_OTHER };
    int64_t mine[] = { getpid(), 0, (int64_t)(clock_now() * 1e9) }, theirs[3];
    const int64_t *all[c->group.ranks];
    mine[1] = (intptr_t)mine;
    ZERO_TRY(host_announce(c, &call, mine, 3, all));
    int readable = large_pages_granted();
    for (int r = 0; r < c->group.ranks; r++) {
        if (!readable) break;
        readable = !read_from(c, &call, r, all[r][0], (char *)theirs, all[r][1], sizeof theirs) &&
                   !memcmp(theirs, all[r], sizeof theirs);
    }
    return net_least(c->net, readable);  // also keeps `mine` alive until all have read it
}

int host_direct_open(comm *c) {
    if (c->device->asynchronous) return 0;
    int all = others_readable(c);
    if (all < 0) return all;
    c->host->direct = all;
    if (all) strcat(c->name, " and direct reads");
    return 0;
}

int host_goes_direct(const comm *c, const comm_call *call) {
    return c->host->direct && call->total >= host_direct_least[call->kind] &&
           (1 + call->n) * sizeof(int64_t) <= c->host->gather_bytes - STAMP_BYTES;
}

// Sets all[r] to rank r's process id, followed by the addresses from which the others read, one per piece.
static int announce_pieces(comm *c, const comm_call *call, const int64_t **all) {
    int64_t mine[1 + call->n];
    mine[0] = getpid();
    for (int i = 0; i < call->n; i++) {
        const comm_piece *p = &call->pieces[i];
        mine[1 + i] = (intptr_t)(call->kind == COMM_ALL_GATHER ? p->shard : p->full);
    }
    return host_announce(c, call, mine, 1 + call->n, all);
}

// Large copies bypass the caches (streaming stores), so that the CPU need not read the lines they overwrite.
static void copy_own(char *to, const char *from, size_t bytes) {
#ifdef __SSE2__
    enum { STREAMED = 8 << 20, LINE = 64 };
    if (bytes >= STREAMED && !(((uintptr_t)to | bytes) % LINE)) {
        for (size_t i = 0; i < bytes; i += 16)
            _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
        _mm_sfence();
        return;
    }
#endif
    memcpy(to, from, bytes);
}

int host_direct_gather(comm *c, const comm_call *call) {
    const int64_t *all[c->group.ranks];
    ZERO_TRY(announce_pieces(c, call, all));
    for (int k = 1; k < c->group.ranks; k++) {  // each rank starts with a different one
        int r = (c->group.rank + k) % c->group.ranks;
        for (int i = 0; i < call->n; i++) {
            size_t bytes = call->pieces[i].elems * call->elem_bytes;
            char *to = call->pieces[i].full + r * bytes;
            ZERO_TRY(read_from(c, call, r, all[r][0], to, all[r][1 + i], bytes));
            // rank r reads the same number of bytes from this rank
            comm_count(c, call->use, call->kind, bytes);
        }
    }
    for (const comm_piece *p = call->pieces; p < call->pieces + call->n; p++) {
        size_t bytes = p->elems * call->elem_bytes;
        char *own = p->full + c->group.rank * bytes;
        if (own != p->shard) copy_own(own, p->shard, bytes);
    }
    return host_barrier(c, call);  // from now on shards may change
}

// Sums elements [pos, pos + len) of this rank's part of piece i: reads the other ranks' data into scratch,
// and sums it while it is in the cache.
static int reduce_run(comm *c, const comm_call *call, int i, int64_t pos, int64_t len,
                      const int64_t *const *all, char *scratch) {
    const comm_piece *p = &call->pieces[i];
    int own = c->group.rank, ranks = c->group.ranks;
    size_t at = (own * p->elems + pos) * call->elem_bytes, bytes = len * call->elem_bytes;
    const void *parts[ranks];
    for (int r = 0; r < ranks; r++) {
        parts[r] = r == own ? p->full + at : scratch;
        if (r == own) continue;
        ZERO_TRY(read_from(c, call, r, all[r][0], scratch, all[r][1 + i] + (int64_t)at, bytes));
        comm_count(c, call->use, call->kind, bytes);
        scratch += bytes;
    }
    kernel_sum_ranks(call->shard_type, p->shard + pos * dtype_bytes(call->shard_type), call->full_type, parts,
                     ranks, 1.0f / ranks, len, call->add);
    return 0;
}

int host_direct_reduce(comm *c, const comm_call *call) {
    enum { CACHED = 512 << 10 };
    struct comm_host *h = c->host;
    const int64_t *all[c->group.ranks];
    ZERO_TRY(announce_pieces(c, call, all));
    // this rank's staging, which is free until the next exchange with data
    char *scratch = h->transport->out(c, EXCHANGE_GATHER, h->half, 0);
    size_t room = h->gather_bytes < CACHED ? h->gather_bytes : CACHED;
    int64_t most = room / (c->group.ranks - 1) / 64 * 64 / call->elem_bytes;
    for (int i = 0; i < call->n; i++)
        for (int64_t pos = 0; pos < call->pieces[i].elems; pos += most) {
            int64_t left = call->pieces[i].elems - pos, len = left < most ? left : most;
            ZERO_TRY(reduce_run(c, call, i, pos, len, all, scratch));
        }
    return host_barrier(c, call);  // from now on full may change
}
