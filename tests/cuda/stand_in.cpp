// The stand-in for the CUDA runtime: devices, memory, streams and events. stand_in.h describes its behaviour,
// and blocks.h runs kernels.
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unistd.h>
#include "blocks.h"
#include "nvtx3/nvToolsExt.h"

long cuda_stand_in_number(const char *name, long usual) {
    const char *text = getenv(name);
    char *end;
    if (!text || !*text) return usual;
    long value = strtol(text, &end, 10);
    if (*end || value < 0) {
        fprintf(stderr, "CUDA stand-in: %s=%s: not a number\n", name, text);
        abort();
    }
    return value;
}

namespace {

enum { MAX_DEVICES = 8, ALIGNMENT = 256, RED_ZONE = 256, POISON = 0xff };

using StreamPtr = std::shared_ptr<CUstream_st>;
using EventPtr = std::shared_ptr<CUevent_st>;

// A wait for another stream's work, an event's mark, or work that may depend on another process.
struct Operation {
    StreamPtr wait_for;
    uint64_t wait_until = 0;
    EventPtr mark;
    std::function<bool()> ready;
    std::function<void()> work;
};
}  // namespace

struct CUstream_st {
    int device = 0;
    bool is_default = false;
    std::deque<Operation> queue;
    uint64_t queued = 0, done = 0;  // operations since the start
};

struct CUevent_st {
    int device = 0;
    bool timed = false;
    StreamPtr stream;       // nullptr: never recorded
    uint64_t position = 0;  // complete when the stream has done this many operations
    double ms = 0;
};

