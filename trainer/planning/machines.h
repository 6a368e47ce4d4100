// Machines for --machine: a table of GPUs (machines.json, part of the program), or a file of one's own, which
// make calibrate writes. Every figure has its source in the file.
#ifndef TRAINER_MACHINES_H
#define TRAINER_MACHINES_H
#include "../../gpt2/layers_virtual.h"
#include "../../llmc_zero/zero.h"

typedef struct {
    zero_machine plugin;   // rates for the plugin
    LayersMachine layers;  // and for the layers; its clock is the caller's
    char name[64], title[128];
    int is_gpu, ranks_a_host;
    int threads;                                  // of a rank, on CPUs
    double device_bytes, host_bytes, disk_bytes;  // of a GPU, and of a host; 0: not known
    // Estimates for a GPU: what CUDA takes, and NCCL, at all and for each other rank of the host.
    double context_bytes, nccl_bytes, nccl_peer_bytes;
    int gelu_fused;        // 1: matmuls compute GELU
    double best_flops[3];  // of the best matmul
    double peak_flops[3];  // by gpt2_dtype, from the data sheet; 0: not known
    char assumed[1024];    // names of the figures without a source
} Machine;

// Reads "h100", "h100x8" (hosts of 8), or the name of a file. An unknown name ends the run.
// ranks: of the job. ranks_a_host, threads: 0: as the machine has.
void machine_find(Machine *m, const char *name, int ranks, int ranks_a_host, int threads);

#endif
