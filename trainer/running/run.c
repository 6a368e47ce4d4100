#include "run.h"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "../../gpt2/bar.h"
#include "../../gpt2/gpt2_error.h"

Run run = { .ranks = 1, .ranks_on_host = 1, .layers = &layers_cpu, .threads = 1, .step = -1, .saving = -1 };

// Otherwise the next file that is opened gets the number, and output goes into it.
void replace_closed_descriptors(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
            die("file descriptor %d is closed, and /dev/null cannot be opened instead: %s", fd,
                strerror(errno));
}

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

void print0(const char *fmt, ...) {
    if (run.rank != 0) return;
    va_list args;
    va_start(args, fmt);
    errno = 0;
    bar_clear();
    vprintf(fmt, args);
    va_end(args);
    int failed = fflush(stdout) || ferror(stdout);
    if (failed && !run.output_error) run.output_error = errno ? errno : EIO;
}

void note0(const char *fmt, ...) {
    if (run.rank != 0) return;
    va_list args;
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
}

void text_begin(Text *t) {
    t->f = open_memstream(&t->text, &t->bytes);
    if (!t->f) die("out of memory for a text");
}

char *text_end(Text *t) {
    const int failed = ferror(t->f);
    if (fclose(t->f) || failed) die("out of memory for a text");
    t->f = NULL;
    return t->text;
}

void write_json_text(FILE *f, const char *text) {
    fputc('"', f);
    for (const char *s = text; *s; s++) {
        if (*s == '"' || *s == '\\') fputc('\\', f);
        if ((unsigned char)*s < ' ')
            fprintf(f, "\\u%04x", *s);
        else
            fputc(*s, f);
    }
    fputc('"', f);
}

// -------- the end of a run that fails

// Exit status of a failure before the ranks are connected. Launch scripts then need not wait for messages
// from the other ranks.
enum { ALONE = 2 };
enum { MESSAGE = 12400 };  // bytes; long enough for a message that lists many lines

// The message begins with the rank or, if it already names one, with the step or the checkpoint being
// written.
static void end_job(const char *message, int names_a_rank) {
    char line[MESSAGE + 100], place[48] = "";
    const int connecting = run.z || run.creating;
    if (names_a_rank && run.saving >= 0)
        snprintf(place, sizeof place, "checkpoint of step %d: ", run.saving);
    else if (names_a_rank && run.step >= 0)
        snprintf(place, sizeof place, "step %d: ", run.step + 1);
    else if (!names_a_rank && run.ranks > 1 && (run.z || run.rank))
        snprintf(place, sizeof place, "rank %d: ", run.rank);
    // Do not write over the progress bar.
    snprintf(line, sizeof line, "%strain_gpt2_zero: %s%s", run.peak_flops > 0 ? "\n" : "", place, message);
    zero_end_job(run.z, connecting ? EXIT_FAILURE : ALONE, line);
}

void die(const char *fmt, ...) {
    char message[MESSAGE];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    end_job(message, 0);
    abort();
}

void die_of_plugin(const zero_failure *f, const char *more) {
    char options[64] = "", message[MESSAGE];
    if (run.name_options) run.name_options(f->setting, options, sizeof options);
    snprintf(message, sizeof message, *options ? "%s (%s)%s" : "%s%s%s", f->sentence, options, more);
    end_job(message, f->rank >= 0);
    abort();
}

void zero_check(int rc) {
    if (rc) die_of_plugin(zero_last_failure(), "");
}

// gpt2/ may be passing on an error from the plugin.
void gpt2_check(int rc) {
    if (rc && !strcmp(gpt2_last_error(), zero_last_error())) zero_check(rc);
    if (rc) die("%s", gpt2_last_error());
}

void *malloc_check(size_t bytes) {
    void *p = malloc(bytes);
    if (!p) die("out of memory: %zu bytes", bytes);
    return p;
}
