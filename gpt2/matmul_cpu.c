// Matmuls using oneDNN. Each kind and shape of matmul is compiled once and kept in a table. Planning only
// finds the scratch of those that training needs; matmul_prepare compiles them, so that a step allocates
// nothing. Operands stay in the model's layout, because transposing or blocking them first gains at most 5 %
// over oneDNN's own packing (measured on AVX-512).
#include <oneapi/dnnl/dnnl.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "cpu.h"
#include "gpt2_error.h"

// out = inp @ weight^T (+ bias), dinp = dout @ weight, dweight = dout^T @ inp, dweight += dout^T @ inp
typedef enum { FORWARD, FORWARD_BIAS, DINP, DWEIGHT, DWEIGHT_ADD } Kind;

enum { LEFT, RIGHT, BIAS, RESULT, WORKSPACE, NUM_SLOTS };  // a matmul's memory
typedef struct {
    Kind kind;
    gpt2_dtype dt;
    int BT, C, OC;
    dnnl_primitive_t primitive;
    int pieces;  // number of column pieces, of equal width, in right and result
    dnnl_memory_t memory[NUM_SLOTS];
    size_t workspace_bytes;
    void *own_workspace;  // NULL: the layers' scratch is large enough
} Matmul;

enum { MAX_MATMULS = 64 };
static struct {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    Matmul table[MAX_MATMULS];
    int used;
    int planned;  // number that stays; later ones, of other shapes (sampling), are replaced in rotation
    int turn;
    size_t scratch_bytes;
} matmul;

// -------- oneDNN 2 and 3
// Version 3 describes memory by a pointer, and needs one call fewer to create a primitive.

#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t Shape;
#else
typedef const dnnl_memory_desc_t *Shape;
#endif
typedef struct {
    dnnl_memory_desc_t desc;
    int made;
} Matrix;

// Describes a matrix (rows, cols); transposed: stored as (cols, rows). Otherwise it may be one of `pieces`
// pieces of columns.
static dnnl_status_t matrix_init(Matrix *m, gpt2_dtype dt, int rows, int cols, int transposed, int pieces) {
    dnnl_dims_t dims = { rows, cols / pieces };
    dnnl_dims_t strides = { transposed ? 1 : cols, transposed ? rows : 1 };
    dnnl_data_type_t type = dt == GPT2_BF16 ? dnnl_bf16 : dnnl_f32;
#if DNNL_VERSION_MAJOR >= 3
    dnnl_status_t status = dnnl_memory_desc_create_with_strides(&m->desc, 2, dims, type, strides);
#else
    dnnl_status_t status = dnnl_memory_desc_init_by_strides(&m->desc, 2, dims, type, strides);
#endif
    m->made = status == dnnl_success;
    return status;
}

static Shape matrix_shape(const Matrix *m) {
#if DNNL_VERSION_MAJOR >= 3
    return m->made ? m->desc : NULL;
#else
    return m->made ? &m->desc : NULL;
#endif
}

static void matrix_free(Matrix *m) {
#if DNNL_VERSION_MAJOR >= 3
    if (m->made) dnnl_memory_desc_destroy(m->desc);
#endif
    m->made = 0;
}

// shape: one for each slot up to RESULT
static dnnl_status_t describe(dnnl_primitive_desc_t *pd, const Shape *shape,
                              const_dnnl_primitive_attr_t attr) {
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_matmul_primitive_desc_create(pd, matmul.engine, shape[LEFT], shape[RIGHT], shape[BIAS],
                                             shape[RESULT], attr);
#else
    dnnl_matmul_desc_t desc;
    dnnl_status_t status = dnnl_matmul_desc_init(&desc, shape[LEFT], shape[RIGHT], shape[BIAS],
                                                 shape[RESULT]);
    return status != dnnl_success ? status : dnnl_primitive_desc_create(pd, &desc, attr, matmul.engine, NULL);
#endif
}

// -------- creating matmuls

// Returns a failure from the calling function.
#define TRY(call)                                    \
    do {                                             \
        dnnl_status_t status_ = (call);              \
        if (status_ != dnnl_success) return status_; \
    } while (0)

static void matmul_clear(Matmul *p) {
    for (int i = 0; i < NUM_SLOTS; i++)
        if (p->memory[i]) dnnl_memory_destroy(p->memory[i]);
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    free(p->own_workspace);
    memset(p, 0, sizeof *p);
}

