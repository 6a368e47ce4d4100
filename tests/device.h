// Runs the toy (toy.h) on a CUDA device. A manner sets whether the trainer creates its own stream and, with
// the stand-in (cuda/stand_in.h), the order in which streams run.
#ifndef TESTS_DEVICE_H
#define TESTS_DEVICE_H
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include "check.h"
#include "toy.h"

#define CUDA_MUST(call)                                                  \
    do {                                                                 \
        cudaError_t rc_ = (call);                                        \
        if (rc_ != cudaSuccess) {                                        \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(rc_)); \
            MPI_Abort(MPI_COMM_WORLD, 1);                                \
        }                                                                \
    } while (0)

typedef struct {
    const char *mode;
    int own_stream;
} manner;

#ifdef CUDA_STAND_IN
#include "cuda/stand_in.h"
static const manner manners[] = { { "eager", 0 }, { "lazy", 0 },  { "rival", 0 },
                                  { "lag", 0 },   { "eager", 1 }, { "lazy", 1 } };
static inline void set_manner(const manner *m) {
    setenv("CUDA_STAND_IN", m->mode, 1);
    cuda_stand_in_settings();
}
// With protection, host access to device memory ends the program. Tests run twice as fast without it.
static inline void protect_device(int on) {
    setenv("CUDA_STAND_IN_PROTECT", on ? "1" : "0", 1);
    cuda_stand_in_settings();
}
#else
static const manner manners[] = { { "GPU", 0 }, { "GPU", 1 } };
static inline void set_manner(const manner *m) {}
static inline void protect_device(int on) {}
#endif

static inline int device_toy_create(toy *t, const zero_config *c) {
    TOY_TRY(toy_create(t, c, NULL));
    if (c->device == ZERO_CPU) return 0;
    t->on = &toy_cuda;
    t->stream = c->cuda_stream;
    t->device_activation = zero_alloc(t->z, ZERO_DEVICE, ZERO_ACTIVATIONS, "activation", sizeof(float));
    return t->device_activation ? 0 : ZERO_ERR_MEMORY;
}

static inline void device_create(toy *t, const zero_config *c) { MUST(device_toy_create(t, c)); }

static inline float device_activation_of(const toy *t) {
    float a = t->activation;
    if (t->on) {
        CUDA_MUST(cudaMemcpyAsync(&a, t->device_activation, sizeof a, cudaMemcpyDeviceToHost, t->stream));
        CUDA_MUST(cudaStreamSynchronize(t->stream));
    }
    return a;
}

#endif
