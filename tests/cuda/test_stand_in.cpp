// Tests the stand-in itself: kernels, the order of streams in its four modes, memory and its guards, errors
// on purpose, products.
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <functional>
#include <string>
#include <thread>
#include <vector>
#include "cublasLt.h"
#include "gpt2/cuda.h"
#include "nvtx3/nvToolsExt.h"
#include "stand_in.h"
extern "C" {
#include <cmocka.h>
}

#define OK(call) assert_int_equal((call), cudaSuccess)

static const char *variables[] = {
    "CUDA_STAND_IN",         "CUDA_STAND_IN_ORDER",      "CUDA_STAND_IN_FAIL",
    "CUDA_STAND_IN_DEVICES", "CUDA_STAND_IN_CAPABILITY", "CUDA_STAND_IN_PROTECT",
    "CUDA_STAND_IN_MIG",     "CUDA_VISIBLE_DEVICES",     "CUDA_STAND_IN_REFUSED",
    "CUDA_STAND_IN_FASTEST", "CUDA_STAND_IN_CUBLASLT",   "CUDA_STAND_IN_LINK",
    "STAND_IN_SMS",          "STAND_IN_BLOCKS"
};

static void setting(const char *name, const char *value) {
    setenv(name, value, 1);
    cuda_stand_in_settings();
}

static int usual_settings(void **) {
    for (const char *name : variables) {
        unsetenv(name);
    }
    cuda_stand_in_settings();
    cudaGetLastError();
    return cudaSetDevice(0);
}

// Device memory that a test uses
template <class T> struct Buffer {
    T *p;
    size_t n;
    explicit Buffer(size_t n) : n(n) { OK(cudaMalloc(&p, n * sizeof(T))); }
    explicit Buffer(const std::vector<T> &x) : Buffer(x.size()) {
        OK(cudaMemcpy(p, x.data(), n * sizeof(T), cudaMemcpyHostToDevice));
    }
    ~Buffer() { OK(cudaFree(p)); }
    std::vector<T> get() const {
        std::vector<T> x(n);
        OK(cudaMemcpy(x.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
        return x;
    }
};

template <class... P, class... A>
cudaError_t run(cudaStream_t stream, void (*kernel)(P...), dim3 grid, dim3 block, A... args) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

// Returns the signal that ends the program when it does this
static int signal_of(const std::function<void()> &act) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGABRT, SIG_DFL);
        if (!freopen("/dev/null", "w", stderr)) {
            _exit(2);
        }
        act();
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static const char *orders[] = { "forward", "backward" };

// --------
// kernels

__global__ void sum_block(int *sums, const int *x, int n) {
    __shared__ int part[1024];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : 0;
    __syncthreads();
    for (unsigned left = blockDim.x; left > 1;) {
        unsigned half = (left + 1) / 2;
        if (threadIdx.x + half < left) {
            part[threadIdx.x] += part[threadIdx.x + half];
        }
        __syncthreads();
        left = half;
    }
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = part[0];
    }
}

static void barriers_and_shared_memory(void **) {
    for (const char *order : orders) {
        setting("CUDA_STAND_IN_ORDER", order);
        for (int block : { 1, 2, 31, 32, 33, 100, 256, 1000, 1024 }) {
            std::vector<int> x(3 * block - 1), want(3);
            for (size_t i = 0; i < x.size(); i++) {
                x[i] = (int)(i * 7 % 13);
                want[i / block] += x[i];
            }
            Buffer<int> in(x), sums(3);
            OK(run(0, sum_block, 3, block, sums.p, in.p, (int)x.size()));
            assert_true(sums.get() == want);
        }
    }
}

__global__ void neighbour_without_barrier(int *out) {
    __shared__ int x[64];
    x[threadIdx.x] = -1;
    __syncthreads();
    x[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = x[(threadIdx.x + 63) % 64];
}

static void missing_barrier_shows(void **) {
    setting("CUDA_STAND_IN_ORDER", "backward");
    Buffer<int> out(64);
    OK(run(0, neighbour_without_barrier, 1, 64, out.p));
    assert_int_equal(out.get()[40], -1);
}

// Every shuffle of one block's threads; each row of out is one of them
template <class T> __global__ void shuffles(T *out) {
    int t = threadIdx.x, n = blockDim.x;
    T x = (T)(100 + t);
    out[0 * n + t] = __shfl_sync(0xffffffffu, x, 5);
    out[1 * n + t] = __shfl_xor_sync(0xffffffffu, x, 3);
    out[2 * n + t] = __shfl_up_sync(0xffffffffu, x, 2);
    out[3 * n + t] = __shfl_down_sync(0xffffffffu, x, 2);
    out[4 * n + t] = __shfl_sync(0xffffffffu, x, 9, 8);
    out[5 * n + t] = __shfl_up_sync(0xffffffffu, x, 1, 8);
    out[6 * n + t] = __shfl_down_sync(0xffffffffu, x, 1, 8);
    out[7 * n + t] = __shfl_xor_sync(0xffffffffu, x, 9, 8);
    T sum = x;
    for (int i = 16; i > 0; i /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, i);
    }
    out[8 * n + t] = sum;
}

template <class T> static void check_shuffles(int block) {
    Buffer<T> out(9 * block);
    OK(run(0, shuffles<T>, 1, block, out.p));
    std::vector<T> got = out.get();
    for (int t = 0; t < block; t++) {
        int lane = t % 32, warp = t - lane, lanes = block - warp < 32 ? block - warp : 32;
        int from[] = { 5,
                       lane ^ 3,
                       lane < 2 ? lane : lane - 2,
                       lane > 29 ? lane : lane + 2,
                       lane / 8 * 8 + 1,
                       lane % 8 ? lane - 1 : lane,
                       lane % 8 < 7 ? lane + 1 : lane,
                       (lane ^ 9) / 8 > lane / 8 ? lane : lane ^ 9 };
        for (int row = 0; row < 8; row++) {
            int source = from[row] < lanes ? from[row] : lane;
            assert_true(got[row * block + t] == (T)(100 + warp + source));
        }
        if (lanes == 32) {
            assert_true(got[8 * block + t] == (T)(32 * (100 + warp) + 496));
        }
    }
}

static void warp_shuffles(void **) {
    for (const char *order : orders) {
        setting("CUDA_STAND_IN_ORDER", order);
        for (int block : { 32, 64, 20, 77 }) {
            check_shuffles<float>(block);
            check_shuffles<double>(block);
            check_shuffles<int>(block);
            check_shuffles<unsigned>(block);
        }
    }
}

__global__ void votes(unsigned *out, unsigned *counter, int *top, unsigned long long *large) {
    unsigned ballot = __ballot_sync(0xffffffffu, threadIdx.x % 3 == 0);
    int any = __any_sync(0xffffffffu, threadIdx.x == 40), none = __any_sync(0xffffffffu, 0);
    __syncwarp();
    out[threadIdx.x] = ballot ^ (unsigned)any << 31 ^ (unsigned)none;
    atomicAdd(counter, threadIdx.x);
    atomicMax(top, (int)(threadIdx.x * 37 % 64) - 10);
    atomicAdd(large, 1ull << 40);
}