static dnnl_status_t attributes(dnnl_primitive_attr_t attr, Kind kind) {
    TRY(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
    if (kind != DWEIGHT_ADD) return dnnl_success;
    dnnl_post_ops_t sum;
    TRY(dnnl_post_ops_create(&sum));
#if DNNL_VERSION_MAJOR >= 3
    dnnl_status_t status = dnnl_post_ops_append_sum(sum, 1.0f, 0, dnnl_data_type_undef);
#else
    dnnl_status_t status = dnnl_post_ops_append_sum(sum, 1.0f);
#endif
    if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(attr, sum);  // copied
    dnnl_post_ops_destroy(sum);
    return status;
}

// oneDNN's first choice loses up to a quarter of its speed if an untransposed right matrix does not fit into
// the cache (512 x 3072 x 768 in fp32: 216 GFLOP/s whole, 257 in two pieces; 512 x 50304 x 768 in bf16: 404
// and 466). Columns are independent, so each piece is a separate matmul.
static int column_pieces(gpt2_dtype dt, int inner, int cols) {
    enum { PACKED_BYTES = 5 << 20, LEAST_COLUMNS = 384 };
    int pieces = 1;
    while ((size_t)inner * (cols / pieces) * gpt2_dtype_size(dt) > PACKED_BYTES && cols % (2 * pieces) == 0 &&
           cols / (2 * pieces) >= LEAST_COLUMNS)
        pieces *= 2;
    return pieces;
}

static dnnl_status_t make_matrices(Matmul *p, Matrix matrix[]) {
    const int forward = p->kind == FORWARD || p->kind == FORWARD_BIAS, dinp = p->kind == DINP;
    const int rows = forward || dinp ? p->BT : p->OC, cols = forward ? p->OC : p->C;
    const int inner = forward ? p->C : dinp ? p->OC : p->BT;
    p->pieces = forward ? 1 : column_pieces(p->dt, inner, cols);
    TRY(matrix_init(&matrix[LEFT], p->dt, rows, inner, !forward && !dinp, 1));
    TRY(matrix_init(&matrix[RIGHT], p->dt, inner, cols, forward, p->pieces));
    TRY(matrix_init(&matrix[RESULT], p->dt, rows, cols, 0, p->pieces));
    return p->kind == FORWARD_BIAS ? matrix_init(&matrix[BIAS], p->dt, 1, cols, 0, 1) : dnnl_success;
}

// Compiles the matmul. The memory objects have no address yet, because each call passes its operands'
// addresses.
static dnnl_status_t compile(Matmul *p, const_dnnl_primitive_desc_t pd, const Shape shape[NUM_SLOTS]) {
    TRY(dnnl_primitive_create(&p->primitive, pd));
    for (int i = 0; i < NUM_SLOTS; i++)
        if (shape[i]) TRY(dnnl_memory_create(&p->memory[i], shape[i], matmul.engine, DNNL_MEMORY_NONE));
    return dnnl_success;
}

// oneDNN crashes if it runs out of memory, so it is called only while this much can still be mapped. The
// kernels of one matmul take up to 8 MiB of address space: 256 KiB each.
static int check_room(void) {
    enum { ROOM_MIB = 16 };
    void *room = mmap(NULL, ROOM_MIB << 20, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room != MAP_FAILED && !munmap(room, ROOM_MIB << 20)) return 0;
    return gpt2_fail("matmul: less than the %d MiB of memory that oneDNN may need are left to this process; "
                     "raise its limit (ulimit -v, ulimit -d)",
                     ROOM_MIB);
}

// Finds the matmul's scratch and, if it will run, compiles it.
static int matmul_init(Matmul *p, int will_run) {
    Matrix matrix[WORKSPACE] = { 0 };
    Shape shape[NUM_SLOTS];
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = make_matrices(p, matrix);
    for (int i = 0; i < WORKSPACE; i++) shape[i] = matrix_shape(&matrix[i]);
    if (status == dnnl_success) status = dnnl_primitive_attr_create(&attr);
    if (status == dnnl_success) status = attributes(attr, p->kind);
    if (status == dnnl_success) status = describe(&pd, shape, attr);
    if (status == dnnl_success) {
        shape[WORKSPACE] = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
        if (shape[WORKSPACE]) p->workspace_bytes = dnnl_memory_desc_get_size(shape[WORKSPACE]);
        if (will_run) status = compile(p, pd, shape);
    }
    if (pd) dnnl_primitive_desc_destroy(pd);
    if (attr) dnnl_primitive_attr_destroy(attr);
    for (int i = 0; i < WORKSPACE; i++) matrix_free(&matrix[i]);
    if (status == dnnl_success) return 0;
    const int bf16 = p->dt == GPT2_BF16;
    gpt2_fail("matmul: oneDNN cannot create a matmul of (%d, %d) with (%d, %d) in %s: status %d%s", p->BT,
              p->C, p->OC, p->C, bf16 ? "bf16" : "fp32", (int)status,
              bf16 ? "; this CPU may lack bf16, try fp32" : "");
    matmul_clear(p);
    return -1;
}

// -------- the table

static Matmul *free_slot(void) {
    if (matmul.used < MAX_MATMULS) return &matmul.table[matmul.used++];
    Matmul *p = &matmul.table[matmul.planned + matmul.turn];
    matmul.turn = (matmul.turn + 1) % (MAX_MATMULS - matmul.planned);
    matmul_clear(p);
    return p;
}

// Returns NULL if the matmul cannot be created.
static Matmul *find_or_make(Kind kind, gpt2_dtype dt, int BT, int C, int OC, int will_run) {
    Matmul *p = matmul.table, *end = p + matmul.used;
    while (p < end && !(p->kind == kind && p->dt == dt && p->BT == BT && p->C == C && p->OC == OC)) p++;
    if (p < end && (p->primitive || !will_run)) return p;
    if (check_room()) return NULL;
    if (p == end) p = free_slot();
    *p = (Matmul){ .kind = kind, .dt = dt, .BT = BT, .C = C, .OC = OC };
    return matmul_init(p, will_run) ? NULL : p;
}

static int plan_one(Kind kind, gpt2_dtype dt, int BT, int C, int OC) {
    Matmul *p = find_or_make(kind, dt, BT, C, OC, 0);
    if (!p) return -1;
    matmul.scratch_bytes = MAX(matmul.scratch_bytes, p->workspace_bytes);
    return 0;
}

static int plan_matmul(gpt2_dtype dt, int BT, int C, int OC, Kind forward, Kind dweight) {
    Kind kinds[] = { forward, DINP, dweight };
    for (int i = 0; i < 3; i++)
        if (plan_one(kinds[i], dt, BT, C, OC) != 0) return -1;
    return 0;
}

static int start_engine(void) {
    if (check_room()) return -1;
    dnnl_status_t status = dnnl_engine_create(&matmul.engine, dnnl_cpu, 0);
    if (status == dnnl_success)
        status = dnnl_stream_create(&matmul.stream, matmul.engine, dnnl_stream_default_flags);
    if (status != dnnl_success)
        return gpt2_fail("matmul: oneDNN has no CPU engine here: status %d", (int)status);
    return 0;
}

// Input and output channels of a block's matmuls, in units of C: qkv, attproj, fc, fcproj.
static const int block_matmuls[4][2] = { { 1, 3 }, { 1, 1 }, { 1, 4 }, { 4, 1 } };

static int finish_plan(size_t *scratch_bytes) {
    matmul.planned = matmul.used;
    *scratch_bytes = matmul.scratch_bytes;
    return 0;
}

int matmul_plan_forward(gpt2_dtype dt, int tokens, int rows, int C, int Vp, size_t *scratch_bytes) {
    if (start_engine() != 0) return -1;
    for (int i = 0; i < 8; i++) {
        const int *channels = block_matmuls[i % 4];
        if (plan_one(FORWARD_BIAS, dt, i < 4 ? tokens : rows, channels[0] * C, channels[1] * C)) return -1;
    }
    return plan_one(FORWARD, dt, rows, C, Vp) ? -1 : finish_plan(scratch_bytes);
}

int matmul_plan(gpt2_dtype dt, int BT, int C, int Vp, int chunk, size_t *scratch_bytes) {
    int rows = MIN(chunk, BT), last = BT % rows;
    if (start_engine() != 0) return -1;
    for (int i = 0; i < 4; i++) {
        const int *channels = block_matmuls[i];
        if (plan_matmul(dt, BT, channels[0] * C, channels[1] * C, FORWARD_BIAS, DWEIGHT)) return -1;
    }
    if (plan_matmul(dt, rows, C, Vp, FORWARD, DWEIGHT) ||
        (rows < BT && plan_matmul(dt, rows, C, Vp, FORWARD, DWEIGHT_ADD)) ||
        (last && plan_matmul(dt, last, C, Vp, FORWARD, DWEIGHT_ADD)))
        return -1;
    return finish_plan(scratch_bytes);
}

int matmul_prepare(void) {
    for (Matmul *p = matmul.table; p < matmul.table + matmul.planned; p++)
        if (!find_or_make(p->kind, p->dt, p->BT, p->C, p->OC, 1)) return -1;
    return 0;
}

void matmul_free(void) {
    for (int i = 0; i < matmul.used; i++) matmul_clear(&matmul.table[i]);
    if (matmul.stream) dnnl_stream_destroy(matmul.stream);
    if (matmul.engine) dnnl_engine_destroy(matmul.engine);
    memset(&matmul, 0, sizeof matmul);
}

// -------- running matmuls

// The workspace is the layers' scratch. An unplanned shape that needs more allocates a private workspace.
static void *workspace_of(Matmul *p) {
    if (p->workspace_bytes <= matmul.scratch_bytes) return shared_scratch();
    if (!p->own_workspace) p->own_workspace = aligned_alloc(64, (p->workspace_bytes + 63) / 64 * 64);
    return p->own_workspace;
}

static dnnl_status_t execute(Matmul *p, const void *left, const void *right, const void *bias, void *result,
                             void *workspace) {
    static const int names[NUM_SLOTS] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST,
                                          DNNL_ARG_SCRATCHPAD };
    const void *at[NUM_SLOTS] = { left, right, bias, result, workspace };
    dnnl_exec_arg_t args[NUM_SLOTS];
    int num_args = 0;
    for (int i = 0; i < NUM_SLOTS; i++) {
        if (!p->memory[i]) continue;
        TRY(dnnl_memory_set_data_handle(p->memory[i], (void *)at[i]));
        args[num_args++] = (dnnl_exec_arg_t){ names[i], p->memory[i] };
    }
    TRY(dnnl_primitive_execute(p->primitive, matmul.stream, num_args, args));
    return dnnl_stream_wait(matmul.stream);
}

