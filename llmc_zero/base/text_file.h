// Text files, read whole.
#ifndef LLMC_ZERO_BASE_TEXT_FILE_H
#define LLMC_ZERO_BASE_TEXT_FILE_H
#include <stdint.h>

// Reads a file of at most `most` bytes, and adds a final 0 to its text, which the caller frees even after a
// failure. Refuses all but regular files, because opening a pipe could wait for ever. kind: what the file
// should be, for the message ("a manifest"). Returns 0, ZERO_ERR_IO or ZERO_ERR_MEMORY.
int zero_read_text(const char *path, int64_t most, const char *kind, char **text, int64_t *bytes);

#endif
