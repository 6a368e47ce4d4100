// Files in the safetensors format: 8 bytes with the length of the header, a JSON object with each tensor's
// dtype, shape and offsets, then the values. Everything is little-endian. Each function returns 0, or -1 with
// gpt2_fail's message, which begins with the path.
#ifndef GPT2_SAFETENSORS_H
#define GPT2_SAFETENSORS_H
#include <jansson.h>
#include <limits.h>
#include "layers.h"

enum { SAFE_DIMS = 8, SAFE_HEADER = 16 << 20 };  // maximum dimensions of a shape, maximum bytes of a header

typedef struct {
    const char *name, *dtype_name;
    int readable;  // 1: can be read as fp32, from `dtype`
    gpt2_dtype dtype;
    int n_dims;
    int64_t dims[SAFE_DIMS];
    int64_t begin, end;  // its bytes, from the start of the file
} SafeTensor;

typedef struct {
    char path[PATH_MAX];
    int fd;          // -1: not open
    json_t *header;  // owns the names
    int n;
    SafeTensor *tensors;  // (n) in the order of their values
} SafeFile;

// Checks the whole header: that all numbers are in range, that the values of all tensors are contiguous and
// fill the file, and that names are unique. Call safe_close in either case.
int safe_open(SafeFile *f, const char *path);
void safe_close(SafeFile *f);
// Reads elements [at, at + n) of a readable tensor, as fp32.
int safe_read(const SafeFile *f, const SafeTensor *t, int64_t at, int64_t n, float *values);

// "[768, 2304]"
enum { SAFE_SHAPE = 24 * SAFE_DIMS };
const char *safe_shape(char text[SAFE_SHAPE], const int64_t *dims, int n_dims);

// A header being built.
typedef struct {
    json_t *root;
    int64_t bytes;  // of the values so far
} SafeHeader;
int safe_header_begin(SafeHeader *h);
int safe_header_add(SafeHeader *h, const char *name, gpt2_dtype dtype, const int64_t *dims, int n_dims);
// *text: the start of the file, up to the values; the caller frees it. h is freed in either case.
int safe_header_end(SafeHeader *h, char **text, size_t *bytes);

// Returns the JSON object in a file of at most `most` bytes, or NULL. Duplicate names are an error.
json_t *safe_json(const char *path, int64_t most);

#endif
