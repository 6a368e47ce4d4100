// Tests files on NVMe, with io_uring and with threads: reads return what was written, a disk fault gives an
// error that names the file and the offset and fails all later calls, and locks keep other processes out.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include "unit.h"
#include "../llmc_zero/tiers/file.h"
#include "faults.h"
#include "files.h"

enum { TIME_LIMIT_S = 240, KIB = 1024, PAGE = FILE_ALIGN };
static char root[64], folders[3][80], lists[4][300];  // lists[n]: n folders

// -------- helpers

static file_settings settings(int n_folders, size_t block_bytes) {
    return (file_settings){
        .folders = lists[n_folders], .block_bytes = block_bytes, .depth = 4, .threads = 3, .timeout_s = 60
    };
}

// Runs the body with io_uring and with threads. Without liburing both rounds use threads.
#define FOR_BOTH_ENGINES(s) for ((s).no_uring = 0; (s).no_uring < 2; (s).no_uring++)

static file_engine *opened(const file_settings *s, int64_t bytes) {
    file_engine *e = NULL;
    WORKS(file_open(&e, s, bytes));
    return e;
}

static size_t padded(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

static char *buffer(size_t bytes) {
    char *p = aligned_alloc(PAGE, padded(bytes));
    assert_non_null(p);
    return p;
}

static uint64_t draw(uint64_t *seed) {
    *seed = *seed * 6364136223846793005 + 1442695040888963407;
    return *seed >> 33;
}

static void fill(char *data, size_t bytes, uint64_t seed) {
    for (size_t i = 0; i < bytes; i++) data[i] = (char)draw(&seed);
}

static const char *lock_of(int folder, int rank) {
    static char path[320];
    snprintf(path, sizeof path, "%s/llmc_zero.rank%05d.lock", folders[folder], rank);
    return path;
}

// Opens the file of rank 0's states, which is unlinked, through /proc.
static int open_states(int folder) {
    char part[60], link[32], path[PATH_MAX] = "";
    snprintf(part, sizeof part, "/disk%d/llmc_zero.rank00000.", folder);
    for (int fd = 3; fd < 256; fd++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, path, sizeof path - 1);
        path[n > 0 ? n : 0] = 0;
        if (strstr(path, part) && strstr(path, " (deleted)")) return open(link, O_RDWR);
    }
    fail_msg("no file of states is open in %s", folders[folder]);
    return -1;
}

static int move(file_engine *e, int64_t offset, char *data, size_t bytes, int write) {
    file_transfer t = { .offset = offset, .data = data, .bytes = bytes, .write = write };
    int rc = file_start(e, &t);
    return rc ? rc : file_wait(e, &t);
}

static void error_has(const char *part) {
    if (!strstr(zero_last_error(), part)) fail_msg("\"%s\" lacks \"%s\"", zero_last_error(), part);
}

static int no_fault(void **state) {
    file_fault = NULL;
    return 0;
}

// -------- round trips

enum { SLOTS = 24, MOST = 96 * KIB };

// Random transfers within a range of the file, several in flight and overlapping, must give the same result
// as reads and writes of memory made one after another.
typedef struct {
    file_engine *e;
    int64_t first, bytes;
    uint64_t seed;
    int n, failed;
} walk;

static void finish(walk *w, file_transfer *t, const char *expected) {
    w->failed += file_wait(w->e, t) != 0;
    if (!t->write && t->bytes) w->failed += memcmp(t->data, expected, padded(t->bytes)) != 0;
}

static void *run_walk(void *arg) {
    walk *w = arg;
    char *memory = calloc(1, (size_t)w->bytes), *data[SLOTS], *expected[SLOTS];
    file_transfer t[SLOTS] = { 0 };
    for (int i = 0; i < SLOTS; i++) {
        data[i] = buffer(MOST);
        expected[i] = buffer(MOST);
    }
    for (int i = 0; i < w->n; i++) {
        int slot = (int)(draw(&w->seed) % SLOTS);
        finish(w, &t[slot], expected[slot]);
        size_t bytes = draw(&w->seed) % MOST + 1;
        int64_t pages = (w->bytes - (int64_t)padded(bytes)) / PAGE + 1;
        int64_t offset = (int64_t)(draw(&w->seed) % (uint64_t)pages) * PAGE;
        int write = draw(&w->seed) % 2;
        t[slot] = (file_transfer){ w->first + offset, data[slot], bytes, .write = write };
        if (write) {
            fill(data[slot], padded(bytes), draw(&w->seed));
            memcpy(memory + offset, data[slot], padded(bytes));
        } else
            memcpy(expected[slot], memory + offset, padded(bytes));
        w->failed += file_start(w->e, &t[slot]) != 0;
    }
    for (int i = 0; i < SLOTS; i++) {
        finish(w, &t[i], expected[i]);
        free(data[i]);
        free(expected[i]);
    }
    free(memory);
    return NULL;
}

