// The progress bar: plain characters and carriage returns, no colours.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include "bar.h"

enum { WIDEST = 200, WIDEST_BAR = 40, LEAST_BAR = 5, FIELDS = 4 };

static struct {
    int on, terminal;  // its file descriptor, -1: none
    int drawn;         // characters now on the line
    double drawn_at_s;
    Progress progress;
} bar;

// Open MPI gives each rank a separate terminal for stdout, even if mpirun's output goes to a file. It is
// not a controlling terminal. The user sees the stdout of mpirun, the parent.
int bar_terminal(void) {
    struct stat own, parent;
    char path[64];
    if (!isatty(STDOUT_FILENO)) return -1;
    if (tcgetpgrp(STDOUT_FILENO) != -1) return STDOUT_FILENO;
    snprintf(path, sizeof path, "/proc/%d/fd/1", (int)getppid());
    // If both have the same terminal, the parent is a script between mpirun and this program, which hides
    // mpirun's stdout.
    if (fstat(STDOUT_FILENO, &own) || stat(path, &parent) || !S_ISCHR(parent.st_mode) ||
        own.st_rdev == parent.st_rdev)
        return -1;
    int fd = open(path, O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || isatty(fd)) return fd;
    close(fd);
    return -1;
}

// Queried each time, because the user may have resized the terminal.
static int columns(void) {
    struct winsize size;
    const char *text = getenv("COLUMNS");
    int n = text ? atoi(text) : 0;
    if (bar.terminal >= 0 && !ioctl(bar.terminal, TIOCGWINSZ, &size) && size.ws_col > 0) n = size.ws_col;
    if (n <= 0) n = 80;
    return n < WIDEST ? n : WIDEST;
}

static void format_time(char *text, size_t size, double seconds) {
    long s = seconds < 1e9 ? (long)(seconds + 0.5) : 999999999;
    if (s < 3600)
        snprintf(text, size, "%ld:%02ld", s / 60, s % 60);
    else
        snprintf(text, size, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
}

// Writes the line, of at most `width` characters, and returns its length. If space is short, drops first the
// bar, then fields from the right.
static int compose(char *line, int width) {
    const Progress *p = &bar.progress;
    char left[32], fields[FIELDS][48], cells[WIDEST_BAR + 1] = "";
    format_time(left, sizeof left, p->left_s);
    snprintf(fields[0], sizeof fields[0], " loss %.4f", p->loss);
    snprintf(fields[1], sizeof fields[1], " | %5s left", left);
    snprintf(fields[2], sizeof fields[2], " | %5.0f tok/s", p->tokens_per_s);
    snprintf(fields[3], sizeof fields[3], " | %2.0f %% of peak", 100 * p->share);
    int length = snprintf(line, width + 1, "step %4d/%d", p->step, p->steps), used = length, shown = 0;
    while (shown < FIELDS && used + (int)strlen(fields[shown]) <= width) {
        used += (int)strlen(fields[shown]);
        shown++;
    }
    int n = width - used - 3 < WIDEST_BAR ? width - used - 3 : WIDEST_BAR;  // " [" and "]"
    if (shown && n >= LEAST_BAR) {
        memset(cells, '.', n);
        memset(cells, '#', (size_t)((double)n * p->step / p->steps));
        length += snprintf(line + length, width + 1 - length, " [%s]", cells);
    }
    for (int i = 0; i < shown; i++) length += snprintf(line + length, width + 1 - length, "%s", fields[i]);
    return length < width ? length : width;
}

// Writes the line and blanks over the rest of a longer old one in one call, to avoid flicker.
static void rewrite(const char *line, int length) {
    printf("\r%s%*s", line, bar.drawn > length ? bar.drawn - length : 0, "");
    if (!length) printf("\r");
    fflush(stdout);
    bar.drawn = length;
}

void bar_start(int terminal) {
    bar.terminal = terminal;
    bar.on = 1;
}

static void draw(void) {
    char line[WIDEST + 1];
    int length = compose(line, columns() - 1);  // some terminals begin a new line after the last column
    rewrite(line, length);
}

void bar_update(const Progress *progress) {
    if (!bar.on) return;
    bar.progress = *progress;
    if (bar.drawn && progress->step < progress->steps && progress->at_s - bar.drawn_at_s < 0.1) return;
    bar.drawn_at_s = progress->at_s;
    draw();
}

void bar_show(void) {
    if (bar.on && !bar.drawn && bar.progress.step > 0) draw();
}

void bar_clear(void) {
    if (bar.drawn) rewrite("", 0);
}

void bar_end(void) {
    if (bar.drawn) printf("\n");
    bar.drawn = bar.on = 0;
}
