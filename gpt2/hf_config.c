// config.json and generation_config.json of a GPT-2.
#include <stdlib.h>
#include <string.h>
#include "gpt2_error.h"
#include "hf.h"
#include "safetensors.h"
#include "text_file.h"

enum { LARGEST_CONFIG = 1 << 20 };

int hf_path(char *path, size_t size, const char *folder, const char *name) {
    if (snprintf(path, size, "%s/%s", folder, name) < (int)size) return 0;
    return gpt2_fail("%.64s...: the name is too long", folder);
}

// -------- reading

static int get_count(const json_t *root, const char *path, const char *key, int *n) {
    const json_t *v = json_object_get(root, key);
    const json_int_t i = json_integer_value(v);
    *n = (int)i;
    if (json_is_integer(v) && i >= 1 && i <= INT32_MAX) return 0;
    return gpt2_fail("%s: \"%s\" must be a whole number of at least 1", path, key);
}

// Checks a setting that is fixed in this GPT-2. If it is missing, transformers uses the same value by
// default.
static int check_text(const json_t *root, const char *path, const char *key, const char *a, const char *b) {
    const json_t *v = json_object_get(root, key);
    const char *text = json_string_value(v);
    if (!v || (text && (!strcmp(text, a) || !strcmp(text, b)))) return 0;
    return gpt2_fail("%s: \"%s\" is \"%.64s\"; this model has \"%s\"", path, key,
                     text ? text : "not a string", a);
}

static int check_flag(const json_t *root, const char *path, const char *key, int must) {
    const json_t *v = json_object_get(root, key);
    if (!v || (json_is_boolean(v) && json_is_true(v) == must)) return 0;
    return gpt2_fail("%s: \"%s\" must be %s: this model supports nothing else", path, key,
                     must ? "true" : "false");
}

static int check_fixed(const json_t *root, const char *path, const GPT2Config *c) {
    const json_t *inner = json_object_get(root, "n_inner"),
                 *eps = json_object_get(root, "layer_norm_epsilon");
    if (check_text(root, path, "activation_function", "gelu_new", "gelu_pytorch_tanh") ||
        check_flag(root, path, "scale_attn_weights", 1) ||
        check_flag(root, path, "scale_attn_by_inverse_layer_idx", 0) ||
        check_flag(root, path, "add_cross_attention", 0) || check_flag(root, path, "tie_word_embeddings", 1))
        return -1;
    if (eps && (!json_is_number(eps) || (float)json_number_value(eps) != 1e-5f))
        return gpt2_fail("%s: \"layer_norm_epsilon\" is %g; this model has 1e-05", path,
                         json_number_value(eps));
    if (inner && !json_is_null(inner) && json_integer_value(inner) != 4LL * c->channels)
        return gpt2_fail("%s: \"n_inner\" is %lld; this model has 4 x \"n_embd\" = %lld", path,
                         (long long)json_integer_value(inner), 4LL * c->channels);
    return 0;
}

static int get_config(const json_t *root, const char *path, GPT2Config *c) {
    const char *type = json_string_value(json_object_get(root, "model_type"));
    *c = (GPT2Config){ 0 };
    if (!type || strcmp(type, "gpt2"))
        return gpt2_fail("%s: \"model_type\" is \"%.64s\"; only \"gpt2\" can be read", path,
                         type ? type : "not there");
    if (get_count(root, path, "n_layer", &c->num_layers) || get_count(root, path, "n_head", &c->num_heads) ||
        get_count(root, path, "n_embd", &c->channels) ||
        get_count(root, path, "vocab_size", &c->vocab_size) ||
        get_count(root, path, "n_positions", &c->max_seq_len))
        return -1;
    c->padded_vocab_size = gpt2_padded_vocab(c->vocab_size);
    return gpt2_config_check(c, path) || check_fixed(root, path, c) ? -1 : 0;
}

int hf_config_read(const char *folder, GPT2Config *config) {
    char path[PATH_MAX];
    if (hf_path(path, sizeof path, folder, HF_CONFIG)) return -1;
    json_t *root = safe_json(path, LARGEST_CONFIG);
    int failed = root ? get_config(root, path, config) : -1;
    json_decref(root);
    return failed;
}

// -------- writing

int hf_json_write(const char *folder, const char *name, json_t *root) {
    char path[PATH_MAX], *text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9)), *line = NULL;
    int failed = hf_path(path, sizeof path, folder, name);
    if (text && asprintf(&line, "%s\n", text) < 0) line = NULL;
    if (!failed) failed = line ? text_file_write(path, line) : gpt2_fail("%s: no memory for it", path);
    json_decref(root);
    free(text);
    free(line);
    return failed;
}

static json_t *describe(const HfModel *m, int eot) {
    const GPT2Config *c = &m->config;
    const char *dtype = m->dtype == GPT2_BF16 ? "bfloat16" : "float32";
    return json_pack(
        "{s:[s], s:s, s:i, s:i, s:i, s:n, s:i, s:i, s:s, s:f, s:f, s:f, s:f, s:f, s:b, s:b, s:b, s:b, "
        "s:i, s:i, s:b, s:s}",
        "architectures", "GPT2LMHeadModel", "model_type", "gpt2", "n_layer", c->num_layers, "n_head",
        c->num_heads, "n_embd", c->channels, "n_inner", "n_positions", c->max_seq_len, "vocab_size",
        c->vocab_size, "activation_function", "gelu_new", "layer_norm_epsilon", 1e-5, "initializer_range",
        0.02, "attn_pdrop", 0.0, "embd_pdrop", 0.0, "resid_pdrop", 0.0, "scale_attn_weights", 1,
        "scale_attn_by_inverse_layer_idx", 0, "reorder_and_upcast_attn", 0, "tie_word_embeddings", 1,
        "bos_token_id", eot, "eos_token_id", eot, "use_cache", 1, "torch_dtype", dtype);
}

int hf_config_write(const char *folder, const HfModel *m, int eot) {
    if (hf_json_write(folder, HF_CONFIG, describe(m, eot))) return -1;
    return hf_json_write(folder, "generation_config.json",
                         json_pack("{s:i, s:i, s:i}", "bos_token_id", eot, "eos_token_id", eot,
                                   "pad_token_id", eot));
}
