// DeepSpeed's schedulers WarmupLR, WarmupDecayLR and WarmupCosineLR, as a schedule of the trainer.
#include "scheduler.h"
#include <stddef.h>
#include <strings.h>

typedef struct {
    const char *type, *schedule;
    double lr_final;  // the default of cos_min_ratio, or what the trainer needs for this schedule
    double lr;        // the default of warmup_max_lr, which replaces the optimizer's lr; 0: none
} scheduler;

static const scheduler schedulers[] = {
    { "WarmupLR", "linear", 1, 0 },
    { "WarmupDecayLR", "linear", 0, 1e-3 },
    { "WarmupCosineLR", "cosine", 1e-4, 0 },
};
enum { SCHEDULERS = sizeof schedulers / sizeof *schedulers, DEFAULT_WARMUP = 1000 };

static const scheduler *scheduler_of(const json_t *type) {
    for (const scheduler *s = schedulers; s < schedulers + SCHEDULERS; s++)
        if (json_is_string(type) && !strcasecmp(json_string_value(type), s->type)) return s;
    return NULL;
}

static const scheduler *scheduler_in(const reader *r) {
    return scheduler_of(json_object_get(json_object_get(r->root, "scheduler"), "type"));
}

static const json_t *param(const reader *r, const char *name) {
    return json_object_get(json_object_get(json_object_get(r->root, "scheduler"), "params"), name);
}

int scheduler_is_known(const reader *r) { return scheduler_in(r) != NULL; }

// Sets what the type implies, and the defaults of absent parameters.
void scheduler_set(reader *r, const json_t *v, double x) {
    const scheduler *s = scheduler_of(v);
    if (!s) {
        key_refuse(r, v, "trainer.schedule",
                   "must be one of \"WarmupLR\", \"WarmupDecayLR\", \"WarmupCosineLR\"");
        return;
    }
    key_sets_text(r, "trainer.schedule", s->schedule,
                  "the warm-up is linear from the first step; DeepSpeed's starts two steps later, and is "
                  "logarithmic unless warmup_type is \"linear\"");
    if (!param(r, "cos_min_ratio")) key_sets(r, "trainer.lr_final", s->lr_final, "");
    if (!param(r, "warmup_num_steps"))
        key_sets(r, "trainer.warmup", DEFAULT_WARMUP, "DeepSpeed's default of warmup_num_steps");
    if (s->lr && !param(r, "warmup_max_lr"))
        key_sets(r, "trainer.lr", s->lr, "DeepSpeed's default of warmup_max_lr");
}

void scheduler_or_lr(reader *r, const json_t *v, double lr) {
    const scheduler *s = scheduler_in(r);
    const json_t *given = param(r, "warmup_max_lr");
    double replaced = lr;
    if (s && given)
        json_as_number(given, &replaced);
    else if (s && s->lr)
        replaced = s->lr;
    if (replaced == lr || (given && json_is_left_out(given)))
        key_sets(r, "trainer.lr", lr, "");
    else
        key_note(r, ZERO_KEY_NO_EFFECT, v, "the scheduler's warmup_max_lr replaces it, as in DeepSpeed");
}