static void votes_and_atomics(void **) {
    Buffer<unsigned> out(64), counter(std::vector<unsigned>{ 5 });
    Buffer<int> top(std::vector<int>{ -100 });
    Buffer<unsigned long long> large(std::vector<unsigned long long>{ 3 });
    OK(run(0, votes, 1, 64, out.p, counter.p, top.p, large.p));
    unsigned low = 0, high = 0;
    for (int i = 0; i < 32; i++) {
        low |= (unsigned)(i % 3 == 0) << i;
        high |= (unsigned)((i + 32) % 3 == 0) << i;
    }
    assert_int_equal(out.get()[7], low);
    assert_int_equal(out.get()[63], high ^ 1u << 31);
    assert_int_equal(counter.get()[0], 5 + 63 * 64 / 2);
    assert_int_equal(top.get()[0], 53);
    assert_true(large.get()[0] == 3 + (64ull << 40));
}

__global__ void indices(unsigned *out) {
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread;
}

static void grids_of_three_dimensions(void **) {
    Buffer<unsigned> out(2 * 3 * 4 * 5 * 6 * 7);
    OK(run(0, indices, dim3(2, 3, 4), dim3(5, 6, 7), out.p));
    std::vector<unsigned> got = out.get();
    for (unsigned i = 0; i < got.size(); i++) {
        assert_int_equal(got[i], i / 210 * 1000 + i % 210);
    }
}

__global__ void some_leave(float *out, int stay) {
    if ((int)threadIdx.x >= stay) {
        return;
    }
    __syncthreads();
    out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, (float)threadIdx.x, 1);
}

// A barrier does not wait for threads that have left, and values read from them are NaN.
static void threads_that_left(void **) {
    for (const char *order : orders) {
        setting("CUDA_STAND_IN_ORDER", order);
        Buffer<float> out(96);
        OK(run(0, some_leave, 1, 96, out.p, 71));
        assert_true(out.get()[69] == 68);
        assert_true(isnan(out.get()[70]) && isnan(out.get()[71]));
    }
}

__global__ void half_at_barrier() {
    if (threadIdx.x < 16) {
        __syncthreads();
    } else {
        __syncwarp();
    }
}
__global__ void different_operations() {
    if (threadIdx.x < 16) {
        __syncwarp();
    } else {
        __ballot_sync(0xffffffffu, 1);
    }
}
__global__ void half_mask() { __syncwarp(0xffff); }

static void divergence_is_reported(void **) {
    assert_int_equal(signal_of([] { run(0, half_at_barrier, 1, 32); }), SIGABRT);
    assert_int_equal(signal_of([] { run(0, different_operations, 1, 32); }), SIGABRT);
    assert_int_equal(signal_of([] { run(0, half_mask, 1, 32); }), SIGABRT);
}

static void launches_beyond_limits(void **) {
    Buffer<unsigned> out(1);
    struct {
        dim3 grid, block;
    } bad[] = { { 1, 1025 }, { 1, dim3(32, 33) }, { dim3(1, 65536), 1 }, { dim3(1, 1, 65536), 1 }, { 0, 32 },
                { 1, 0 },    { 0x80000000u, 1 },  { 1, dim3(1, 1, 65) } };
    for (auto &b : bad) {
        assert_int_equal(run(0, indices, b.grid, b.block, out.p), cudaErrorInvalidValue);
    }
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    unsigned host[1];
    assert_int_equal(run(0, indices, 1, 1, host), cudaErrorIllegalAddress);
    assert_int_equal(run(0, indices, 1, 1, out.p + 2), cudaErrorIllegalAddress);
    OK(run(0, indices, 1, 1, out.p));
}

// --------
// streams

enum { N = 1000 };
static const char *modes[] = { "eager", "lazy", "rival", "lag" };

__global__ void copy_ints(int *out, const int *in) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        out[i] = in[i];
    }
}

struct Side {
    cudaStream_t stream;
    cudaEvent_t event;
    Side() {
        OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -1));
        OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    }
    ~Side() {
        OK(cudaEventDestroy(event));
        OK(cudaStreamDestroy(stream));
    }
    void follows() {  // later work on the side stream waits for the work that is on the default stream now
        OK(cudaEventRecord(event, 0));
        OK(cudaStreamWaitEvent(stream, event, 0));
    }
    void leads() {
        OK(cudaEventRecord(event, stream));
        OK(cudaStreamWaitEvent(0, event, 0));
    }
};

// The default stream reads x, which the side stream clears afterwards: 1 is right, 0 came too early.
static int clear_after_reading(bool waits) {
    Side side;
    Buffer<int> x(std::vector<int>(N, 1)), y(N);
    OK(run(0, copy_ints, 4, 256, y.p, x.p));
    if (waits) {
        side.follows();
    }
    OK(cudaMemsetAsync(x.p, 0, N * sizeof(int), side.stream));
    OK(cudaStreamSynchronize(side.stream));
    return y.get()[N - 1];
}

// The side stream fills x, which the default stream reads: 2 is right, 1 came too early.
static int read_after_filling(bool waits) {
    Side side;
    int *pinned;
    OK(cudaHostAlloc(&pinned, N * sizeof(int), cudaHostAllocDefault));
    std::fill(pinned, pinned + N, 2);
    Buffer<int> x(std::vector<int>(N, 1)), y(N);
    OK(cudaMemcpyAsync(x.p, pinned, N * sizeof(int), cudaMemcpyHostToDevice, side.stream));
    if (waits) {
        side.leads();
    }
    OK(run(0, copy_ints, 4, 256, y.p, x.p));
    int got = y.get()[N - 1];
    OK(cudaFreeHost(pinned));
    return got;
}

static void streams_keep_the_order_they_were_told(void **) {
    for (const char *mode : modes) {
        setting("CUDA_STAND_IN", mode);
        assert_int_equal(clear_after_reading(true), 1);
        assert_int_equal(read_after_filling(true), 2);
    }
}

static void missing_waits_show(void **) {
    struct {
        const char *mode;
        int clear, fill;
    } cases[] = { { "eager", 1, 2 }, { "lazy", 0, 1 }, { "rival", 0, 2 }, { "lag", 1, 1 } };
    for (auto &c : cases) {
        setting("CUDA_STAND_IN", c.mode);
        assert_int_equal(clear_after_reading(false), c.clear);
        assert_int_equal(read_after_filling(false), c.fill);
    }
}

