// The stand-in for NCCL; see nccl.h. Each operation is a list of messages between pairs of ranks. A message
// passes, in chunks, through a box in a file that all ranks map. Every call that checks a stream's progress
// moves the chunks that it can.
#include "stand_in.h"
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <signal.h>
#include <unistd.h>
#include <vector>
#include "llmc_zero/device/numbers.h"
#include "nccl.h"

namespace {

enum { MAX_RANKS = 8, MAX_SPLITS = 8, CHUNK = 1 << 16, OWN_BYTES = 1 << 16, CONNECTION_BYTES = 1 << 18 };
enum Kind { SEND, ALL_GATHER, REDUCE_SCATTER };

// Sent with every chunk of a message.
struct Header {
    uint64_t kind, type, bytes;
};

struct Box {
    std::atomic<bool> full;
    Header header;
    char bytes[CHUNK];
};

struct Shared {
    std::atomic<uint32_t> joined, finalized;
    std::atomic<int> error;                  // ncclResult_t, for all ranks
    std::atomic<uint32_t> taken[MAX_RANKS];  // 1: the rank has joined
    char gpu[MAX_RANKS][160];                // and its host
    std::atomic<int> splitting[MAX_SPLITS];  // ranks that have called ncclCommSplit
    int color[MAX_SPLITS][MAX_RANKS], key[MAX_SPLITS][MAX_RANKS];
    Box box[MAX_RANKS][MAX_RANKS];  // from, to
};

struct Message {
    int peer;
    bool is_send;
    Header header;
    char *p;
    size_t moved = 0;  // bytes
    bool begun = false, done = false;
};

struct Operation {
    std::vector<Message> messages;
    std::vector<std::function<void()>> then;  // local copies and sums, after all messages
    long number = 0;
};
using OperationPtr = std::shared_ptr<Operation>;

struct Communicator {
    int rank, ranks;
    int first_rank;  // in the communicator from which it was split, if it was
    bool blocking;
    std::string path;
    Shared *shared = nullptr;
    bool ready = false, finalizing = false, has_stream = false;
    cudaStream_t stream = nullptr;
    std::atomic<int> error{ 0 }, unfinished{ 0 };
    OperationPtr group, unissued;  // the open group; an operation that is complete but not yet on the stream
    ncclComm_t *to = nullptr, child = nullptr;  // a split that is not done; its part so far
    int splits = 0;
    std::map<void *, size_t> registered;
    bool connected[MAX_RANKS] = {};
    std::vector<void *> memory;  // its device memory
    ~Communicator() {
        if (shared) munmap(shared, sizeof *shared);
    }
};
using CommunicatorPtr = std::shared_ptr<Communicator>;

std::recursive_mutex lock;
std::vector<CommunicatorPtr> live;
std::string last_error;
std::atomic<long> operations{ 0 }, groups{ 0 };
std::map<void *, size_t> allocated;  // memory from ncclMemAlloc
thread_local int depth = 0;
thread_local std::vector<CommunicatorPtr> grouped;

ncclResult_t refuse(ncclResult_t rc, const std::string &why) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    last_error = why;
    return rc;
}

// Returns true if CUDA_STAND_IN_NCCL requests `what` in this operation.
bool is_asked(const char *what, int rank, long number) {
    char expected[64];
    const char *text = getenv("CUDA_STAND_IN_NCCL");
    snprintf(expected, sizeof expected, "%s:%d:%ld", what, rank, number);
    return text && !strcmp(text, expected);
}

CommunicatorPtr find(ncclComm_t handle) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    for (auto &c : live)
        if ((ncclComm_t)c.get() == handle) return c;
    return nullptr;
}

size_t size_of(ncclDataType_t type) { return type == ncclFloat32 ? 4 : type == ncclInt8 ? 1 : 2; }

// --------
// transferring data

void fail_later(Communicator &c, ncclResult_t rc, const std::string &why, bool for_all) {
    int none = 0;
    if (c.error.compare_exchange_strong(none, rc)) refuse(rc, why);
    if (for_all) c.shared->error = rc;
}

