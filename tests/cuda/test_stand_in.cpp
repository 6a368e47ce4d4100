// Tests that the stand-ins expose or refuse wrong CUDA and NCCL code. Other tests show that correct code runs
// correctly: test_layers_cuda compares kernels and matmuls with naive ones, and mpi_nccl compares collectives
// with those through host memory.
#include <algorithm>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>
#include "cublasLt.h"
#include "gpt2/cuda.h"
#include "nccl.h"
#include "nvtx3/nvToolsExt.h"
#include "stand_in.h"

static void expect(int line, long expected, std::initializer_list<long> got) {
    for (const long *value = got.begin(); value != got.end(); value++) {
        if (*value == expected) continue;
        fprintf(stderr, "line %d, call %td: %ld, expected %ld\n", line, value - got.begin(), *value,
                expected);
        _exit(1);
    }
}
// Ends the process unless each of the calls returns the expected value.
#define EXPECT(expected, ...) expect(__LINE__, expected, { __VA_ARGS__ })
#define OK(...) EXPECT(0, __VA_ARGS__)
#define CHECK(...) EXPECT(true, __VA_ARGS__)
#define REFUSED(...) EXPECT(cudaErrorInvalidValue, __VA_ARGS__)

template <class T> struct Buffer {
    T *p;
    size_t n;
    Buffer(size_t n) : n(n) { OK(cudaMalloc((void **)&p, n * sizeof(T))); }
    Buffer(const std::vector<T> &x) : Buffer(x.size()) {
        OK(cudaMemcpy(p, x.data(), n * sizeof(T), cudaMemcpyHostToDevice));
    }
    std::vector<T> get() const {
        std::vector<T> x(n);
        OK(cudaMemcpy(x.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
        return x;
    }
};

struct Side {
    cudaStream_t stream;
    cudaEvent_t event;
    Side() {
        OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
           cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    }
    // Makes later work on the side stream wait for what is now queued on the default stream.
    void follows() { OK(cudaEventRecord(event, 0), cudaStreamWaitEvent(stream, event, 0)); }
    void leads() { OK(cudaEventRecord(event, stream), cudaStreamWaitEvent(0, event, 0)); }
};

// A rank's communicator and stream.
struct Rank {
    int rank, ranks;
    ncclUniqueId ids[4];
    ncclComm_t comm;
    cudaStream_t stream;

    ncclResult_t state() const {
        ncclResult_t now;
        OK(ncclCommGetAsyncError(comm, &now));
        return now;
    }
    // Waits until a call is done and its work is on the stream.
    ncclResult_t settled() const {
        while (state() == ncclInProgress) usleep(100);
        return state();
    }
    void join(int id = 0) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        EXPECT(ncclInProgress, ncclCommInitRankConfig(&comm, ranks, ids[id], rank, &config));
        OK(settled());
    }
    void leave() {
        OK(cudaStreamSynchronize(stream));
        EXPECT(ncclInProgress, ncclCommFinalize(comm));
        OK(settled(), ncclCommDestroy(comm));
    }
    ncclResult_t gather(const float *from, float *to, size_t n = 1, ncclDataType_t type = ncclFloat32) {
        return ncclAllGather(from, to, n, type, comm, stream);
    }
    // Waits until the stream's work makes the communicator fail.
    ncclResult_t failure() {
        ncclResult_t now;
        while (!(now = state()) || now == ncclInProgress) cudaStreamQuery(stream);
        return now;
    }
};

template <class... P, class... A>
cudaError_t run(cudaStream_t stream, void (*kernel)(P...), dim3 grid, dim3 block, A... args) {
    cudaLaunchConfig_t config = { grid, block, 0, stream, nullptr, 0 };
    return cudaLaunchKernelEx(&config, kernel, args...);
}

// Runs `act` in a child process. Returns the signal that ended it, or 0.
static int signal_of(const std::function<void()> &act) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        stderr = fopen("/dev/null", "w");
        act();
        _exit(0);
    }
    EXPECT(child, waitpid(child, &status, 0));
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

