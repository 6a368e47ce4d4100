// A checkpoint's description of its run, compared with the data and the model of another run.
#include <math.h>
#include <string.h>
#include "../../gpt2/gpt2_error.h"
#include "../../trainer/running/inputs.h"
#include "../../trainer/options/options.h"
#include "../../trainer/running/run.h"
#include "../../trainer/checkpoints/saved_run.h"
#include "fuzz.h"

static GPT2 model;
static TrainingData data;
static TrainerState state;

static void open_data(void) {
    static uint16_t shard[512 + 100] = { [0] = 20240520 & 0xffff, [1] = 20240520 >> 16, [2] = 1, [4] = 100 };
    if (model.T) return;
    FUZZ_MUST(!gpt2_config_from_descriptor(&model.config, "l1h1c32v300t8"));
    model.B = 1;
    model.T = 8;
    const char *path = fuzz_file("shard", shard, sizeof shard);
    FUZZ_MUST(!dataloader_init(&data.train, path, 1, 8, 300, 0, 1, 1, 42));
    data.tokens_at_once = 8;
    data.micro_batches = 4;
    state.step = 7;
    state.position = dataloader_tell(&data.train);
    for (int i = 0; i < 7; i++) outlier_update(&state.loss_outliers, 3.5 - 0.1 * i);
}

char *fuzz_run_text(void) {
    open_data();
    return saved_run_write(&model, &data, &state);
}

static void give_seeds(void) {
    char *text = fuzz_run_text();
    fuzz_seed("run", text, strlen(text));
    free(text);
}

static void compare(void *saved) { saved_run_compare(saved, "a checkpoint", &model, &data); }

// Uses an accepted state: its outlier detectors and its position in the data must work. Returns the message
// if the data loader refuses the position.
static const char *use_state(TrainerState *s) {
    for (int i = 0; i < 3; i++) {
        outlier_update(&s->loss_outliers, 3);
        outlier_update(&s->norm_outliers, 1);
    }
    FUZZ_MUST(s->step >= 0 && s->overflows >= 0 && s->overflows <= s->step);
    if (dataloader_seek(&data.train, s->position)) return gpt2_last_error();
    FUZZ_MUST(!dataloader_next(&data.train));
    return NULL;
}

const char *fuzz_read_run(const char *text) {
    SavedRun saved;
    const char *error;
    open_data();
    if (saved_run_read(&saved, text, "a checkpoint")) {
        error = gpt2_last_error();
        FUZZ_MUST(strstr(error, "a checkpoint"));
    } else {
        FUZZ_MUST(gpt2_num_parameters(&saved.config) > 0 && saved.tokens_a_step > 0);
        opt.resume_anyway = 1;  // a difference must not stop the comparison
        fuzz_survives(compare, &saved);
        error = use_state(&saved.state);
    }
    saved_run_free(&saved);
    return error;
}

static const char *read_bytes(const uint8_t *bytes, size_t n) {
    char *text = fuzz_text(bytes, n);
    const char *error = fuzz_read_run(text);
    free(text);
    return error;
}

FUZZ_DEFINE(saved_run, open_data, give_seeds, .is_text = 1, .read = read_bytes);