// Runs two threads, each on its half of a new file, with and without checksums. A new file reads as zeros.
static void round_trips(void **state) {
    enum { HALF = 256 * KIB };
    static const size_t blocks[] = { 4 * KIB, 12 * KIB, 64 * KIB };
    for (int n = 1; n <= 3; n++)
        for (int b = 0; b < 3; b++) {
            file_settings s = settings(n, blocks[b]);
            s.verify = b != 1;
            s.depth = b ? 4 : 32;
            FOR_BOTH_ENGINES(s) {
                file_engine *e = opened(&s, 2 * HALF);
                walk w[2] = { { e, 0, HALF, 7 + (uint64_t)b, 100, 0 }, { e, HALF, HALF, 2, 100, 0 } };
                pthread_t other;
                assert_int_equal(pthread_create(&other, NULL, run_walk, &w[1]), 0);
                run_walk(&w[0]);
                pthread_join(other, NULL);
                assert_int_equal(w[0].failed + w[1].failed, 0);
                file_close(e);
            }
        }
}

static void counts(void **state) {
    file_settings s = settings(2, 8 * KIB);
    file_engine *e = opened(&s, 40 * KIB);
    char *data = buffer(40 * KIB);
    memset(data, 3, 40 * KIB);
    assert_int_equal(move(e, 0, data, 33 * KIB, 1), 0);
    assert_int_equal(move(e, 0, data, 20 * KIB, 0), 0);
    assert_int_equal(move(e, 0, data, 0, 0), 0);
    file_counters c = file_count(e);
    assert_int_equal(c.bytes_written, 33 * KIB);
    assert_int_equal(c.bytes_read, 20 * KIB);
    assert_true(c.waited_s > 0 && c.waited_s < 60);
    struct stat st;
    int64_t on_disk = 0;
    for (int i = 0; i < 2; i++) {
        int fd = open_states(i);
        assert_int_equal(fstat(fd, &st), 0);
        close(fd);
        on_disk += st.st_size;
        assert_true(st.st_blocks * 512 >= st.st_size);  // its space is reserved
    }
    assert_int_equal(on_disk, 2 * 3 * 8 * KIB);  // five blocks over two folders: at most three in each
    free(data);
    file_close(e);
    assert_int_equal(files_in(folders[0]) + files_in(folders[1]), 0);
}

// -------- disk faults

// Writes and reads several blocks. Returns 1 if a call failed; all later ones must return the same error.
static int write_and_read(const file_settings *s, char *out, char *in) {
    enum { BYTES = 5 * 8 * KIB };
    file_engine *e = opened(s, 2 * BYTES);
    char first[1024] = "";
    int failures = 0;
    memset(in, 0, 2 * BYTES);
    for (int write = 1; write >= 0; write--) {
        char *data = write ? out : in;
        file_transfer t[2] = { { 0, data, BYTES, .write = write },
                               { BYTES, data + BYTES, BYTES, .write = write } };
        for (int i = 0; i < 4; i++) {
            int rc = i < 2 ? file_start(e, &t[i]) : file_wait(e, &t[i - 2]);
            if (!rc) assert_int_equal(failures, 0);
            if (!rc) continue;
            assert_int_equal(rc, ZERO_ERR_IO);
            if (!failures++) snprintf(first, sizeof first, "%s", zero_last_error());
            assert_string_equal(zero_last_error(), first);
        }
    }
    if (!failures) assert_memory_equal(in, out, 2 * BYTES);
    file_close(e);
    if (failures) {
        error_has("/llmc_zero.rank00000");
        error_has("offset ");
        error_has("; ");  // introduces the advice
    }
    return failures > 0;
}