// A wait holds for the record before it, even when the event is recorded again.
static void events_are_captured_by_the_wait(void **) {
    setting("CUDA_STAND_IN", "lazy");
    Side side;
    Buffer<int> x(std::vector<int>(N, 1)), y(std::vector<int>(N, 1));
    OK(cudaMemsetAsync(x.p, 0, 4, 0));
    side.follows();
    OK(cudaMemsetAsync(y.p, 0, 4, 0));
    OK(cudaEventRecord(side.event, 0));
    OK(cudaStreamSynchronize(side.stream));  // needs the first record only
    assert_int_equal(cudaEventQuery(side.event), cudaErrorNotReady);
    assert_int_equal(cudaPeekAtLastError(), cudaErrorNotReady);  // until cudaGetLastError is called
    OK(cudaEventSynchronize(side.event));
    OK(cudaEventQuery(side.event));
    assert_int_equal(y.get()[0], 0);
}

static void queries_come_to_an_end(void **) {
    for (const char *mode : modes) {
        setting("CUDA_STAND_IN", mode);
        Side side;
        Buffer<int> x(N);
        for (int i = 0; i < 3; i++) {
            OK(cudaMemsetAsync(x.p, i, 4, 0));
            side.follows();
            OK(cudaMemsetAsync(x.p, i, 4, side.stream));
            side.leads();
        }
        cudaEvent_t end;
        OK(cudaEventCreateWithFlags(&end, cudaEventDisableTiming));
        OK(cudaEventQuery(end));
        OK(cudaEventRecord(end, 0));
        int asked = 0;
        while (cudaEventQuery(end) == cudaErrorNotReady) {
            assert_true(++asked < 100);
        }
        assert_int_equal(asked > 0, strcmp(mode, "eager") != 0);
        while (cudaStreamQuery(side.stream) == cudaErrorNotReady) {
            assert_true(++asked < 100);
        }
        OK(cudaEventDestroy(end));
    }
}

static void time_between_events(void **) {
    cudaEvent_t start, end, untimed;
    OK(cudaEventCreate(&start));
    OK(cudaEventCreate(&end));
    OK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    float ms = -1;
    assert_int_equal(cudaEventElapsedTime(&ms, start, end), cudaErrorInvalidResourceHandle);
    setting("CUDA_STAND_IN", "lazy");
    Buffer<int> x(1 << 20);
    OK(cudaEventRecord(start, 0));
    OK(cudaMemsetAsync(x.p, 0, 4 << 20, 0));
    OK(cudaEventRecord(end, 0));
    assert_int_equal(cudaEventElapsedTime(&ms, start, end), cudaErrorNotReady);
    OK(cudaEventSynchronize(end));
    OK(cudaEventElapsedTime(&ms, start, end));
    assert_true(ms > 0 && ms < 1000);
    assert_int_equal(cudaEventElapsedTime(&ms, start, untimed), cudaErrorInvalidResourceHandle);
    OK(cudaEventDestroy(start));
    OK(cudaEventDestroy(end));
    OK(cudaEventDestroy(untimed));
    assert_int_equal(cudaEventDestroy(untimed), cudaErrorInvalidResourceHandle);
    assert_int_equal(cudaStreamSynchronize((cudaStream_t)&ms), cudaErrorInvalidResourceHandle);
}

// Fibers of one thread's kernel may go on in another thread's.
static void two_threads_at_once(void **) {
    enum { ROUNDS = 200, BLOCK = 100 };
    Buffer<int> in(std::vector<int>(BLOCK, 1)), sums(2 * ROUNDS);
    auto rounds = [&](int first) {
        cudaStream_t stream;
        bool ok = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess;
        for (int i = 0; i < ROUNDS; i++) {
            ok = ok &&
                 run(stream, sum_block, 1, BLOCK, sums.p + first + i, in.p, BLOCK - i % 7) == cudaSuccess;
        }
        return ok && cudaStreamDestroy(stream) == cudaSuccess;
    };
    bool other = false;
    std::thread thread([&] { other = rounds(ROUNDS); });
    assert_true(rounds(0));
    thread.join();
    assert_true(other);
    std::vector<int> got = sums.get();
    for (int i = 0; i < 2 * ROUNDS; i++) {
        assert_int_equal(got[i], BLOCK - i % ROUNDS % 7);
    }
}

// --------
// memory

static void pinned_and_pageable_copies(void **) {
    setting("CUDA_STAND_IN", "lazy");
    Buffer<int> x(std::vector<int>(4, 7));
    int pageable = 1, *pinned, registered[1024];
    OK(cudaHostAlloc(&pinned, 4, cudaHostAllocDefault));
    OK(cudaHostRegister(registered, sizeof registered, cudaHostRegisterDefault));
    *pinned = 1;
    registered[3] = 1;
    OK(cudaMemcpyAsync(x.p, &pageable, 4, cudaMemcpyHostToDevice, 0));
    OK(cudaMemcpyAsync(x.p + 1, pinned, 4, cudaMemcpyHostToDevice, 0));
    OK(cudaMemcpyAsync(x.p + 2, registered + 3, 4, cudaMemcpyHostToDevice, 0));
    pageable = *pinned = registered[3] = 2;  // too early, but for the pageable one
    OK(cudaMemcpyAsync(pinned, x.p + 3, 4, cudaMemcpyDeviceToHost, 0));
    assert_int_equal(*pinned, 2);  // not done yet
    int back[3];
    OK(cudaMemcpyAsync(back, x.p, sizeof back, cudaMemcpyDeviceToHost, 0));
    assert_int_equal(back[0], 1);
    assert_int_equal(back[1], 2);
    assert_int_equal(back[2], 2);
    assert_int_equal(*pinned, 7);
    assert_int_equal(cudaHostRegister(registered + 5, 8, cudaHostRegisterDefault),
                     cudaErrorHostMemoryAlreadyRegistered);
    assert_int_equal(cudaHostUnregister(registered + 5), cudaErrorHostMemoryNotRegistered);
    OK(cudaHostUnregister(registered));
    OK(cudaFreeHost(pinned));
}

// A copy of 16 s to the device lets one of a millisecond to the host pass, and the next one to the device
// wait.
static void copies_that_take_time(void **) {
    enum { LONG = 16 << 20, SHORT = 1 << 10 };
    setting("CUDA_STAND_IN_LINK", "1");
    char *host, *device;
    cudaStream_t streams[3];
    OK(cudaHostAlloc((void **)&host, LONG + 2 * SHORT, 0));
    OK(cudaMalloc((void **)&device, LONG + 2 * SHORT));
    for (cudaStream_t &s : streams) {
        OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    }
    memset(host, 1, LONG + 2 * SHORT);
    OK(cudaMemsetAsync(device + LONG, 2, SHORT, streams[1]));
    OK(cudaMemcpyAsync(device, host, LONG, cudaMemcpyHostToDevice, streams[0]));
    OK(cudaMemcpyAsync(host + LONG, device + LONG, SHORT, cudaMemcpyDeviceToHost, streams[1]));
    OK(cudaMemcpyAsync(device + LONG + SHORT, host + LONG + SHORT, SHORT, cudaMemcpyHostToDevice,
                       streams[2]));
    OK(cudaStreamSynchronize(streams[1]));
    assert_int_equal(host[LONG], 2);
    assert_int_equal(cudaStreamQuery(streams[0]), cudaErrorNotReady);
    assert_int_equal(cudaStreamQuery(streams[2]), cudaErrorNotReady);
    setting("CUDA_STAND_IN_LINK", "0");  // what is under way ends too
    for (cudaStream_t &s : streams) {
        OK(cudaStreamSynchronize(s));
        OK(cudaStreamDestroy(s));
    }
    OK(cudaFree(device));
    OK(cudaFreeHost(host));
}

