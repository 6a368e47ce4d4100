// Runs the blocks of a kernel one after another, for stand_in.cpp. A thread that waits for others is a fiber
// with its own stack. Threads that never wait run one after another on the same fiber. Warps take turns; each
// runs until all its lanes have ended or wait at a barrier.
#ifndef CUDA_STAND_IN_BLOCKS_H
#define CUDA_STAND_IN_BLOCKS_H
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <functional>
#include "cuda_runtime.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace blocks {

enum { LANES = 32, MAX_THREADS = 1024, STACK = 64 << 10, GUARD = 4 << 10 };

[[noreturn]] void die(const char *what, const void *kernel) {
    Dl_info info = {};
    dladdr(kernel, &info);
    fprintf(stderr,
            "CUDA stand-in: %s, in kernel %s (address %#lx of %s), block (%u, %u, %u), thread (%u, %u, %u)\n",
            what, info.dli_sname ? info.dli_sname : "without a name",
            (unsigned long)((const char *)kernel - (const char *)info.dli_fbase),
            info.dli_fname ? info.dli_fname : "?", blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x,
            threadIdx.y, threadIdx.z);
    abort();
}

// --------
// fibers: switch_to(&from, &to) stores where the running fiber is, and resumes the other

typedef void *Fiber;  // its stack pointer; the callee-saved registers are on the stack
extern "C" void cuda_stand_in_switch(Fiber *from, Fiber to);
asm(R"(
    .text
    .globl cuda_stand_in_switch
    .type cuda_stand_in_switch, @function
cuda_stand_in_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size cuda_stand_in_switch, . - cuda_stand_in_switch
)");
inline void switch_to(Fiber *from, Fiber *to) { cuda_stand_in_switch(from, *to); }
inline void prepare(Fiber *fiber, char *stack, size_t size, void (*start)()) {
    void **top = (void **)(stack + size);
    memset(top - 8, 0, 8 * sizeof *top);
    top[-2] = (void *)start;  // where the switch returns, after popping the six registers below
    *fiber = top - 8;
}

// --------

enum State { NEW, READY, AT_BARRIER, AT_WARP_OP, DONE };
struct Thread {
    State state;
    Fiber *fiber;
    uint3 index;
    cuda_stand_in_op op;
};

static struct {
    const std::function<void()> *body;
    const void *kernel;
    bool backward;
    Thread threads[MAX_THREADS];
    int count;    // number of threads
    int current;  // the thread that runs
    Fiber scheduler;
    Fiber *idle[MAX_THREADS];
    int idle_count, fibers;
    // The running warp: its first thread, its lanes, those started, those that had their turn to go on
    int first, lanes, started, resumed;
    cuda_stand_in_lanes given[2];  // the lanes' values: lanes may read one while others write the other
    int turn;
} block;

inline int in_order(int i, int n) { return block.backward ? n - 1 - i : i; }

inline void make_current(int thread) {
    block.current = thread;
    threadIdx = block.threads[thread].index;
}

static bool next_new_lane() {
    if (block.started == block.lanes) return false;
    make_current(block.first + in_order(block.started++, block.lanes));
    return true;
}

static Fiber *new_fiber();
// Returns the fiber of the warp's next lane that can run: first the new ones, then those that waited.
static Fiber *next_lane() {
    if (next_new_lane()) {
        Thread *thread = &block.threads[block.current];
        return thread->fiber = block.idle_count ? block.idle[--block.idle_count] : new_fiber();
    }
    while (block.resumed < block.lanes) {
        const int t = block.first + in_order(block.resumed++, block.lanes);
        if (block.threads[t].state != READY) continue;
        make_current(t);
        return block.threads[t].fiber;
    }
    return NULL;
}
// Each lane hands over to the next one, and the last one to run_lanes.
static void hand_over(Fiber *self) {
    Fiber *next = next_lane();
    switch_to(self, next ? next : &block.scheduler);
}

static void fiber_main() {
    for (;;) {
        Fiber *self = block.threads[block.current].fiber;
        do {
            Thread *thread = &block.threads[block.current];
            thread->fiber = self;
            (*block.body)();
            thread->state = DONE;
            // If this thread had to wait, no new lane is left, because all lanes start before any continues.
        } while (next_new_lane());
        block.idle[block.idle_count++] = self;
        hand_over(self);
    }
}

