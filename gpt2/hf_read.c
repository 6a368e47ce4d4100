// Reads the weights of a GPT-2 from a transformers folder, in llm.c's order and shapes.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "gpt2_error.h"
#include "hf.h"
#include "safetensors.h"
#include "transpose.h"

enum { MOST_FILES = 512, LARGEST_INDEX = 64 << 20 };

// Where a tensor is stored; t NULL: not found.
typedef struct {
    const SafeFile *file;
    const SafeTensor *t;
} Place;

typedef struct {
    char *folder;
    GPT2Config config;
    GPT2Tensor tensors[NUM_PARAMETER_TENSORS];
    int n_files;
    SafeFile *files;  // (n_files)
    Place *places;    // (NUM_PARAMETER_TENSORS, layers)
    Place head;       // lm_head.weight, if present
    float *compared;  // (GPT2_PIECE) its values
    Transposer transposer;
    char **paths;  // (2 + n_files) for GPT2Stored
} Folder;

int hf_is_folder(const char *path) {
    static const char *const names[] = { HF_WEIGHTS, HF_INDEX };
    char file[PATH_MAX];
    for (int i = 0; i < 2; i++)
        if (!hf_path(file, sizeof file, path, names[i]) && !access(file, F_OK)) return 1;
    return 0;
}

// -------- the files

static int add_file(Folder *f, const char *name) {
    char path[PATH_MAX];
    if (f->n_files == MOST_FILES)
        return gpt2_fail("%s/%s: names more than %d files", f->folder, HF_INDEX, MOST_FILES);
    SafeFile *larger = realloc(f->files, (size_t)(f->n_files + 1) * sizeof *larger);
    if (!larger) return gpt2_fail("%s: no memory for its files", f->folder);
    f->files = larger;
    f->files[f->n_files] = (SafeFile){ .fd = -1 };
    if (hf_path(path, sizeof path, f->folder, name)) return -1;
    return safe_open(&f->files[f->n_files++], path);
}

static SafeFile *file_named(Folder *f, const char *name) {
    for (int i = 0; i < f->n_files; i++)
        if (!strcmp(strrchr(f->files[i].path, '/') + 1, name)) return &f->files[i];
    return NULL;
}

// map: tensor -> file.
static int add_files_of(Folder *f, const json_t *map) {
    const char *tensor;
    json_t *value;
    json_object_foreach((json_t *)map, tensor, value) {
        const char *name = json_string_value(value);
        if (!name || !*name || *name == '.' || strchr(name, '/'))
            return gpt2_fail("%s/%s: the file of \"%.200s\" must be a name in the folder", f->folder,
                             HF_INDEX, tensor);
        if (!file_named(f, name) && add_file(f, name)) return -1;
        SafeFile *file = file_named(f, name);
        if (!json_object_get(file->header, tensor))
            return gpt2_fail("%s: has no tensor \"%.200s\", which the index expects there", file->path,
                             tensor);
    }
    return 0;
}

static int check_against_map(const Folder *f, const json_t *map) {
    for (const SafeFile *file = f->files; file < f->files + f->n_files; file++)
        for (int i = 0; i < file->n; i++) {
            const char *name = json_string_value(json_object_get(map, file->tensors[i].name));
            if (!name || strcmp(name, strrchr(file->path, '/') + 1))
                return gpt2_fail("%s: has the tensor \"%.200s\", which the index expects in %.200s",
                                 file->path, file->tensors[i].name, name ? name : "no file");
        }
    return 0;
}

static int open_sharded(Folder *f, const char *path) {
    json_t *root = safe_json(path, LARGEST_INDEX);
    const json_t *map = json_object_get(root, "weight_map");
    int failed = root ? 0 : -1;
    if (!failed && (!json_is_object(map) || !json_object_size(map)))
        failed = gpt2_fail("%s: \"weight_map\" must be an object that names files", path);
    if (!failed) failed = add_files_of(f, map);
    if (!failed) failed = check_against_map(f, map);
    json_decref(root);
    return failed;
}

static int open_files(Folder *f) {
    char path[PATH_MAX], index[PATH_MAX];
    if (hf_path(path, sizeof path, f->folder, HF_WEIGHTS) ||
        hf_path(index, sizeof index, f->folder, HF_INDEX))
        return -1;
    if (!access(path, F_OK)) return add_file(f, HF_WEIGHTS);
    if (!access(index, F_OK)) return open_sharded(f, index);
    return gpt2_fail("%s: has neither %s nor %s; other formats of weights cannot be read", f->folder,
                     HF_WEIGHTS, HF_INDEX);
}

// -------- the tensors

static Place *place_of(const Folder *f, int tensor, int layer) {
    return &f->places[(size_t)tensor * (size_t)f->config.num_layers + (size_t)layer];
}

static int check_tensor(const Folder *f, const Place *p, int tensor) {
    char is[SAFE_SHAPE], must[SAFE_SHAPE];
    int64_t dims[2];
    int n_dims;
    hf_shape(&f->config, tensor, dims, &n_dims);
    if (!p->t->readable)
        return gpt2_fail("%s: tensor \"%s\" is stored as %.16s; F32, BF16 and F16 can be read", p->file->path,
                         p->t->name, p->t->dtype_name);
    if (p->t->n_dims == n_dims && !memcmp(p->t->dims, dims, (size_t)n_dims * sizeof *dims)) return 0;
    return gpt2_fail("%s: tensor \"%s\" has the shape %s, but according to %s it must be %s", p->file->path,
                     p->t->name, safe_shape(is, p->t->dims, p->t->n_dims), HF_CONFIG,
                     safe_shape(must, dims, n_dims));
}