static void wrong_copies(void **) {
    Buffer<char> x(100), y(100);
    char host[100] = { 0 };
    assert_int_equal(cudaMemcpy(x.p, host, 101, cudaMemcpyDefault), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(x.p, host, 100, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(host, host + 50, 10, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(x.p, host, 100, (cudaMemcpyKind)7), cudaErrorInvalidMemcpyDirection);
    assert_int_equal(cudaMemcpy(x.p, NULL, 100, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemset(x.p + 1, 0, 100), cudaErrorInvalidValue);
    assert_int_equal(cudaMemset(host, 0, 100), cudaErrorInvalidValue);
    OK(cudaMemset(x.p, 3, 100));
    OK(cudaMemcpy(y.p, x.p, 100, cudaMemcpyDefault));
    OK(cudaMemcpy(host, y.p, 100, cudaMemcpyDefault));
    assert_int_equal(host[99], 3);
    char *freed;
    OK(cudaMalloc(&freed, 10));
    OK(cudaFree(freed));
    assert_int_equal(cudaMemset(freed, 0, 10), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(freed, host, 10, cudaMemcpyDefault), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(host, freed, 10, cudaMemcpyDefault), cudaErrorInvalidValue);
    assert_int_equal(cudaFree(freed), cudaErrorInvalidValue);
}

__global__ void write_at(char *x, int at) { x[at] = 1; }

static void guards(void **) {
    char *x;
    OK(cudaMalloc(&x, 1000));
    assert_int_equal(signal_of([=] { x[5] = 1; }), SIGSEGV);
    assert_int_equal(signal_of([=] { run(0, write_at, 1, 1, x, 999), cudaDeviceSynchronize(), cudaFree(x); }),
                     0);
    assert_int_equal(signal_of([=] { run(0, write_at, 1, 1, x, 1000), cudaDeviceSynchronize(); }), SIGABRT);
    assert_int_equal(signal_of([=] { run(0, write_at, 1, 1, x, 1270), cudaFree(x); }), SIGABRT);
    assert_int_equal(signal_of([=] { run(0, write_at, 1, 1, x, 1000), exit(0); }), SIGABRT);
    assert_int_equal(
        signal_of([=] { setting("CUDA_STAND_IN_PROTECT", "0"), run(0, write_at, 1, 1, x, 1), x[5] = 1; }), 0);
    assert_int_equal(signal_of([] { nvtxRangePushA("a"), nvtxRangePop(); }), 0);
    assert_int_equal(signal_of([] { nvtxRangePop(); }), SIGABRT);
    std::vector<unsigned char> fresh(1000);
    OK(cudaMemcpy(fresh.data(), x, 1000, cudaMemcpyDeviceToHost));
    assert_true(fresh == std::vector<unsigned char>(1000, 0xff));
    OK(cudaFree(x));
}

static void out_of_memory(void **) {
    size_t before, after, total;
    char *piece[4], *large;
    OK(cudaMemGetInfo(&before, &total));
    assert_int_equal(cudaMalloc(&large, total), cudaErrorMemoryAllocation);
    assert_null(large);
    assert_int_equal(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
    for (char *&p : piece) {
        OK(cudaMalloc(&p, 1000));
        assert_int_equal((uintptr_t)p % 256, 0);
    }
    OK(cudaMemGetInfo(&after, &total));
    assert_true(before - after >= 4000);
    for (int i : { 1, 3, 2, 0 }) {  // pieces join in any order
        OK(cudaFree(piece[i]));
    }
    OK(cudaMemGetInfo(&after, &total));
    assert_int_equal(after, before);
    OK(cudaMalloc(&large, 3000));
    assert_ptr_equal(large, piece[0]);
    OK(cudaFree(large));
    OK(cudaFree(NULL));
}

// --------
// devices, errors on purpose, counts

static void devices(void **) {
    int n = -1, device;
    void *p;
    OK(cudaGetDeviceCount(&n));
    assert_int_equal(n, 1);
    assert_int_equal(cudaSetDevice(1), cudaErrorInvalidDevice);
    setting("CUDA_STAND_IN_DEVICES", "2");
    OK(cudaSetDevice(1));
    OK(cudaGetDevice(&device));
    assert_int_equal(device, 1);
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaSetDevice(0));
    assert_int_equal(run(stream, half_mask, 1, 1), cudaErrorInvalidResourceHandle);
    OK(cudaStreamDestroy(stream));
    setting("CUDA_STAND_IN_CAPABILITY", "70");
    cudaDeviceProp prop;
    int major, multiprocessors;
    OK(cudaGetDeviceProperties(&prop, 0));
    OK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    OK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    assert_true(prop.major == 7 && prop.minor == 0 && major == 7 &&
                multiprocessors == prop.multiProcessorCount);
    setting("CUDA_STAND_IN_DEVICES", "0");
    assert_int_equal(cudaGetDeviceCount(&n), cudaErrorNoDevice);
    assert_int_equal(n, 0);
    assert_int_equal(cudaMalloc(&p, 1), cudaErrorNoDevice);
    assert_int_equal(cudaSetDevice(0), cudaErrorNoDevice);
    cublasLtHandle_t handle;
    assert_int_equal(cublasLtCreate(&handle), CUBLAS_STATUS_NOT_INITIALIZED);
    assert_string_equal(cudaGetErrorName(cudaErrorNoDevice), "cudaErrorNoDevice");
}

// The bus ids of the devices that are seen, each with the last letter of its UUID.
static std::string seen(const char *visible) {
    std::string all;
    int n;
    setting("CUDA_VISIBLE_DEVICES", visible);
    cudaGetDeviceCount(&n);
    for (int d = 0; d < n; d++) {
        char bus[32];
        cudaDeviceProp prop;
        OK(cudaDeviceGetPCIBusId(bus, sizeof bus, d));
        OK(cudaGetDeviceProperties(&prop, d));
        all += std::string(bus + 5, 2) + prop.uuid.bytes[strlen(prop.uuid.bytes) - 1] + " ";
    }
    return all;
}

static void visible_devices(void **) {
    setting("CUDA_STAND_IN_DEVICES", "4");
    assert_string_equal(seen("0,1,2,3").c_str(), "010 021 032 043 ");
    assert_string_equal(seen("2,0").c_str(), "032 010 ");
    assert_string_equal(seen("3").c_str(), "043 ");
    assert_string_equal(seen("1,4,2").c_str(), "021 ");
    assert_string_equal(seen("").c_str(), "");
    setting("CUDA_STAND_IN_MIG", "1");
    assert_string_equal(seen("1,2").c_str(), "011 012 ");
}

static void failures_on_purpose(void **) {
    setting("CUDA_STAND_IN_FAIL", "cudaMalloc:2");
    void *p, *q;
    OK(cudaMalloc(&p, 8));
    assert_int_equal(cudaMalloc(&q, 8), cudaErrorMemoryAllocation);
    OK(cudaMalloc(&q, 8));
    setting("CUDA_STAND_IN_FAIL", "launch:1");
    assert_int_equal(run(0, indices, 1, 1, (unsigned *)p), cudaErrorLaunchFailure);
    OK(run(0, indices, 1, 1, (unsigned *)p));
    setting("CUDA_STAND_IN_FAIL", "cudaStreamSynchronize:1");
    assert_int_equal(cudaStreamSynchronize(0), cudaErrorIllegalAddress);
    setting("CUDA_STAND_IN_FAIL", "");
    OK(cudaFree(p));
    OK(cudaFree(q));
}

static void counts(void **) {
    long launches[2], waits[2], allocations[2];
    cuda_stand_in_counts(&launches[0], &waits[0], &allocations[0]);
    {
        Buffer<unsigned> x(8);                            // one allocation; its cudaFree waits
        Buffer<unsigned> y(std::vector<unsigned>(8, 1));  // one more, and a copy that waits
        OK(run(0, indices, 1, 8, x.p));
        OK(cudaMemsetAsync(x.p, 0, 4, 0));
        OK(cudaMemcpyAsync(y.p, x.p, 4, cudaMemcpyDeviceToDevice, 0));
        OK(cudaStreamSynchronize(0));
    }
    cuda_stand_in_counts(&launches[1], &waits[1], &allocations[1]);
    assert_int_equal(launches[1] - launches[0], 1);
    assert_int_equal(allocations[1] - allocations[0], 2);
    assert_int_equal(waits[1] - waits[0], 4);
}

// Blocks that an H200 runs at once, by the registers that ptxas reports.
static void occupancy(void **) {
    int small, large, processors;
    setting("STAND_IN_SMS", "132");
    setting("STAND_IN_BLOCKS", "12");
    OK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&small, indices, 128, 0));
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&large, indices, 512, 0));
    assert_true(processors == 132 && small == 12 && large == 2);
}