static Fiber *new_fiber() {
    char *memory = (char *)mmap(NULL, GUARD + STACK, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, GUARD, PROT_NONE))
        die("no memory for the stack of a thread", block.kernel);
    Fiber *fiber = new Fiber;
    // stacks at equal page offsets would compete for a few cache lines
    size_t unused = (size_t)block.fibers++ * 192 % 4096;
    prepare(fiber, memory + GUARD, STACK - unused, fiber_main);
    return fiber;
}

static void wait_as(State state) {
    Thread *thread = &block.threads[block.current];
    thread->state = state;
    hand_over(thread->fiber);
}

// Runs each ready lane of the warp until it waits or ends.
static void run_lanes() {
    block.resumed = 0;
    Fiber *first = next_lane();
    if (first) switch_to(&block.scheduler, first);
}

// Returns true if lanes of the warp were waiting at a warp operation, such as a shuffle, and can continue.
static bool complete_warp_op() {
    Thread *warp = block.threads + block.first;
    unsigned alive = 0, at_barrier = 0;
    int op = -1;
    for (int i = 0; i < block.lanes; i++) {
        at_barrier |= warp[i].state == AT_BARRIER;
        if (warp[i].state != AT_WARP_OP) continue;
        if (op >= 0 && op != warp[i].op)
            die("lanes of one warp wait at different warp operations", block.kernel);
        op = warp[i].op;
        alive |= 1u << i;
        warp[i].state = READY;
    }
    if (alive && at_barrier)
        die("deadlock: some lanes of a warp wait at a barrier, others at a warp operation", block.kernel);
    block.given[block.turn].alive = alive;
    block.given[block.turn].exist = block.lanes == LANES ? ~0u : (1u << block.lanes) - 1;
    block.turn ^= 1;
    return alive != 0;
}

static void run_warp(int warp, bool fresh) {
    block.first = warp * LANES;
    block.lanes = block.count - block.first < LANES ? block.count - block.first : LANES;
    block.started = fresh ? 0 : block.lanes;
    do {
        run_lanes();
    } while (complete_warp_op());
}

static bool release_barrier() {
    bool any = false;
    for (int t = 0; t < block.count; t++) {
        if (block.threads[t].state == AT_BARRIER) {
            block.threads[t].state = READY;
            any = true;
        }
    }
    return any;
}

static void run_block() {
    for (int t = 0; t < block.count; t++) block.threads[t].state = NEW;
    int warps = (block.count + LANES - 1) / LANES;
    bool fresh = true;
    do {
        for (int w = 0; w < warps; w++) run_warp(in_order(w, warps), fresh);
        fresh = false;
    } while (release_barrier());
}

static void run_grid(dim3 grid, dim3 threads, const void *kernel, const std::function<void()> &body,
                     bool backward) {
    gridDim = grid;
    blockDim = threads;
    block.body = &body;
    block.kernel = kernel;
    block.backward = backward;
    block.count = (int)(threads.x * threads.y * threads.z);
    for (int t = 0; t < block.count; t++) {
        block.threads[t].index = uint3{ t % threads.x, t / threads.x % threads.y,
                                        t / (threads.x * threads.y) };
    }
    size_t blocks = (size_t)grid.x * grid.y * grid.z;
    for (size_t i = 0; i < blocks; i++) {
        size_t b = backward ? blocks - 1 - i : i;
        blockIdx = uint3{ (unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y),
                          (unsigned)(b / ((size_t)grid.x * grid.y)) };
        run_block();
    }
}
}  // namespace blocks

// --------
// functions that kernels call

unsigned cuda_stand_in_lane() { return (unsigned)blocks::block.current % blocks::LANES; }

const cuda_stand_in_lanes *cuda_stand_in_gather(cuda_stand_in_op op, unsigned mask, uint64_t value) {
    if (mask != 0xffffffff) blocks::die("a warp operation needs a full mask", blocks::block.kernel);
    cuda_stand_in_lanes *given = &blocks::block.given[blocks::block.turn];
    blocks::Thread *thread = &blocks::block.threads[blocks::block.current];
    given->value[cuda_stand_in_lane()] = value;
    thread->op = op;
    blocks::wait_as(blocks::AT_WARP_OP);
    return given;
}

void __syncthreads() { blocks::wait_as(blocks::AT_BARRIER); }
#endif
