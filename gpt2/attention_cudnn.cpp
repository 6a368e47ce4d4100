// Causal attention using cuDNN 9's fused kernels, through its header-only C++ frontend. Each direction's
// graph is built once per shape and kept; a step only executes it. The tensors have the strides of qkv (B, T,
// 3, NH, HS) and out (B, T, NH, HS), so nothing is permuted. cuDNN's statistics of a row, max + log(sum of
// exp) of its scaled scores in fp32, (B, NH, T, 1), are the layers' lse.
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>
#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>
#include "attention_cudnn.h"
#include "cuda.h"

namespace fe = cudnn_frontend;
using Tensor = fe::graph::Tensor_attributes;
using Pointers = std::unordered_map<int64_t, void *>;

// Default limit on backward's scratch. Sequences that do not fit form further groups.
// Deterministic backward keeps a 16-bit tensor (sequences, NH, T, T): by cuDNN 9.19's own count, for an H100,
// 12 heads of 64 and T 1024, it takes 24 MiB per sequence, compared with 3 MiB if it may be nondeterministic.
static const size_t BACKWARD_BYTES = (size_t)512 << 20;
// The minimum scratch. It always exists, because cuBLASLt's workspace needs it. Forward uses it for shapes
// that were not planned, as in sampling.
static const int64_t SMALLEST_BYTES = (int64_t)4 << 20;

enum { Q = 1, K, V, OUT, LSE, DOUT, DQ, DK, DV };  // names of a graph's tensors

struct Shape {
    gpt2_dtype dt;
    int64_t B, T, C, NH;
    bool operator==(const Shape &o) const {
        return dt == o.dt && B == o.B && T == o.T && C == o.C && NH == o.NH;
    }
};

struct Wish {      // options for backward
    bool fast;     // it may be nondeterministic
    size_t limit;  // of its scratch
    bool operator==(const Wish &o) const { return fast == o.fast && limit == o.limit; }
};

struct Graph : fe::graph::Graph {
    // The bytes of the frontend's own tensors. In backward's scratch they lie before cuDNN's part.
    size_t front_bytes() const { return (size_t)get_fe_workspace_size_subtree(); }
};

struct Kept {
    Shape shape;
    std::shared_ptr<Graph> forward, backward;
    int64_t forward_bytes, backward_bytes;  // of scratch
    int64_t rows;                           // sequences in one execution of backward
    size_t skipped;                         // bytes before backward's scratch, included in backward_bytes
};

static cudnnHandle_t handle;
static std::vector<Kept> table;
static Wish wish;  // for the graphs of the table
static layers_attention_backward planned;
static int64_t planned_bytes;

static int good(fe::error_t status, const Shape &s, const char *what) {
    if (status.is_good()) return 0;
    std::string why = status.get_message();  // may have many lines
    std::replace(why.begin(), why.end(), '\n', ' ');
    return gpt2_fail("cuDNN rejects attention %s with B %d, T %d, NH %d, head size %d: %.400s", what,
                     (int)s.B, (int)s.T, (int)s.NH, (int)(s.C / s.NH), why.c_str());
}

// (rows, NH, T, HS) with `width` elements from one token to the next
static Tensor heads(const Shape &s, int64_t rows, int uid, int64_t width) {
    int64_t hs = s.C / s.NH;
    return Tensor().set_uid(uid).set_dim({ rows, s.NH, s.T, hs }).set_stride({ s.T * width, hs, width, 1 });
}

static Tensor stats(const Shape &s, int64_t rows) {
    return Tensor()
        .set_uid(LSE)
        .set_dim({ rows, s.NH, s.T, 1 })
        .set_stride({ s.NH * s.T, s.T, 1, 1 })
        .set_data_type(fe::DataType_t::FLOAT);
}

// Makes a node's output the tensor `as`.
static void output(std::shared_ptr<Tensor> tensor, const Tensor &as) {
    tensor->set_output(true).set_uid(as.get_uid()).set_dim(as.get_dim()).set_stride(as.get_stride());
}

