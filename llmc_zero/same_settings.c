// Checks that all ranks have the same settings. Rank 0 broadcasts lines of "name = value". A rank with other
// lines reports the first that differs, and all ranks fail with the message of the lowest such rank.
#include "internal.h"
#include "settings/settings.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 16 << 20, QUOTED = 140 };  // of rank 0's text; of a line in the message

// -------- two texts

static int length(const char *line) { return (int)strcspn(line, "\n"); }
static const char *next(const char *line) { return line += length(line), *line ? line + 1 : line; }
static int name_length(const char *line) {
    int n = length(line);
    const char *equals = memmem(line, (size_t)n, " = ", 3);
    return equals ? (int)(equals - line) : n;
}
static int same_line(const char *a, const char *b) {
    return *a && *b && length(a) == length(b) && !memcmp(a, b, (size_t)length(a));
}
static int same_name(const char *a, const char *b) {
    return name_length(a) == name_length(b) && !memcmp(a, b, (size_t)name_length(a));
}

static int has_name(const char *text, const char *line) {
    while (*text && !same_name(text, line)) text = next(text);
    return *text != 0;
}

// Writes "has name = value", or "has no name" for a line that only the other rank has.
static const char *quote(char quoted[QUOTED], const char *line, int has) {
    snprintf(quoted, QUOTED, "%s%.*s", has ? "has " : "has no ", has ? length(line) : name_length(line),
             line);
    return quoted;
}

static int compare(const net *c, const char *mine, const char *first, const char *hint) {
    char own[QUOTED], other[QUOTED];
    while (same_line(mine, first)) mine = next(mine), first = next(first);
    if (!*mine && !*first) return 0;
    int both = *mine && *first && same_name(mine, first), here = both || (*mine && !has_name(first, mine)),
        there = both || !here;
    return zero_fail_rank(ZERO_ERR_ARGUMENT, c->rank, net_host(c, c->rank), " %s and rank 0 (host %s) %s%s",
                          quote(own, here ? mine : first, here), net_host(c, 0),
                          quote(other, there ? first : mine, there), hint);
}

// -------- across the ranks

// mine NULL: out of memory. hint: the end of the message.
static int same(net *n, const char *mine, const char *hint) {
    int64_t bytes = mine ? (int64_t)strlen(mine) : 0;
    char *first = NULL;
    ZERO_TRY(net_broadcast(n, 0, &bytes, sizeof bytes));
    // Agrees before it returns, because a rank that fails and leaves ends those still in the broadcast.
    if (bytes < 0 || bytes > MOST_BYTES)
        return net_agree(n, zero_fail(ZERO_ERR_ARGUMENT,
                                      "rank 0 has %lld bytes of lines to compare: at most %d are allowed",
                                      (long long)bytes, MOST_BYTES));
    int rc = mine && (first = calloc(1, (size_t)bytes + 1))
                 ? 0
                 : zero_fail(ZERO_ERR_MEMORY, "out of memory for comparing the ranks");
    if (!rc && n->rank == 0) memcpy(first, mine, (size_t)bytes);
    rc = net_agree(n, rc);
    if (!rc && bytes) rc = net_broadcast(n, 0, first, (size_t)bytes);
    if (!rc) rc = net_agree(n, compare(n, mine, first, hint));
    free(first);
    return rc;
}

int zero_require_same(zero *z, const char *lines) {
    if (z->net.ranks == 1) return 0;
    ZERO_TRY(end_collectives(z));
    return same(&z->net, lines, "");
}

// -------- the arguments of zero_create

// NULL: out of memory. The version comes first, because other versions may format the rest differently.
static char *describe(const zero_config *c, const zero_tensor *tensors, int n_tensors, const zero_unit *units,
                      int n_units) {
    char *text = NULL;
    size_t bytes;
    int n_settings;
    const zero_setting *settings = zero_settings(&n_settings);
    FILE *f = open_memstream(&text, &bytes);
    if (!f) return NULL;
    const char *same = c->start.same ? c->start.same : "";
    fprintf(f, "llmc_zero = %s\n%s%s", ZERO_VERSION, same,
            *same && same[strlen(same) - 1] != '\n' ? "\n" : "");
    for (int i = 0; i < n_settings; i++) {
        char value[64];
        if (!settings[i].same) continue;
        zero_setting_text(&settings[i], c, value, sizeof value);
        fprintf(f, "%s = %s\n", settings[i].name, value);
    }
    fprintf(f, "update_with = %s\n", c->update_with ? "a function" : "AdamW");
    fprintf(f, "update_name = %s\n", c->update_name ? c->update_name : "none");
    for (int i = 0; i < n_tensors; i++) {
        const zero_tensor *t = &tensors[i];
        fprintf(f, "tensor %d = %s, shape", i, t->name ? t->name : "");
        for (int k = 0; k < t->n_dims && k < ZERO_MAX_DIMS; k++) fprintf(f, " %lld", (long long)t->dims[k]);
        fprintf(
            f,
            ", layers %d from unit %d on in steps of %d, decay %.9g, backward_overwrites %d, lr_factor %.9g, "
            "frozen %d\n",
            t->layers, t->unit, t->unit_step, t->decay, t->backward_overwrites, t->lr_factor, t->frozen);
    }
    for (int i = 0; i < n_units; i++) {
        const zero_unit *u = &units[i];
        fprintf(f,
                "unit %d = %s, uses forward %d, of them %d repeated, backward %d, of them %d only for "
                "gradients\n",
                i, u->name ? u->name : "", u->forward_uses, u->repeated_uses, u->backward_uses,
                u->gradient_only_uses);
    }
    int failed = ferror(f);
    if (!fclose(f) && !failed) return text;
    free(text);
    return NULL;
}

int same_settings(zero *z, const zero_tensor *tensors, int n_tensors, const zero_unit *units, int n_units) {
    if (z->net.ranks == 1) return 0;
    char *text = describe(&z->config, tensors, n_tensors, units, n_units);
    int rc = same(&z->net, text, "; it must be the same on all ranks");
    free(text);
    return rc;
}