// --------
// products

struct Product {
    int m, n, k, trans_a, trans_b;
    cudaDataType in, out;
    unsigned epilogue;
    int batches, pad;  // pad: more than needed in leading dimensions
    float beta;
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
};

static float at(cudaDataType type, const std::vector<char> &x, size_t i) {
    const void *p = &x[i * (type == CUDA_R_32F ? 4 : 2)];
    return type == CUDA_R_32F    ? *(const float *)p
           : type == CUDA_R_16BF ? to_float(*(const bf16 *)p)
                                 : to_float(*(const fp16 *)p);
}

static std::vector<char> random_matrix(cudaDataType type, size_t n, unsigned seed) {
    std::vector<char> x(n * (type == CUDA_R_32F ? 4 : 2));
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525 + 1013904223;
        float v = (float)(int)(seed >> 8) / (1 << 23) - 1.0f;
        if (type == CUDA_R_32F) {
            ((float *)x.data())[i] = v;
        } else if (type == CUDA_R_16BF) {
            ((bf16 *)x.data())[i] = from_float<bf16>(v);
        } else {
            ((fp16 *)x.data())[i] = from_float<fp16>(v);
        }
    }
    return x;
}

static double gelu_of(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

static void close_enough(double got, double want, cudaDataType type, double magnitude) {
    double unit = type == CUDA_R_32F ? 1e-6 : type == CUDA_R_16BF ? 1.0 / 256 : 1.0 / 2048;
    if (!(fabs(got - want) <= unit * fabs(want) + 1e-5 * magnitude)) {
        fail_msg("%.9g, not %.9g", got, want);
    }
}

struct Layouts {
    cublasLtMatrixLayout_t a, b, c;
    int64_t lda, ldb, ldc, a_stride, b_stride, c_stride;
    size_t a_size, b_size, c_size;
};

static cublasLtMatrixLayout_t layout(cudaDataType type, int rows, int cols, int64_t ld, int batches,
                                     int64_t stride) {
    cublasLtMatrixLayout_t x;
    int32_t order = CUBLASLT_ORDER_COL, count = batches;
    assert_int_equal(cublasLtMatrixLayoutCreate(&x, type, rows, cols, ld), 0);
    assert_int_equal(cublasLtMatrixLayoutSetAttribute(x, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order),
                     0);
    assert_int_equal(
        cublasLtMatrixLayoutSetAttribute(x, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count), 0);
    assert_int_equal(cublasLtMatrixLayoutSetAttribute(x, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                                      sizeof stride),
                     0);
    return x;
}

static Layouts layouts_of(const Product &p) {
    Layouts l;
    int a_rows = p.trans_a ? p.k : p.m, a_cols = p.trans_a ? p.m : p.k, b_rows = p.trans_b ? p.n : p.k,
        b_cols = p.trans_b ? p.k : p.n;
    l.lda = a_rows + p.pad;
    l.ldb = b_rows + p.pad;
    l.ldc = p.m + p.pad;
    l.a_stride = l.lda * a_cols + 3;
    l.b_stride = l.ldb * b_cols + 5;
    l.c_stride = l.ldc * p.n + 1;
    l.a_size = l.a_stride * p.batches;
    l.b_size = l.b_stride * p.batches;
    l.c_size = l.c_stride * p.batches;
    l.a = layout(p.in, a_rows, a_cols, l.lda, p.batches, l.a_stride);
    l.b = layout(p.in, b_rows, b_cols, l.ldb, p.batches, l.b_stride);
    l.c = layout(p.out, p.m, p.n, l.ldc, p.batches, l.c_stride);
    return l;
}

template <class T>
static void attribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name, T value) {
    assert_int_equal(cublasLtMatmulDescSetAttribute(desc, name, &value, sizeof value), 0);
}

static void destroy(const Layouts &l) {
    for (cublasLtMatrixLayout_t x : { l.a, l.b, l.c }) {
        assert_int_equal(cublasLtMatrixLayoutDestroy(x), 0);
    }
}