static int multiply(Kind kind, gpt2_dtype dt, int BT, int C, int OC, const void *left, const void *right,
                    const void *bias, void *result) {
    Matmul *p = find_or_make(kind, dt, BT, C, OC, 1);
    if (!p) return -1;
    void *workspace = workspace_of(p);
    if (!workspace) return gpt2_fail("matmul: no memory for %zu bytes of workspace", p->workspace_bytes);
    // in bytes; only matmuls with C columns have more than one piece
    size_t piece = (size_t)C / p->pieces * gpt2_dtype_size(dt);
    dnnl_status_t status = dnnl_success;
    for (int i = 0; i < p->pieces && status == dnnl_success; i++) {
        status = execute(p, left, (const char *)right + i * piece, bias, (char *)result + i * piece,
                         workspace);
    }
    if (status == dnnl_success) return 0;
    return gpt2_fail("matmul: oneDNN failed to multiply (%d, %d) with (%d, %d): status %d", BT, C, OC, C,
                     (int)status);
}

// One thread sums each column from top to bottom.
void add_column_sums(gpt2_dtype sums_dt, void *sums, gpt2_dtype dt, const void *x, int BT, int OC) {
#pragma omp parallel for schedule(static) num_threads(layers_threads())
    for (int o = 0; o < OC; o += PIECE / 2) {
        float acc[PIECE / 2] = { 0 };
        int n = MIN(OC - o, PIECE / 2);
        for (int bt = 0; bt < BT; bt++) accumulate(acc, dt, x, (size_t)bt * OC + o, n);
        add_sums(sums_dt, sums, o, acc, n);
    }
}

