#include "command.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "options.h"
#include "run.h"

enum { MOST_WORDS = 2000 };

// Returns the number of words in a process's command line; 0: unreadable.
static int words_of_process(pid_t process, char *words[MOST_WORDS]) {
    char path[64];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)process);
    FILE *f = fopen(path, "r");
    for (; f && n < MOST_WORDS; n++) {
        size_t room = 0;
        words[n] = NULL;
        if (getdelim(&words[n], &room, '\0', f) > 0) continue;
        free(words[n]);
        break;
    }
    if (f) fclose(f);
    return n;
}

static int are_same(char **a, char **b, int n) {
    for (int i = 0; i < n; i++)
        if (strcmp(a[i], b[i])) return 0;
    return 1;
}

// Secrets must not get into a log.
static void print_word(const char *word) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
    if (!strncmp(word, "ZERO_JOB_KEY=", 13)) word = "ZERO_JOB_KEY";  // mpirun -x copies its value
    if (*word && !word[strspn(word, plain)]) {
        print0("%s ", word);
        return;
    }
    print0("'");
    for (const char *c = word; *c; c++) print0(*c == '\'' ? "'\\''" : "%c", *c);
    print0("' ");
}

// Without the launcher's words, and with several ranks, prints the command of one rank.
static void print_launcher(int argc, char **argv) {
    char *words[MOST_WORDS];
    int n = words_of_process(getppid(), words), before = n - argc;
    const int is_launcher = before > 0 && are_same(words + before, argv, argc);
    if (!is_launcher && run.ranks > 1) print0("(on every rank, started as before)\n  ");
    for (int i = 0; is_launcher && i < before; i++) print_word(words[i]);
    for (int i = 0; i < n; i++) free(words[i]);
}

static int says_what_to_resume(const char *option) {
    return !strcmp(option, "-y") || !strcmp(option, "--resume");
}

void print_command_to_go_on(int argc, char **argv) {
    print0("  ");
    print_launcher(argc, argv);
    print_word(argv[0]);
    for (int i = 1, n; i < argc; i += n) {
        n = option_named(argv[i])->kind == FLAG ? 1 : 2;
        if (says_what_to_resume(argv[i])) continue;
        for (int k = i; k < i + n; k++) print_word(argv[k]);
    }
    print0("-y 1\n");
}