// Each thread reads the value that the previous thread wrote to shared memory.
__global__ void neighbours(int *out, int waits) {
    __shared__ int x[64];
    x[threadIdx.x] = -1;
    __syncthreads();
    x[threadIdx.x] = threadIdx.x;
    if (waits) __syncthreads();
    out[threadIdx.x] = x[(threadIdx.x + blockDim.x - 1) % blockDim.x];
}

static void missing_barrier(Rank &) {
    for (const char *order : { "forward", "backward" }) {
        cuda_stand_in_set("CUDA_STAND_IN_ORDER", order);
        Buffer<int> right(64), wrong(64);
        OK(run(0, neighbours, 1, 64, right.p, 1), run(0, neighbours, 1, 64, wrong.p, 0));
        EXPECT(39, right.get()[40]);
        EXPECT(*order == 'f' ? 39 : -1, wrong.get()[40]);
    }
}

__global__ void diverge(int how, char *) {
    if (how == 0 && threadIdx.x < 16)
        __syncthreads();
    else if (how == 1 && threadIdx.x < 16)
        __shfl_sync(~0u, 1, 0);
    else
        __ballot_sync(how == 2 ? 0xffff : ~0u, 1);
}

static void divergence(Rank &) {
    // The first three are wrong: half of the lanes at a barrier, or at a different operation, or a partial
    // mask. The fourth is right.
    for (int how = 0; how < 4; how++)
        EXPECT(how < 3 ? SIGABRT : 0, signal_of([=] { run(0, diverge, 1, 32, how, nullptr); }));
}

static void launch_limits(Rank &) {
    Buffer<char> x(2);
    Side other;
    char *none = nullptr, host;
    // clang-format off
    const dim3 bad[][2] = { { 1, 1025 }, { 1, dim3(32, 33) }, { dim3(1, 65536), 1 }, { dim3(1, 1, 65536), 1 },
                            { 0, 32 }, { 1, 0 }, { 0x80000000u, 1 }, { 1, dim3(1, 1, 65) } };
    // clang-format on
    for (auto &[grid, block] : bad) REFUSED(run(0, diverge, grid, block, 3, none));
    REFUSED(cudaGetLastError());
    OK(cudaGetLastError(), run(0, diverge, dim3(1, 65535), 1, 3, x.p), run(0, diverge, 1, 1024, 3, x.p + 2));
    EXPECT(cudaErrorIllegalAddress, run(0, diverge, 1, 1, 3, &host), run(0, diverge, 1, 1, 3, x.p + 3));
    OK(cudaSetDevice(1));
    EXPECT(cudaErrorInvalidResourceHandle, run(other.stream, diverge, 1, 1, 3, none));
}

__global__ void write_at(char *x, int at) { x[at] = 1; }

static void failed_kernel(Rank &) {
    Buffer<char> x(1000), y(1000);
    int device;
    for (const char *mode : { "eager", "lazy" }) {
        cuda_stand_in_set("CUDA_STAND_IN", mode);
        cuda_stand_in_set("CUDA_STAND_IN_FAIL", "kernel:1");
        OK(run(0, write_at, 1, 1, x.p, 0), cudaGetLastError());
        if (*mode == 'l') OK(run(0, write_at, 1, 1, y.p, 0));
        EXPECT(cudaErrorIllegalAddress, cudaStreamSynchronize(0), cudaFree(x.p),
               run(0, write_at, 1, 1, x.p, 0), cudaMemset(x.p, 0, 1), cudaGetLastError());
        OK(cudaGetDevice(&device));
        cuda_stand_in_set("CUDA_STAND_IN_FAIL", "");
        EXPECT(-1, x.get()[0], y.get()[0]);
    }
}

// The default stream copies x, which is 1. The side stream clears x, before the copy if `leads`, otherwise
// after it. waits: whether an event enforces this order. Returns the copy.
static int copied(bool leads, bool waits) {
    Side side;
    Buffer<int> x(std::vector<int>(1, 1)), y(1);
    if (leads) OK(cudaMemsetAsync(x.p, 0, 4, side.stream));
    if (leads && waits) side.leads();
    OK(cudaMemcpyAsync(y.p, x.p, 4, cudaMemcpyDeviceToDevice, 0));
    if (!leads && waits) side.follows();
    if (!leads) OK(cudaMemsetAsync(x.p, 0, 4, side.stream), cudaStreamSynchronize(side.stream));
    return y.get()[0];
}

