# The added code: C for the two trainers, and rules for the Makefile. When zero.h changes, update this code,
# and the lines that llmc.pl and llmc_cuda.pl pass to before(), after() and instead().
use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

# Formats a list, six items per line.
sub wrapped (@items) {
    my $lines = '';
    $lines .= '    ' . join(', ', splice @items, 0, 6) . ",\n" while @items;
    return $lines;
}

our (@tensors, %in_blocks);

sub unit_of ($name) { return $in_blocks{$name} ? 'Z_BLOCKS' : 'Z_EMBEDDING' }

# Code for both trainers. $type is the C type of a parameter, $piece the number of elements to pass at once.
sub shared ($type, $piece, $decayed) {
    my $enum = wrapped(map { 'Z_' . uc } @tensors);
    my $rows = wrapped(map { "{ \"$_\", " . unit_of($_) . ', ' . ($decayed->{$_} // 0) . ' }' } @tensors);
    return <<"END";
enum { // the tensors, as in ParameterTensors
${enum}    Z_TENSORS
};
enum { Z_EMBEDDING, Z_BLOCKS }; // the units: all tensors outside the layers; layer l is unit Z_BLOCKS + l
static const struct { const char *name; int unit, decay; } z_table[Z_TENSORS] = {
${rows}};
enum { Z_PIECE = $piece }; // elements passed to and from the plugin at once

// Ends all ranks after an error; one of them prints the message.
static void z_refuse(const char *format, ...) {
    char message[1200];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    zero_end_job(z, 1, message);
}
static void z_check(int rc) {
    if (rc != 0) z_refuse("%s", zero_last_error());
}

// Pointers to parameters and gradients, by their offset in a tensor of all layers, which must begin a layer.
// llm.c's functions only read parameters, but many take pointers without const.
static size_t z_elems[Z_TENSORS]; // of one layer
static int z_layer(int tensor, size_t offset) {
    if (offset % z_elems[tensor] != 0)
        z_refuse("%s + %zu: is not the start of a layer, which has %zu elements", z_table[tensor].name,
                 offset, z_elems[tensor]);
    return (int)(offset / z_elems[tensor]);
}
static $type *z_param(int tensor, size_t offset) {
    $type *param = ($type *)zero_param(z, tensor, z_layer(tensor, offset));
    z_check(param == NULL);
    return param;
}
static $type *z_grad(int tensor, size_t offset) {
    $type *grad = ($type *)zero_grad(z, tensor, z_layer(tensor, offset));
    z_check(grad == NULL);
    return grad;
}

static int z_layers(int tensor, int L) { return z_table[tensor].unit == Z_BLOCKS ? L : 1; }

static void z_print_memory(int stage) {
    static const char *const classes[] = { "model states", "working", "activations" };
    zero_memory_line line;
    zero_job job;
    double states = zero_memory_bytes(z, ZERO_STATES) / 1048576.0;
    double working = zero_memory_bytes(z, ZERO_WORKING) / 1048576.0;
    zero_job_info(z, &job);
    printf("ZeRO stage %d on %d ranks by %s; memory per rank without activations:\\n", stage, zero_ranks(z),
           job.comm);
    for (int i = 0; zero_memory(z, i, &line); i++) {
        printf("  %-12s  %-28s %8.1f MiB\\n", classes[line.class_], line.purpose, line.bytes / 1048576.0);
    }
    printf("  model states %.1f, working %.1f, together %.1f MiB\\n", states, working, states + working);
}
static void z_create_model(zero_config *config, const size_t *sizes, int L) {
    zero_tensor tensors[Z_TENSORS];
    zero_unit *units = (zero_unit *)mallocCheck((Z_BLOCKS + L) * sizeof(zero_unit));
    // two uses, by the encoder and the LM head; the encoder's backward reads no parameters
    zero_unit embedding = { "embedding", 2, 2, 1 }, block = { "block", 1, 1, 0 };
    for (int t = 0; t < Z_TENSORS; t++) {
        int layers = z_layers(t, L);
        z_elems[t] = sizes[t] / layers;
        zero_tensor tensor = { z_table[t].name, 1, { (int64_t)z_elems[t] }, layers, z_table[t].unit,
                               z_table[t].decay, 0 };
        tensors[t] = tensor;
    }
    units[Z_EMBEDDING] = embedding;
    if (getenv("ZERO_CHECK") == NULL) config->debug.check_steps = 2; // ZERO_CHECK=1: all steps, 0: none
    for (int l = 0; l < L; l++) { units[Z_BLOCKS + l] = block; }
    z_check(zero_create(&z, config, tensors, Z_TENSORS, units, Z_BLOCKS + L));
    free(units);
    if (zero_rank(z) == 0) z_print_memory(config->stage);
}

// A training pass is announced before gpt2_forward(); every other call of it is an evaluation, on all ranks.
static int z_training;
static void z_begin_train(int micro_batch, int of, const void *inputs, size_t bytes) {
    z_check(zero_check_batch(z, inputs, bytes));
    z_check(zero_begin_train(z, micro_batch, of));
    z_training = 1;
}
static void z_begin_pass(void) {
    if (!z_training) z_check(zero_begin_eval(z));
    z_training = 0;
}

// The ranks compare their inputs: all parameters, and the name and first 64 KiB of each data file, which
// include the header with the file's size.
static uint64_t z_params_read; // a digest
static void z_digest(uint64_t *digest, const void *data, size_t words) { // FNV-1a, 4 bytes at a time
    for (size_t i = 0; i < words; i++) {
        uint32_t word;
        memcpy(&word, (const char*)data + i * sizeof(word), sizeof(word));
        *digest = (*digest ^ word) * 0x100000001b3;
    }
}
static void z_same_data(const char *name, size_t B, size_t T, const char *pattern) {
    static uint32_t block[1 << 14];
    char line[1024];
    glob_t files;
    if (glob(pattern, 0, NULL, &files) != 0) z_refuse("%s: the data file no longer exists", pattern);
    snprintf(line, sizeof(line), "parameters = digest %016llx\\n%s = B %zu, T %zu, %zu data files",
             (unsigned long long)z_params_read, name, B, T, (size_t)files.gl_pathc);
    z_check(zero_require_same(z, line));
    for (size_t i = 0; i < files.gl_pathc; i++) {
        const char *path = files.gl_pathv[i], *slash = strrchr(path, '/');
        uint64_t first = 0;
        FILE *file = fopenCheck(path, "rb");
        memset(block, 0, sizeof(block));
        if (fread(block, 1, sizeof(block), file) == 0) z_refuse("%s: cannot be read", path);
        fcloseCheck(file);
        z_digest(&first, block, sizeof(block) / sizeof(*block));
        snprintf(line, sizeof(line), "%s, file %zu = %.255s, digest %016llx", name, i,
                 slash ? slash + 1 : path, (unsigned long long)first);
        z_check(zero_require_same(z, line));
    }
    globfree(&files);
}

// Visits all parameters in the order of llm.c's model files, in pieces, so that no rank ever holds the model.
typedef void z_visit(void *with, int t, int l, int64_t at, int64_t n);
static void z_each_piece(const size_t *sizes, int L, z_visit *visit, void *with) {
    for (int t = 0; t < Z_TENSORS; t++) {
        int64_t elems = (int64_t)z_elems[t];
        for (int l = 0; l < z_layers(t, L); l++) {
            for (int64_t at = 0; at < elems; at += Z_PIECE) {
                visit(with, t, l, at, elems - at < Z_PIECE ? elems - at : (int64_t)Z_PIECE);
            }
        }
    }
}
static $type z_raw[Z_PIECE];
static float z_values[Z_PIECE];
static void z_set_piece(int t, int l, int64_t at, int64_t n, const $type *from) {
    for (int64_t i = 0; i < n; i++) { z_values[i] = (float)from[i]; }
    z_digest(&z_params_read, z_values, n);
    z_check(zero_set(z, ZERO_PARAM, t, l, at, n, z_values));
}
static void z_read_piece(void *file, int t, int l, int64_t at, int64_t n) {
    freadCheck(z_raw, sizeof($type), n, (FILE *)file);
    z_set_piece(t, l, at, n, z_raw);
}
static void z_read_params(FILE *file, const size_t *sizes, int L) {
    z_each_piece(sizes, L, z_read_piece, file);
}

static void z_copy_piece(void *from, int t, int l, int64_t at, int64_t n) {
    const $type **next = (const $type **)from;
    z_set_piece(t, l, at, n, *next);
    *next += n;
}
static void z_set_params(const $type *from, const size_t *sizes, int L) {
    z_each_piece(sizes, L, z_copy_piece, &from);
}
static void z_write_piece(void *file, int t, int l, int64_t at, int64_t n) {
    z_check(zero_get(z, ZERO_PARAM, t, l, at, n, z_values));
    for (int64_t i = 0; i < n; i++) { z_raw[i] = ($type)z_values[i]; }
    if (fwrite(z_raw, sizeof($type), n, (FILE *)file) != (size_t)n) z_refuse("cannot write the parameters");
}
static void z_write_params(FILE *file, const size_t *sizes, int L) {
    z_each_piece(sizes, L, z_write_piece, file);
}

static void z_finish(void) {
    char hash[17];
    z_check(zero_hash(z, 0, hash));
    if (zero_rank(z) == 0) printf("params_hash %s\\n", hash);
    zero_destroy(z);
    z = NULL;
}
END
}

sub helpers {
    my $shared = shared('float', '1 << 16', { map { $_ => 1 } @tensors });
    return <<"END";
// ----------------------------------------------------------------------------
// ZeRO: the plugin holds parameters, gradients and moments. It reads its settings from the environment:
// ZERO_STAGE=0..3 (default 3) and ZERO_CONFIG=file, a DeepSpeed JSON. Run it with mpirun -np 2 ./train_gpt2
#include <glob.h>
#include <stdarg.h>
#include "llmc_zero/zero.h"

static zero *z;

// Only rank 0 prints. If another rank ends with an error, its last message is printed too.
static int z_launch_rank(void) { return zero_launched().rank; }
static char z_said[256];
static void z_printf(const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (z_launch_rank() == 0) vprintf(format, args);
    else vsnprintf(z_said, sizeof(z_said), format, args);
    va_end(args);
}
static void z_exit(int status) {
    char message[300];
    if (status == 0) exit(0);
    z_said[strcspn(z_said, "\\n")] = 0;
    snprintf(message, sizeof(message), "rank %d: %s", z_launch_rank(), z_said);
    zero_end_job(z, status, z_launch_rank() > 0 ? message : NULL); // rank 0 has printed its own
}
#define printf(...) z_printf(__VA_ARGS__)
#define exit(status) z_exit(status)

$shared
static void z_create(const size_t *sizes, int L) {
    zero_config config = zero_defaults();
    config.stage = 3;
    z_check(zero_config_from_env(&config));
    if (config.numbers.dtype != ZERO_F32 || config.micro_batches != 1)
        z_refuse("ZERO_CONFIG: this trainer computes in fp32, one micro-batch per step: no bf16, "
                 "gradient_accumulation_steps 1");
    z_create_model(&config, sizes, L);
}

// Gradients that add up over several batches would lose all but the last.
static int z_backwards; // since gpt2_zero_grad()
static void z_one_backward(void) {
    if (z_backwards++ > 0)
        z_refuse("gpt2_backward() ran twice without gpt2_zero_grad(): for gradients of several "
                 "micro-batches, set config.micro_batches in z_create() and call z_begin_train(number, of, "
                 "...) before each forward pass, as docs/porting.md says in step 6");
}
static float z_mean(double value) {
    z_check(zero_sum(z, &value, 1));
    return (float)(value / zero_ranks(z));
}
// ----------------------------------------------------------------------------
END
}

sub cuda_13 {
    return <<'END';
#if CUDART_VERSION >= 13000 // its cudaMemAdvise takes a cudaMemLocation; this is the older form
static inline cudaError_t cudaMemAdvise(const void *memory, size_t bytes, cudaMemoryAdvise advice,
                                        int device) {
    cudaMemLocation location = {};
    location.type = device == cudaCpuDeviceId ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
    location.id = device == cudaCpuDeviceId ? 0 : device;
    return cudaMemAdvise(memory, bytes, advice, location);
}
#endif
END
}

sub cuda_helpers (@decayed) {
    my $shared = shared('floatX', '1 << 20', { map { $_ => 1 } @decayed });
    return <<"END";
// ----------------------------------------------------------------------------
// ZeRO: the plugin holds parameters, gradients, moments and masters, and connects the ranks. -z sets its
// stage; ZERO_CONFIG=file, a DeepSpeed JSON, has more settings. Run it with mpirun -np 2 ./train_gpt2cu
// -z 3.
#define OMPI_SKIP_MPICXX 1 // no C++ bindings, which MPI's C library lacks
#define MPICH_SKIP_MPICXX 1
#include <glob.h>
#include <map>
#include <mpi.h>
#include "llmc_zero/zero.h"
#if defined(ENABLE_FP16)
#error "PRECISION=FP16: this trainer has no loss scale, so gradients vanish; build with PRECISION=BF16/FP32"
#endif

static zero *z;
static zero_config z_config;
enum { Z_STATE_VERSION = 1001 }; // for state files whose moments and masters are in the plugin's checkpoint

$shared
// Returns this rank's number on its node, which selects its GPU.
static int z_rank_on_node(int ranks) {
    int provided, rank = 0, world = 0;
    MPI_Comm node;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS ||
        provided < MPI_THREAD_SERIALIZED)
        z_refuse("MPI_Init_thread does not give MPI_THREAD_SERIALIZED, which the plugin needs");
    if (MPI_Comm_size(MPI_COMM_WORLD, &world) != MPI_SUCCESS || world != ranks)
        z_refuse("the launcher started %d ranks, but MPI has %d: start with MPI's own mpirun", ranks, world);
    if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node) != MPI_SUCCESS ||
        MPI_Comm_rank(node, &rank) != MPI_SUCCESS || MPI_Comm_free(&node) != MPI_SUCCESS)
        z_refuse("MPI does not report the ranks on this node");
    return rank;
}
// Determines this rank, and its GPU by its number on its node. Ranks may share a GPU.
static int z_ranks = 1;
static MultiGpuConfig z_start(int num_processes, int, int, char *, char *, char *init_method) {
    MultiGpuConfig config = {};
    zero_launch launched = zero_launched();
    int devices;
    if (!launched.ranks) z_refuse("%s", zero_last_error());
    z_config = zero_defaults();
    config.process_rank = launched.rank;
    config.num_processes = z_ranks = launched.ranks;
    if (strcmp(init_method, "mpi") != 0)
        z_refuse("-pi %s: Open MPI connects the ranks: start them with mpirun -np N, under Slurm with srun "
                 "--mpi=pmix, or with mpirun inside an sbatch job", init_method);
    if (num_processes != 1 && num_processes != config.num_processes)
        z_refuse("-pn %d: this is one of %d ranks; start with mpirun -np %d", num_processes,
                 config.num_processes, num_processes);
    cudaCheck(cudaGetDeviceCount(&devices));
    if (config.num_processes > 1) {
        config.local_device_idx = z_rank_on_node(config.num_processes) % devices;
        if (launched.ranks_on_node > devices && config.process_rank == 0)
            printf("note: %d ranks on rank 0's machine, which has %d visible GPUs; ranks that share a GPU "
                   "take turns on it\\n",
                   launched.ranks_on_node, devices);
    }
    cudaCheck(cudaSetDevice(config.local_device_idx));
    return config;
}
static float z_sum(double value) {
    z_check(zero_sum(z, &value, 1));
    return (float)value;
}
// The plugin clips by its own norm, so the trainer's factor must be that of the same norm.
static float z_norm;
static float z_max_norm(float scale, float grad_clip) {
    float expected = z_norm > grad_clip ? grad_clip / z_norm : 1.0f;
    if (!(fabsf(scale - expected) <= 1e-5f * expected))
        z_refuse("the update scales the gradients by %g, but clipping their norm %g to %g gives %g: the "
                 "plugin has no other clipping", scale, z_norm, grad_clip, expected);
    return grad_clip;
}
static void z_end(void) {
    z_finish();
    if (z_ranks > 1 && MPI_Finalize() != MPI_SUCCESS) // z_start() initialised it
        z_refuse("MPI_Finalize failed");
}
#define multi_gpu_config_init(...) z_start(__VA_ARGS__)
#define multi_gpu_cpu_float_sum(value, config) z_sum(value)
#define multi_gpu_barrier(config) z_check(zero_barrier(z))
#define set_zero_configs(config, stage, parameters) ((config)->zero_stage = (stage))

// Passes the sorted options to the plugin, which compares them between ranks; the last value of an option
// counts. -p* and paths may differ; the data read there is compared later.
static void z_same_options(int argc, char **argv) {
    static std::string lines;
    std::map<std::string, std::string> given;
    for (int i = 1; i + 1 < argc; i += 2) { given[argv[i]] = argv[i + 1]; }
    for (const auto &option : given) {
        const std::string &name = option.first, &value = option.second;
        if (name[1] == 'p' || name == "-i" || name == "-j") continue;
        int path = name == "-o" || (name == "-e" && value.find(".bin") != std::string::npos);
        lines += name + " = " + (path ? "a path" : value) + "\\n";
    }
    z_config.start.same = lines.c_str();
}
static void z_configure(int stage, int micro_batches, int use_master_weights) {
    zero_dtype dtype = PRECISION_MODE == PRECISION_FP32 ? ZERO_F32 : ZERO_BF16;
    z_config.stage = stage;
    z_config.device = ZERO_CUDA;
    z_config.cuda_device = multi_gpu_config.local_device_idx;
    z_config.cuda_stream = main_stream;
    z_config.numbers.dtype = dtype;
    z_config.numbers.no_master = dtype == ZERO_BF16 && !use_master_weights;
    z_config.micro_batches = micro_batches;
    z_config.max_open = 2; // the end of a block computes the first layernorm of the next
    z_check(zero_config_from_env(&z_config));
    if (z_config.stage != stage)
        z_refuse("-z %d, but ZERO_STAGE or ZERO_CONFIG asks for stage %d: give the same stage, or only -z",
                 stage, z_config.stage);
    if (z_config.numbers.dtype != dtype)
        z_refuse("ZERO_CONFIG: this program was built with another PRECISION; rebuild it to match");
    if (z_config.micro_batches != micro_batches)
        z_refuse("ZERO_CONFIG: gradient_accumulation_steps %d, but -d, -b and -t make it %d",
                 z_config.micro_batches, micro_batches);
}
static void z_create(const size_t *sizes, int L) { z_create_model(&z_config, sizes, L); }

// The plugin's checkpoint is next to the state files: state_STEP.zero for all ranks' state_STEP_RANK.bin.
static std::string z_state_path(const char *filename) {
    std::string name(filename);
    return name.substr(0, name.rfind('_')) + ".zero";
}
static void z_save(const char *filename, int step) {
    std::string text = R"({"step": )" + std::to_string(step) + "}";
    z_check(zero_save(z, z_state_path(filename).c_str(), text.c_str()));
}
static void z_load(const char *filename, int step) {
    std::string path = z_state_path(filename);
    int saved_at = -1;
    char *text;
    z_check(zero_load(z, path.c_str(), &text));
    int found = sscanf(text, R"( { "step" : %d)", &saved_at);
    free(text);
    if (found != 1 || saved_at != step)
        z_refuse("%s was saved at step %d, but %s at step %d", filename, step, path.c_str(), saved_at);
}
static void z_remove_state(const char *filename) {
    if (zero_rank(z) == 0) { z_check(zero_checkpoint_remove(z_state_path(filename).c_str())); }
}
static void z_check_state(const int *header, const char *filename) {
    if (header[0] != 20240527 || header[1] != Z_STATE_VERSION)
        z_refuse("%s: not written with ZeRO, so its moments have the layout of llm.c's optimizer; start from "
                 "the model file, with -e", filename);
    if (header[2] != zero_ranks(z))
        z_refuse("%s: saved by %d ranks; resume with mpirun -np %d", filename,
                 header[2], header[2]);
}
// ----------------------------------------------------------------------------
END
}

