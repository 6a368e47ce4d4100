// A JSON file as DeepSpeed's users write it: with comments and trailing commas, numbers as 5e8 or "5e8".
// Every key keeps its line.
#ifndef LLMC_ZERO_SETTINGS_JSON_H
#define LLMC_ZERO_SETTINGS_JSON_H
#include <jansson.h>
#include <stdint.h>

typedef struct {
    json_t *root;  // an object
    int *lines;    // of all its keys at any depth, in the file's order, in which Jansson visits them too
} json_file;
// Returns 0; the caller calls json_close, also after a failure. ZERO_ERR_IO; ZERO_ERR_ARGUMENT with file,
// line and column of what is not JSON.
int json_open(json_file *j, const char *file);
void json_close(json_file *j);
int json_count_keys(json_t *v);  // inside of a value, at any depth

// The values, as leniently as DeepSpeed reads them. Each returns 1 if v is such a value.
int json_is_left_out(const json_t *v);               // null or "auto", a placeholder of Hugging Face
int json_as_number(const json_t *v, double *x);      // "5e8" too
int json_as_count(const json_t *v, int64_t *n);      // a whole number; 5e8 and "500000000" too
int json_as_bool(const json_t *v, int *on);          // 0, 1, "on", "off", "yes", "no", .. too
int json_equals(const json_t *v, const char *json);  // v is one of the values of `json`, parted by |
// Writes v as JSON, cut to `size` bytes.
void json_quote(const json_t *v, char *text, size_t size);

#endif