void check_header(Communicator &c, const Message &m, const Header &other) {
    char why[200];
    if (!memcmp(&other, &m.header, sizeof other)) return;
    snprintf(why, sizeof why,
             "rank %d expects %llu bytes of type %d from rank %d, which sends %llu of type %d%s", c.rank,
             (unsigned long long)m.header.bytes, (int)m.header.type, m.peer, (unsigned long long)other.bytes,
             (int)other.type, other.kind != m.header.kind ? " in another operation" : "");
    fail_later(c, ncclInvalidUsage, why, true);
}

// Moves one chunk of a message into or out of its box, if the other rank has done its part. A send is done
// when its last chunk has been received.
void advance(Communicator &c, Message &m) {
    Box &box = m.is_send ? c.shared->box[c.rank][m.peer] : c.shared->box[m.peer][c.rank];
    if (box.full == m.is_send) return;
    if (!m.is_send) check_header(c, m, box.header);
    if (c.error) return;
    m.done = m.is_send && m.begun && m.moved == m.header.bytes;
    if (m.done) return;
    size_t n = std::min<size_t>(m.header.bytes - m.moved, CHUNK);
    if (m.is_send) box.header = m.header;
    memcpy(m.is_send ? box.bytes : m.p + m.moved, m.is_send ? m.p + m.moved : box.bytes, n);
    box.full = m.is_send;
    m.begun = true;
    m.moved += n;
    m.done = !m.is_send && m.moved == m.header.bytes;
}

// Moves what it can, in order for each pair of ranks and each direction. Returns true if all messages are
// done.
bool move_messages(Communicator &c, Operation &op) {
    bool busy[2][MAX_RANKS] = {}, done = true;
    for (Message &m : op.messages) {
        bool &is_busy = busy[m.is_send][m.peer];
        if (!m.done && !is_busy) advance(c, m);
        is_busy |= !m.done;
        done &= m.done;
    }
    return done;
}

// Advances an operation. Returns true if it is complete.
bool look(Communicator &c, Operation &op) {
    if (c.error || c.shared->error || is_asked("hang", c.first_rank, op.number)) return false;
    if (is_asked("stop", c.first_rank, op.number)) raise(SIGSTOP);
    if (is_asked("error", c.first_rank, op.number)) {
        fail_later(c, ncclSystemError, "error requested by CUDA_STAND_IN_NCCL", false);
        return false;
    }
    return move_messages(c, op);
}

// Allocates device memory for the communicator.
ncclResult_t take(Communicator &c, size_t bytes) {
    void *p;
    if (cudaMalloc(&p, bytes) != cudaSuccess) {
        cudaGetLastError();
        return refuse(ncclUnhandledCudaError, "out of memory");
    }
    c.memory.push_back(p);
    return ncclSuccess;
}

ncclResult_t connect(Communicator &c, const Operation &op) {
    for (const Message &m : op.messages) {
        if (m.peer == c.rank || c.connected[m.peer]) continue;
        c.connected[m.peer] = true;
        if (ncclResult_t rc = take(c, CONNECTION_BYTES)) return rc;
    }
    return ncclSuccess;
}

ncclResult_t issue(const CommunicatorPtr &c) {
    OperationPtr op = std::move(c->unissued);
    c->unissued = nullptr;
    groups++;
    if (ncclResult_t rc = connect(*c, *op)) return rc;
    op->number = ++operations;
    c->unfinished++;
    auto finish = [=] {
        for (auto &then : op->then) then();
        c->unfinished--;
    };
    cudaError_t rc = cuda_stand_in_queue(c->stream, finish, [=] { return look(*c, *op); });
    return rc == cudaSuccess ? ncclSuccess : refuse(ncclUnhandledCudaError, cudaGetErrorString(rc));
}

ncclResult_t end_operation(const CommunicatorPtr &c) {
    c->unissued = std::move(c->group);
    c->group = nullptr;
    return c->blocking ? issue(c) : ncclInProgress;
}