sub make_rules {
    return <<'END';

# ZeRO: builds only train_gpt2 and train_gpt2cu with the plugin in llmc_zero/, even with CFLAGS on the command
# line.
include llmc_zero/zero.mk
END
}

sub plain_make_rules {
    return <<'END';
train_gpt2: override CFLAGS += -DLLMC_ZERO
train_gpt2: override LDLIBS += $(ZERO_LIBS)
train_gpt2: $(ZERO_LIB)
REMOVE_BUILD_OBJECT_FILES += $(wildcard $(addprefix $(ZERO_BUILD)/llmc_zero/,flags* *.[od] */*.[od])) \
    $(ZERO_LIB)
END
}

sub cuda_make_rules {
    my $rules = <<'END';

# ZeRO for train_gpt2cu: builds the plugin with its CUDA kernels in a separate folder. The host's flags are
# converted to nvcc's syntax.
ZERO_FOR_CUDA := $(ZERO_BUILD)/cuda/libllmc_zero.a
ZERO_COMMA := ,
.PHONY: $(ZERO_FOR_CUDA)
$(ZERO_FOR_CUDA):
<tab>@$(MAKE) --no-print-directory -f llmc_zero/zero.mk ZERO_CUDA=yes ZERO_NVCC=$(NVCC) \
<tab>    ZERO_BUILD=$(ZERO_BUILD)/cuda $@
train_gpt2cu: override NVCC_FLAGS += -DLLMC_ZERO
train_gpt2cu: override NVCC_INCLUDES += $(filter -I% -D%,$(ZERO_MPI))
train_gpt2cu: override NVCC_LDLIBS += $(patsubst -f%,-Xcompiler -f%,$(patsubst -pthread,-lpthread,\
    $(subst -Wl$(ZERO_COMMA),-Xlinker ,$(ZERO_LIBS))))
train_gpt2cu: $(ZERO_FOR_CUDA)
REMOVE_BUILD_OBJECT_FILES += $(wildcard $(addprefix $(ZERO_BUILD)/cuda/llmc_zero/,flags* *.[od] */*.[od])) \
    $(ZERO_FOR_CUDA)
END
    return $rules =~ s/^<tab>/\t/gmr;
}

1;