static int take_tensor(Folder *f, const SafeFile *file, const SafeTensor *t) {
    const Place here = { file, t };
    int tensor = WTE, layer = 0;
    const HfKind kind = hf_find(t->name, &tensor, &layer);
    if (kind == HF_BUFFER) return 0;
    if (kind == HF_UNKNOWN)
        return gpt2_fail("%s: tensor \"%.200s\" does not belong to a GPT-2", file->path, t->name);
    if (kind == HF_TENSOR && layer >= f->config.num_layers)
        return gpt2_fail("%s: tensor \"%s\", but \"n_layer\" in %s is %d", file->path, t->name, HF_CONFIG,
                         f->config.num_layers);
    Place *p = kind == HF_HEAD ? &f->head : place_of(f, tensor, layer);
    if (p->t)
        return gpt2_fail("%s: tensor \"%s\" occurs a second time, as \"%s\" in %s", file->path, t->name,
                         p->t->name, p->file->path);
    *p = here;
    return check_tensor(f, p, kind == HF_HEAD ? WTE : tensor);
}

static int take_tensors(Folder *f) {
    char name[HF_NAME];
    f->places = calloc((size_t)NUM_PARAMETER_TENSORS * (size_t)f->config.num_layers, sizeof *f->places);
    if (!f->places) return gpt2_fail("%s: no memory for its tensors", f->folder);
    for (const SafeFile *file = f->files; file < f->files + f->n_files; file++)
        for (int i = 0; i < file->n; i++)
            if (take_tensor(f, file, &file->tensors[i])) return -1;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++)
        for (int l = 0; l < (f->tensors[i].per_layer ? f->config.num_layers : 1); l++) {
            if (place_of(f, i, l)->t) continue;
            hf_name(name, i, l);
            return gpt2_fail("%s: the weights have no tensor \"%s\"", f->folder, name);
        }
    return 0;
}

// -------- values

// Reads values in the file's layout.
static int get_stored(void *ctx, int tensor, int layer, int64_t offset, int64_t n, float *values) {
    const Folder *f = ctx;
    const Place *p = place_of(f, tensor, layer);
    return safe_read(p->file, p->t, offset, n, values);
}

// An LM head stored in addition to wte must have the same values.
static int compare_head(const Folder *f, int64_t offset, int64_t n, const float *values) {
    if (!f->head.t) return 0;
    if (safe_read(f->head.file, f->head.t, offset, n, f->compared)) return -1;
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&f->compared[i], &values[i], sizeof *values))
            return gpt2_fail(
                "%s: lm_head.weight differs from wte.weight from element %lld on: this model has "
                "one matrix for both",
                f->head.file->path, (long long)(offset + i));
    return 0;
}

// The rows that pad the vocabulary are 0.
static int get_wte(Folder *f, int64_t offset, int64_t n, float *values) {
    const int64_t all = (int64_t)f->config.vocab_size * f->config.channels;
    const int64_t left = offset < all ? all - offset : 0, stored = left < n ? left : n;
    memset(values + stored, 0, (size_t)(n - stored) * sizeof *values);
    for (int64_t at = 0, some; at < stored; at += some) {
        some = stored - at < GPT2_PIECE ? stored - at : GPT2_PIECE;
        if (get_stored(f, WTE, 0, offset + at, some, values + at)) return -1;
        if (compare_head(f, offset + at, some, values + at)) return -1;
    }
    return 0;
}

static int get_values(void *ctx, int tensor, int layer, int64_t offset, int64_t n, float *values) {
    Folder *f = ctx;
    const int64_t *dims = f->tensors[tensor].dims;
    if (tensor == WTE) return get_wte(f, offset, n, values);
    if (!hf_is_transposed(tensor)) return get_stored(f, tensor, layer, offset, n, values);
    return transposer_get(&f->transposer, tensor, layer, dims[1], dims[0], offset, n, values);
}

// -------- opening and closing

static void close_folder(void *ctx) {
    Folder *f = ctx;
    for (int i = 0; i < f->n_files; i++) safe_close(&f->files[i]);
    for (char **path = f->paths; path && *path; path++) free(*path);
    transposer_end(&f->transposer);
    free(f->paths);
    free(f->compared);
    free(f->places);
    free(f->files);
    free(f->folder);
    free(f);
}

static int name_files(Folder *f) {
    f->paths = calloc((size_t)f->n_files + 2, sizeof *f->paths);
    int failed = !f->paths || asprintf(&f->paths[0], "%s/%s", f->folder, HF_CONFIG) < 0;
    for (int i = 0; i < f->n_files; i++) {
        if (failed) break;
        failed = !(f->paths[1 + i] = strdup(f->files[i].path));
    }
    return failed ? gpt2_fail("%s: no memory for the names of its files", f->folder) : 0;
}

static int open_folder(Folder *f) {
    if (hf_config_read(f->folder, &f->config)) return -1;
    gpt2_tensors(&f->config, f->tensors);
    f->compared = malloc(GPT2_PIECE * sizeof *f->compared);
    if (!f->compared) return gpt2_fail("%s: no memory to compare its head", f->folder);
    if (open_files(f) || take_tensors(f) || name_files(f)) return -1;
    return transposer_begin(&f->transposer, get_stored, f);
}

int hf_open(const char *folder, GPT2Stored *stored) {
    Folder *f = calloc(1, sizeof *f);
    *stored = (GPT2Stored){ 0 };
    if (!f) return gpt2_fail("%s: no memory to open it", folder);
    f->folder = strdup(folder);
    int failed = f->folder ? open_folder(f) : gpt2_fail("%s: no memory to open it", folder);
    *stored = (GPT2Stored){ f->config, GPT2_F32, get_values, close_folder, f, f->paths };
    if (failed)
        gpt2_stored_close(stored);
    else
        stored->dtype = place_of(f, WTE, 0)->t->dtype;
    return failed;
}