// --------
// describing operations

ncclResult_t usable(const CommunicatorPtr &c) {
    if (!c) return refuse(ncclInvalidArgument, "no such communicator");
    if (c->error) return (ncclResult_t)(int)c->error;
    if (!c->ready || c->unissued || c->to || c->finalizing) {
        return refuse(ncclInvalidUsage,
                      "the previous call is still in progress: poll ncclCommGetAsyncError first");
    }
    return ncclSuccess;
}

// Begins an operation of any kind; `describe` adds its messages.
template <class F> ncclResult_t operation(ncclComm_t handle, cudaStream_t stream, F describe) {
    CommunicatorPtr c = find(handle);
    if (ncclResult_t rc = usable(c)) return rc;
    if (c->has_stream && c->stream != stream)
        return refuse(ncclInvalidUsage, "the stand-in supports only one stream per communicator");
    c->stream = stream;
    c->has_stream = true;
    if (!c->group) c->group = std::make_shared<Operation>();
    ncclResult_t rc = describe(*c, *c->group);
    if (rc && !depth) c->group = nullptr;
    if (rc || !depth) return rc ? rc : end_operation(c);
    for (auto &g : grouped)
        if (g == c) return ncclSuccess;
    grouped.push_back(c);
    return ncclSuccess;
}

bool reaches(const void *p, size_t bytes) { return !bytes || (p && cuda_stand_in_reaches(p, bytes)); }

ncclResult_t check(const Communicator &c, int peer,
                   std::initializer_list<std::pair<const void *, size_t>> buffers) {
    if (peer < 0 || peer >= c.ranks) return refuse(ncclInvalidArgument, "no rank " + std::to_string(peer));
    for (auto &[p, bytes] : buffers)
        if (!reaches(p, bytes))
            return refuse(ncclInvalidArgument, "a buffer is not contained in a single device allocation");
    return ncclSuccess;
}

void add(Operation &op, bool is_send, int peer, Kind kind, ncclDataType_t type, const void *p, size_t bytes) {
    Message m{};
    m.peer = peer;
    m.is_send = is_send;
    m.header = { (uint64_t)kind, (uint64_t)type, bytes };
    m.p = (char *)p;
    op.messages.push_back(m);
}

float widen(ncclDataType_t type, const void *p, size_t i) {
    if (type == ncclFloat32) return ((const float *)p)[i];
    return (type == ncclBfloat16 ? bf16_widen : fp16_widen)(((const uint16_t *)p)[i]);
}