// Makes the n-th operation fail, for every n. A short or interrupted operation must continue where it
// stopped, and fail only if every retry is interrupted too.
static void every_fault(void **state) {
    enum { MANY = 1 << 20 };
    static const struct {
        file_operation what;
        int64_t times, most;
        long outcome;
        const char *words;  // NULL: no call fails
    } cases[] = {
        { FILE_READ, 1, 0, -EIO, "Input/output error" },
        { FILE_WRITE, 1, 0, -EIO, "Input/output error" },
        { FILE_WRITE, 1, 0, -ENOSPC, "No space left" },
        { FILE_READ, 1, 0, 0, "0 bytes" },
        { FILE_READ, 1, 0, 1000, "1000 bytes" },
        { FILE_WRITE, 1, 0, 0, "0 bytes" },
        { FILE_SUBMIT, 1, 0, -EIO, "Input/output error" },
        { FILE_SUBMIT, 1, 0, -ENOMEM, "Cannot allocate" },
        { FILE_READ, MANY, PAGE, 0, NULL },
        { FILE_WRITE, MANY, PAGE, 0, NULL },
        { FILE_READ, MANY, PAGE + 100, 0, NULL },
        { FILE_WRITE, MANY, PAGE + 100, 0, NULL },
        { FILE_READ, 3, 0, -EINTR, NULL },
        { FILE_WRITE, 5, 0, -EAGAIN, NULL },
        { FILE_READ, MANY, 0, -EAGAIN, "temporarily unavailable" },
        { FILE_WRITE, MANY, 0, -EAGAIN, "temporarily unavailable" },
    };
    char *out = buffer(80 * KIB), *in = buffer(80 * KIB);
    fill(out, 80 * KIB, 3);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        file_settings s = settings(2, 8 * KIB);
        s.verify = c % 2;
        FOR_BOTH_ENGINES(s) {
            int n = 1, failed = 1;
            for (; failed && n < 100 && (n == 1 || cases[c].times == 1); n++) {
                set_fault(cases[c].what, n, cases[c].times, cases[c].outcome);
                fault.most = cases[c].most;
                failed = write_and_read(&s, out, in);
                assert_int_equal(failed, cases[c].words && fault_seen >= n);
                if (failed) error_has(cases[c].words);
                if (failed && cases[c].what == FILE_READ) error_has("the read ");
                if (failed && cases[c].what == FILE_WRITE) error_has("the write ");
            }
            // There are ten blocks, but the number of submissions depends on timing.
            if (cases[c].times == 1) assert_true(cases[c].what == FILE_SUBMIT ? n < 100 : n == 12);
            if (cases[c].times > 1) assert_true(fault_seen > 5);
        }
    }
    free(out);
    free(in);
}

static void disk_hangs(void) {
    fault_waits = 1;
    set_fault(FILE_WRITE, 0, 0, 0);
}

// The engine handles one request at a time. While the first one hangs, a long read, a write and two urgent
// reads are queued. Urgent reads must overtake the long read, but not a write of the same bytes.
static void urgent_transfers(void **state) {
    enum { LONG = 64 * KIB, SHORT = 8 * KIB };
    file_settings s = settings(1, SHORT);
    s.depth = s.threads = 1;
    FOR_BOTH_ENGINES(s) {
        file_engine *e = opened(&s, 4 * LONG);
        char *data = buffer(5 * LONG);
        memset(data, 1, 5 * LONG);
        file_transfer all[] = {
            { 0, data, SHORT, .write = 1 },
            { LONG, data + LONG, LONG, .write = 0 },
            { 2 * LONG, data + 2 * LONG, SHORT, .write = 1 },
            { 2 * LONG, data + 3 * LONG, SHORT, .urgent = 1 },
            { 3 * LONG, data + 4 * LONG, SHORT, .urgent = 1 },
        };
        memset(all[2].data, 2, SHORT);
        disk_hangs();
        for (int i = 0; i < 5; i++) assert_int_equal(file_start(e, &all[i]), 0);
        fault_waits = 0;
        for (int i = 0; i < 5; i++) assert_int_equal(file_wait(e, &all[i]), 0);
        assert_true(all[4].ended_s < all[1].ended_s);
        assert_memory_equal(all[3].data, all[2].data, SHORT);
        assert_int_equal(file_close(e), 0);
        free(data);
    }
}

