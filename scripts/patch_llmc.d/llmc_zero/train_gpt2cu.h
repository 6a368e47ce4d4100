// ZeRO for train_gpt2.cu: the plugin holds parameters, gradients, moments and masters, and connects the
// ranks. -z sets its stage; ZERO_CONFIG=file, a DeepSpeed JSON, has more settings. Run it with mpirun -np 2
// ./train_gpt2cu -z 3
typedef floatX z_type;       // of a parameter
enum { Z_PIECE = 1 << 20 };  // elements passed to and from the plugin at once
#define OMPI_SKIP_MPICXX 1   // no C++ bindings, which MPI's C library lacks
#define MPICH_SKIP_MPICXX 1
#include <map>
#include <mpi.h>
#if defined(ENABLE_FP16)
#error "PRECISION=FP16: this trainer has no loss scale, so gradients vanish; build with PRECISION=BF16/FP32"
#endif
#include "llmc.h"

static zero_config z_config;
enum { Z_STATE_VERSION = 1001 };  // for state files whose moments and masters are in the plugin's checkpoint

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
                 "--mpi=pmix, or with mpirun inside an sbatch job",
                 init_method);
    if (num_processes != 1 && num_processes != config.num_processes)
        z_refuse("-pn %d: this is one of %d ranks; start with mpirun -np %d", num_processes,
                 config.num_processes, num_processes);
    cudaCheck(cudaGetDeviceCount(&devices));
    if (config.num_processes > 1) {
        config.local_device_idx = z_rank_on_node(config.num_processes) % devices;
        if (launched.ranks_on_node > devices && config.process_rank == 0)
            printf("note: %d ranks on rank 0's machine, which has %d visible GPUs; ranks that share a GPU "
                   "take turns on it\n",
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
                 "plugin has no other clipping",
                 scale, z_norm, grad_clip, expected);
    return grad_clip;
}
static void z_end(void) {
    z_finish();
    if (z_ranks > 1 && MPI_Finalize() != MPI_SUCCESS)  // z_start() initialised it
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
    for (int i = 1; i + 1 < argc; i += 2) {
        given[argv[i]] = argv[i + 1];
    }
    for (const auto &option : given) {
        const std::string &name = option.first, &value = option.second;
        if (name[1] == 'p' || name == "-i" || name == "-j") continue;
        int path = name == "-o" || (name == "-e" && value.find(".bin") != std::string::npos);
        lines += name + " = " + (path ? "a path" : value) + "\n";
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
    z_config.max_open = 2;  // the end of a block computes the first layernorm of the next
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
    if (zero_rank(z) == 0) {
        z_check(zero_checkpoint_remove(z_state_path(filename).c_str()));
    }
}
static void z_check_state(const int *header, const char *filename) {
    if (header[0] != 20240527 || header[1] != Z_STATE_VERSION)
        z_refuse("%s: not written with ZeRO, so its moments have the layout of llm.c's optimizer; start from "
                 "the model file, with -e",
                 filename);
    if (header[2] != zero_ranks(z))
        z_refuse("%s: saved by %d ranks; resume with mpirun -np %d", filename, header[2], header[2]);
}
