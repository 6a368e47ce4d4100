#include "keys.h"
#include <stdio.h>
#include <string.h>

enum { NAME = 64 };  // longer than any key, end included

// Returns the next word of a list and its length in *n, or NULL after the last.
static const char *next_word(const char **list, size_t *n) {
    const char *word = *list + strspn(*list, " ");
    *n = strcspn(word, " ");
    *list = word + *n;
    return *n ? word : NULL;
}

const key_row *key_find(const char *block, const char *name) {
    for (const key_row *w = key_rows; w < key_rows + num_key_rows; w++) {
        size_t n;
        if (strcmp(w->block, block)) continue;
        for (const char *list = w->names, *word; (word = next_word(&list, &n));)
            if (n == strlen(name) && !memcmp(word, name, n)) return w;
    }
    return NULL;
}

static int least(int a, int b) { return a < b ? a : b; }

// Returns the Levenshtein distance of a and b, which are both shorter than NAME.
static int edit_distance(const char *a, size_t na, const char *b, size_t nb) {
    int d[NAME];
    for (size_t j = 0; j <= nb; j++) d[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int diagonal = d[0];
        d[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int changed = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = d[j];
            d[j] = least(changed, least(d[j], d[j - 1]) + 1);
        }
    }
    return d[nb];
}

static int is_in_block(const reader *r, const char *block) {
    size_t n = strlen(block);
    return n ? !strncmp(r->path, block, n) && r->path[n] == '.' : !strchr(r->path, '.');
}

// The key may be misspelt or in the wrong block, so keys of all blocks are compared.
void key_nearest(const reader *r, const char *name, char *nearest, size_t size) {
    int best = (int)strlen(name) / 2 + 1;
    *nearest = '\0';
    for (const key_row *w = key_rows; w < key_rows + num_key_rows && strlen(name) < NAME; w++) {
        size_t n;
        for (const char *list = w->names, *word; (word = next_word(&list, &n));) {
            int d = edit_distance(name, strlen(name), word, n);
            if (d > best || (d == best && (!*nearest || !is_in_block(r, w->block)))) continue;
            best = d;
            snprintf(nearest, size, "%s%s%.*s", w->block, *w->block ? "." : "", (int)n, word);
        }
    }
}