static void missing_event(Rank &) {
    const char *modes[] = { "eager", "lazy", "rival", "lag" };
    const int follows[] = { 1, 0, 0, 1 }, leads[] = { 0, 1, 0, 1 };  // without the event
    for (int i = 0; i < 4; i++) {
        cuda_stand_in_set("CUDA_STAND_IN", modes[i]);
        CHECK(copied(false, true) == 1, copied(true, true) == 0);
        CHECK(copied(false, false) == follows[i], copied(true, false) == leads[i]);
    }
}

static void events_and_handles(Rank &) {
    cuda_stand_in_set("CUDA_STAND_IN", "lazy");
    Side side;
    cudaEvent_t start, end;
    Buffer<int> x(std::vector<int>(1, 1));
    float ms;
    OK(cudaEventCreate(&start), cudaEventCreate(&end), cudaEventQuery(end));  // never recorded
    OK(cudaEventRecord(start, 0));
    side.follows();
    OK(cudaEventRecord(side.event, 0), cudaEventRecord(end, 0), cudaMemsetAsync(x.p, 0, 4, 0));
    OK(cudaStreamSynchronize(side.stream));  // needs only the event's first record
    EXPECT(cudaErrorNotReady, cudaEventElapsedTime(&ms, start, end), cudaEventQuery(end));
    OK(cudaEventSynchronize(end), cudaEventQuery(end), cudaEventElapsedTime(&ms, start, end));
    OK(cudaEventRecord(start, 0));
    EXPECT(cudaErrorNotReady, cudaStreamQuery(0), cudaEventQuery(start));  // each runs one operation
    EXPECT(cudaErrorNotReady, cudaGetLastError());
    OK(cudaStreamQuery(0), cudaEventQuery(start));
    EXPECT(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, start, side.event));  // has no times
    OK(cudaMemsetAsync(x.p, 1, 4, side.stream), cudaStreamDestroy(side.stream), cudaEventDestroy(side.event));
    EXPECT(0x01010101, x.get()[0]);
    EXPECT(cudaErrorInvalidResourceHandle, cudaStreamSynchronize(side.stream), cudaEventDestroy(side.event));
    REFUSED(cudaStreamCreateWithFlags(&side.stream, cudaStreamDefault));  // would wait for the default stream
}

static void pinned_and_pageable_copies(Rank &) {
    cuda_stand_in_set("CUDA_STAND_IN", "lazy");
    Buffer<int> x(std::vector<int>(4, 7));
    int pageable = 1, *pinned, registered[1024], back[4];
    OK(cudaHostAlloc((void **)&pinned, 4, 0), cudaHostRegister(registered, sizeof registered, 0));
    EXPECT(-1, *pinned);  // new memory
    *pinned = registered[3] = 1;
    OK(cudaMemcpyAsync(x.p, &pageable, 4, cudaMemcpyHostToDevice, 0),
       cudaMemcpyAsync(x.p + 1, pinned, 4, cudaMemcpyHostToDevice, 0),
       cudaMemcpyAsync(x.p + 2, registered + 3, 4, cudaMemcpyHostToDevice, 0));
    pageable = *pinned = registered[3] = 2;  // too early, except for pageable memory
    OK(cudaMemcpyAsync(pinned, x.p + 3, 4, cudaMemcpyDeviceToHost, 0));
    EXPECT(2, *pinned);  // not done yet
    OK(cudaMemcpyAsync(back, x.p, sizeof back, cudaMemcpyDeviceToHost, 0));
    CHECK(back[0] == 1, back[1] == 2, back[2] == 2, back[3] == 7, *pinned == 7);
    OK(cudaMemcpyAsync(x.p, pinned, 4, cudaMemcpyHostToDevice, 0), cudaFreeHost(pinned));  // waits
    EXPECT(7, x.get()[0]);
    REFUSED(cudaFreeHost(pinned));
    EXPECT(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(registered + 5, 8, 0));
    EXPECT(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(registered + 5));
}

