// Tests the stand-in for NCCL itself, between forked processes: the operations' results in every manner of
// the streams, and that it refuses or reports what NCCL would refuse or hang on.
#include <setjmp.h>
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
#include "stand_in.h"
extern "C" {
#include <cmocka.h>
}
#ifdef CUDA_STAND_IN_QUEUE_WHEN
#include "nccl.h"

// Ends a rank's process.
#define CHECK(condition)                                                                              \
    do {                                                                                              \
        if (!(condition)) {                                                                           \
            fprintf(stderr, "%s:%d: rank %d: failed: %s (NCCL: %s)\n", __FILE__, __LINE__, this_rank, \
                    #condition, ncclGetLastError(NULL));                                              \
            _exit(1);                                                                                 \
        }                                                                                             \
    } while (0)
#define OK(call) CHECK((call) == cudaSuccess)

static int this_rank;
static const char *modes[] = { "eager", "lazy", "rival", "lag" };
enum { N = 50000 };  // elements: several times the capacity of a ring

// A rank's communicator and stream
struct Rank {
    int rank, ranks;
    ncclUniqueId id;
    ncclComm_t comm;
    cudaStream_t stream;

    ncclResult_t state() const {
        ncclResult_t state;
        CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
        return state;
    }
    ncclResult_t settled() const {
        ncclResult_t now;
        while ((now = state()) == ncclInProgress) {
            usleep(100);
        }
        return now;
    }
    // Waits after a call until its work is on the stream.
    void done(ncclResult_t rc) const {
        CHECK(rc == ncclSuccess || rc == ncclInProgress);
        CHECK(settled() == ncclSuccess);
    }
    ncclResult_t join(const ncclUniqueId &by) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        CHECK(ncclCommInitRankConfig(&comm, ranks, by, rank, &config) == ncclInProgress);
        return settled();
    }
    void leave() {
        CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
        done(ncclCommFinalize(comm));
        CHECK(ncclCommDestroy(comm) == ncclSuccess);
    }
};

