// Layers that compute nothing: each advances a clock by the time that it would take on another machine. The
// memory they are passed is never touched.
#ifndef GPT2_LAYERS_VIRTUAL_H
#define GPT2_LAYERS_VIRTUAL_H
#include "layers.h"

// What is timed. A layer's dims are those that its time depends on.
typedef enum {
    TIMED_MATMUL,              // (BT, C, OC)
    TIMED_MATMUL_GELU,         // (BT, C, OC)
    TIMED_MATMUL_BACKWARD,     // (BT, C, OC)
    TIMED_GELU_BACKWARD,       // (BT, C, OC): matmul_backward with pre
    TIMED_HEAD,                // (rows, C, Vp): matmul_forward with logits
    TIMED_HEAD_BACKWARD,       // (rows, C, Vp)
    TIMED_ATTENTION,           // (BT, T, C)
    TIMED_ATTENTION_BACKWARD,  // (BT, T, C)
    TIMED_LAYERNORM,           // (BT, C): with the residual
    TIMED_LAYERNORM_BACKWARD,  // (BT, C)
    TIMED_GELU,                // (elements)
    TIMED_ENCODER,             // (BT, C)
    TIMED_ENCODER_BACKWARD,    // (BT, C)
    TIMED_SOFTMAX,             // (rows, V): losses
    TIMED_SOFTMAX_BACKWARD,    // (rows, V): losses and gradients
    TIMED_LAYERS
} TimedLayer;
extern const char *const timed_names[TIMED_LAYERS];

// A measured time.
typedef struct {
    TimedLayer layer;
    gpt2_dtype dtype;
    double dims[3];  // 0: not used
    double seconds;
} LayerSample;

// The machine: measured times, or for a GPU the rates of its data sheet with the fraction that each kind of
// layer reaches.
typedef struct {
    const LayerSample *samples;
    int n_samples;                 // 0: from the rates below
    double flops[3];               // per second, by gpt2_dtype: matmuls of the best shape
    double bytes_per_s;            // of memory, read and written, in large copies
    double kernel_s;               // the least time of a kernel
    double reaches[TIMED_LAYERS];  // fraction of `flops` for matmuls and attention, else of `bytes_per_s`
    size_t device_bytes;           // a GPU's memory; 0: the CPU's layers plan the scratch
    size_t workspace_bytes;        // scratch of a GPU's matmuls
    size_t attention_bytes;        // limit on that of attention's backward, which one row may exceed
    double bus_bytes_per_s;        // copies beside the layers
    // The clock of the layers.
    void (*run)(double seconds);  // the next layer takes so long
    void (*wait)(void);           // the host waits for the layers
    double (*now)(void);          // when the layers so far are done
} LayersMachine;

// m must stay valid. Returns the table.
const Layers *layers_virtual(const LayersMachine *m);
double layers_virtual_seconds(const LayersMachine *m, TimedLayer layer, gpt2_dtype dt, double a, double b,
                              double c);

#endif
