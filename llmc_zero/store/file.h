// Reads and writes a rank's model states in files on NVMe: asynchronously, past the page cache, many blocks
// at once, striped over several folders. Any thread may call it. io_uring does the work, or threads with
// pread and pwrite where the kernel or the build has no io_uring.
//
//     file_open(&e, &settings, bytes);
//     file_buffers(e, pinned, pinned_bytes);                                optional
//     file_transfer t = { .offset = 0, .data = pinned, .bytes = n, .write = 1 };
//     file_start(e, &t); ... file_wait(e, &t);
//     file_close(e);
//
// Order: where two transfers overlap in the file and one of them writes, the one that was started first
// finishes first. The first failure stays: every later start and wait returns it, and nothing more begins.
#ifndef LLMC_ZERO_STORE_FILE_H
#define LLMC_ZERO_STORE_FILE_H
#include "../error.h"

enum {
    FILE_ALIGN = 4096,             // of offsets and of buffers
    FILE_BLOCK_DEFAULT = 1 << 20,  // bytes
    FILE_DEPTH_DEFAULT = 32,
    FILE_THREADS_DEFAULT = 4,
    FILE_FOLDERS = 16,  // at most
};

typedef struct {
    const char *folders;  // one, or several with commas between them; blocks alternate. They must exist
    size_t block_bytes;   // of one request, a multiple of FILE_ALIGN; 0: 1 MiB
    int depth;            // requests under way at once; 0: 32
    int threads;          // that read and write where there is no io_uring; 0: 4
    int no_uring;         // 1: threads, even where there is io_uring
    int verify;           // 1: what is read is compared with checksums of what was written
    double timeout_s;  // above 0: it is an error if no request ends for so long; also how long a close waits
    int rank;          // in the names of the locks
} file_settings;

typedef struct file_engine file_engine;

// Returns 0 and an engine with room for `bytes`, all 0, or an error, and then it has left nothing behind. In
// each folder it reserves space for a file without a name, which goes with the process however that ends, and
// locks the small file llmc_zero.rankRRRRR.lock, which may be there from a run that was killed. A file of
// anybody else's, or one that another process has locked, is an error and stays as it is; so is a folder in
// memory (tmpfs, ramfs).
int file_open(file_engine **e, const file_settings *s, int64_t bytes);
// The same for a file that the caller has opened to read, and to write too if there is anything to write: the
// states are its bytes from 0 on, and it stays when the engine closes. reserve: 1: it becomes `bytes` long.
// settings.folders is not used.
int file_open_given(file_engine **e, const file_settings *s, int fd, const char *path, int64_t bytes,
                    int reserve);
// Waits for what is under way, and removes the locks. NULL is allowed. Returns 0, or 1 after at most
// timeout_s and a few seconds: the disk does not answer, and may still read or write the buffers and the file
// that it was given. They stay for ever, and so do the locks and the engine's own memory.
int file_close(file_engine *e);

// Returns how it works, for the start table: "io_uring, direct, 2 folders", with the reason in brackets
// where a faster way is refused.
const char *file_name(const file_engine *e);

// What an engine takes for so many bytes of states: host memory (most of it checksums), and space in all its
// folders together.
int64_t file_memory_bytes(const file_settings *s, int64_t bytes);
int64_t file_disk_bytes(const file_settings *s, int64_t bytes);

// Registers the memory that most transfers use, so that the kernel need not pin it for each request. Before
// the first transfer, once, and the memory stays until file_close. Where the system refuses
// (RLIMIT_MEMLOCK), file_name says so and all works as without. Buffers in pages of 2 MiB (MADV_HUGEPAGE)
// reach the disk in fewer pieces, which can be twice as fast.
void file_buffers(file_engine *e, void *memory, size_t bytes);

// One transfer of any length, zeroed but for the first five fields. With n folders, regions that begin at
// multiples of block_bytes are read and written in the fewest requests.
typedef struct file_transfer {
    int64_t offset;  // in the states, a multiple of FILE_ALIGN
    char *data;      // aligned to FILE_ALIGN; what follows `bytes`, up to a multiple of FILE_ALIGN, is
                     // written and read too
    size_t bytes;
    int write;
    int urgent;  // 1: begins before all that are not, whose order stays; for what is computed with next
    // the engine's
    int queued;                 // from file_start until its last request has ended
    double started_s, ended_s;  // by clock_now
    size_t cut;                 // bytes that requests have been made of
    int underway;               // requests
    int earlier;                // transfers that it waits for
    struct file_transfer *next, *prev;
} file_transfer;

// Returns 0: it begins as soon as the depth allows. t and its buffer stay in place until file_wait.
int file_start(file_engine *e, file_transfer *t);
// Returns 0 when the transfer has finished, or ZERO_ERR_IO with path, offset, cause and what to do. In either
// case nothing uses the buffer any more, unless the failure is that the disk does not answer: file_close says
// whether it still may. Returns at once if t was never started.
int file_wait(file_engine *e, file_transfer *t);
// The same for so many seconds at most: returns 1 if it has not finished by then.
int file_wait_for(file_engine *e, file_transfer *t, double seconds);
// Returns 1 if file_wait would return at once.
int file_done(file_engine *e, const file_transfer *t);

typedef struct {
    int64_t bytes_read, bytes_written;
    double waited_s;  // by callers of file_wait, together
} file_counters;
file_counters file_count(file_engine *e);

#endif