// Runs body on so many ranks, each with a GPU of its own unless `shared`. The body joins the communicator.
static void on_ranks(int ranks, const std::function<void(Rank &)> &body, bool shared = false) {
    Rank r = {};
    r.ranks = ranks;
    assert_int_equal(ncclGetUniqueId(&r.id), ncclSuccess);
    fflush(NULL);
    std::vector<pid_t> children;
    for (r.rank = 0; r.rank < ranks; r.rank++) {
        pid_t child = fork();
        if (!child) {
            this_rank = r.rank;
            setenv("CUDA_STAND_IN_DEVICES", "8", 1);
            alarm(40);
            OK(cudaSetDevice(shared ? 0 : r.rank));
            OK(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
            body(r);
            _exit(0);
        }
        children.push_back(child);
    }
    int failed = 0;
    for (pid_t child : children) {
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        failed += !WIFEXITED(status) || WEXITSTATUS(status);
    }
    assert_int_equal(failed, 0);
}

template <class T> T *on_device(const std::vector<T> &x) {
    T *p;
    OK(cudaMalloc(&p, x.size() * sizeof(T)));
    OK(cudaMemcpy(p, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}
template <class T> std::vector<T> back(const T *p, size_t n) {
    std::vector<T> x(n);
    OK(cudaMemcpy(x.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return x;
}

static float value(int rank, size_t i) { return (float)(rank * 1000003 + (int)i % 65537) / 7.0f; }
static std::vector<float> values(int rank, size_t n) {
    std::vector<float> x(n);
    for (size_t i = 0; i < n; i++) {
        x[i] = value(rank, i);
    }
    return x;
}

// --------
// what the operations give

static void check_exchange(Rank &r) {
    std::vector<float *> to;
    float *from = on_device(values(r.rank, N));
    CHECK(ncclGroupStart() == ncclSuccess);
    for (int peer = 0; peer < r.ranks; peer++) {  // itself too
        to.push_back(on_device(std::vector<float>(N)));
        CHECK(ncclSend(from, N - peer, ncclFloat32, peer, r.comm, r.stream) == ncclSuccess);
        CHECK(ncclRecv(to[peer], N - r.rank, ncclFloat32, peer, r.comm, r.stream) == ncclSuccess);
    }
    r.done(ncclGroupEnd());
    OK(cudaStreamSynchronize(r.stream));
    for (int peer = 0; peer < r.ranks; peer++) {
        std::vector<float> expected = values(peer, N - r.rank);
        expected.resize(N);
        CHECK(back(to[peer], N) == expected);
    }
}

static void check_gather(Rank &r, bool in_place) {
    float *to = on_device(std::vector<float>(r.ranks * N)), *from = on_device(values(r.rank, N)),
          *own = to + r.rank * N;
    OK(cudaMemcpyAsync(own, from, N * sizeof(float), cudaMemcpyDeviceToDevice, r.stream));
    r.done(ncclAllGather(in_place ? own : from, to, N, ncclFloat32, r.comm, r.stream));
    OK(cudaStreamSynchronize(r.stream));
    for (int peer = 0; peer < r.ranks; peer++) {
        CHECK(back(to + peer * N, N) == values(peer, N));
    }
}

static void check_reduce(Rank &r, bool in_place) {
    std::vector<float> x(r.ranks * N), sum(N);
    for (size_t i = 0; i < x.size(); i++) {
        x[i] = value(r.rank, i);
    }
    for (size_t i = 0; i < N; i++) {
        size_t at = r.rank * N + i;
        sum[i] = value((r.rank + 1) % r.ranks, at);
        for (int step = 2; step <= r.ranks; step++) {
            sum[i] += value((r.rank + step) % r.ranks, at);
        }
        sum[i] = r.ranks == 1 ? x[at] : sum[i];
    }
    float *from = on_device(x), *to = in_place ? from + r.rank * N : on_device(std::vector<float>(N));
    r.done(ncclReduceScatter(from, to, N, ncclFloat32, ncclSum, r.comm, r.stream));
    CHECK(back(to, N) != sum || r.ranks == 1 ||
          !strcmp(getenv("CUDA_STAND_IN"), "eager"));  // no call has waited
    OK(cudaStreamSynchronize(r.stream));
    CHECK(back(to, N) == sum);
}

static void check_broadcast(Rank &r) {
    int root = r.ranks - 1;
    float *x = on_device(values(r.rank, N));
    r.done(ncclBroadcast(x, x, N, ncclFloat32, root, r.comm, r.stream));
    OK(cudaStreamSynchronize(r.stream));
    CHECK(back(x, N) == values(root, N));
}

static void test_operations(void **) {
    for (const char *mode : modes) {
        setenv("CUDA_STAND_IN", mode, 1);
        for (int ranks = 1; ranks <= 3; ranks++) {
            on_ranks(ranks, [](Rank &r) {
                CHECK(r.join(r.id) == ncclSuccess);
                check_exchange(r);
                for (bool in_place : { false, true }) {
                    check_gather(r, in_place);
                    check_reduce(r, in_place);
                }
                check_broadcast(r);
                r.leave();
            });
        }
    }
    unsetenv("CUDA_STAND_IN");
}

static void test_bf16_is_rounded_on_the_way(void **) {
    on_ranks(3, [](Rank &r) {  // 256 + 1 + 1 = 256 in bf16 if the ring begins with 256, 258 else
        CHECK(r.join(r.id) == ncclSuccess);
        uint16_t x = r.rank == 1 ? 0x4380 : 0x3f80;
        uint16_t *from = on_device(std::vector<uint16_t>(3, x)), *to = on_device(std::vector<uint16_t>(1));
        r.done(ncclReduceScatter(from, to, 1, ncclBfloat16, ncclSum, r.comm, r.stream));
        OK(cudaStreamSynchronize(r.stream));
        CHECK(back(to, 1)[0] == (r.rank == 1 ? 0x4381 : 0x4380));
        r.leave();
    });
}

static void test_split_and_blocking(void **) {
    on_ranks(2, [](Rank &r) {
        CHECK(ncclCommInitRank(&r.comm, r.ranks, r.id, r.rank) == ncclSuccess);
        Rank part = r;
        CHECK(ncclCommSplit(r.comm, 0, r.rank, &part.comm, NULL) == ncclSuccess);
        float *x = on_device(std::vector<float>(r.ranks));
        CHECK(ncclAllGather(x + r.rank, x, 1, ncclFloat32, part.comm, r.stream) == ncclSuccess);
        CHECK(ncclAllGather(x + r.rank, x, 1, ncclFloat32, r.comm, r.stream) == ncclSuccess);
        part.leave();
        r.leave();
    });
}

// On a card, too, neither blocks the other.
static void test_two_communicators_in_any_order(void **) {
    for (const char *mode : modes) {
        setenv("CUDA_STAND_IN", mode, 1);
        on_ranks(2, [](Rank &r) {
            CHECK(r.join(r.id) == ncclSuccess);
            Rank other = r;
            ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
            config.blocking = 0;
            CHECK(ncclCommSplit(r.comm, 0, r.rank, &other.comm, &config) == ncclInProgress);
            CHECK(other.settled() == ncclSuccess);
            OK(cudaStreamCreateWithFlags(&other.stream, cudaStreamNonBlocking));
            std::vector<float> none(2 * N);
            float *x = on_device(values(r.rank, N)), *all = on_device(none), *more = on_device(none);
            r.done(ncclAllGather(x, all, N, ncclFloat32, r.comm, r.stream));
            other.done(ncclAllGather(x, more, N, ncclFloat32, other.comm, other.stream));
            OK(cudaStreamSynchronize(r.rank ? r.stream : other.stream));
            OK(cudaStreamSynchronize(r.rank ? other.stream : r.stream));
            CHECK(back(all, 2 * N) == back(more, 2 * N) && back(all + N, N) == values(1, N));
            other.leave();
            r.leave();
        });
    }
    unsetenv("CUDA_STAND_IN");
}

// --------
// what it refuses

static void test_calls_that_come_too_early(void **) {
    on_ranks(2, [](Rank &r) {
        CHECK(r.join(r.id) == ncclSuccess);
        float *x = on_device(std::vector<float>(2));
        CHECK(ncclAllGather(x + r.rank, x, 1, ncclFloat32, r.comm, r.stream) == ncclInProgress);
        CHECK(cudaStreamQuery(r.stream) == cudaSuccess);  // not done yet
        CHECK(ncclAllGather(x + r.rank, x, 1, ncclFloat32, r.comm, r.stream) == ncclInvalidUsage);
        CHECK(ncclCommFinalize(r.comm) == ncclInvalidUsage);
        CHECK(ncclCommDestroy(r.comm) == ncclInvalidUsage);
        CHECK(r.settled() == ncclSuccess);
        r.leave();
        ncclResult_t state;
        CHECK(ncclCommGetAsyncError(r.comm, &state) == ncclInvalidArgument &&
              ncclCommAbort(r.comm) == ncclInvalidArgument);
    });
}

static void test_arguments(void **) {
    on_ranks(1, [](Rank &r) {
        CHECK(r.join(r.id) == ncclSuccess);
        cudaStream_t other;
        void *handle;
        float *x = on_device(std::vector<float>(8)), host[8];
        CHECK(ncclSend(host, 8, ncclFloat32, 0, r.comm, r.stream) == ncclInvalidArgument);
        CHECK(ncclSend(x, 9, ncclFloat32, 0, r.comm, r.stream) == ncclInvalidArgument);
        CHECK(ncclRecv(x, 8, ncclFloat32, 1, r.comm, r.stream) == ncclInvalidArgument);
        CHECK(ncclAllGather(x + 1, x, 4, ncclFloat32, r.comm, r.stream) == ncclInvalidArgument);
        CHECK(ncclReduceScatter(x, x + 1, 4, ncclFloat32, ncclSum, r.comm, r.stream) == ncclInvalidArgument);
        CHECK(ncclGroupEnd() == ncclInvalidUsage);
        CHECK(ncclCommRegister(r.comm, host, sizeof host, &handle) == ncclInvalidArgument);
        CHECK(ncclCommRegister(r.comm, x, 32, &handle) == ncclInvalidArgument);
        r.done(ncclAllGather(x, x, 8, ncclFloat32, r.comm, r.stream));
        OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        CHECK(ncclAllGather(x, x, 8, ncclFloat32, r.comm, other) == ncclInvalidUsage);
        r.leave();
    });
}

static void test_memory(void **) {
    on_ranks(1, [](Rank &r) {
        CHECK(r.join(r.id) == ncclSuccess);
        void *x, *y, *handle, *more;
        float *plain = on_device(std::vector<float>(8));
        CHECK(ncclMemAlloc(&x, 64) == ncclSuccess && ncclMemAlloc(&y, 64) == ncclSuccess);
        CHECK(ncclMemFree(plain) == ncclInvalidArgument && ncclMemFree((char *)x + 8) == ncclInvalidArgument);
        CHECK(ncclCommRegister(r.comm, x, 65, &handle) == ncclInvalidArgument);
        CHECK(ncclCommRegister(r.comm, x, 64, &handle) == ncclSuccess);
        CHECK(ncclCommRegister(r.comm, x, 64, &more) == ncclInvalidUsage);
        CHECK(ncclMemFree(x) == ncclInvalidUsage);  // in the wrong order
        CHECK(ncclCommFinalize(r.comm) == ncclInvalidUsage);
        CHECK(ncclCommDeregister(r.comm, handle) == ncclSuccess &&
              ncclCommDeregister(r.comm, handle) == ncclInvalidArgument);
        CHECK(ncclMemFree(x) == ncclSuccess && ncclMemFree(x) == ncclInvalidArgument);
        OK(cudaFree(plain));
        r.leave();
        size_t left, all;
        CHECK(ncclMemFree(y) == ncclSuccess);
        OK(cudaMemGetInfo(&left, &all));
        CHECK(left == all);  // the communicator's own is back too
    });
}

static void test_configurations(void **) {
    on_ranks(1, [](Rank &r) {
        auto refused = [&](const std::function<void(ncclConfig_t &)> &change) {
            ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
            change(config);
            return ncclCommInitRankConfig(&r.comm, 1, r.id, 0, &config) == ncclInvalidArgument;
        };
        CHECK(refused([](ncclConfig_t &c) { c.magic = 0; }));
        CHECK(refused([](ncclConfig_t &c) { c.blocking = 2; }));
        CHECK(refused([](ncclConfig_t &c) { c.maxCTAs = 0; }));
        CHECK(refused([](ncclConfig_t &c) { c.minCTAs = -1; }));
        CHECK(refused([](ncclConfig_t &c) {
            c.minCTAs = 9;
            c.maxCTAs = 8;
        }));
        CHECK(refused([](ncclConfig_t &c) { c.CTAPolicy = 3; }));
        CHECK(!refused([](ncclConfig_t &c) {
            c.maxCTAs = 8;
            c.CTAPolicy = 2;
            c.blocking = 0;
        }));
    });
}

static void test_groups_are_counted(void **) {
    on_ranks(2, [](Rank &r) {
        CHECK(r.join(r.id) == ncclSuccess);
        long before = nccl_stand_in_groups();
        check_exchange(r);
        check_gather(r, false);
        CHECK(nccl_stand_in_groups() == before + 2);
        r.leave();
    });
}

static void test_gpus(void **) {
    auto joins = [](ncclResult_t expected) { return [=](Rank &r) { CHECK(r.join(r.id) == expected); }; };
    on_ranks(2, joins(ncclInvalidUsage), true);
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    on_ranks(2, joins(ncclInvalidUsage), true);
    setenv("CUDA_STAND_IN_NCCL_VERSION", "23007", 1);
    on_ranks(2, joins(ncclSuccess), true);
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    on_ranks(2, joins(ncclInvalidUsage), true);
    unsetenv("CUDA_STAND_IN_NCCL_VERSION");
}

// --------
// what hangs

// Waits until the stream's work makes the communicator fail.
static ncclResult_t failure(const Rank &r) {
    ncclResult_t state;
    while (!(state = r.state()) || state == ncclInProgress) {
        cudaStreamQuery(r.stream);
        usleep(1000);
    }
    CHECK(ncclCommAbort(r.comm) == ncclSuccess);
    OK(cudaStreamSynchronize(r.stream));  // released
    return state;
}

static void test_disagreement(void **) {
    for (int kind = 0; kind < 3; kind++) {  // counts, types, operations
        on_ranks(2, [=](Rank &r) {
            CHECK(r.join(r.id) == ncclSuccess);
            float *x = on_device(std::vector<float>(64)), *y = x + 32;
            if (kind == 2 && r.rank) {
                CHECK(ncclReduceScatter(x, y, 8, ncclFloat32, ncclSum, r.comm, r.stream) == ncclInProgress);
            } else {
                ncclDataType_t type = kind == 1 && r.rank ? ncclInt8 : ncclFloat32;
                CHECK(ncclAllGather(y, x, kind == 0 && r.rank ? 4 : 8, type, r.comm, r.stream) ==
                      ncclInProgress);
            }
            CHECK(failure(r) == ncclInvalidUsage);
        });
    }
}

static void test_nobody_comes(void **) {
    setenv("CUDA_STAND_IN_NCCL_SECONDS", "1", 1);
    on_ranks(2, [](Rank &r) {
        CHECK(r.join(r.id) == ncclSuccess);
        float *x = on_device(std::vector<float>(8));
        if (r.rank) {
            r.done(ncclRecv(x, 8, ncclFloat32, 0, r.comm, r.stream));
            CHECK(failure(r) == ncclRemoteError);
        }
    });
    on_ranks(2, [](Rank &r) {  // both send first, although the message is small enough for the ring
        CHECK(r.join(r.id) == ncclSuccess);
        float *x = on_device(std::vector<float>(8));
        r.done(ncclSend(x, 4, ncclFloat32, 1 - r.rank, r.comm, r.stream));
        r.done(ncclRecv(x + 4, 4, ncclFloat32, 1 - r.rank, r.comm, r.stream));
        CHECK(failure(r) == ncclRemoteError);
    });
    unsetenv("CUDA_STAND_IN_NCCL_SECONDS");
}

static void test_on_purpose(void **) {
    for (const char *what : { "hang:1:2", "error:1:2" }) {
        setenv("CUDA_STAND_IN_NCCL", what, 1);
        on_ranks(2, [=](Rank &r) {
            CHECK(r.join(r.id) == ncclSuccess);
            float *x = on_device(std::vector<float>(2));
            r.done(ncclAllGather(x + r.rank, x, 1, ncclFloat32, r.comm, r.stream));
            OK(cudaStreamSynchronize(r.stream));
            ncclResult_t rc = ncclAllGather(x + r.rank, x, 1, ncclFloat32, r.comm, r.stream);
            CHECK(rc == ncclInProgress && r.state() == ncclInProgress);
            if (*what == 'e' && r.rank) {
                CHECK(failure(r) == ncclSystemError);
                return;
            }
            std::thread watchdog([&] {
                usleep(300000);
                CHECK(r.state() == ncclSuccess && cudaStreamQuery(r.stream) == cudaErrorNotReady);
                CHECK(ncclCommAbort(r.comm) == ncclSuccess);
            });
            OK(cudaStreamSynchronize(r.stream));
            watchdog.join();
        });
        unsetenv("CUDA_STAND_IN_NCCL");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operations),
        cmocka_unit_test(test_bf16_is_rounded_on_the_way),
        cmocka_unit_test(test_split_and_blocking),
        cmocka_unit_test(test_two_communicators_in_any_order),
        cmocka_unit_test(test_calls_that_come_too_early),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_configurations),
        cmocka_unit_test(test_groups_are_counted),
        cmocka_unit_test(test_gpus),
        cmocka_unit_test(test_disagreement),
        cmocka_unit_test(test_nobody_comes),
        cmocka_unit_test(test_on_purpose),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) {
    printf("skip test_nccl: the stand-in for CUDA has no cuda_stand_in_queue_when\n0 passed, 0 failed, 1 "
           "skipped\n");
    return 0;
}
#endif