void store(ncclDataType_t type, void *p, size_t i, float x) {
    if (type == ncclFloat32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = type == ncclBfloat16 ? bf16_round(x) : fp16_round(x);
}

// Sums in ring order, starting at the rank after the receiver. parts are in rank order.
void ring_sum(ncclDataType_t type, char *to, const char *own, const std::vector<char> &parts, int rank,
              int ranks, size_t count) {
    size_t bytes = count * size_of(type);
    std::vector<char> sum;
    for (int step = 1; step <= ranks; step++) {
        const char *part = step == ranks ? own : parts.data() + (size_t)((rank + step) % ranks) * bytes;
        if (step == 1) sum.assign(part, part + bytes);
        for (size_t i = 0; i < count && step > 1; i++)
            store(type, sum.data(), i, widen(type, sum.data(), i) + widen(type, part, i));
    }
    std::copy(sum.begin(), sum.end(), to);
}

// --------
// communicators

void unlink_all() {
    for (auto &c : live) unlink(c->path.c_str());
}

Shared *map_shared(const std::string &path) {
    int fd = open(path.c_str(), O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(Shared))) {
        if (fd >= 0) close(fd);
        return nullptr;
    }
    void *p = mmap(NULL, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return p == MAP_FAILED ? nullptr : (Shared *)p;
}

ncclResult_t check_gpus(const Communicator &c) {
    const char *allowed = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (cuda_stand_in_number("CUDA_STAND_IN_NCCL_VERSION", NCCL_VERSION_CODE) >= NCCL_VERSION(2, 30, 0) &&
        allowed && !strcmp(allowed, "1"))
        return ncclSuccess;
    for (int r = 0; r < c.ranks; r++) {
        if (r != c.rank && !strcmp(c.shared->gpu[r], c.shared->gpu[c.rank])) {
            return refuse(ncclInvalidUsage,
                          "Duplicate GPU: ranks " + std::to_string(c.rank) + " and " + std::to_string(r));
        }
    }
    return ncclSuccess;
}

// Returns true if all ranks have joined.
bool joined(Communicator &c) {
    if (c.ready || (int)c.shared->joined.load() < c.ranks) return c.ready;
    unlink(c.path.c_str());
    if (ncclResult_t rc = check_gpus(c)) c.error = rc;
    return c.ready = true;
}

ncclResult_t check_config(const ncclConfig_t *config) {
    if (!config || config->magic != 0xcafebeef || config->size != sizeof *config)
        return refuse(ncclInvalidArgument,
                      "the configuration was not initialized with NCCL_CONFIG_INITIALIZER");
    if (config->maxCTAs != NCCL_CONFIG_UNDEF_INT && config->maxCTAs <= 0)
        return refuse(ncclInvalidArgument, "maxCTAs " + std::to_string(config->maxCTAs));
    return ncclSuccess;
}

bool name_gpu(char *name, size_t room) {
    char host[64] = "", bus[64];
    int device;
    gethostname(host, sizeof host - 1);
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetPCIBusId(bus, sizeof bus, device) != cudaSuccess)
        return false;
    snprintf(name, room, "%s %s", host, bus);
    return true;
}

ncclResult_t join(ncclComm_t *handle, const std::string &path, int ranks, int rank, bool blocking) {
    *handle = nullptr;
    if (ranks < 1 || ranks > MAX_RANKS || rank < 0 || rank >= ranks)
        return refuse(ncclInvalidArgument, "rank " + std::to_string(rank) + " of " + std::to_string(ranks));
    auto c = std::make_shared<Communicator>();
    c->rank = c->first_rank = rank;
    c->ranks = ranks;
    c->blocking = blocking;
    c->path = path;
    if (ncclResult_t rc = take(*c, OWN_BYTES)) return rc;
    c->shared = map_shared(path);
    if (!c->shared) return refuse(ncclSystemError, path + ": " + strerror(errno));
    if (c->shared->taken[rank].exchange(1))
        return refuse(ncclInvalidUsage, "rank " + std::to_string(rank) + " has already joined");
    if (!name_gpu(c->shared->gpu[rank], sizeof c->shared->gpu[rank]))
        return refuse(ncclUnhandledCudaError, "no device");
    c->shared->joined++;
    lock.lock();
    static int registered = atexit(unlink_all);
    (void)registered;
    if (live.empty()) operations = 0;
    live.push_back(c);
    lock.unlock();
    *handle = (ncclComm_t)c.get();
    while (blocking && !joined(*c)) usleep(1000);
    return blocking ? (ncclResult_t)(int)c->error : ncclInProgress;
}

// Joins the ranks of its color, in the order of their keys, once all have called. Returns true when the split
// is done.
bool has_split(Communicator &c) {
    if (!c.to) return true;
    const int i = c.splits - 1, *color = c.shared->color[i], *key = c.shared->key[i];
    if (c.shared->splitting[i] < c.ranks) return false;
    if (!c.child) {
        int rank = 0, ranks = 0;
        for (int r = 0; r < c.ranks; r++) {
            ranks += color[r] == color[c.rank];
            rank += color[r] == color[c.rank] && key[r] < key[c.rank];
        }
        std::string path = c.path + "." + std::to_string(i) + "." + std::to_string(color[c.rank]);
        ncclResult_t rc = join(&c.child, path, ranks, rank, false);
        if (rc != ncclInProgress) c.error = rc;
        if (c.error) return false;
        find(c.child)->first_rank = c.first_rank;
    }
    if (!joined(*find(c.child))) return false;
    *c.to = c.child;
    c.child = nullptr;
    c.to = nullptr;
    return true;
}

}  // namespace