// A wait must time out if the disk does not answer. Here the disk answers later, so everything can be freed.
static void a_disk_that_hangs(void **state) {
    file_settings s = settings(1, 8 * KIB);
    s.timeout_s = 0.8;
    FOR_BOTH_ENGINES(s) {
        file_engine *e = opened(&s, 64 * KIB);
        char *data = buffer(64 * KIB);
        memset(data, 1, 64 * KIB);
        disk_hangs();
        file_transfer t = { 0, data, 64 * KIB, .write = 1 };
        assert_int_equal(file_start(e, &t), 0);
        REFUSED(file_wait(e, &t), ZERO_ERR_IO, "llmc_zero.rank00000");
        error_has("write at offset ");
        error_has("0.8 s");
        fault_waits = 0;
        while (!file_done(e, &t)) clock_nap(1e-3);
        assert_int_equal(file_start(e, &t), ZERO_ERR_IO);
        assert_int_equal(file_close(e), 0);
        free(data);
    }
}

// Returns 1 if an engine on a hung disk closes in time and reports the hang.
static int closes_in_time(const file_settings *s) {
    file_engine *e = opened(s, 64 * KIB);
    file_transfer t = { 0, buffer(64 * KIB), 64 * KIB, .write = 1 };
    disk_hangs();
    return !file_start(e, &t) && file_close(e) == 1 && files_in(folders[0]) == 1;
}

// The engine must leak memory and threads that the disk may still use, so the test uses a separate process.
static void a_disk_that_never_answers(void **state) {
    file_settings s = settings(1, 8 * KIB);
    s.timeout_s = 0.8;
    FOR_BOTH_ENGINES(s) {
        int status = 0;
        pid_t child = fork();
        if (!child) _exit(!closes_in_time(&s));
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
}

// Uses a file opened by the caller. The engine's own files have no names, so nobody could remove them.
static void a_file_that_vanishes(void **state) {
    file_settings s = settings(1, 8 * KIB);
    char name[120], *data = buffer(64 * KIB);
    memset(data, 1, 64 * KIB);
    snprintf(name, sizeof name, "%s/given", folders[0]);
    s.path = name;
    s.reserve = 1;
    FOR_BOTH_ENGINES(s) {
        file_engine *e;
        s.fd = open(name, O_CREAT | O_RDWR, 0600);
        e = opened(&s, 64 * KIB);
        assert_int_equal(move(e, 0, data, 64 * KIB, 1), 0);
        assert_int_equal(truncate(name, 12 * KIB), 0);
        REFUSED(move(e, 0, data, 64 * KIB, 0), ZERO_ERR_IO, "bytes were there");
        file_close(e);
        e = opened(&s, 64 * KIB);
        assert_int_equal(unlink(name), 0);
        REFUSED(move(e, 0, data, 64 * KIB, 1), ZERO_ERR_IO, name);
        error_has("removed");
        file_close(e);
        close(s.fd);
    }
    free(data);
}

// -------- checksums

static void damaged_blocks(void **state) {
    enum { AT = 3 * PAGE };
    file_settings s = settings(1, 8 * KIB);
    char *data = buffer(32 * KIB), old[PAGE], byte;
    FOR_BOTH_ENGINES(s) {
        for (int what = 0; what < 4; what++) {
            s.verify = what != 3;
            file_engine *e = opened(&s, 32 * KIB);
            int fd = open_states(0);
            for (int step = 0; step < 2; step++) {
                assert_int_equal(pread(fd, old, PAGE, AT), PAGE);
                fill(data, 32 * KIB, 20 + (uint64_t)step);
                assert_int_equal(move(e, 0, data, 32 * KIB, 1), 0);
            }
            if (what == 0) {  // contents of an older step
                assert_int_equal(pwrite(fd, old, PAGE, AT), PAGE);
            } else if (what == 1) {  // contents of another offset
                assert_int_equal(pread(fd, old, PAGE, AT + PAGE), PAGE);
                assert_int_equal(pwrite(fd, old, PAGE, AT), PAGE);
            } else {
                assert_int_equal(pread(fd, &byte, 1, AT + 77), 1);
                byte ^= 16;
                assert_int_equal(pwrite(fd, &byte, 1, AT + 77), 1);
            }
            assert_int_equal(fsync(fd), 0);
            close(fd);
            int rc = move(e, 0, data, 32 * KIB, 0);
            if (what == 3) {  // without checksums, damage is not detected
                assert_int_equal(rc, 0);
            } else {
                REFUSED(rc, ZERO_ERR_IO, "llmc_zero.rank00000");
                error_has("4096 bytes at offset 12288 ");
                error_has(what ? "checksum" : "older step");
                assert_int_equal(move(e, 0, data, PAGE, 0), ZERO_ERR_IO);
            }
            file_close(e);
        }
    }
    free(data);
}

// -------- features that the system does not have

static void missing_features(void **state) {
    static const struct {
        file_operation what;
        long outcome;
        const char *name;
    } cases[] = { { FILE_DIRECT, -EINVAL, "buffered (" },
                  { FILE_OPERATIONS, 0, "io_uring, direct, 2 folders" },
                  { FILE_URING, -EPERM, "threads (no io_uring: Operation not permitted), direct, 2 folders" },
                  { FILE_PIN, -ENOMEM, "buffers not registered (RLIMIT_MEMLOCK" } };
    char *out = buffer(80 * KIB), *in = buffer(80 * KIB);
    fill(out, 80 * KIB, 6);
    file_settings s = settings(2, 8 * KIB);
    file_engine *e = opened(&s, PAGE);
    int has_uring = !strncmp(file_name(e), "io_uring, ", 10);
    file_close(e);
    s.verify = 1;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        if (c && !has_uring) continue;
        set_fault(cases[c].what, 1, 1 << 20, cases[c].outcome);
        e = opened(&s, 80 * KIB);
        file_buffers(e, out, 80 * KIB);
        assert_non_null(strstr(file_name(e), cases[c].name));
        assert_int_equal(move(e, 0, out, 80 * KIB, 1), 0);
        assert_int_equal(move(e, 0, in, 80 * KIB, 0), 0);
        assert_memory_equal(in, out, 80 * KIB);
        memset(out, 0, 80 * KIB);
        assert_int_equal(move(e, 0, out, 80 * KIB, 0), 0);  // into registered memory
        assert_memory_equal(in, out, 80 * KIB);
        file_close(e);
    }
    s.no_uring = 1;
    e = opened(&s, PAGE);
    assert_non_null(strstr(file_name(e), has_uring ? "3 threads (as requested), " : "3 threads ("));
    file_close(e);
    free(out);
    free(in);
}