namespace {

struct Device {
    std::map<size_t, size_t> free_pieces;  // offset in the device's part of the arena -> size
    size_t used = 0;
    StreamPtr default_stream;
};

enum Mode { EAGER, LAZY, RIVAL, LAG };

struct State {
    std::mutex lock;
    // settings
    Mode mode = EAGER;
    int devices = 1, capability = 90, first_capability = 90, multiprocessors = 4, blocks = 2;
    int gpu[MAX_DEVICES] = {};  // each device's number without CUDA_VISIBLE_DEVICES
    bool mig = false;
    bool protect = true, backward = false;
    std::string fail_call;
    long fail_at = 0;
    // memory
    size_t capacity = 2ul << 30;
    char *arena = nullptr;  // one part for each of MAX_DEVICES
    bool accessible = false;
    std::map<const char *, size_t> live;    // device allocation -> size
    std::map<const char *, size_t> pinned;  // host memory -> size
    Device device[MAX_DEVICES];
    std::map<cudaStream_t, StreamPtr> streams;
    std::map<cudaEvent_t, EventPtr> events;
    cudaError_t sticky = cudaSuccess;  // of a kernel that failed
    // counts
    long launches = 0, waits = 0, allocations = 0;
    State();
};

State &state() {
    static State *s = new State;  // never deleted, because threads may use it until exit
    return *s;
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;
std::atomic<double> pretended_ms{ 0 };  // the time that cuda_stand_in_takes added
const double KERNEL_MS = 5;             // a kernel's simulated time if CUDA_STAND_IN_FASTEST is set

// --------
// settings

int choice(const char *name, std::initializer_list<const char *> words) {
    const char *text = getenv(name);
    int i = 0;
    for (const char *word : words) {
        if (!text || !*text || !strcmp(text, word)) return text && *text ? i : 0;
        i++;
    }
    fprintf(stderr, "CUDA stand-in: %s=%s: unknown value\n", name, text);
    abort();
}

void choose_visible(State &s) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    int all = s.devices, seen = 0;
    for (int d = 0; d < MAX_DEVICES; d++) s.gpu[d] = d;
    for (char *end; list && seen < all; list = end + 1) {
        long d = strtol(list, &end, 10);
        if (end == list || d < 0 || d >= all) break;
        s.gpu[seen++] = (int)d;
        if (*end != ',') break;
    }
    if (list) s.devices = seen;
}

void read_settings(State &s) {
    s.mode = (Mode)choice("CUDA_STAND_IN", { "eager", "lazy", "rival", "lag" });
    s.backward = choice("CUDA_STAND_IN_ORDER", { "forward", "backward" });
    long devices = cuda_stand_in_number("CUDA_STAND_IN_DEVICES", 1);
    s.devices = devices > MAX_DEVICES ? MAX_DEVICES : (int)devices;
    choose_visible(s);
    s.mig = cuda_stand_in_number("CUDA_STAND_IN_MIG", 0);
    s.capability = (int)cuda_stand_in_number("CUDA_STAND_IN_CAPABILITY", 90);
    s.first_capability = (int)cuda_stand_in_number("CUDA_STAND_IN_FIRST", s.capability);
    s.multiprocessors = (int)cuda_stand_in_number("STAND_IN_SMS", 4);
    s.blocks = (int)cuda_stand_in_number("STAND_IN_BLOCKS", 2);
    s.protect = cuda_stand_in_number("CUDA_STAND_IN_PROTECT", 1);
    s.sticky = cudaSuccess;
    s.fail_call.clear();
    const char *fail = getenv("CUDA_STAND_IN_FAIL"), *colon = fail ? strchr(fail, ':') : nullptr;
    if (fail && *fail) {
        s.fail_call = colon ? std::string(fail, colon) : fail;
        s.fail_at = colon ? atol(colon + 1) : 1;
    }
}

void allow_access(State &s, bool allow) {
    if (s.accessible != allow && (allow || s.protect)) {
        if (mprotect(s.arena, MAX_DEVICES * s.capacity, allow ? PROT_READ | PROT_WRITE : PROT_NONE)) {
            perror("CUDA stand-in: mprotect");
            abort();
        }
        s.accessible = allow;
    }
}

size_t padded(size_t size) { return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + RED_ZONE; }

void check_red_zones(State &s) {
    allow_access(s, true);
    for (auto &[p, size] : s.live) {
        for (size_t i = size; i < padded(size); i++) {
            if ((unsigned char)p[i] != POISON) {
                fprintf(stderr,
                        "CUDA stand-in: byte %zu was overwritten, past the end of an allocation of %zu bytes "
                        "of device memory\n",
                        i, size);
                abort();
            }
        }
    }
}

void at_exit() {
    State &s = state();
    if (!s.lock.try_lock()) return;
    check_red_zones(s);
    if (cuda_stand_in_number("CUDA_STAND_IN_COUNT", 0))
        fprintf(stderr, "CUDA stand-in: %ld launches, %ld host waits, %ld allocations\n", s.launches, s.waits,
                s.allocations);
    s.lock.unlock();
}

State::State() {
    read_settings(*this);
    capacity = (size_t)cuda_stand_in_number("CUDA_STAND_IN_MEMORY", (long)capacity) / (2u << 20) * (2u << 20);
    arena = (char *)mmap(NULL, MAX_DEVICES * capacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                         -1, 0);
    if (arena == MAP_FAILED) {
        perror("CUDA stand-in: memory of the devices");
        abort();
    }
    madvise(arena, MAX_DEVICES * capacity, MADV_HUGEPAGE);  // a hint, so that mprotect walks fewer pages
    for (int d = 0; d < MAX_DEVICES; d++) {
        device[d].free_pieces[0] = capacity;
        device[d].default_stream = std::make_shared<CUstream_st>();
        device[d].default_stream->device = d;
        device[d].default_stream->is_default = true;
    }
    atexit(at_exit);
}

bool fails(State &s, const char *call) { return s.fail_call == call && --s.fail_at == 0; }

// Returns the error that a failing call would probably return on a GPU.
cudaError_t likely_error(const std::string &call) {
    auto has = [&](const char *part) { return call.find(part) != std::string::npos; };
    if (call == "cudaGetDeviceCount") return cudaErrorInsufficientDriver;
    if (call == "cudaSetDevice") return cudaErrorInvalidDevice;
    if (call == "launch") return cudaErrorLaunchFailure;
    if (has("lloc") || has("Create") || has("Register")) return cudaErrorMemoryAllocation;
    return has("Synchronize") || call == "cudaMemcpy" ? cudaErrorIllegalAddress : cudaErrorUnknown;
}

// Runs an API call. body gets the state, with the lock held. A kernel's failure is returned by a call that
// waits or, if no call waits, by the next one.
template <class F> cudaError_t api(const char *name, F body) {
    State &s = state();
    std::lock_guard<std::mutex> guard(s.lock);
    bool asks = !strncmp(name, "cudaGetDevice", 13) || !strncmp(name, "cudaDeviceGet", 13);
    long waits = s.waits;
    cudaError_t rc = fails(s, name)      ? likely_error(name)
                     : !s.devices        ? cudaErrorNoDevice
                     : s.sticky && !asks ? s.sticky
                                         : body(s);
    if (s.waits > waits && s.sticky) rc = s.sticky;
    allow_access(s, false);
    if (rc != cudaSuccess) last_error = rc;
    return rc;
}

// --------
// streams

StreamPtr stream_of(State &s, cudaStream_t handle) {
    if (!handle) return s.device[current_device].default_stream;
    auto found = s.streams.find(handle);
    return found == s.streams.end() ? nullptr : found->second;
}

EventPtr event_of(State &s, cudaEvent_t handle) {
    auto found = s.events.find(handle);
    return found == s.events.end() ? nullptr : found->second;
}

bool is_eager(const State &s, const CUstream_st &stream) {
    return s.mode == EAGER || s.mode == (stream.is_default ? LAG : RIVAL);
}

bool is_ready(State &s, const Operation &op) {
    if (s.sticky) return true;
    if (op.ready) {
        allow_access(s, true);
        return op.ready();
    }
    return !op.wait_for || op.wait_for->done >= op.wait_until;
}

double now_ms() {
    auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::milli>(now).count();
}

// Runs the first operation, which must be ready.
void run_next(State &s, CUstream_st &stream) {
    Operation op = std::move(stream.queue.front());
    stream.queue.pop_front();
    if (op.mark) op.mark->ms = now_ms() + pretended_ms;
    if (op.work && !s.sticky) {
        allow_access(s, true);
        op.work();
    }
    stream.done++;
}

void progress(State &s);
void step(State &s, CUstream_st &stream);

// Lets other threads and processes continue. After many pauses it runs all streams, because another process
// may wait for work on any of them.
void pause(State &s, int pauses) {
    enum { PATIENCE = 300 };
    s.lock.unlock();
    usleep(100);
    s.lock.lock();
    progress(s);
    auto streams = s.streams;  // a copy: other threads may create or destroy streams in a pause
    for (auto &[handle, stream] : streams)
        if (pauses > PATIENCE && !stream->queue.empty()) step(s, *stream);
}

void advance(State &s, CUstream_st &stream, uint64_t until) {
    for (int pauses = 0; stream.done < until;) {
        const Operation &next = stream.queue.front();
        if (is_ready(s, next))
            run_next(s, stream);
        else if (StreamPtr other = next.wait_for)
            advance(s, *other, next.wait_until);
        else
            pause(s, ++pauses);
    }
}

// Runs one operation: the stream's next one, or one on a stream that it waits for.
void step(State &s, CUstream_st &stream) {
    const Operation &next = stream.queue.front();
    if (is_ready(s, next))
        run_next(s, stream);
    else if (next.wait_for)
        step(s, *next.wait_for);
}

bool run_ready(State &s, CUstream_st &stream) {
    bool any = false;
    while (is_eager(s, stream) && !stream.queue.empty() && is_ready(s, stream.queue.front())) {
        run_next(s, stream);
        any = true;
    }
    return any;
}

// Runs all operations of eager streams that are ready.
void progress(State &s) {
    bool any;
    do {
        any = false;
        for (Device &device : s.device) any |= run_ready(s, *device.default_stream);
        for (auto &entry : s.streams) any |= run_ready(s, *entry.second);
    } while (any);
}

void push(State &s, CUstream_st &stream, Operation op) {
    stream.queue.push_back(std::move(op));
    stream.queued++;
    progress(s);
}

void push_work(State &s, CUstream_st &stream, std::function<void()> work) {
    Operation op;
    op.work = std::move(work);
    push(s, stream, std::move(op));
}

void wait(State &s, CUstream_st &stream, uint64_t until) {
    s.waits++;
    advance(s, stream, until);
    progress(s);
}

void wait_device(State &s) {
    s.waits++;
    CUstream_st &first = *s.device[current_device].default_stream;
    advance(s, first, first.queued);
    auto streams = s.streams;  // a copy: other threads may create or destroy streams meanwhile
    for (auto &[handle, stream] : streams)
        if (stream->device == current_device) advance(s, *stream, stream->queued);
    progress(s);
}

// --------
// memory

bool in_arena(const State &s, const void *p) {
    return (const char *)p >= s.arena && (const char *)p < s.arena + MAX_DEVICES * s.capacity;
}

enum Inside { OUTSIDE, INSIDE, PARTLY };

// Returns whether [p, p + size) is in one of the pieces. If size is 0, p may be the end of a piece.
Inside inside(const std::map<const char *, size_t> &pieces, const void *p, size_t size) {
    const char *begin = (const char *)p;
    auto next = pieces.upper_bound(begin);
    Inside result = next != pieces.end() && begin + size > next->first ? PARTLY : OUTSIDE;
    if (next == pieces.begin()) return result;
    auto [piece, piece_size] = *std::prev(next);
    if (begin + size <= piece + piece_size) return INSIDE;
    return begin < piece + piece_size ? PARTLY : result;
}

// Allocates a piece. Returns its offset in the device's part of the arena, or the capacity if none is large
// enough.
size_t take_piece(State &s, Device &device, size_t size) {
    for (auto [offset, piece] : device.free_pieces) {
        if (piece >= size) {
            device.free_pieces.erase(offset);
            if (piece > size) device.free_pieces[offset + size] = piece - size;
            device.used += size;
            return offset;
        }
    }
    return s.capacity;
}

void give_piece(Device &device, size_t offset, size_t size) {
    device.used -= size;
    auto after = device.free_pieces.find(offset + size);
    if (after != device.free_pieces.end()) {
        size += after->second;
        device.free_pieces.erase(after);
    }
    auto next = device.free_pieces.upper_bound(offset);
    if (next != device.free_pieces.begin() && std::prev(next)->first + std::prev(next)->second == offset)
        std::prev(next)->second += size;
    else
        device.free_pieces[offset] = size;
}

cudaError_t copy(State &s, void *dst, const void *src, size_t count, cudaMemcpyKind kind, cudaStream_t handle,
                 bool async) {
    StreamPtr stream = stream_of(s, handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (!count) return cudaSuccess;
    bool to_device = in_arena(s, dst), from_device = in_arena(s, src);
    cudaMemcpyKind actual = to_device     ? from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice
                            : from_device ? cudaMemcpyDeviceToHost
                                          : cudaMemcpyHostToHost;
    Inside dst_inside = inside(to_device ? s.live : s.pinned, dst, count),
           src_inside = inside(from_device ? s.live : s.pinned, src, count);
    if (!dst || !src || (kind != cudaMemcpyDefault && kind != actual) || dst_inside == PARTLY ||
        src_inside == PARTLY || (to_device && !dst_inside) || (from_device && !src_inside))
        return cudaErrorInvalidValue;
    if (actual == cudaMemcpyHostToDevice && async && !src_inside) {
        // Pageable memory is staged before the call returns.
        auto staged = std::make_shared<std::string>((const char *)src, count);
        push_work(s, *stream, [=] { memcpy(dst, staged->data(), count); });
        return cudaSuccess;
    }
    push_work(s, *stream, [=] { memcpy(dst, src, count); });
    bool pageable = (!to_device && !dst_inside) || actual == cudaMemcpyHostToHost;
    if (actual != cudaMemcpyDeviceToDevice && (!async || pageable)) wait(s, *stream, stream->queued);
    return cudaSuccess;
}

cudaError_t clear(State &s, void *p, int value, size_t count, cudaStream_t handle) {
    StreamPtr stream = stream_of(s, handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (!count) return cudaSuccess;
    if (!in_arena(s, p) || inside(s.live, p, count) != INSIDE) return cudaErrorInvalidValue;
    push_work(s, *stream, [=] { memset(p, value, count); });
    return cudaSuccess;
}

cudaError_t create_stream(State &s, cudaStream_t *handle, unsigned flags) {
    if (!handle || flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
    if (!(flags & cudaStreamNonBlocking)) {
        fprintf(stderr, "CUDA stand-in: streams that wait for the default stream are not supported; pass "
                        "cudaStreamNonBlocking\n");
        return cudaErrorInvalidValue;
    }
    auto stream = std::make_shared<CUstream_st>();
    stream->device = current_device;
    s.streams[ *handle = stream.get()] = stream;
    return cudaSuccess;
}

bool is_complete(const CUevent_st &event) { return !event.stream || event.stream->done >= event.position; }

thread_local int nvtx_depth = 0;
}  // namespace

// --------
// devices

cudaError_t cudaGetDeviceCount(int *count) {
    *count = 0;
    return api(__func__, [&](State &s) {
        *count = s.devices;
        return cudaSuccess;
    });
}

cudaError_t cudaSetDevice(int device) {
    return api(__func__, [&](State &s) {
        if (device < 0 || device >= s.devices) return cudaErrorInvalidDevice;
        current_device = device;
        return cudaSuccess;
    });
}

cudaError_t cudaGetDevice(int *device) {
    return api(__func__, [&](State &) {
        *device = current_device;
        return cudaSuccess;
    });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int device) {
    return api(__func__, [&](State &s) {
        if (device < 0 || device >= s.devices) return cudaErrorInvalidDevice;
        *prop = cudaDeviceProp{};
        snprintf(prop->name, sizeof prop->name, "CUDA stand-in");
        snprintf(prop->uuid.bytes, sizeof prop->uuid.bytes, "stand-in %d", s.gpu[device]);
        int capability = s.gpu[device] ? s.capability : s.first_capability;
        prop->major = capability / 10;
        prop->minor = capability % 10;
        prop->multiProcessorCount = s.multiprocessors;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attr, int device) {
    cudaDeviceProp prop;
    cudaError_t rc = cudaGetDeviceProperties(&prop, device);
    if (rc != cudaSuccess) return rc;
    return api(__func__, [&](State &) {
        *value = attr == cudaDevAttrMultiProcessorCount      ? prop.multiProcessorCount
                 : attr == cudaDevAttrComputeCapabilityMajor ? prop.major
                                                             : prop.minor;
        return cudaSuccess;
    });
}

cudaError_t cuda_stand_in_occupancy(int *blocks, int threads) {
    enum { SMALL = 128, FIT = 65536 / 64 };  // FIT: how many threads of 64 registers fit on a multiprocessor
    return api(__func__, [&](State &s) {
        *blocks = threads <= SMALL || s.blocks < FIT / threads ? s.blocks : FIT / threads;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device) {
    return api(__func__, [&](State &s) {
        if (!id || size < 13 || device < 0 || device >= s.devices) return cudaErrorInvalidValue;
        snprintf(id, (size_t)size, "0000:%02x:00.0", s.mig ? 1 : s.gpu[device] + 1);
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    return api(__func__, [&](State &) {
        *least = 0;
        *greatest = -5;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceSynchronize(void) {
    return api(__func__, [&](State &s) {
        wait_device(s);
        check_red_zones(s);
        return cudaSuccess;
    });
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

// --------
// errors

cudaError_t cudaGetLastError(void) {
    cudaError_t rc = last_error;
    last_error = cudaSuccess;
    return rc;
}

const char *cudaGetErrorName(cudaError_t error) {
#define NAME(name, value, text) error == name ? #name:
    return CUDA_ERRORS(NAME) "unrecognized error code";
#undef NAME
}

const char *cudaGetErrorString(cudaError_t error) {
#define TEXT(name, value, text) error == name ? text:
    return CUDA_ERRORS(TEXT) "unrecognized error code";
#undef TEXT
}

// --------
// memory

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    return api(__func__, [&](State &s) {
        *total = s.capacity;
        *free = s.capacity - s.device[current_device].used;
        return cudaSuccess;
    });
}

// Fills a block, but only both ends of a large one: a workspace of 32 MiB takes longer than a small step.
static void poison(void *p, size_t size) {
    const size_t end = std::min(size, (size_t)1 << 20);
    memset(p, POISON, end);
    memset((char *)p + size - end, POISON, end);
}

cudaError_t cudaMalloc(void **p, size_t size) {
    *p = nullptr;
    return api(__func__, [&](State &s) {
        s.allocations++;
        if (!size) return cudaSuccess;
        size_t offset = size < s.capacity ? take_piece(s, s.device[current_device], padded(size))
                                          : s.capacity;
        if (offset == s.capacity) return cudaErrorMemoryAllocation;
        *p = s.arena + current_device * s.capacity + offset;
        s.live[(char *)*p] = size;
        allow_access(s, true);
        poison(*p, padded(size));
        return cudaSuccess;
    });
}

cudaError_t cudaFree(void *p) {
    return api(__func__, [&](State &s) {
        if (!p) return cudaSuccess;
        auto found = s.live.find((char *)p);
        if (found == s.live.end()) return cudaErrorInvalidValue;
        wait_device(s);
        check_red_zones(s);
        poison(p, found->second);
        size_t offset = (size_t)((char *)p - s.arena), size = padded(found->second);
        s.live.erase(found);
        give_piece(s.device[offset / s.capacity], offset % s.capacity, size);
        return cudaSuccess;
    });
}

cudaError_t cudaHostAlloc(void **p, size_t size, unsigned) {
    *p = nullptr;
    return api(__func__, [&](State &s) {
        s.allocations++;
        if (!size) return cudaSuccess;
        if (posix_memalign(p, 4096, size)) return cudaErrorMemoryAllocation;
        poison(*p, size);
        s.pinned[(char *)*p] = size;
        return cudaSuccess;
    });
}

cudaError_t cudaFreeHost(void *p) {
    return api(__func__, [&](State &s) {
        if (!p) return cudaSuccess;
        if (!s.pinned.count((char *)p)) return cudaErrorInvalidValue;
        wait_device(s);
        s.pinned.erase((char *)p);
        free(p);
        return cudaSuccess;
    });
}

cudaError_t cudaHostRegister(void *p, size_t size, unsigned) {
    return api(__func__, [&](State &s) {
        if (!p || !size || in_arena(s, p)) return cudaErrorInvalidValue;
        if (inside(s.pinned, p, size) != OUTSIDE) return cudaErrorHostMemoryAlreadyRegistered;
        s.pinned[(char *)p] = size;
        return cudaSuccess;
    });
}

cudaError_t cudaHostUnregister(void *p) {
    return api(__func__, [&](State &s) {
        if (!s.pinned.count((char *)p)) return cudaErrorHostMemoryNotRegistered;
        wait_device(s);
        s.pinned.erase((char *)p);
        return cudaSuccess;
    });
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, cudaMemcpyKind kind) {
    return api(__func__, [&](State &s) { return copy(s, dst, src, count, kind, nullptr, false); });
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    return api(__func__, [&](State &s) { return copy(s, dst, src, count, kind, stream, true); });
}

cudaError_t cudaMemset(void *p, int value, size_t count) {
    return api(__func__, [&](State &s) { return clear(s, p, value, count, nullptr); });
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t count, cudaStream_t stream) {
    return api(__func__, [&](State &s) { return clear(s, p, value, count, stream); });
}

// --------
// streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return api(__func__, [&](State &s) { return create_stream(s, stream, flags); });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) {
    return api(__func__, [&](State &s) { return create_stream(s, stream, flags); });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    return api(__func__, [&](State &s) {
        StreamPtr stream = handle ? stream_of(s, handle) : nullptr;
        if (!stream) return cudaErrorInvalidResourceHandle;
        advance(s, *stream, stream->queued);
        s.streams.erase(handle);
        progress(s);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    return api(__func__, [&](State &s) {
        StreamPtr stream = stream_of(s, handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        wait(s, *stream, stream->queued);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    return api(__func__, [&](State &s) {
        StreamPtr stream = stream_of(s, handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        if (stream->queue.empty()) return cudaSuccess;
        s.waits++;
        step(s, *stream);
        progress(s);
        return cudaErrorNotReady;
    });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned) {
    return api(__func__, [&](State &s) {
        StreamPtr stream = stream_of(s, handle);
        EventPtr event = event_of(s, event_handle);
        if (!stream || !event) return cudaErrorInvalidResourceHandle;
        if (event->stream && event->stream != stream) {
            Operation op;
            op.wait_for = event->stream;
            op.wait_until = event->position;
            push(s, *stream, std::move(op));
        }
        return cudaSuccess;
    });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *handle, unsigned flags) {
    return api(__func__, [&](State &s) {
        if (!handle || (flags != cudaEventDefault && flags != cudaEventDisableTiming))
            return cudaErrorInvalidValue;
        auto event = std::make_shared<CUevent_st>();
        event->device = current_device;
        event->timed = !(flags & cudaEventDisableTiming);
        s.events[ *handle = event.get()] = event;
        return cudaSuccess;
    });
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventRecord(cudaEvent_t event_handle, cudaStream_t handle) {
    return api(__func__, [&](State &s) {
        StreamPtr stream = stream_of(s, handle);
        EventPtr event = event_of(s, event_handle);
        if (!stream || !event || event->device != stream->device) return cudaErrorInvalidResourceHandle;
        event->stream = stream;
        event->position = stream->queued + 1;
        Operation op;
        op.mark = event;
        push(s, *stream, std::move(op));
        return cudaSuccess;
    });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    return api(__func__, [&](State &s) {
        EventPtr event = event_of(s, handle);
        if (!event) return cudaErrorInvalidResourceHandle;
        if (!is_complete(*event)) wait(s, *event->stream, event->position);
        return cudaSuccess;
    });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
    return api(__func__, [&](State &s) {
        EventPtr event = event_of(s, handle);
        if (!event) return cudaErrorInvalidResourceHandle;
        if (is_complete(*event)) return cudaSuccess;
        s.waits++;
        step(s, *event->stream);
        progress(s);
        return cudaErrorNotReady;
    });
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start_handle, cudaEvent_t end_handle) {
    return api(__func__, [&](State &s) {
        EventPtr start = event_of(s, start_handle), end = event_of(s, end_handle);
        if (!start || !end || !start->timed || !end->timed || !start->stream || !end->stream)
            return cudaErrorInvalidResourceHandle;
        if (!is_complete(*start) || !is_complete(*end)) return cudaErrorNotReady;
        *ms = (float)(end->ms - start->ms);
        return cudaSuccess;
    });
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
    return api(__func__, [&](State &s) {
        return s.events.erase(handle) ? cudaSuccess : cudaErrorInvalidResourceHandle;
    });
}

// --------
// kernels

bool cuda_stand_in_reaches(const void *p, size_t size) {
    State &s = state();
    std::lock_guard<std::mutex> guard(s.lock);
    return inside(in_arena(s, p) ? s.live : s.pinned, p, size) == INSIDE;
}

cudaError_t cuda_stand_in_refuse(const void *kernel) {
    return api("launch", [&](State &) {
        fprintf(stderr,
                "CUDA stand-in: kernel at %p: an argument points to memory that the device cannot reach\n",
                kernel);
        return cudaErrorIllegalAddress;
    });
}

static cudaError_t queue_on(State &s, cudaStream_t handle, std::function<void()> work,
                            std::function<bool()> ready = nullptr) {
    StreamPtr stream = stream_of(s, handle);
    if (!stream || stream->device != current_device) return cudaErrorInvalidResourceHandle;
    s.launches++;
    Operation op;
    op.ready = std::move(ready);
    op.work = std::move(work);
    if (fails(s, "kernel")) op.work = [&s] { s.sticky = cudaErrorIllegalAddress; };
    push(s, *stream, std::move(op));
    return cudaSuccess;
}

cudaError_t cuda_stand_in_queue(cudaStream_t stream, std::function<void()> work,
                                std::function<bool()> ready) {
    return api("queue", [&](State &s) { return queue_on(s, stream, std::move(work), std::move(ready)); });
}

cudaError_t cuda_stand_in_launch(const cudaLaunchConfig_t *config, const void *kernel,
                                 std::function<void()> body) {
    dim3 grid = config->gridDim, threads = config->blockDim;
    return api("launch", [&](State &s) {
        size_t block_size = (size_t)threads.x * threads.y * threads.z,
               blocks = (size_t)grid.x * grid.y * grid.z;
        if (!block_size || block_size > blocks::MAX_THREADS || threads.z > 64 || !blocks ||
            grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535 || config->dynamicSmemBytes ||
            config->numAttrs)
            return cudaErrorInvalidValue;
        bool backward = s.backward;
        double pretended = getenv("CUDA_STAND_IN_FASTEST") ? KERNEL_MS : 0;
        return queue_on(s, config->stream, [=] {
            blocks::run_grid(grid, threads, kernel, body, backward);
            cuda_stand_in_takes(pretended);
        });
    });
}

// --------
// for tests

void cuda_stand_in_takes(double ms) {
    pretended_ms = pretended_ms + ms;  // no race, because only one operation runs at a time
}

bool cuda_stand_in_fails(const char *call) {
    State &s = state();
    std::lock_guard<std::mutex> guard(s.lock);
    return fails(s, call);
}

void cuda_stand_in_settings(void) {
    State &s = state();
    std::lock_guard<std::mutex> guard(s.lock);
    read_settings(s);
    progress(s);
    allow_access(s, false);
}

void cuda_stand_in_counts(long *launches, long *waits, long *allocations) {
    State &s = state();
    std::lock_guard<std::mutex> guard(s.lock);
    long *to[3] = { launches, waits, allocations }, from[3] = { s.launches, s.waits, s.allocations };
    for (int i = 0; i < 3; i++)
        if (to[i]) *to[i] = from[i];
}

// --------
// NVTX

int nvtxRangePushA(const char *) { return nvtx_depth++; }

int nvtxRangePop(void) {
    if (!nvtx_depth) {
        fprintf(stderr, "CUDA stand-in: nvtxRangePop without nvtxRangePushA\n");
        abort();
    }
    return --nvtx_depth;
}