static void check_product(const Product &p) {
    enum { AUX_MORE = 16 };
    Layouts l = layouts_of(p);
    int64_t aux_ld = (p.m + 7) / 8 * 8 + AUX_MORE, aux_stride = aux_ld * p.n;
    auto a = random_matrix(p.in, l.a_size, 1), b = random_matrix(p.in, l.b_size, 2),
         c = random_matrix(p.out, l.c_size, 3);
    auto bias = random_matrix(p.out, p.m + p.n, 4), aux = random_matrix(p.out, aux_stride * p.batches, 5);
    Buffer<char> da(a), db(b), dc(c), dbias(bias), daux(aux), workspace(4096);
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    assert_int_equal(cublasLtCreate(&handle), 0);
    assert_int_equal(cublasLtMatmulDescCreate(&desc, p.compute, CUDA_R_32F), 0);
    attribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, (int32_t)p.trans_a);
    attribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, (int32_t)p.trans_b);
    attribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, (uint32_t)p.epilogue);
    attribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (void *)dbias.p);
    attribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, (void *)daux.p);
    attribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux_ld);
    attribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, aux_stride);
    cublasLtMatmulPreference_t pref;
    uint64_t most = 4096;
    cublasLtMatmulHeuristicResult_t found;
    int n_found = 0;
    assert_int_equal(cublasLtMatmulPreferenceCreate(&pref), 0);
    assert_int_equal(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                          &most, sizeof most),
                     0);
    assert_int_equal(
        cublasLtMatmulAlgoGetHeuristic(handle, desc, l.a, l.b, l.c, l.c, pref, 1, &found, &n_found), 0);
    assert_int_equal(n_found, 1);
    float alpha = 0.5f;
    assert_int_equal(cublasLtMatmul(handle, desc, &alpha, da.p, l.a, db.p, l.b, &p.beta, dc.p, l.c, dc.p, l.c,
                                    &found.algo, workspace.p, 4096, 0),
                     0);
    auto got = dc.get(), got_aux = daux.get(), got_bias = dbias.get();
    bool has_bias = p.epilogue & CUBLASLT_EPILOGUE_BIAS, has_gelu = p.epilogue & 32,
         has_slope = p.epilogue & 64;
    std::vector<double> row_sums(p.m);
    for (int batch = 0; batch < p.batches; batch++) {
        for (int j = 0; j < p.n; j++) {
            for (int i = 0; i < p.m; i++) {
                double sum = 0;
                for (int k = 0; k < p.k; k++) {
                    size_t ai = batch * l.a_stride + (p.trans_a ? i * l.lda + k : k * l.lda + i);
                    size_t bi = batch * l.b_stride + (p.trans_b ? k * l.ldb + j : j * l.ldb + k);
                    sum += (double)at(p.in, a, ai) * at(p.in, b, bi);
                }
                size_t ci = batch * l.c_stride + j * l.ldc + i, xi = batch * aux_stride + j * aux_ld + i;
                double want = 0.5 * sum + (p.beta != 0 ? p.beta * at(p.out, c, ci) : 0) +
                              (has_bias ? at(p.out, bias, i) : 0);
                if (has_gelu) {
                    close_enough(at(p.out, got_aux, xi), want, p.out, p.k);
                    want = gelu_of(want);
                }
                if (has_slope) {
                    double x = at(p.out, aux, xi), h = 1e-4;
                    want *= (gelu_of(x + h) - gelu_of(x - h)) / (2 * h);
                }
                close_enough(at(p.out, got, ci), want, p.out,
                             p.compute == CUBLAS_COMPUTE_32F ? p.k : 100.0 * p.k);
                if (batch == 0) {
                    row_sums[i] += want;
                }
            }
            if (p.epilogue == CUBLASLT_EPILOGUE_BGRADB && batch == 0) {
                double sum = 0;
                for (int k = 0; k < p.k; k++) {
                    sum += at(p.in, b, p.trans_b ? k * l.ldb + j : j * l.ldb + k);
                }
                close_enough(at(p.out, got_bias, j), sum, p.out, p.k);
            }
        }
    }
    if (p.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD) {
        for (int i = 0; i < p.m; i++) {
            close_enough(at(p.out, got_bias, i), row_sums[i], p.out, p.k * p.n);
        }
    }
    // The elements between columns and behind the matrices must not change.
    size_t size = p.out == CUDA_R_32F ? 4 : 2;
    if (p.pad) {
        for (int64_t j = 0; j < p.n; j++) {
            assert_memory_equal(&got[(j * l.ldc + p.m) * size], &c[(j * l.ldc + p.m) * size], p.pad * size);
        }
    }
    destroy(l);
    assert_int_equal(cublasLtMatmulPreferenceDestroy(pref), 0);
    assert_int_equal(cublasLtMatmulDescDestroy(desc), 0);
    assert_int_equal(cublasLtDestroy(handle), 0);
}

static void products(void **) {
    static const Product table[] = {
        { 5, 7, 3, 0, 0, CUDA_R_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 1, 0, 0 },
        { 70, 9, 33, 1, 0, CUDA_R_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 1, 2, 1 },
        { 65, 9, 33, 0, 1, CUDA_R_16BF, CUDA_R_16BF, CUBLASLT_EPILOGUE_DEFAULT, 1, 2, 1 },
        { 64, 30, 70, 1, 1, CUDA_R_16F, CUDA_R_16F, CUBLASLT_EPILOGUE_DEFAULT, 3, 1, 0.5f },
        { 13, 30, 70, 1, 0, CUDA_R_16BF, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 4, 0, 0 },
        { 1, 1, 1, 0, 0, CUDA_R_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 1, 0, 0 },
        { 40, 11, 24, 1, 0, CUDA_R_16BF, CUDA_R_16BF, CUBLASLT_EPILOGUE_BIAS, 1, 0, 0 },
        { 40, 11, 24, 1, 0, CUDA_R_16BF, CUDA_R_16BF, CUBLASLT_EPILOGUE_GELU_AUX, 2, 0, 0 },
        { 43, 11, 24, 1, 0, CUDA_R_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 1, 3, 0 },
        { 43, 11, 24, 0, 0, CUDA_R_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_DGELU, 2, 3, 0 },
        { 40, 11, 24, 0, 0, CUDA_R_16F, CUDA_R_16F, CUBLASLT_EPILOGUE_DGELU, 1, 0, 0 },
        { 40, 16, 24, 0, 1, CUDA_R_16BF, CUDA_R_16BF, CUBLASLT_EPILOGUE_BGRADB, 1, 0, 1 },
        { 40, 16, 24, 0, 1, CUDA_R_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_BGRADB, 1, 1, 0 },
        { 40, 11, 24, 0, 0, CUDA_R_16BF, CUDA_R_16BF, CUBLASLT_EPILOGUE_DGELU_BGRAD, 1, 0, 0 },
        { 70, 11, 24, 0, 0, CUDA_R_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_DGELU_BGRAD, 1, 1, 0 },
        { 40, 11, 24, 0, 0, CUDA_R_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 1, 0, 0,
          CUBLAS_COMPUTE_32F_FAST_TF32 },
    };
    long before = cuda_stand_in_heuristics();
    for (const Product &p : table) {
        check_product(p);
    }
    assert_int_equal(cuda_stand_in_heuristics() - before, sizeof table / sizeof *table);
}

