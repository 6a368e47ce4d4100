// A rank in virtual time: with config.machine, zero_create connects to no other rank and allocates only
// addresses. Calls then compute and move nothing; they advance clocks by the time that the machine would
// take. The schedule, the order of collectives, the memory table, the traffic and the trace are those of a
// run. Part of zero.h, which includes this file.
#ifndef LLMC_ZERO_VIRTUAL_H
#define LLMC_ZERO_VIRTUAL_H
#ifdef __cplusplus
extern "C" {
#endif

// Operations with a duration. Their bytes are those read plus those written, except where a comment gives
// others.
typedef enum {
    ZERO_TIME_COPY,         // in the device's memory
    ZERO_TIME_CLEAR,        // bytes written
    ZERO_TIME_SUM,          // sums over ranks or micro-batches, and conversions
    ZERO_TIME_SQUARES,      // for the norm
    ZERO_TIME_UPDATE,       // AdamW on the device
    ZERO_TIME_HOST_UPDATE,  // AdamW on the CPU of a machine with GPUs
    ZERO_TIME_TO_HOST,      // bytes copied from a GPU
    ZERO_TIME_TO_DEVICE,    // bytes copied to a GPU
    ZERO_TIME_GATHER,       // bytes that a rank sends to the ranks of its host
    ZERO_TIME_REDUCE,       // the same in a reduction, with its sums if the device is the CPU
    ZERO_TIME_BETWEEN,      // bytes that a rank sends to other hosts
    ZERO_TIME_SHARE,        // of scalars: bytes that a rank sends
    ZERO_TIME_READ,         // bytes that a rank reads from files, if all ranks of the host read
    ZERO_TIME_WRITE,
    ZERO_TIMES
} zero_time;
typedef struct {
    double seconds;      // of each operation, however small
    double bytes_per_s;  // 0: the size does not matter
} zero_rate;
typedef struct zero_machine {
    const char *name;
    int ranks_on_host;  // consecutive ranks on each host
    double queue_s;     // with ZERO_CUDA: the host's time to queue an operation
    int threads;        // with ZERO_CPU: of the trainer, for which the rates of kernels hold; lanes have one
    int spare_core;     // with ZERO_CPU, 1: the lanes' threads have a core that no rank computes on
    // With ZERO_CPU and more threads than cores: how often the system looks which thread should run.
    double turn_s;
    // More ranks than cores: of the time that they compute, by which part the last one lags behind the
    // others, for at most 3/4 of turn_s; and, with threads for lanes, by which part more, for at most 1/2.
    double uneven, scattered;
    int disk_bursts;  // 1: the disk reports no transfer before all are done that it has accepted meanwhile
    zero_rate work_between;  // for how long ZERO_TIME_BETWEEN keeps a core that it shares from computing
    zero_rate of[ZERO_TIMES];
} zero_machine;

// Advances the clock of the trainer's stream, or of its thread on the CPU, by a layer's time.
void zero_virtual_compute(zero *z, double seconds);
// The trainer waits for its stream.
void zero_virtual_wait(zero *z);
// Returns the seconds that all operations of this kind have taken, whether anything waited for them or not.
double zero_virtual_busy(const zero *z, zero_time what);
// Returns the time at which the trainer's work so far is done, in seconds since zero_create.
double zero_virtual_now(const zero *z);

#ifdef __cplusplus
}
#endif
#endif
