#include "json.h"
#include "../base/error.h"
#include "../base/text_file.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

// -------- the text

enum { LARGEST_FILE = 1 << 20 };

// Returns the end of the comment that begins at s: s if none begins there, NULL if it is never closed.
static char *comment_end(char *s) {
    if (*s == '#' || (s[0] == '/' && s[1] == '/')) return s + strcspn(s, "\n");
    if (s[0] != '/' || s[1] != '*') return s;
    char *close = strstr(s + 2, "*/");
    return close ? close + 2 : NULL;
}

// Returns the closing quote of the string that begins at s, or the end of the text.
static char *string_end(char *s) {
    for (s++; *s && *s != '"'; s++)
        if (*s == '\\' && s[1]) s++;
    return s;
}

static void blank(char *s, const char *end) {
    for (; s < end; s++)
        if (*s != '\n') *s = ' ';
}

// Replaces comments and trailing commas with blanks, so that lines and columns stay the same for the parser,
// which reports a comment that is never closed. lines: receives the line of each string before a colon.
static void prepare(char *text, int *lines) {
    char *last = text;   // the last character before s, ignoring blanks and comments
    char *comma = NULL;  // the same, if it is a comma after a value
    int line = 1, string_line = 1;
    for (char *s = text; *s; s++) {
        char *end = comment_end(s);
        if (!end) return;
        blank(s, end);
        if (*s == '\n') line++;
        if (strchr(" \t\r\n", *s)) continue;
        if (*s == '"') {
            string_line = line;
            s = string_end(s);
            if (!*s) return;
        }
        if (*s == ':') *lines++ = string_line;
        if (comma && (*s == '}' || *s == ']')) *comma = ' ';
        comma = *s == ',' && !strchr("{[,", *last) ? s : NULL;
        last = s;
    }
}

static int parse(json_file *j, const char *file, char *text, size_t n) {
    json_error_t e;
    j->lines = malloc((n + 1) * sizeof *j->lines);
    if (!j->lines) return zero_fail(ZERO_ERR_MEMORY, "%s: out of memory to read it", file);
    prepare(text, j->lines);
    j->root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    if (!j->root)
        return zero_fail(ZERO_ERR_ARGUMENT, "%s:%d:%d: not JSON: %s", file, e.line, e.column, e.text);
    if (!json_is_object(j->root)) return zero_fail(ZERO_ERR_ARGUMENT, "%s:1: must be a block { ... }", file);
    return 0;
}

int json_open(json_file *j, const char *file) {
    char *text = NULL;
    int64_t n = 0;
    *j = (json_file){ 0 };
    int rc = zero_read_text(file, LARGEST_FILE, "a DeepSpeed configuration", &text, &n);
    if (!rc) rc = parse(j, file, text, (size_t)n);
    free(text);
    return rc;
}

void json_close(json_file *j) {
    json_decref(j->root);
    free(j->lines);
}

int json_count_keys(json_t *v) {
    const char *name;
    json_t *inner;
    int n = 0;
    json_object_foreach(v, name, inner) n += 1 + json_count_keys(inner);
    for (size_t i = 0; i < json_array_size(v); i++) n += json_count_keys(json_array_get(v, i));
    return n;
}

// -------- the values

int json_is_left_out(const json_t *v) {
    return json_is_null(v) || (json_is_string(v) && !strcasecmp(json_string_value(v), "auto"));
}

int json_as_number(const json_t *v, double *x) {
    char *end;
    *x = json_number_value(v);
    if (!json_is_string(v)) return json_is_number(v);
    const char *s = json_string_value(v);
    *x = strtod(s, &end);
    return *s && !*end && isfinite(*x) && !strpbrk(s, " xX");
}

int json_as_count(const json_t *v, int64_t *n) {
    double x;
    if (json_is_integer(v)) {
        *n = json_integer_value(v);
        return 1;
    }
    if (!json_as_number(v, &x) || fabs(x) > 1e18 || x != floor(x)) return 0;
    *n = (int64_t)x;
    return 1;
}

int json_as_bool(const json_t *v, int *on) {
    static const char *const words[][2] = { { "false", "true" }, { "off", "on" }, { "no", "yes" },
                                            { "f", "t" },        { "n", "y" },    { "0", "1" } };
    for (size_t i = 0; json_is_string(v) && i < sizeof words / sizeof *words; i++)
        for (*on = 0; *on < 2; ++*on)
            if (!strcasecmp(json_string_value(v), words[i][*on])) return 1;
    const double x = json_is_boolean(v) ? json_is_true(v) : json_number_value(v);
    *on = x == 1;
    return (json_is_boolean(v) || json_is_number(v)) && (x == 0 || x == 1);
}

static int equals(const json_t *v, const json_t *a) {
    double x;
    int on;
    if (json_is_string(a) && json_is_string(v))
        return !strcasecmp(json_string_value(a), json_string_value(v));
    if (json_is_number(a)) return json_as_number(v, &x) && x == json_number_value(a);
    return json_is_boolean(a) && json_as_bool(v, &on) && on == json_is_true(a);
}

int json_equals(const json_t *v, const char *json) {
    for (size_t n; *json; json += n + (json[n] == '|')) {
        n = strcspn(json, "|");
        json_t *a = json_loadb(json, n, JSON_DECODE_ANY, NULL);
        int same = equals(v, a);
        json_decref(a);
        if (same) return 1;
    }
    return 0;
}

void json_quote(const json_t *v, char *text, size_t size) {
    char *all = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15));
    snprintf(text, size, "%s", all ? all : "this value");
    free(all);
}
