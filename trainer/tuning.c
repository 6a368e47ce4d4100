#include "tuning.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../gpt2/gpt2_error.h"
#include "../gpt2/layers.h"
#include "../gpt2/text_file.h"
#include "die.h"
#include "options.h"
#include "run.h"

static void give_text(const char *text) {
    uint64_t bytes = strlen(text) + 1;
    char *copy = malloc_check(bytes);
    memcpy(copy, text, bytes);
    zero_check(zero_broadcast(run.z, 0, &bytes, sizeof bytes));
    zero_check(zero_broadcast(run.z, 0, copy, bytes));
    free(copy);
}

// Returns rank 0's text, to be freed.
static char *take_text(void) {
    uint64_t bytes = 0;
    zero_check(zero_broadcast(run.z, 0, &bytes, sizeof bytes));
    char *text = malloc_check(bytes);
    zero_check(zero_broadcast(run.z, 0, text, bytes));
    return text;
}

// A file's choices are valid for one GPU and library.
static void require_one_card(void) {
    const char *card = layers_cuda_card();
    char line[512];
    if (!card) die("%s", gpt2_last_error());
    snprintf(line, sizeof line, "what --tune times on = %s", card);
    zero_check(zero_require_same(run.z, line));
}

// The other ranks wait here for rank 0, which plans its layers and times what is missing.
char *tuning_begin(void) {
    require_one_card();
    char *text = run.rank == 0 ? text_file_read(opt.tune) : take_text();
    if (!text) die("option --tune: %s", gpt2_last_error());
    gpt2_check(layers_cuda_tune(opt.tune, text, run.rank == 0));
    return text;
}

void tuning_end(char *text) {
    if (run.rank == 0) {
        char *tuned = layers_cuda_tuned();
        if (!tuned) die("option --tune: %s", gpt2_last_error());
        int changed = strcmp(tuned, text);
        if (changed && text_file_write(opt.tune, tuned)) die("option --tune: %s", gpt2_last_error());
        print0("tuning     %s%s\n", opt.tune, changed ? ", with what was timed just now" : "");
        give_text(tuned);
        free(tuned);
    }
    free(text);
}
