#ifndef LLMC_ZERO_BASE_LANE_H
#define LLMC_ZERO_BASE_LANE_H

// A lane is a row of the trace. Tasks run on the first LANES, one after another (tasks.h).
typedef enum {
    LANE_TRAINER,      // the trainer's thread and its stream, COMPUTE
    LANE_COLLECTIVES,  // collectives, one after another
    LANE_COPIES,       // copies to and from the host
    LANE_IO,           // reads of files
    LANE_CPU,          // the update of states in host memory
    LANES,
    LANE_WRITES = LANES,  // of files
    LANE_TO_HOST,
    LANE_TO_DEVICE,
    LANE_SQUARES,
    LANE_STEPS,
    TRACE_LANES
} lane;

#endif