static void wrong_copies_and_use_after_free(Rank &) {
    Buffer<char> x(100);
    char host[100] = { 0 }, *freed;
    OK(cudaMalloc((void **)&freed, 10), cudaFree(freed));
    REFUSED(cudaMemcpy(x.p, host, 101, cudaMemcpyDefault), cudaMemcpy(x.p, host, 9, cudaMemcpyDeviceToHost),
            cudaMemcpy(host, host + 50, 9, cudaMemcpyDeviceToHost), cudaMemset(x.p + 1, 0, 100),
            cudaMemset(host, 0, 100), cudaMemset(freed, 0, 9), cudaMemcpy(freed, host, 9, cudaMemcpyDefault),
            cudaMemcpy(host, freed, 9, cudaMemcpyDefault), cudaFree(freed), cudaFree(x.p + 1));
}

static void guards(Rank &) {
    Buffer<char> x(1000), copy(1);
    EXPECT(-1, x.get()[0], x.get()[999]);  // new memory
    auto writes = [=](int at) { run(0, write_at, 1, 1, x.p, at); };
    EXPECT(SIGSEGV, signal_of([=] { x.p[5] = 1; }));
    EXPECT(SIGABRT, signal_of([=] { writes(1000), cudaDeviceSynchronize(); }),
           signal_of([=] { writes(1270), cudaFree(x.p); }), signal_of([=] { writes(1000), exit(0); }),
           signal_of([] { nvtxRangePop(); }));
    OK(signal_of([=] { writes(999), cudaDeviceSynchronize(), nvtxRangePushA("a"), nvtxRangePop(); }));
    cuda_stand_in_set("CUDA_STAND_IN", "lazy");
    OK(cudaMemsetAsync(x.p, 1, 1, 0), cudaMemcpyAsync(copy.p, x.p, 1, cudaMemcpyDeviceToDevice, 0),
       cudaFree(x.p));
    cuda_stand_in_set("CUDA_STAND_IN_PROTECT", "0");
    EXPECT(1, copy.get()[0]);  // cudaFree waits for the copy
    EXPECT(-1, x.p[0]);        // and overwrites the memory
}

struct Matmul {  // a correct call; each test changes some of its values
    int m = 16, n = 8, k = 32, a_rows = 16, lda = 16, ldb = 32, ldd = 16, batches_a = 1, asked_lda = 16,
        aux_ld = 16;
    unsigned epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    cudaDataType type_d = CUDA_R_16BF;
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    size_t a_offset = 0, bias_offset = 0, workspace_offset = 0, workspace_bytes = 4096, d_bytes = 256;
};

static cublasStatus_t multiply(const Matmul &t) {
    Buffer<char> a(8192), b(8192), bias(64), aux(256), d(t.d_bytes), workspace(std::vector<char>(8192));
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatmulPreference_t pref;
    cublasLtMatrixLayout_t la, lb, ld, asked;
    cublasLtMatmulHeuristicResult_t found, checked;
    uint64_t most = 4096;
    long before, after;
    int n;
    float one = 1, zero = 0;
    auto set = [&](cublasLtMatmulDescAttributes_t name, auto x) {
        OK(cublasLtMatmulDescSetAttribute(desc, name, &x, sizeof x));
    };
    OK(cublasLtCreate(&handle), cublasLtMatmulDescCreate(&desc, t.compute, CUDA_R_32F),
       cublasLtMatrixLayoutCreate(&la, CUDA_R_16BF, t.a_rows, t.k, t.lda),
       cublasLtMatrixLayoutCreate(&lb, CUDA_R_16BF, t.k, t.n, t.ldb), cublasLtMatmulPreferenceCreate(&pref),
       cublasLtMatrixLayoutCreate(&ld, t.type_d, t.m, t.n, t.ldd),
       cublasLtMatrixLayoutCreate(&asked, CUDA_R_16BF, t.a_rows, t.k, t.asked_lda),
       cublasLtMatrixLayoutSetAttribute(asked, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &t.batches_a, 4),
       cublasLtMatrixLayoutSetAttribute(la, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &t.batches_a, 4),
       cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, 8));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, t.epilogue);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, (void *)bias.p);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, (void *)aux.p);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (int64_t)t.aux_ld);
    cublasStatus_t rc = cublasLtMatmulAlgoGetHeuristic(handle, desc, asked, lb, ld, ld, pref, 1, &found, &n);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, (void *)(bias.p + t.bias_offset));
    if (!rc) rc = cublasLtMatmulAlgoCheck(handle, desc, la, lb, ld, ld, &found.algo, &checked);
    cuda_stand_in_counts(NULL, &before, NULL);
    if (!rc)
        rc = cublasLtMatmul(handle, desc, &one, a.p + t.a_offset, la, b.p, lb, &zero, d.p, ld, d.p, ld,
                            &found.algo, workspace.p + t.workspace_offset, t.workspace_bytes, 0);
    cuda_stand_in_counts(NULL, &after, NULL);
    CHECK(after == before, workspace.get()[0] == (rc ? 0 : -1));  // did not wait, but used its workspace
    return rc;
}

