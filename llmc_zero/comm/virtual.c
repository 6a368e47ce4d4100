// The collectives of a rank in virtual time. All ranks reach a collective at the same time. It ends when its
// bytes have passed the links: those inside the host and those to other hosts at the same time on a GPU, one
// after the other on a CPU.
#include "comm.h"
#include "../base/error.h"
#include "../device/virtual_time.h"
#include <stdio.h>
#include <string.h>

// Returns the ranks of this host, or all if the ranks do not fill their hosts evenly.
static int ranks_here(const comm *c) {
    const int here = c->net->ranks_on_node;
    return c->group.ranks % here ? c->group.ranks : here;
}

// Returns 1 if the current thread belongs to a lane and shares its core with the trainer.
static int shares_core(const virtual_time *v) {
    return v->current != LANE_TRAINER && !v->machine->spare_core;
}

// Returns how long this rank waits for those that compute after it, because there are fewer cores than ranks.
static double lag_of_ranks(const virtual_time *v) {
    const double worked = v->worked, turn = v->machine->turn_s;
    const double lag = virtual_least(0.75 * turn, worked * v->machine->uneven);
    const double scattered = virtual_least(turn / 2, worked * v->machine->scattered);
    const int slept = v->slept[v->current];
    if (v->machine->scattered == 0) return 0;
    // A core switches between ranks at a collective's begin and at its end, or has to be taken from another.
    if (!shares_core(v)) return virtual_max(lag, slept ? turn / 4 : 50e-6);
    return lag + scattered + slept * virtual_late(v);
}

// A collective begins when the last rank reaches it, and waits for so long more.
static void wait_for_ranks(virtual_time *v, double more) {
    virtual_wait(v, virtual_now(v) + lag_of_ranks(v) + more);
    v->worked = 0;
    v->slept[v->current] = 0;
}

// The thread notices the end of a collective inside its host.
static void notice_end(virtual_time *v) {
    if (shares_core(v)) virtual_wait(v, virtual_now(v) + virtual_late(v));
    v->slept[v->current] = 0;
}

// Returns how long, on average, a thread that shares the trainer's core waits for its turn: until the trainer
// waits, or until the system, every turn_s, looks who else could run.
static double wait_for_core(const virtual_time *v) {
    const double turn = v->machine->turn_s, computes = v->thread[LANE_TRAINER] + v->taken - virtual_now(v);
    if (!shares_core(v) || computes <= 0) return 0;
    return computes < turn ? computes - computes * computes / (2 * turn) : turn / 2;
}

// On a CPU. The trainer computes meanwhile, but not while its core handles the network's packets. A thread
// that shares this core waits for it at the start, and again when all has arrived.
static void pass_between(virtual_time *v, double bytes) {
    const zero_rate *work = &v->machine->work_between;
    const double far = virtual_seconds(v, ZERO_TIME_BETWEEN, bytes);
    virtual_wait(v, virtual_now(v) + wait_for_core(v) + far);
    if (shares_core(v) && work->bytes_per_s > 0)
        v->taken += virtual_least(far, work->seconds + bytes / work->bytes_per_s);
    virtual_wait(v, virtual_now(v) + wait_for_core(v));
}

static void pass(comm *c, device_stream s, zero_time inside, double bytes_inside, double bytes_between) {
    virtual_time *v = c->device->time;
    const double near = bytes_inside > 0 ? virtual_seconds(v, inside, bytes_inside) : 0;
    wait_for_ranks(v, 0);
    if (c->device->asynchronous) {
        const double far = bytes_between > 0 ? virtual_seconds(v, ZERO_TIME_BETWEEN, bytes_between) : 0;
        device_virtual_run(c->device, s, virtual_max(near, far));
        return;
    }
    device_virtual_run(c->device, s, near);
    if (bytes_inside > 0) notice_end(v);
    if (bytes_between > 0) pass_between(v, bytes_between);
}

// Returns how many of the ranks that take part are on this rank's host.
static int ranks_of_gather_here(const comm *c, net_group of) {
    const int here = ranks_here(c), host = c->group.rank / here;
    int n = 0;
    for (int i = 0; i < of.ranks; i++) n += (of.first + i * of.step) / here == host;
    return n;
}

int comm_virtual_gather(comm *c, device_stream s, comm_use use, const comm_piece *pieces, int n,
                        size_t elem_bytes) {
    const net_group all = { c->group.rank, c->group.ranks, 0, 1 }, of = use.of.ranks ? use.of : all;
    const int here = ranks_of_gather_here(c, of), hosts = of.ranks / here;
    double bytes = 0;
    for (int i = 0; i < n; i++) bytes += pieces[i].elems * (double)elem_bytes;
    comm_count(c, use, COMM_ALL_GATHER, (of.ranks - 1) * bytes);
    // A host's ranks receive what the other hosts have once, each its part, and pass it on.
    const double between = (hosts - 1) * bytes;
    pass(c, s, ZERO_TIME_GATHER, (here - 1) * (bytes + between), between);
    return 0;
}

static int virtual_all_gather(comm *c, comm_use use, const comm_piece *pieces, int n, size_t elem_bytes) {
    return comm_virtual_gather(c, c->gather_stream, use, pieces, n, elem_bytes);
}

static int virtual_reduce_scatter(comm *c, comm_use use, const comm_piece *pieces, int n,
                                  zero_dtype full_type, zero_dtype shard_type, float scale) {
    const int ranks = c->group.ranks, here = ranks_here(c), hosts = ranks / here;
    const int two_levels = comm_hosts(&c->way) > 1;
    double elems = 0;
    for (int i = 0; i < n; i++) elems += pieces[i].elems;
    comm_count(c, use, COMM_REDUCE_SCATTER, comm_reduction_bytes(&c->way, elems, dtype_bytes(full_type)));
    const double each = elems * dtype_bytes(full_type);
    pass(c, COMM, ZERO_TIME_REDUCE, (here - 1) * each * (two_levels ? hosts : 1),
         two_levels ? (hosts - 1) * elems * sizeof(float) : (ranks - here) * each);
    return 0;
}

static const comm_functions functions = { .all_gather = virtual_all_gather,
                                          .reduce_scatter = virtual_reduce_scatter };

// Every rank has the values of this one.
void comm_virtual_share(comm *c, const double *mine, double *all, int n) {
    const size_t bytes = n * sizeof *mine;
    for (int r = 0; r < c->group.ranks; r++) memcpy(all + r * n, mine, bytes);
    comm_count(c, comm_for_scalars, COMM_OTHER, (c->group.ranks - 1) * bytes);
    virtual_time *v = c->device->time;
    wait_for_ranks(v, virtual_seconds(v, ZERO_TIME_SHARE, bytes));
    if (ranks_here(c) > 1) notice_end(v);
}

int comm_open_virtual(comm *c, memory *m) {
    const memory_request *planned = c->planned;
    c->f = &functions;
    c->only_queues = c->device->asynchronous && c->way.nccl;
    if (c->only_queues) c->gather_stream = GATHER;
    snprintf(c->name, sizeof c->name, "virtual");
    for (int i = 0; i < COMM_MEMORIES; i++)
        for (int block = 0; i != COMM_INCOMING && block < planned[i].blocks; block++)
            ZERO_TRY(memory_note(m, &planned[i]));
    return 0;
}