// Overrides the C library's function.
static int no_threads;
int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *with) {
    const __typeof__(&pthread_create) create = (__typeof__(create))dlsym(RTLD_NEXT, "pthread_create");
    return no_threads ? EAGAIN : create(thread, how, run, with);
}

static void missing_threads(void **state) {
    char *data = buffer(PAGE);
    file_settings s = settings(1, PAGE);
    FOR_BOTH_ENGINES(s) {
        file_engine *e = opened(&s, PAGE);
        no_threads = 1;
        REFUSED(move(e, 0, data, PAGE, 0), ZERO_ERR_MEMORY,
                "cannot start the threads for files: Resource temporarily unavailable");
        no_threads = 0;
        assert_int_equal(move(e, 0, data, PAGE, 0), 0);
        file_close(e);
    }
    free(data);
}

// Checks that opening fails and leaves no file behind.
static void refused(const file_settings *s, int64_t bytes, int code, const char *words) {
    file_engine *e;
    const int files = files_in(folders[0]);
    REFUSED(file_open(&e, s, bytes), code, words);
    assert_null(e);
    assert_int_equal(files_in(folders[0]), files);
}

static void wrong_arguments(void **state) {
    static const struct {
        const char *folders;  // NULL: an existing folder
        size_t block_bytes;
        int code;
        const char *words;
    } bad[] = { { NULL, 5000, ZERO_ERR_ARGUMENT, "offload.nvme_block_bytes" },
                { "", PAGE, ZERO_ERR_ARGUMENT, "offload.nvme" },
                { "/tmp,,/tmp", PAGE, ZERO_ERR_ARGUMENT, "offload.nvme" },
                { "/nonexistent/folder", PAGE, ZERO_ERR_IO, "/nonexistent/folder" } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        file_settings s = settings(1, bad[i].block_bytes);
        if (bad[i].folders) s.folders = bad[i].folders;
        refused(&s, PAGE, bad[i].code, bad[i].words);
    }
    file_settings s = settings(1, PAGE);
    file_engine *e = opened(&s, 3 * PAGE);
    char *data = buffer(4 * PAGE);
    assert_int_equal(move(e, 100, data, PAGE, 0), ZERO_ERR_MISUSE);
    assert_int_equal(move(e, 0, data + 8, PAGE, 0), ZERO_ERR_MISUSE);
    REFUSED(move(e, PAGE, data, 3 * PAGE, 0), ZERO_ERR_MISUSE, "12288");
    assert_int_equal(move(e, 0, data, 3 * PAGE, 0), 0);  // works even after misuse
    free(data);
    file_close(e);
    file_close(NULL);
}

