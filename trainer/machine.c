#include "machine.h"
#include <sched.h>
#include <string.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#include "die.h"
#include "options.h"
#include "run.h"

// --------
// ranks

void take_launched_ranks(void) {
    zero_launch launched = zero_launched();
    zero_check(launched.ranks ? 0 : -1);
    run.rank = launched.rank;
    run.ranks = launched.ranks;
    run.ranks_on_host = launched.ranks_on_node;
}

void check_launched_ranks(void) {
    int rank = zero_rank(run.z), ranks = zero_ranks(run.z);
    if (run.rank != rank || run.ranks != ranks)
        die("the launcher started rank %d of %d, but this is %d of %d: with MPI, start it with the mpirun of "
            "the Open MPI it was built with",
            run.rank, run.ranks, rank, ranks);
}

zero_start start_method(void) {
    if (!strcmp(opt.start, "mpi")) return ZERO_START_MPI;
    if (!strcmp(opt.start, "tcp")) return ZERO_START_TCP;
    if (!strcmp(opt.start, "fs")) return ZERO_START_FILE;
    return ZERO_START_AUTO;
}

static void check_start_options(zero_start start) {
    if (opt.zero.start.server && start != ZERO_START_TCP)
        die("option -ps %s: it goes with -pi tcp", opt.zero.start.server);
    if (opt.zero.start.file && start != ZERO_START_FILE)
        die("option -pf %s: it goes with -pi fs", opt.zero.start.file);
    if (start == ZERO_START_FILE && !opt.zero.start.file)
        die("option -pi fs: add -pf, a path that all hosts see");
    if ((opt.zero.start.ranks > 0) != (opt.zero.start.rank >= 0))
        die("options -pn %d and -pr %d: give both, or neither under a launcher", opt.zero.start.ranks,
            opt.zero.start.rank);
}

// -pn and -pr may only repeat the launcher's values; without a launcher they set them.
static void take_process_numbers(zero_start start) {
    int launcher_decides = start == ZERO_START_AUTO || start == ZERO_START_MPI;
    if (launcher_decides && (opt.zero.start.ranks != run.ranks || opt.zero.start.rank != run.rank))
        die("options -pn %d -pr %d: the launcher started rank %d of %d; without a launcher, add -pi tcp "
            "or -pi fs",
            opt.zero.start.ranks, opt.zero.start.rank, run.rank, run.ranks);
    if (opt.zero.start.rank >= opt.zero.start.ranks)
        die("option -pr %d: of %d ranks (-pn) the last is %d", opt.zero.start.rank, opt.zero.start.ranks,
            opt.zero.start.ranks - 1);
    run.rank = opt.zero.start.rank;
    run.ranks = opt.zero.start.ranks;
    run.ranks_on_host = opt.zero.start.ranks;
}

// Before the ranks are connected: rank numbers come from the launcher's environment, or from -pn and -pr.
void settle_ranks(void) {
    zero_start start = start_method();
    check_start_options(start);
    if (opt.zero.start.ranks) take_process_numbers(start);
    if (opt.plan_ranks) run.ranks = run.ranks_on_host = opt.plan_ranks;
    if (opt.ranks_a_host) run.ranks_on_host = opt.ranks_a_host < run.ranks ? opt.ranks_a_host : run.ranks;
}

// --------
// device

static void refuse_cuda_options(void) {
    if (opt.tf32 >= 0) print0("option -f %d: no effect on a CPU (TF32)\n", opt.tf32);
    if (opt.gelu_fusion >= 0) print0("option -ge %d: no effect on a CPU (GELU fusion)\n", opt.gelu_fusion);
    if (opt.cpu_checkpointing)
        print0(
            "option --cpu-checkpointing: no effect on a CPU but -r 3 (host memory is where inputs are kept "
            "anyway)\n");
    if (!strcmp(opt.comm, "nccl"))
        die("option --comm nccl: it goes with --device cuda, and this run is on the CPU");
    if (strcmp(opt.attention, "auto"))
        die("option --attention %s: it goes with --device cuda, and this run is on the CPU", opt.attention);
    if (opt.attention_mib)
        die("option --attention-workspace %d: it goes with --device cuda, and this run is on the CPU",
            opt.attention_mib);
    if (opt.tune) die("option --tune %s: it goes with --device cuda, and this run is on the CPU", opt.tune);
}