ncclResult_t ncclGetVersion(int *version) {
    *version = (int)cuda_stand_in_number("CUDA_STAND_IN_NCCL_VERSION", NCCL_VERSION_CODE);
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    static std::atomic<int> made{ 0 };
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/dev/shm/nccl_stand_in.%d.%d.%llx", (int)getpid(), made++,
             (unsigned long long)std::chrono::steady_clock::now().time_since_epoch().count());
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    if (ncclResult_t rc = check_config(config)) return rc;
    return join(comm, id.internal, ranks, rank, config->blocking != 0);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *child, ncclConfig_t *config) {
    CommunicatorPtr c = find(comm);
    *child = nullptr;
    if (ncclResult_t rc = usable(c)) return rc;
    if (ncclResult_t rc = check_config(config)) return rc;
    if (c->blocking || config->blocking || color < 0 || c->splits == MAX_SPLITS)
        return refuse(ncclInvalidArgument, "the stand-in cannot split this communicator");
    c->to = child;
    c->shared->color[c->splits][c->rank] = color;
    c->shared->key[c->splits][c->rank] = key;
    c->shared->splitting[c->splits++]++;
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
    CommunicatorPtr c = find(comm);
    if (!c) return refuse(ncclInvalidArgument, "no such communicator");
    if (c->unissued) {
        *state = ncclInProgress;
        return issue(c);
    }
    bool busy = !joined(*c) || !has_split(*c) ||
                (c->finalizing && (c->unfinished || (int)c->shared->finalized.load() < c->ranks));
    int error = c->error ? (int)c->error : (int)c->shared->error;
    *state = error ? (ncclResult_t)error : busy ? ncclInProgress : ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    CommunicatorPtr c = find(comm);
    if (ncclResult_t rc = usable(c)) return rc;
    if (!c->registered.empty()) return refuse(ncclInvalidUsage, "memory is still registered");
    c->finalizing = true;
    c->shared->finalized++;
    return c->blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    CommunicatorPtr c = find(comm);
    if (!c) return refuse(ncclInvalidArgument, "no such communicator");
    if (c->unfinished || c->unissued)
        return refuse(ncclInvalidUsage, "operations are in progress: NCCL would wait for them");
    for (void *p : c->memory) cudaFree(p);
    std::lock_guard<std::recursive_mutex> guard(lock);
    live.erase(std::find(live.begin(), live.end(), c));
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t rc) {
    static const char *texts[] = { "no error",       "unhandled cuda error", "unhandled system error",
                                   "internal error", "invalid argument",     "invalid usage",
                                   "network error",  "in progress" };
    return (unsigned)rc < sizeof texts / sizeof *texts ? texts[rc] : "unknown";
}

const char *ncclGetLastError(ncclComm_t) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    static char text[512];
    snprintf(text, sizeof text, "%s", last_error.c_str());
    return text;
}

ncclResult_t ncclMemAlloc(void **p, size_t bytes) {
    if (cudaMalloc(p, bytes) != cudaSuccess) return refuse(ncclUnhandledCudaError, "out of memory");
    std::lock_guard<std::recursive_mutex> guard(lock);
    allocated[*p] = bytes;
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *p) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (!allocated.count(p))
        return refuse(ncclInvalidArgument, "ncclMemFree of memory that is not from ncclMemAlloc");
    for (auto &c : live)
        if (c->registered.count(p))
            return refuse(ncclInvalidUsage, "ncclMemFree of memory that is still registered");
    allocated.erase(p);
    return cudaFree(p) == cudaSuccess ? ncclSuccess : refuse(ncclUnhandledCudaError, "cudaFree");
}