// -------- locks

static void put_letters(const char *path, const char *letters) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(letters, f);
    fclose(f);
}

static void lock_names_in_use(void **state) {
    static const char *const reasons[] = { "stays unchanged", "stays unchanged", "Is a directory",
                                           "symbolic" };
    file_settings s = settings(2, 8 * KIB);
    for (int what = 0; what < 4; what++) {
        const char *path = lock_of(1, 0);
        struct stat before, after;
        if (what == 0) put_letters(path, "some letters");
        if (what == 1) assert_int_equal(mkfifo(path, 0600), 0);
        if (what == 2) assert_int_equal(mkdir(path, 0700), 0);
        if (what == 3) assert_int_equal(symlink("/dev/null", path), 0);
        assert_int_equal(lstat(path, &before), 0);
        refused(&s, 64 * KIB, ZERO_ERR_IO, path);
        error_has(reasons[what]);
        assert_int_equal(lstat(path, &after), 0);
        assert_true(after.st_ino == before.st_ino && after.st_size == before.st_size);
        assert_int_equal(remove(path), 0);
    }
    char twice[300];
    snprintf(twice, sizeof twice, "%s,%s", folders[0], folders[0]);
    s.folders = twice;
    refused(&s, 64 * KIB, ZERO_ERR_IO, "once");
}

// A program may run without standard input, so that the lock is descriptor 0.
static void lock_in_descriptor_0(void **state) {
    const file_settings s = settings(1, 8 * KIB);
    const int input = dup(STDIN_FILENO);
    struct stat named, opened_as;
    close(STDIN_FILENO);
    file_engine *e = opened(&s, 64 * KIB);
    assert_int_equal(stat(lock_of(0, 0), &named) || fstat(STDIN_FILENO, &opened_as), 0);
    assert_true(named.st_ino == opened_as.st_ino);
    refused(&s, 64 * KIB, ZERO_ERR_IO, "this process uses the file already");
    file_close(e);
    assert_int_equal(files_in(folders[0]), 0);
    if (input >= 0) dup2(input, STDIN_FILENO);
    close(input);
}

// Uses the folders until this process is killed.
static void hold(int ready) {
    const file_settings s = settings(2, 8 * KIB);
    file_engine *e;
    char *data = buffer(64 * KIB);
    memset(data, 9, 64 * KIB);
    alarm(TIME_LIMIT_S);
    if (!file_open(&e, &s, 64 * KIB) && !move(e, 0, data, 64 * KIB, 1) && write(ready, "r", 1) == 1)
        for (;;) pause();
    _exit(1);
}

static pid_t start_holder(void) {
    int ready[2];
    char c;
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (!pid) hold(ready[1]);
    close(ready[1]);
    assert_int_equal(read(ready[0], &c, 1), 1);
    close(ready[0]);
    return pid;
}

// A killed process leaves only lock files, which the next run reuses.
static void other_processes(void **state) {
    file_settings s = settings(2, 8 * KIB);
    char expected[100], data[PAGE] __attribute__((aligned(PAGE))), zeros[PAGE] = "";
    struct stat st;
    pid_t pid = start_holder();
    snprintf(expected, sizeof expected, "process %d ", (int)pid);
    refused(&s, 64 * KIB, ZERO_ERR_IO, expected);
    error_has(lock_of(0, 0));
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(stat(lock_of(i, 0), &st), 0);
        assert_true(st.st_size < 200);
        assert_int_equal(files_in(folders[i]), 1);
    }
    file_engine *e = opened(&s, 100 * KIB);
    assert_int_equal(move(e, 0, data, PAGE, 0), 0);
    assert_memory_equal(data, zeros, PAGE);  // not the values of the killed process
    // The engine must not remove a different file with the lock's name.
    assert_int_equal(unlink(lock_of(1, 0)), 0);
    close(open(lock_of(1, 0), O_CREAT | O_WRONLY, 0600));
    file_close(e);
    assert_int_equal(files_in(folders[0]), 0);
    assert_int_equal(unlink(lock_of(1, 0)), 0);
}

// The engine refuses tmpfs, where files would be stored in memory.
static void folders_in_memory(void **state) {
    file_settings s = settings(1, PAGE);
    struct statfs fs;
    if (statfs("/dev/shm", &fs) || fs.f_type != TMPFS_MAGIC) skip();
    s.folders = "/dev/shm";
    refused(&s, PAGE, ZERO_ERR_ARGUMENT, "/dev/shm");
    error_has("tmpfs");
}