void settle_device(void) {
    int wanted = strcmp(opt.device, "cpu") != 0, required = !strcmp(opt.device, "cuda");
    int usable = wanted && layers_cuda() && zero_cuda_devices() > 0;
    if (required && !layers_cuda())
        die("option --device cuda: this program was built without CUDA; build it where nvcc is found");
    if (required && !usable) die("option --device cuda: %s", zero_last_error());
    if (!usable) {
        refuse_cuda_options();
        return;
    }
    run.layers = layers_cuda();
    const char *attention = strcmp(opt.attention, "auto") ? opt.attention : NULL;
    gpt2_check(layers_cuda_options(opt.tf32 != 0, opt.gelu_fusion, attention));
    layers_cuda_attention_limit((size_t)opt.attention_mib << 20);
}

// --------
// threads

static int cores_of_host(void) { return (int)sysconf(_SC_NPROCESSORS_ONLN); }

static int cores_allowed(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? cores_of_host() : CPU_COUNT(&set);
}

// The host's cores are divided among its ranks. A launcher may bind a rank to fewer, which is reported.
static int threads_of_rank(void) {
    int cores = cores_of_host(), bound = cores_allowed();
    int threads = cores / run.ranks_on_host > 1 ? cores / run.ranks_on_host : 1;
    const char *plural = bound == 1 ? "" : "s";
    if (opt.threads) {
        if (bound < opt.threads)
            print0("threads: %d as asked for, on %d core%s\n", opt.threads, bound, plural);
        return opt.threads;
    }
    if (bound >= threads) return threads;
    print0("threads: a rank is bound to %d of %d cores, so it uses %d thread%s; mpirun --bind-to "
           "none lifts that\n",
           bound, cores, bound, plural);
    return bound;
}

void settle_threads(void) {
    run.threads = threads_of_rank();
#ifdef _OPENMP
    omp_set_num_threads(run.threads);
#endif
}

// On a CPU the progress thread needs its own core, unless it mostly waits for files. On CUDA the plugin has
// separate streams, and a thread that waits for other ranks takes little of a core.
void settle_overlap(void) {
    long threads_of_host = (long)(run.threads + 1) * run.ranks_on_host;
    int spare_core = threads_of_host <= cores_of_host() && run.threads < cores_allowed();
    if (strcmp(opt.overlap, "auto"))
        run.overlap = !strcmp(opt.overlap, "1");
    else
        run.overlap = on_cuda() || spare_core || opt.zero.offload.params == ZERO_NVME;
}

// --------
// dtype

gpt2_dtype settle_dtype(void) {
    int bf16_in_hardware = on_cuda() || run.layers->has_dtype(GPT2_BF16);
    gpt2_dtype dtype = GPT2_F32;
    if (!strcmp(opt.dtype, "fp16")) {
        if (!on_cuda()) die("option --dtype fp16: it goes with --device cuda, and this run is on the CPU");
        return GPT2_F16;
    }
    if (!strcmp(opt.dtype, "bf16")) dtype = GPT2_BF16;
    if (!strcmp(opt.dtype, "auto") && bf16_in_hardware) dtype = GPT2_BF16;
    if (!opt.master && dtype != GPT2_BF16)
        die("option -w 0: without master weights parameters are bf16; add --dtype bf16");
    return dtype;
}

const char *dtype_name(gpt2_dtype dtype) {
    static const char *const names[] = { [GPT2_F32] = "fp32", [GPT2_BF16] = "bf16", [GPT2_F16] = "fp16" };
    return names[dtype];
}
