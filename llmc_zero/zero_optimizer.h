// zero_config.update_with: the trainer's own optimizer instead of AdamW. docs/porting.md has an example.
// Part of zero.h, which includes this file.
#ifndef LLMC_ZERO_OPTIMIZER_H
#define LLMC_ZERO_OPTIMIZER_H
#include <stdint.h>
struct zero_hyper;

// Elements [offset, offset + n) of one layer of a tensor. Arrays have n elements, in host memory or, if
// on_device is 1, in memory of the CUDA device.
typedef struct {
    int tensor, layer;
    int64_t offset, n;
    float *weights;          // masters, or with no_master a copy; afterwards rounded to the parameters
    const float *gradient;   // the mean over the ranks, clipped, without the loss scale
    float *states[2];        // ZERO_MOMENT1 and ZERO_MOMENT2, initially 0; NULL beyond update_states
    float lr, weight_decay;  // of *hyper, multiplied by the tensor's lr_factor and decay
    const struct zero_hyper *hyper;  // as passed to zero_update
    int on_device;
    void *stream;  // on_device: cudaStream_t
} zero_piece;

// Updates the weights and states of a piece. The pieces depend on the stage, the tier and the number of
// ranks, so an element's result may depend only on its own values and its position (tensor, layer, index). On
// the host, several threads may call the function at once, and the arrays are valid only during the call.
// With on_device it queues kernels on `stream`, does not wait, and leaves launch errors to the plugin. It
// must not call the library.
typedef void (*zero_update_with)(void *ctx, const zero_piece *piece);

#endif