static std::shared_ptr<Graph> new_graph(const Shape &s) {
    auto graph = std::make_shared<Graph>();
    graph->set_io_data_type(s.dt == GPT2_BF16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    return graph;
}

// Options of both directions: causal, scores times 1/sqrt(head size).
template <class Options> static Options options(const Shape &s, const char *name) {
    Options o;
    o.set_name(name).set_attn_scale(1 / sqrtf((float)(s.C / s.NH)));
    o.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
    return o;
}

// Takes the heuristic's first plan that works, the same in every run on the same GPU with the same library.
static int finish(Graph &graph, const Shape &s, const char *what, int64_t *bytes) {
    if (good(graph.build(handle, { fe::HeurMode_t::A }), s, what) != 0) return -1;
    return good(graph.get_workspace_size(*bytes), s, what);
}

static int build_forward(Kept &kept) {
    const Shape &s = kept.shape;
    auto graph = kept.forward = new_graph(s);
    int64_t n = s.B;
    auto q = graph->tensor(heads(s, n, Q, 3 * s.C));
    auto k = graph->tensor(heads(s, n, K, 3 * s.C));
    auto v = graph->tensor(heads(s, n, V, 3 * s.C));
    auto sdpa = options<fe::graph::SDPA_attributes>(s, "forward").set_generate_stats(true);
    auto [out, lse] = graph->sdpa(q, k, v, sdpa);
    output(out, heads(s, n, OUT, s.C));
    output(lse, stats(s, n));
    lse->set_data_type(fe::DataType_t::FLOAT);
    return finish(*graph, s, "forward", &kept.forward_bytes);
}

static int build_backward(Kept &kept, int64_t n) {
    const Shape &s = kept.shape;
    // The frontend promises cuDNN that lse and its own tensors start at multiples of 16 bytes, four floats.
    if (n * s.NH * s.T % 4 != 0)
        return gpt2_fail(
            "cuDNN's attention backward would take %d sequences x NH %d x T %d rows of scores at a "
            "time, which must be a multiple of 4: use another T, or attention cublaslt",
            (int)n, (int)s.NH, (int)s.T);
    auto graph = new_graph(s);
    auto q = graph->tensor(heads(s, n, Q, 3 * s.C));
    auto k = graph->tensor(heads(s, n, K, 3 * s.C));
    auto v = graph->tensor(heads(s, n, V, 3 * s.C));
    auto out = graph->tensor(heads(s, n, OUT, s.C));
    auto dout = graph->tensor(heads(s, n, DOUT, s.C));
    auto lse = graph->tensor(stats(s, n));
    auto sdpa = options<fe::graph::SDPA_backward_attributes>(s, "backward");
    sdpa.set_deterministic_algorithm(!wish.fast);
    auto [dq, dk, dv] = graph->sdpa_backward(q, k, v, out, dout, lse, sdpa);
    output(dq, heads(s, n, DQ, 3 * s.C));
    output(dk, heads(s, n, DK, 3 * s.C));
    output(dv, heads(s, n, DV, 3 * s.C));
    if (finish(*graph, s, "backward", &kept.backward_bytes) != 0) return -1;
    kept.skipped = attention_cudnn_skipped(graph->front_bytes());
    kept.backward_bytes += kept.skipped;
    kept.backward = graph;
    kept.rows = n;
    return 0;
}

// Builds backward for the whole batch or, if that exceeds the limit by cuDNN's own count, for groups of as
// many sequences as fit.
static int build_backward_groups(Kept &kept) {
    int B = (int)kept.shape.B, rows = B;
    while (build_backward(kept, rows) == 0) {
        size_t bytes = (size_t)kept.backward_bytes;
        if (bytes <= wish.limit || rows == 1) return 0;
        rows = attention_cudnn_fewer_rows(B, rows, bytes, wish.limit);
    }
    kept.backward = nullptr;
    return -1;
}

static int open_library() {
    if (handle) return 0;
    cudnnStatus_t status = cudnnCreate(&handle);
    if (status == CUDNN_STATUS_SUCCESS) return 0;
    return gpt2_fail("cuDNN does not start: %s", cudnnGetErrorString(status));
}

// Returns the graphs of a shape, or NULL on failure. Backward's graph is built when it is first needed.
static Kept *find_or_build(const Shape &s, bool backward) {
    auto at = std::find_if(table.begin(), table.end(), [&](const Kept &k) { return k.shape == s; });
    if (at == table.end()) {
        Kept kept = { s, nullptr, nullptr, 0, 0, 0, 0 };
        if (open_library() != 0 || build_forward(kept) != 0) return nullptr;
        at = table.insert(table.end(), kept);
    }
    if (backward && !at->backward && build_backward_groups(*at) != 0) return nullptr;
    return &*at;
}

static int run(const Graph &graph, const Shape &s, const char *what, int64_t bytes, size_t skipped,
               Pointers pointers) {
    if (bytes > planned_bytes)
        return gpt2_fail("cuDNN's attention %s needs %lld bytes of scratch for T %d, but plan was for a "
                         "smaller shape: %lld bytes",
                         what, (long long)bytes, (int)s.T, (long long)planned_bytes);
    char *scratch = (char *)cuda_scratch();
    return scratch ? good(graph.execute(handle, pointers, scratch + skipped), s, what) : -1;
}

// The frontend may throw, for example without a driver or memory.
template <class Body> static int caught(Body body) {
    try {
        return body();
    } catch (const std::exception &e) {
        return gpt2_fail("cuDNN's attention: %s", e.what());
    }
}

int attention_cudnn_plan(gpt2_dtype dt, int B, int T, int C, int NH, int fast, size_t limit,
                         size_t *scratch_bytes) {
    Wish wanted = { fast != 0, limit ? limit : BACKWARD_BYTES };
    if (dt == GPT2_F32)
        return gpt2_fail("cuDNN's attention takes bf16 and fp16, not fp32: use attention cublaslt");
    return caught([&] {
        if (!(wanted == wish)) table.clear();
        wish = wanted;
        Kept *kept = find_or_build({ dt, B, T, C, NH }, true);
        if (!kept) return -1;
        planned = { (int)kept->rows, (size_t)kept->backward_bytes, wish.limit };
        planned_bytes = std::max({ SMALLEST_BYTES, kept->forward_bytes, kept->backward_bytes });
        *scratch_bytes = (size_t)planned_bytes;
        return 0;
    });
}

layers_attention_backward attention_cudnn_groups(void) { return planned; }

void attention_cudnn_free(void) {
    table.clear();
    if (handle) cudnnDestroy(handle);
    handle = nullptr;
    planned_bytes = 0;
}

const char *attention_cudnn_version(void) {
    static char text[32];
    int v = (int)cudnnGetVersion();
    snprintf(text, sizeof text, "cuDNN %d.%d.%d", v / 10000, v / 100 % 100, v % 100);
    return text;
}

int attention_cudnn_forward(gpt2_dtype dt, void *out, float *lse, const void *qkv, int B, int T, int C,
                            int NH) {
    return caught([&] {
        Kept *kept = find_or_build({ dt, B, T, C, NH }, false);
        if (!kept) return -1;
        char *q = (char *)qkv;
        size_t width = C * gpt2_dtype_size(dt);
        return run(*kept->forward, kept->shape, "forward", kept->forward_bytes, 0,
                   { { Q, q }, { K, q + width }, { V, q + 2 * width }, { OUT, out }, { LSE, lse } });
    });
}

int attention_cudnn_backward(gpt2_dtype dt, void *dqkv, const void *dout, const void *qkv, const void *out,
                             const float *lse, int B, int T, int C, int NH) {
    return caught([&] {
        Kept *kept = find_or_build({ dt, B, T, C, NH }, true);
        if (!kept) return -1;
        size_t width = C * gpt2_dtype_size(dt);
        for (int64_t b = 0; b < B; b += kept->rows) {
            char *q = (char *)qkv + 3 * b * T * width, *dq = (char *)dqkv + 3 * b * T * width;
            Pointers pointers = { { Q, q },
                                  { K, q + width },
                                  { V, q + 2 * width },
                                  { OUT, (char *)out + b * T * width },
                                  { DOUT, (char *)dout + b * T * width },
                                  { LSE, (float *)lse + b * NH * T },
                                  { DQ, dq },
                                  { DK, dq + width },
                                  { DV, dq + 2 * width } };
            if (run(*kept->backward, kept->shape, "backward", kept->backward_bytes, kept->skipped, pointers))
                return -1;
        }
        return 0;
    });
}
