#include "checkpoint_stored.h"
#include <stdlib.h>
#include "../gpt2/gpt2_error.h"
#include "activations.h"
#include "run.h"
#include "saved_run.h"

typedef struct {
    zero_checkpoint *from;
    zero_value what;
} Opened;

static int get_values(void *ctx, int tensor, int layer, int64_t offset, int64_t n, float *values) {
    const Opened *o = ctx;
    int rc = zero_checkpoint_get(o->from, o->what, tensor, layer, offset, n, values);
    return rc ? gpt2_fail("%s", zero_last_error()) : 0;
}

static void close_checkpoint(void *ctx) {
    Opened *o = ctx;
    zero_checkpoint_close(o->from);
    free(o);
}

static int read_config(const char *folder, GPT2Config *config) {
    char *text;
    if (zero_checkpoint_text(folder, &text)) return gpt2_fail("%s", zero_last_error());
    int failed = saved_run_config(text, config);
    if (failed) gpt2_fail("%s: %s", folder, gpt2_last_error());
    free(text);
    return failed;
}

static int open_tensors(Opened *o, const char *folder, const GPT2Config *config) {
    GPT2 model = { .config = *config };
    gpt2_tensors(&model.config, model.tensors);
    run.describe(&model);
    const PluginTables *t = &model.tables;
    int rc = zero_checkpoint_open(&o->from, folder, t->tensors, NUM_PARAMETER_TENSORS, t->units, t->n_units);
    free_tables(&model);
    return rc ? gpt2_fail("%s", zero_last_error()) : 0;
}

int checkpoint_stored_open(const char *folder, zero_value what, GPT2Stored *stored) {
    *stored = (GPT2Stored){ 0 };
    if (read_config(folder, &stored->config)) return -1;
    Opened *o = calloc(1, sizeof *o);
    if (!o) return gpt2_fail("%s: no memory to open it", folder);
    o->what = what;
    if (open_tensors(o, folder, &stored->config)) {
        free(o);
        return -1;
    }
    const zero_dtype dtype = zero_checkpoint_dtype(o->from);
    stored->dtype = dtype == ZERO_BF16 ? GPT2_BF16 : dtype == ZERO_F16 ? GPT2_F16 : GPT2_F32;
    stored->get = get_values;
    stored->close = close_checkpoint;
    stored->ctx = o;
    return 0;
}

gpt2_dtype checkpoint_model_dtype(const GPT2Stored *stored) {
    return stored->dtype == GPT2_BF16 ? GPT2_BF16 : GPT2_F32;
}

int checkpoint_compare_model(const char *folder, const char *path) {
    GPT2Stored from;
    if (checkpoint_stored_open(folder, ZERO_PARAM, &from)) return -1;
    int failed = gpt2_file_compare(path, &from.config, checkpoint_model_dtype(&from), from.get, from.ctx);
    gpt2_stored_close(&from);
    return failed;
}
