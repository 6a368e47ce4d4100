// Reads and writes a rank's model states in files on NVMe: asynchronously, with O_DIRECT, many blocks at
// once, striped over several folders. Any thread may call these functions. Uses io_uring, or threads with
// pread and pwrite if the kernel or the build lacks it.
//
//     file_open(&e, &settings, bytes);
//     file_buffers(e, pinned, pinned_bytes);                                optional
//     file_transfer t = { .offset = 0, .data = pinned, .bytes = n, .write = 1 };
//     file_start(e, &t); ... file_wait(e, &t);
//     file_close(e);
//
// If two transfers overlap in the file and at least one writes, they finish in the order in which they were
// started. The first failure is final: every later start and wait returns it, and no more requests begin.
#ifndef LLMC_ZERO_TIERS_FILE_H
#define LLMC_ZERO_TIERS_FILE_H
#include "../base/error.h"

enum {
    FILE_ALIGN = 4096,  // of offsets and of buffers
    FILE_FOLDERS = 16,  // at most
};

typedef struct {
    const char *folders;  // existing ones, separated by commas; blocks alternate between them
    // Instead of folders: a file that the caller has opened for reading and, if needed, writing. The states
    // start at byte 0. The file remains when the engine closes.
    const char *path;
    int fd;
    int reserve;                // 1: extends the given file to the length of the states
    size_t block_bytes;         // of one request, a multiple of FILE_ALIGN
    int depth;                  // requests in flight
    int threads;                // for pread and pwrite without io_uring
    int no_uring;               // 1: threads, even with io_uring
    int verify;                 // 1: compares checksums of data read with those of data written
    double timeout_s;           // fails if no request ends for this long; a close waits at most this long
    struct virtual_time *time;  // not NULL: transfers only take time
    int rank;                   // for the names of the lock files
} file_settings;

typedef struct file_engine file_engine;

// Opens an engine for `bytes` bytes of states, all 0. An error leaves nothing behind. In each folder it
// reserves space for an unnamed file, which disappears when the process ends in any way, and locks the small
// file llmc_zero.rankRRRRR.lock, which a killed run may have left. Fails if the folder is in memory (tmpfs,
// ramfs), if another process has locked the lock file, or if a different file has that name; that file stays
// unchanged.
int file_open(file_engine **e, const file_settings *s, int64_t bytes);
// Waits for pending transfers and removes the locks. e may be NULL. Returns 0, or 1 if the disk hangs, after
// at most timeout_s plus a few seconds. A hung disk may still use the buffers and the given file, so the
// caller must keep them; the engine keeps its locks and its memory.
int file_close(file_engine *e);

// Describes the engine for the start table: "io_uring, direct, 2 folders", with the reason for a slower way.
const char *file_name(const file_engine *e);

// Returns the bytes of host memory that an engine for states of this size uses, mostly for checksums.
int64_t file_memory_bytes(const file_settings *s, int64_t bytes);

// Registers the memory that most transfers use, so that the kernel need not pin it for each request. Call it
// once, before the first transfer; the memory must stay until file_close. If the system refuses
// (RLIMIT_MEMLOCK), transfers still work, and file_name includes the reason. With 2 MiB pages (MADV_HUGEPAGE)
// requests reach the disk in fewer pieces, which can be twice as fast.
void file_buffers(file_engine *e, void *memory, size_t bytes);

// One transfer of any length. Set the first five fields and zero the others. With several folders, regions
// that begin at multiples of block_bytes take the fewest requests.
typedef struct file_transfer {
    int64_t offset;  // in the states, a multiple of FILE_ALIGN
    char *data;      // aligned to FILE_ALIGN, and large enough for `bytes` rounded up to a multiple of it
    size_t bytes;
    int write;
    int urgent;  // 1: overtakes other transfers, except those that it must follow
    // used by the engine
    int queued;                 // from file_start until its last request has ended
    double started_s, ended_s;  // by clock_now
    int burst;                  // in virtual time
    size_t cut;                 // bytes already in requests
    int underway;               // requests in flight
    int earlier;                // number of transfers that it must wait for
    struct file_transfer *next, *prev;
} file_transfer;

// Queues the transfer, which begins when the depth allows. t and its buffer must stay until file_wait.
int file_start(file_engine *e, file_transfer *t);
// Returns 0 when the transfer has finished, or ZERO_ERR_IO with path, offset, cause and remedy. In either
// case the caller may reuse the buffer, unless file_close later reports a hung disk. Returns at once if t was
// never started.
int file_wait(file_engine *e, file_transfer *t);
// Like file_wait, but returns 1 if the transfer has not finished after this time.
int file_wait_for(file_engine *e, file_transfer *t, double seconds);
// Returns 1 if file_wait would return at once.
int file_done(file_engine *e, const file_transfer *t);

typedef struct {
    int64_t bytes_read, bytes_written;
    double waited_s;  // total wait in file_wait
} file_counters;
file_counters file_count(file_engine *e);

#endif