// dbias (OC) = the sums of dout's columns, or += with `add`
static void column_sums(gpt2_dtype dt, void *dbias, const void *dout, int BT, int OC, int add) {
    if (!add) memset(dbias, 0, OC * gpt2_dtype_size(dt));
    add_column_sums(dt, dbias, dt, dout, BT, OC);
}

int cpu_matmul_forward(gpt2_dtype dt, void *out, const void *inp, const void *weight, const void *bias,
                       int BT, int C, int OC) {
    return multiply(bias ? FORWARD_BIAS : FORWARD, dt, BT, C, OC, inp, weight, bias, out);
}

int cpu_matmul_gelu_forward(gpt2_dtype dt, void *out, void *pre, const void *inp, const void *weight,
                            const void *bias, int BT, int C, int OC) {
    if (cpu_matmul_forward(dt, pre, inp, weight, bias, BT, C, OC) != 0) return -1;
    return cpu_gelu_forward(dt, out, pre, (size_t)BT * OC);
}

int cpu_matmul_backward(gpt2_dtype dt, void *dinp, void *dinp_bias, void *dweight, void *dbias,
                        const void *dout, const void *inp, const void *weight, const void *pre, int BT, int C,
                        int OC, int add) {
    Kind kind = add ? DWEIGHT_ADD : DWEIGHT;
    if (multiply(DINP, dt, BT, C, OC, dout, weight, NULL, dinp) != 0 ||
        multiply(kind, dt, BT, C, OC, dout, inp, NULL, dweight) != 0)
        return -1;
    if (dbias) column_sums(dt, dbias, dout, BT, OC, add);
    if (pre && cpu_gelu_backward(dt, dinp, pre, dinp, (size_t)BT * C) != 0) return -1;
    if (dinp_bias) column_sums(dt, dinp_bias, dinp, BT, C, add);
    return 0;
}

int cpu_dinp_bias_fused(gpt2_dtype dt, int BT, int C, int OC) { return 0; }
