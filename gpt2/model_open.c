// Opens models by name: a descriptor, or a file or folder on disk.
#include <string.h>
#include <sys/stat.h>
#include "hf.h"
#include "model.h"

int gpt2_stored_open(const char *path, GPT2Stored *stored) {
    struct stat st;
    if (!stat(path, &st) && S_ISDIR(st.st_mode)) return hf_open(path, stored);
    return gpt2_file_open(path, stored);
}

int gpt2_is_stored(const char *name) {
    GPT2Config config;
    const char *dot = strrchr(name, '.');
    if (dot && !strcmp(dot, ".bin")) return 1;
    return gpt2_config_from_descriptor(&config, name) && hf_is_folder(name);
}

int gpt2_config_named(const char *name, GPT2Config *config) {
    GPT2Stored stored;
    if (!gpt2_is_stored(name)) return gpt2_config_from_descriptor(config, name);
    if (gpt2_stored_open(name, &stored)) return -1;
    *config = stored.config;
    gpt2_stored_close(&stored);
    return 0;
}