static void wrong_matmuls(Rank &) {
    // clang-format off
    const Matmul invalid[] = {
        { .a_rows = 12 }, { .ldd = 15 }, { .batches_a = 2 }, { .asked_lda = 15 }, { .asked_lda = 24 },
        { .aux_ld = 17 }, { .aux_ld = 8 }, { .a_offset = 16 }, { .bias_offset = 8 },
        { .workspace_offset = 16 }, { .workspace_bytes = 1024 }, { .workspace_bytes = 8193 } };
    const Matmul unsupported[] = {
        { .m = 9, .a_rows = 9, .ldd = 9, .asked_lda = 9 }, { .epilogue = CUBLASLT_EPILOGUE_BGRADB },
        { .k = 1, .ldb = 8, .epilogue = CUBLASLT_EPILOGUE_DGELU_BGRAD }, { .epilogue = 2 },
        { .type_d = CUDA_R_16F }, { .compute = CUBLAS_COMPUTE_32F_FAST_TF32 } };
    const Matmul beyond_their_memory[] = { { .aux_ld = 24 }, { .d_bytes = 254 } };
    // clang-format on
    for (const Matmul &p : invalid) EXPECT(CUBLAS_STATUS_INVALID_VALUE, multiply(p));
    for (const Matmul &p : unsupported) EXPECT(CUBLAS_STATUS_NOT_SUPPORTED, multiply(p));
    for (const Matmul &p : beyond_their_memory) EXPECT(CUBLAS_STATUS_EXECUTION_FAILED, multiply(p));
    OK(multiply({}));
    cuda_stand_in_set("CUDA_STAND_IN_ALIGNED", "1");
    EXPECT(CUBLAS_STATUS_NOT_SUPPORTED, multiply({ .a_offset = 8 }));
    OK(multiply({}));
}

static void wrong_calls(Rank &r) {
    r.join();
    Buffer<float> x(8);
    float host[8];
    void *handle;
    ncclComm_t c = r.comm;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    EXPECT(ncclInvalidArgument, r.gather(host, x.p), r.gather(x.p, x.p, 5), r.gather(x.p + 1, x.p, 2),
           ncclReduceScatter(x.p, x.p + 1, 2, ncclFloat32, ncclSum, c, r.stream),
           ncclSend(x.p, 8, ncclFloat32, 2, c, r.stream), ncclCommRegister(c, host, 32, &handle),
           ncclCommRegister(c, x.p, 32, &handle), ncclMemFree(x.p));
    EXPECT(ncclInProgress, r.gather(x.p + r.rank, x.p));
    OK(cudaStreamQuery(r.stream));  // the gather is on the stream only after ncclCommGetAsyncError
    EXPECT(ncclInvalidUsage, r.gather(x.p, x.p), ncclCommFinalize(c), ncclCommDestroy(c), ncclGroupEnd());
    OK(r.settled());
    EXPECT(ncclInvalidUsage, ncclAllGather(x.p, x.p, 1, ncclFloat32, c, 0));  // on a different stream
    r.leave();
    EXPECT(ncclInvalidArgument, ncclCommDestroy(c));
    config.maxCTAs = 0;
    EXPECT(ncclInvalidArgument, ncclCommInitRankConfig(&c, 2, r.ids[1], r.rank, &config));
}