// One call that is right but for what `spoil` does to it
struct Attempt {
    int m = 16, n = 8, k = 32, a_rows = 16, lda = 16, ldd = 16, batches_a = 1, align = 256, asked_n = 8,
        bias_offset = 0;
    unsigned epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    int aux_ld = 16, aux_type = -1, bias_type = -1, a_offset = 0, k_ld = 32, workspace_offset = 0,
        workspace_bytes = 4096, d_elements = 128;
    cudaDataType type_d = CUDA_R_16BF;
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    bool no_bias = false;
};

static cublasStatus_t attempt(const Attempt &t) {
    Buffer<char> a(2 * 16 * 32 + 16), b(2 * 32 * 8), d(2 * t.d_elements), bias(2 * 16), aux(2 * 16 * 8),
        workspace(8192);
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatmulPreference_t pref;
    uint64_t most = 4096;
    uint32_t align = t.align;
    cublasLtCreate(&handle);
    cublasLtMatmulDescCreate(&desc, t.compute, CUDA_R_32F);
    cublasLtMatmulPreferenceCreate(&pref);
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most);
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align,
                                         sizeof align);
    attribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, t.epilogue);
    attribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (void *)bias.p);
    attribute(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, (int32_t)t.bias_type);
    attribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, (void *)aux.p);
    attribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (int64_t)t.aux_ld);
    attribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, (int32_t)t.aux_type);
    Layouts l = { layout(CUDA_R_16BF, t.a_rows, t.k, t.lda, t.batches_a, 0),
                  layout(CUDA_R_16BF, t.k, t.n, t.k_ld, 1, 0),
                  layout(t.type_d, t.m, t.n, t.ldd, 1, 0),
                  0,
                  0,
                  0,
                  0,
                  0,
                  0,
                  0,
                  0,
                  0 };
    cublasLtMatrixLayout_t asked_b = layout(CUDA_R_16BF, t.k, t.asked_n, t.k_ld, 1, 0);
    cublasLtMatrixLayout_t asked_d = layout(t.type_d, t.m, t.asked_n, t.ldd, 1, 0);
    cublasLtMatmulHeuristicResult_t found, checked;
    int n_found;
    float one = 1, zero = 0;
    cublasStatus_t rc = cublasLtMatmulAlgoGetHeuristic(handle, desc, l.a, asked_b, asked_d, asked_d, pref, 1,
                                                       &found, &n_found);
    void *given = t.no_bias ? nullptr : bias.p + t.bias_offset;
    attribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, given);
    if (rc == CUBLAS_STATUS_SUCCESS && t.asked_n != t.n) {
        rc = cublasLtMatmulAlgoCheck(handle, desc, l.a, l.b, l.c, l.c, &found.algo, &checked);
        assert_int_equal(rc, checked.state);
    } else if (rc == CUBLAS_STATUS_SUCCESS) {
        assert_int_equal(cublasLtMatmulAlgoCheck(handle, desc, l.a, l.b, l.c, l.c, &found.algo, &checked), 0);
        rc = cublasLtMatmul(handle, desc, &one, a.p + t.a_offset, l.a, b.p, l.b, &zero, d.p, l.c, d.p, l.c,
                            &found.algo, workspace.p + t.workspace_offset, t.workspace_bytes, 0);
    }
    destroy(l);
    cublasLtMatrixLayoutDestroy(asked_b);
    cublasLtMatrixLayoutDestroy(asked_d);
    cublasLtMatmulPreferenceDestroy(pref);
    cublasLtMatmulDescDestroy(desc);
    cublasLtDestroy(handle);
    return rc;
}

static void products_refused(void **) {
    assert_int_equal(attempt({}), CUBLAS_STATUS_SUCCESS);
    struct {
        const char *what;
        cublasStatus_t status;
        void (*spoil)(Attempt &);
    } table[] = {
        { "rows of A", CUBLAS_STATUS_INVALID_VALUE, [](Attempt &t) { t.a_rows = 12; } },
        { "leading dimension of A", CUBLAS_STATUS_INVALID_VALUE, [](Attempt &t) { t.lda = 15; } },
        { "leading dimension of D", CUBLAS_STATUS_INVALID_VALUE, [](Attempt &t) { t.ldd = 15; } },
        { "batches", CUBLAS_STATUS_INVALID_VALUE, [](Attempt &t) { t.batches_a = 2; } },
        { "aux not of 8", CUBLAS_STATUS_INVALID_VALUE, [](Attempt &t) { t.aux_ld = 17; } },
        { "aux too short", CUBLAS_STATUS_INVALID_VALUE, [](Attempt &t) { t.aux_ld = 8; } },
        { "aux too long for its memory", CUBLAS_STATUS_EXECUTION_FAILED, [](Attempt &t) { t.aux_ld = 24; } },
        { "aux of another type", CUBLAS_STATUS_INVALID_VALUE, [](Attempt &t) { t.aux_type = CUDA_R_32F; } },
        { "bias of another type", CUBLAS_STATUS_INVALID_VALUE, [](Attempt &t) { t.bias_type = CUDA_R_32F; } },
        { "epilogue", CUBLAS_STATUS_NOT_SUPPORTED, [](Attempt &t) { t.epilogue = 2; } },
        { "type of D", CUBLAS_STATUS_NOT_SUPPORTED, [](Attempt &t) { t.type_d = CUDA_R_16F; } },
        { "TF32 of bf16", CUBLAS_STATUS_NOT_SUPPORTED,
          [](Attempt &t) { t.compute = CUBLAS_COMPUTE_32F_FAST_TF32; } },
        { "alignment promised", CUBLAS_STATUS_INVALID_VALUE, [](Attempt &t) { t.a_offset = 16; } },
        { "workspace's alignment", CUBLAS_STATUS_INVALID_VALUE, [](Attempt &t) { t.workspace_offset = 16; } },
        { "workspace too small", CUBLAS_STATUS_INVALID_VALUE, [](Attempt &t) { t.workspace_bytes = 1024; } },
        { "workspace too large for its memory", CUBLAS_STATUS_INVALID_VALUE,
          [](Attempt &t) { t.workspace_bytes = 8193; } },
        { "D too large for its memory", CUBLAS_STATUS_EXECUTION_FAILED,
          [](Attempt &t) { t.d_elements = 127; } },
        { "algorithm of another product", CUBLAS_STATUS_INVALID_VALUE, [](Attempt &t) { t.asked_n = 4; } },
        { "no bias", CUBLAS_STATUS_INVALID_VALUE, [](Attempt &t) { t.no_bias = true; } },
        { "a bias less aligned than the one it was asked with", CUBLAS_STATUS_INVALID_VALUE,
          [](Attempt &t) { t.bias_offset = 8; } },
        { "rows of 9 bf16 numbers in an epilogue", CUBLAS_STATUS_NOT_SUPPORTED,
          [](Attempt &t) { t.m = t.a_rows = t.lda = t.ldd = 9; } },
        { "BGRADB of a B that is not transposed", CUBLAS_STATUS_NOT_SUPPORTED,
          [](Attempt &t) { t.epilogue = CUBLASLT_EPILOGUE_BGRADB; } },
        { "DGELU and k = 1", CUBLAS_STATUS_NOT_SUPPORTED,
          [](Attempt &t) {
              t.k = 1;
              t.epilogue = CUBLASLT_EPILOGUE_DGELU_BGRAD;
              t.k_ld = 8;
          } },
    };
    FILE *usual = stderr;
    stderr = fopen("/dev/null", "w");  // the stand-in prints each reason
    for (auto &c : table) {
        Attempt t;
        c.spoil(t);
        cublasStatus_t rc = attempt(t);
        if (rc != c.status) {
            fail_msg("%s: %s", c.what, cublasLtGetStatusName(rc));
        }
    }
    Attempt less;
    less.align = 16;
    less.a_offset = 16;
    assert_int_equal(attempt(less), CUBLAS_STATUS_SUCCESS);
    fclose(stderr);
    stderr = usual;
    setting("CUDA_STAND_IN_FAIL", "cublasLtMatmul:1");
    assert_int_equal(attempt({}), CUBLAS_STATUS_EXECUTION_FAILED);
    assert_int_equal(attempt({}), CUBLAS_STATUS_SUCCESS);
    setting("CUDA_STAND_IN_FAIL", "");
    setting("CUDA_STAND_IN_REFUSED", "1");
    assert_int_equal(attempt({}), CUBLAS_STATUS_NOT_SUPPORTED);
}

