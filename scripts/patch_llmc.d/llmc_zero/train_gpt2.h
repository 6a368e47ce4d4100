// ZeRO for train_gpt2.c: the plugin holds parameters, gradients and moments. It reads its settings from the
// environment: ZERO_STAGE=0..3 (default 3) and ZERO_CONFIG=file, a DeepSpeed JSON. Run it with mpirun -np 2
// ./train_gpt2
typedef float z_type;        // of a parameter
enum { Z_PIECE = 1 << 16 };  // elements passed to and from the plugin at once
#include "llmc.h"

// Only rank 0 prints. If another rank ends with an error, its last message is printed too.
static int z_launch_rank(void) { return zero_launched().rank; }
static char z_said[256];
static void z_printf(const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (z_launch_rank() == 0)
        vprintf(format, args);
    else
        vsnprintf(z_said, sizeof(z_said), format, args);
    va_end(args);
}
static void z_exit(int status) {
    char message[300];
    if (status == 0) exit(0);
    z_said[strcspn(z_said, "\n")] = 0;
    snprintf(message, sizeof(message), "rank %d: %s", z_launch_rank(), z_said);
    zero_end_job(z, status, z_launch_rank() > 0 ? message : NULL);  // rank 0 has printed its own
}
#define printf(...) z_printf(__VA_ARGS__)
#define exit(status) z_exit(status)

static void z_create(const size_t *sizes, int L) {
    zero_config config = zero_defaults();
    config.stage = 3;
    z_check(zero_config_from_env(&config));
    if (config.numbers.dtype != ZERO_F32 || config.micro_batches != 1)
        z_refuse("ZERO_CONFIG: this trainer computes in fp32, one micro-batch per step: no bf16, "
                 "gradient_accumulation_steps 1");
    z_create_model(&config, sizes, L);
}

// Gradients that add up over several batches would lose all but the last.
static int z_backwards;  // since gpt2_zero_grad()
static void z_one_backward(void) {
    if (z_backwards++ > 0)
        z_refuse("gpt2_backward() ran twice without gpt2_zero_grad(): for gradients of several "
                 "micro-batches, set config.micro_batches in z_create() and call z_begin_train(number, of, "
                 "...) before each forward pass, as docs/porting.md says in step 6");
}
static float z_mean(double value) {
    z_check(zero_sum(z, &value, 1));
    return (float)(value / zero_ranks(z));
}