static void registered_memory(Rank &r) {
    void *x, *handle, *more;
    size_t before, after, all;
    OK(cudaMemGetInfo(&before, &all));
    r.join();
    OK(ncclMemAlloc(&x, 64));
    EXPECT(ncclInvalidArgument, ncclCommRegister(r.comm, x, 65, &handle));
    OK(ncclCommRegister(r.comm, x, 64, &handle));
    EXPECT(ncclInvalidUsage, ncclCommRegister(r.comm, x, 64, &more), ncclMemFree(x),
           ncclCommFinalize(r.comm));
    OK(ncclCommDeregister(r.comm, handle));
    EXPECT(ncclInvalidArgument, ncclCommDeregister(r.comm, handle));
    OK(ncclMemFree(x));
    r.leave();
    OK(cudaMemGetInfo(&after, &all));
    CHECK(before == after);
}

static void ranks_that_differ(Rank &r) {
    Buffer<float> x(64);
    for (int kind = 0; kind < 3; kind++) {  // different counts, types, operations
        int n = kind == 0 && r.rank ? 4 : 8;
        ncclDataType_t type = kind == 1 && r.rank ? ncclInt8 : ncclFloat32;
        OK(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
        r.join(kind);
        bool receives = kind == 2 && r.rank;
        EXPECT(ncclInProgress,
               receives ? ncclRecv(x.p, n, type, 0, r.comm, r.stream) : r.gather(x.p + 32, x.p, n, type));
        EXPECT(ncclInvalidUsage, r.failure());
        EXPECT(cudaErrorNotReady, cudaStreamQuery(r.stream));  // for ever
    }
}

// Both ranks send first. Neither send completes, although the messages would fit into the ring buffers.
static void both_send_first(Rank &r) {
    Buffer<float> x(8);
    r.join();
    EXPECT(ncclInProgress, ncclSend(x.p, 4, ncclFloat32, 1 - r.rank, r.comm, r.stream));
    OK(r.settled());
    EXPECT(ncclInProgress, ncclRecv(x.p + 4, 4, ncclFloat32, 1 - r.rank, r.comm, r.stream));
    OK(r.settled());
    for (int i = 0; i < 100; i++, usleep(1000)) EXPECT(cudaErrorNotReady, cudaStreamQuery(r.stream));
}

// Runs a test on several ranks, each with its own GPU. Returns true if a rank failed.
static bool fails(const char *name, void (*behaviour)(Rank &), int ranks) {
    Rank r = { 0, ranks, {}, nullptr, nullptr };
    std::vector<pid_t> children;
    int failed = 0, status;
    fflush(stdout);
    for (ncclUniqueId &id : r.ids) ncclGetUniqueId(&id);
    for (r.rank = 0; r.rank < ranks; r.rank++) {
        children.push_back(fork());
        if (children.back()) continue;
        alarm(60);
        setenv("CUDA_STAND_IN_DEVICES", "8", 1);
        OK(cudaSetDevice(r.rank), cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
        behaviour(r);
        _exit(0);
    }
    for (pid_t child : children) failed += waitpid(child, &status, 0) != child || status;
    printf("%s %s\n", failed ? "FAILED" : "ok    ", name);
    return failed;
}

int main() {
    // clang-format off
#define RUN(behaviour, ranks) fails(#behaviour, behaviour, ranks)
    const bool failed[] = {
        RUN(missing_barrier, 1), RUN(divergence, 1), RUN(launch_limits, 1), RUN(failed_kernel, 1),
        RUN(missing_event, 1),
        RUN(events_and_handles, 1), RUN(pinned_and_pageable_copies, 1),
        RUN(wrong_copies_and_use_after_free, 1), RUN(guards, 1), RUN(wrong_matmuls, 1), RUN(wrong_calls, 2),
        RUN(registered_memory, 1), RUN(ranks_that_differ, 2), RUN(both_send_first, 2),
    };
    // clang-format on
    int all = sizeof failed, bad = std::count(failed, failed + all, true);
    printf("%d passed, %d failed\n", all - bad, bad);
    return bad > 0;
}
