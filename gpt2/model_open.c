// Opens a model on disk, whatever its format.
#include <sys/stat.h>
#include "hf.h"
#include "model.h"

int gpt2_stored_open(const char *path, GPT2Stored *stored) {
    struct stat st;
    if (!stat(path, &st) && S_ISDIR(st.st_mode)) return hf_open(path, stored);
    return gpt2_file_open(path, stored);
}
