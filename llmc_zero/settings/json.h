// A JSON file as DeepSpeed's users write it: with comments, trailing commas, and numbers such as "5e8".
#ifndef LLMC_ZERO_SETTINGS_JSON_H
#define LLMC_ZERO_SETTINGS_JSON_H
#include <jansson.h>
#include <stdint.h>

typedef struct {
    json_t *root;  // an object
    int *lines;    // of all keys at any depth, in the file's order, which is also Jansson's
} json_file;
// Returns 0 or an error; if the text is not JSON, with line and column. Call json_close even after a failure.
int json_open(json_file *j, const char *file);
void json_close(json_file *j);
int json_count_keys(json_t *v);  // within a value, at any depth

// Values, read as leniently as DeepSpeed does. Each returns 1 if v is such a value.
int json_is_left_out(const json_t *v);               // null or "auto", Hugging Face's placeholder
int json_as_number(const json_t *v, double *x);      // also "5e8"
int json_as_count(const json_t *v, int64_t *n);      // a whole number; also 5e8 and "500000000"
int json_as_bool(const json_t *v, int *on);          // also 0, 1, "on", "off", "yes", "no", ..
int json_equals(const json_t *v, const char *json);  // v is one of the values in `json`, separated by |
// Writes v as JSON, cut to `size` bytes.
void json_quote(const json_t *v, char *text, size_t size);

#endif