static ncclResult_t check_registered(const Communicator &c, void *base, size_t bytes) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    auto block = allocated.upper_bound(base);
    if (block == allocated.begin() ||
        (char *)base + bytes > (char *)std::prev(block)->first + std::prev(block)->second)
        return refuse(ncclInvalidArgument, "only memory from ncclMemAlloc can be registered");
    if (c.registered.count(base)) return refuse(ncclInvalidUsage, "already registered");
    return ncclSuccess;
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void *base, size_t bytes, void **handle) {
    CommunicatorPtr c = find(comm);
    if (ncclResult_t rc = usable(c)) return rc;
    if (ncclResult_t rc = check_registered(*c, base, bytes)) return rc;
    c->registered[ *handle = base] = bytes;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void *handle) {
    CommunicatorPtr c = find(comm);
    if (ncclResult_t rc = usable(c)) return rc;
    return c->registered.erase(handle) ? ncclSuccess : refuse(ncclInvalidArgument, "not registered");
}

ncclResult_t ncclGroupStart(void) {
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    if (!depth) return refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    ncclResult_t result = ncclSuccess;
    if (!--depth) {
        for (auto &c : grouped) {
            ncclResult_t rc = end_operation(c);
            result = result && result != ncclInProgress ? result : rc ? rc : result;
        }
        grouped.clear();
    }
    return result;
}

static ncclResult_t message(bool is_send, const void *p, size_t count, ncclDataType_t type, int peer,
                            ncclComm_t comm, cudaStream_t stream) {
    size_t bytes = count * size_of(type);
    return operation(comm, stream, [&](Communicator &c, Operation &op) {
        ncclResult_t rc = check(c, peer, { { p, bytes } });
        if (!rc) add(op, is_send, peer, SEND, type, p, bytes);
        return rc;
    });
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return message(true, from, count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return message(false, to, count, type, peer, comm, stream);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    size_t bytes = count * size_of(type);
    return operation(comm, stream, [&](Communicator &c, Operation &op) {
        ncclResult_t rc = check(c, 0, { { from, bytes }, { to, c.ranks * bytes } });
        char *own = (char *)to + c.rank * bytes;
        if (rc) return rc;
        if (from != own && (char *)from < (char *)to + c.ranks * bytes && (char *)to < (char *)from + bytes)
            return refuse(ncclInvalidArgument, "overlapping buffers must use NCCL's in-place layout");
        for (int r = 0; r < c.ranks; r++) {
            if (r != c.rank) {
                add(op, true, r, ALL_GATHER, type, from, bytes);
                add(op, false, r, ALL_GATHER, type, (char *)to + r * bytes, bytes);
            }
        }
        op.then.push_back([=] { memmove(own, from, bytes); });
        return ncclSuccess;
    });
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t,
                               ncclComm_t comm, cudaStream_t stream) {
    size_t bytes = count * size_of(type);
    return operation(comm, stream, [&](Communicator &c, Operation &op) {
        ncclResult_t rc = check(c, 0, { { from, c.ranks * bytes }, { to, bytes } });
        if (rc) return rc;
        const char *own = (const char *)from + c.rank * bytes;
        if (to != own && (char *)to < (char *)from + c.ranks * bytes && (char *)from < (char *)to + bytes)
            return refuse(ncclInvalidArgument, "overlapping buffers must use NCCL's in-place layout");
        auto parts = std::make_shared<std::vector<char>>(c.ranks * bytes);
        for (int r = 0; r < c.ranks; r++) {
            if (r != c.rank) {
                add(op, true, r, REDUCE_SCATTER, type, (const char *)from + r * bytes, bytes);
                add(op, false, r, REDUCE_SCATTER, type, parts->data() + r * bytes, bytes);
            }
        }
        int rank = c.rank, ranks = c.ranks;
        op.then.push_back([=] { ring_sum(type, (char *)to, own, *parts, rank, ranks, count); });
        return ncclSuccess;
    });
}

long nccl_stand_in_groups(void) { return groups; }

size_t nccl_stand_in_registered(void) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    size_t sum = 0;
    for (auto &c : live)
        for (auto &[p, bytes] : c->registered) sum += bytes;
    return sum;
}
