#include "inputs.h"
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../gpt2/error.h"
#include "checkpoint.h"
#include "die.h"
#include "machine.h"
#include "options.h"
#include "run.h"

int model_is_file(void) {
    const char *dot = strrchr(opt.model, '.');
    return dot && !strcmp(dot, ".bin");
}

// A folder that is no descriptor stands for the model in its last checkpoint.
static void find_model(void) {
    GPT2Config config;
    struct stat st;
    if (model_is_file() || !gpt2_config_from_descriptor(&config, opt.model)) return;
    if (stat(opt.model, &st) || !S_ISDIR(st.st_mode)) return;
    const char *path = checkpoint_model_in(opt.model);
    if (!path) die("option -e %s: there is no complete checkpoint in this folder", opt.model);
    opt.model = path;
}

void describe_model(GPT2 *model, int resume_step) {
    gpt2_dtype stored;
    model->dtype = settle_dtype();
    if (resume_step < 0) find_model();
    if (resume_step >= 0)
        gpt2_check(gpt2_file_read_header(checkpoint_model(resume_step), &model->config, &stored));
    else if (model_is_file())
        gpt2_check(gpt2_file_read_header(opt.model, &model->config, &stored));
    else
        gpt2_check(gpt2_config_from_descriptor(&model->config, opt.model));
    gpt2_tensors(&model->config, model->tensors);
    model->B = opt.B;
    model->T = opt.T ? opt.T : model->config.max_seq_len;
    model->recompute = opt.recompute;
    model->inputs_on_host = opt.cpu_checkpointing && on_cuda();
    if (model->T > model->config.max_seq_len)
        die("option -t %d: longer than the model's longest sequence, %d", model->T,
            model->config.max_seq_len);
    model->cache_rows = opt.sample_every > 0;
    model->cache_T = model->T;
}

static int receive_values(void *ctx, int tensor, int layer, int64_t offset, int64_t n, const float *values) {
    (void)ctx;
    int rc = zero_set(run.z, ZERO_PARAM, tensor, layer, offset, n, values);
    return rc ? gpt2_fail("%s", zero_last_error()) : 0;
}

void load_values(const GPT2 *model) {
    if (model_is_file())
        gpt2_check(gpt2_file_read(opt.model, receive_values, NULL));
    else
        gpt2_check(gpt2_init(&model->config, receive_values, NULL));
}

static const char *usual_tokenizer(int V) {
    const char *path = "gpt2_tokenizer.bin";
    if (V == 257) return "data/stories_tokenizer.bin";
    if (access(path, F_OK)) path = "data/gpt2_tokenizer.bin";  // where scripts/download.sh puts it
    return path;
}

void open_tokenizer(Tokenizer *tokenizer, int V) {
    const char *path = opt.tokenizer ? opt.tokenizer : usual_tokenizer(V);
    int without = opt.tokenizer && !strcmp(opt.tokenizer, "none");
    if (without || (!opt.tokenizer && access(path, F_OK))) {
        if (!without) print0("tokenizer  no %s: tokens are shown as numbers\n", path);
        tokenizer->eot_token = V - 1;  // as in GPT-2's vocabulary
        return;
    }
    gpt2_check(tokenizer_init(tokenizer, path));
    if ((int)tokenizer->vocab_size != V)
        die("option --tokenizer: %s has %u tokens, the model %d; give the one that fits, or none to see "
            "numbers",
            path, tokenizer->vocab_size, V);
}