// Algorithms of one product: as many as requested, up to 8; the time that events show for each; bits that
// depend on the algorithm.
static void algorithms(void **) {
    enum { K = 3000 };
    auto values = random_matrix(CUDA_R_32F, K, 1);
    Buffer<char> x(values), y(4);
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatmulPreference_t pref;
    cublasLtMatrixLayout_t row = layout(CUDA_R_32F, 1, K, 1, 1, 0);
    cublasLtMatrixLayout_t column = layout(CUDA_R_32F, K, 1, K, 1, 0);
    cublasLtMatrixLayout_t one = layout(CUDA_R_32F, 1, 1, 1, 1, 0);
    cublasLtMatmulHeuristicResult_t found[10];
    int n_found;
    float alpha = 1, zero = 0, ms[8], sums[8];
    cudaEvent_t events[2];
    assert_int_equal(cublasLtCreate(&handle), 0);
    assert_int_equal(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), 0);
    assert_int_equal(cublasLtMatmulPreferenceCreate(&pref), 0);
    assert_int_equal(
        cublasLtMatmulAlgoGetHeuristic(handle, desc, row, column, one, one, pref, 3, found, &n_found), 0);
    assert_int_equal(n_found, 3);
    assert_int_equal(
        cublasLtMatmulAlgoGetHeuristic(handle, desc, row, column, one, one, pref, 10, found, &n_found), 0);
    assert_int_equal(n_found, 8);
    setting("CUDA_STAND_IN_FASTEST", "5");
    OK(cudaEventCreate(&events[0]));
    OK(cudaEventCreate(&events[1]));
    for (int i = 0; i < 8; i++) {
        OK(cudaEventRecord(events[0], 0));
        assert_int_equal(cublasLtMatmul(handle, desc, &alpha, x.p, row, x.p, column, &zero, y.p, one, y.p,
                                        one, &found[i].algo, NULL, 0, 0),
                         0);
        OK(cudaEventRecord(events[1], 0));
        OK(cudaEventSynchronize(events[1]));
        OK(cudaEventElapsedTime(&ms[i], events[0], events[1]));
        sums[i] = *(float *)y.get().data();
        assert_true(i == 5 || ms[i] >= 20 + i);
    }
    assert_true(ms[5] >= 10 && ms[5] < 20);  // a product of 3000 takes no 10 ms
    assert_true(sums[0] == sums[2] && sums[1] == sums[7] && sums[0] != sums[1] &&
                fabs(sums[0] - sums[1]) < 0.1);
    for (cublasLtMatrixLayout_t l : { row, column, one }) {
        cublasLtMatrixLayoutDestroy(l);
    }
    OK(cudaEventDestroy(events[0]));
    OK(cudaEventDestroy(events[1]));
    cublasLtMatmulPreferenceDestroy(pref);
    cublasLtMatmulDescDestroy(desc);
    cublasLtDestroy(handle);
}

// A product waits its turn on its stream.
static void products_are_queued(void **) {
    setting("CUDA_STAND_IN", "lazy");
    long launches[2], waits[2];
    Buffer<float> x(std::vector<float>{ 3 }), y(std::vector<float>{ 0 });
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t one = layout(CUDA_R_32F, 1, 1, 1, 1, 0);
    assert_int_equal(cublasLtCreate(&handle), 0);
    assert_int_equal(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), 0);
    float two = 2, zero = 0;
    cuda_stand_in_counts(&launches[0], &waits[0], NULL);
    assert_int_equal(cublasLtMatmul(handle, desc, &two, x.p, one, x.p, one, &zero, y.p, one, y.p, one, NULL,
                                    NULL, 0, 0),
                     0);
    OK(cudaMemsetAsync(x.p, 0, 4, 0));
    two = 5;  // was read by the call
    cuda_stand_in_counts(&launches[1], &waits[1], NULL);
    assert_int_equal(launches[1] - launches[0], 1);
    assert_int_equal(waits[1] - waits[0], 0);
    assert_true(y.get()[0] == 18 && x.get()[0] == 0);
    cublasLtMatrixLayoutDestroy(one);
    cublasLtMatmulDescDestroy(desc);
    cublasLtDestroy(handle);
}

int main() {
#define TEST(f) cmocka_unit_test_setup_teardown(f, usual_settings, usual_settings)
    const CMUnitTest tests[] = {
        TEST(barriers_and_shared_memory),
        TEST(missing_barrier_shows),
        TEST(warp_shuffles),
        TEST(votes_and_atomics),
        TEST(grids_of_three_dimensions),
        TEST(threads_that_left),
        TEST(divergence_is_reported),
        TEST(launches_beyond_limits),
        TEST(streams_keep_the_order_they_were_told),
        TEST(missing_waits_show),
        TEST(events_are_captured_by_the_wait),
        TEST(queries_come_to_an_end),
        TEST(time_between_events),
        TEST(two_threads_at_once),
        TEST(pinned_and_pageable_copies),
        TEST(copies_that_take_time),
        TEST(wrong_copies),
        TEST(guards),
        TEST(out_of_memory),
        TEST(devices),
        TEST(visible_devices),
        TEST(failures_on_purpose),
        TEST(counts),
        TEST(occupancy),
        TEST(products),
        TEST(products_refused),
        TEST(algorithms),
        TEST(products_are_queued),
    };
    return cmocka_run_group_tests_name("the CUDA stand-in", tests, NULL, NULL);
}