// -------- full disks

static void refused_at_limit(int resource, rlim_t most, const char *words) {
    struct rlimit before, low;
    const file_settings s = settings(1, 8 * KIB);
    assert_int_equal(getrlimit(resource, &before), 0);
    low = (struct rlimit){ most, before.rlim_max };
    assert_int_equal(setrlimit(resource, &low), 0);
    refused(&s, 1024 * KIB, ZERO_ERR_IO, words);
    assert_int_equal(setrlimit(resource, &before), 0);
}

static void limits(void **state) {
    const int next = open("/dev/null", O_RDONLY);
    assert_true(next >= 0 && !close(next));
    // Only one more file can be opened: the lock.
    refused_at_limit(RLIMIT_NOFILE, (rlim_t)next + 1, "raise the limit of open files (ulimit -n)");
    refused_at_limit(RLIMIT_FSIZE, 100 * KIB, "0.1 MiB");
}

// Uses a small file system in a private mount namespace. Skips if it cannot create the namespace.
static void full_disk(void **state) {
    file_settings s = settings(1, PAGE);
    char name[120], *data = buffer(512 * KIB);
    memset(data, 1, 512 * KIB);
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("tmpfs", folders[0], "tmpfs", 0, "size=768k")) {
        free(data);
        print_message("skip: cannot mount a file system here: %s\n", strerror(errno));
        skip();
    }
    snprintf(name, sizeof name, "%s/filler", folders[0]);
    set_fault(FILE_OPERATIONS, 1, 1, 0);  // any fault makes the engine accept a folder in memory
    refused(&s, 1024 * KIB, ZERO_ERR_IO, "0.7 MiB free");
    FOR_BOTH_ENGINES(s) {
        // If space is not reserved, another file fills the disk.
        set_fault(FILE_RESERVE, 1, 1, -EOPNOTSUPP);
        refused(&s, 768 * KIB, ZERO_ERR_IO, "No space left on device");
        set_fault(FILE_RESERVE, 1, 1, -EOPNOTSUPP);
        file_close(opened(&s, 768 * KIB - PAGE));  // with the lock file, all of the disk
        set_fault(FILE_RESERVE, 1, 1, -EOPNOTSUPP);
        file_engine *e = opened(&s, 512 * KIB);
        int fd = open(name, O_CREAT | O_WRONLY, 0600);
        assert_int_equal(write(fd, data, 512 * KIB), 512 * KIB);
        close(fd);
        REFUSED(move(e, 0, data, 512 * KIB, 1), ZERO_ERR_IO, "/llmc_zero.rank00000");
        error_has("No space left on device");
        file_close(e);
        unlink(name);
    }
    free(data);
    umount(folders[0]);
}

// --------

static int make_folders(void **state) {
    strcpy(root, "build/file.XXXXXX");  // /tmp may be in memory
    if (!mkdtemp(root)) return -1;
    for (int i = 0; i < 3; i++) {
        snprintf(folders[i], sizeof folders[i], "%s/disk%d", root, i);
        if (mkdir(folders[i], 0700)) return -1;
        strcat(strcpy(lists[i + 1], lists[i]), i ? "," : "");
        strcat(lists[i + 1], folders[i]);
    }
    return 0;
}

static int remove_folders(void **state) {
    int rc = 0;
    for (int i = 0; i < 3; i++) rc |= rmdir(folders[i]);  // fails if a file remains
    return rc | rmdir(root);
}

#define TEST(f) cmocka_unit_test_teardown(f, no_fault)

int main(void) {
    alarm(TIME_LIMIT_S);
    const struct CMUnitTest tests[] = {
        TEST(counts),          TEST(urgent_transfers),  TEST(a_disk_that_hangs),
        TEST(limits),          TEST(missing_features),  TEST(lock_names_in_use),
        TEST(round_trips),     TEST(wrong_arguments),   TEST(lock_in_descriptor_0),
        TEST(every_fault),     TEST(other_processes),   TEST(a_file_that_vanishes),
        TEST(damaged_blocks),  TEST(folders_in_memory), TEST(a_disk_that_never_answers),
        TEST(missing_threads), TEST(full_disk),
    };
    return cmocka_run_group_tests(tests, make_folders, remove_folders);
}
