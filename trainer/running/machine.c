#include "machine.h"
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#include "../../gpt2/fingerprint.h"
#include "run.h"

// -------- ranks

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
        die("the launcher started rank %d of %d, but this process is rank %d of %d: with MPI, use the mpirun "
            "of the Open MPI that this program was built with",
            run.rank, run.ranks, rank, ranks);
}

static const char how_to_start[] = "start the ranks with mpirun -np N, under Slurm with srun --mpi=pmix, or "
                                   "with mpirun inside an sbatch job";

// The ranks are not connected yet, so their numbers come from the launcher's environment. llm.c's -pi, -pn
// and -pr may only repeat what Open MPI does, which connects the ranks and numbers them.
static void settle_ranks(void) {
    const zero_start_config *s = &opt.zero.start;
    if (!strcmp(opt.start, "tcp") || !strcmp(opt.start, "fs"))
        die("option -pi %s: Open MPI connects the ranks: %s", opt.start, how_to_start);
    if (s->ranks > 0 && s->ranks != run.ranks)
        die("option -pn %d: the launcher started %d rank%s: %s", s->ranks, run.ranks,
            run.ranks == 1 ? "" : "s", how_to_start);
    if (s->rank >= 0 && s->rank != run.rank)
        die("option -pr %d: the launcher made this rank %d of %d: leave -pr out", s->rank, run.rank,
            run.ranks);
    if (opt.plan_ranks) run.ranks = run.ranks_on_host = opt.plan_ranks;
    if (opt.ranks_a_host) run.ranks_on_host = opt.ranks_a_host < run.ranks ? opt.ranks_a_host : run.ranks;
}

// -------- device

static void refuse_on_cpu(const char *name) {
    char value[PATH_MAX];
    option_text(option_named(name), &opt, value, sizeof value);
    die("option %s %s: needs --device cuda, but this run is on the CPU", name, value);
}

static void refuse_cuda_options(void) {
    if (opt.tf32 >= 0) print0("option -f %d: no effect on a CPU (TF32)\n", opt.tf32);
    if (opt.gelu_fusion >= 0) print0("option -ge %d: no effect on a CPU (GELU fusion)\n", opt.gelu_fusion);
    if (opt.cpu_checkpointing)
        print0("option --cpu-checkpointing: no effect on a CPU except -r 3 (inputs are kept in host memory "
               "anyway)\n");
    if (!strcmp(opt.comm, "nccl")) refuse_on_cpu("--comm");
    if (option_is_given(option_named("--attention"))) refuse_on_cpu("--attention");
    if (opt.attention_mib) refuse_on_cpu("--attention-workspace");
    if (opt.tune) refuse_on_cpu("--tune");
}

// --plan --machine: the step runs in virtual time.
static Machine machine;
static void run_layers(double seconds) { zero_virtual_compute(run.z, seconds); }
static void wait_for_layers(void) { zero_virtual_wait(run.z); }
static double layers_end(void) { return zero_virtual_now(run.z); }

static void settle_virtual_device(void) {
    machine_find(&machine, opt.machine, run.ranks, opt.ranks_a_host, opt.threads);
    if (opt.attention_mib) machine.layers.attention_bytes = (size_t)opt.attention_mib << 20;
    machine.layers.run = run_layers;
    machine.layers.wait = wait_for_layers;
    machine.layers.now = layers_end;
    run.machine = &machine.plugin;
    run.layers = layers_virtual(&machine.layers);
    run.ranks_on_host = machine.ranks_a_host;
}

const Machine *machine_of_plan(void) { return &machine; }

static void settle_device(void) {
    if (opt.machine) {
        settle_virtual_device();
        return;
    }
    int wanted = strcmp(opt.device, "cpu") != 0, required = !strcmp(opt.device, "cuda");
    int devices = wanted && layers_cuda() ? zero_cuda_devices() : 0;
    if (required && !layers_cuda())
        die("option --device cuda: this program was built without CUDA; rebuild it with nvcc");
    if (required && devices <= 0) die("option --device cuda: %s", zero_last_error());
    if (devices < 0)
        note0("note: the run is on the CPU: %s; --device cpu omits this line\n", zero_last_error());
    if (devices <= 0) {
        refuse_cuda_options();
        return;
    }
    run.layers = layers_cuda();
    const char *attention = strcmp(opt.attention, "auto") ? opt.attention : NULL;
    gpt2_check(layers_cuda_options(opt.tf32 != 0, opt.gelu_fusion, attention));
    layers_cuda_attention_limit((size_t)opt.attention_mib << 20);
}

// -------- threads

static int cores_of_host(void) { return (int)sysconf(_SC_NPROCESSORS_ONLN); }

static int cores_allowed(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? cores_of_host() : CPU_COUNT(&set);
}

// Divides the host's cores among its ranks. Prints a line if the launcher bound this rank to fewer.
static int threads_of_rank(void) {
    int cores = cores_of_host(), bound = cores_allowed();
    int threads = cores / run.ranks_on_host > 1 ? cores / run.ranks_on_host : 1;
    const char *plural = bound == 1 ? "" : "s";
    if (opt.threads) {
        if (bound < opt.threads)
            print0("threads: %d as requested, on %d core%s\n", opt.threads, bound, plural);
        return opt.threads;
    }
    if (bound >= threads) return threads;
    print0("threads: a rank is bound to %d of %d cores, so it uses %d thread%s; mpirun --bind-to none "
           "removes this limit\n",
           bound, cores, bound, plural);
    return bound;
}

// OpenMP's threads spin for milliseconds before they sleep. If the ranks have more threads than there are
// cores, spinning threads take the cores from those that work. The OpenMP library reads its variable before
// main, so the program starts itself again. If one rank alone has too many threads, the library notices it.
static void sleep_if_oversubscribed(char **argv) {
    char program[PATH_MAX] = "";
    const long threads = (long)opt.threads * run.ranks_on_host;
    if (opt.threads < 2 || run.ranks_on_host < 2 || threads <= cores_of_host()) return;
    if (getenv("OMP_WAIT_POLICY")) return;
    if (readlink("/proc/self/exe", program, sizeof program - 1) > 0 &&
        !setenv("OMP_WAIT_POLICY", "passive", 1))
        execv(program, argv);
    note0("note: %ld threads on %d cores waste time spinning; set OMP_WAIT_POLICY=passive (%s)\n", threads,
          cores_of_host(), strerror(errno));
}

// On a CPU the progress thread needs a spare core, unless it mostly waits for files. On CUDA the plugin has
// separate streams, and a thread that waits for other ranks uses little CPU time.
void settle_overlap(void) {
    const long threads_of_host = (long)(run.threads + 1) * run.ranks_on_host;
    int spare_core = threads_of_host <= cores_of_host() && run.threads < cores_allowed();
    if (run.machine) spare_core = run.machine->spare_core;
    if (strcmp(opt.overlap, "auto"))
        run.overlap = !strcmp(opt.overlap, "1");
    else
        run.overlap = on_cuda() || spare_core || opt.zero.offload.params == ZERO_NVME;
}

void settle_machine(char **argv) {
    settle_ranks();
    sleep_if_oversubscribed(argv);
    settle_device();
    run.threads = run.machine ? machine.threads : threads_of_rank();
#ifdef _OPENMP
    omp_set_num_threads(run.threads);
#endif
    settle_overlap();
}

// -------- dtype

gpt2_dtype settle_dtype(void) {
    const int in_hardware = on_cuda() || run.layers->has_dtype(GPT2_BF16);
    const int is_bf16 = !strcmp(opt.dtype, "bf16") || (!strcmp(opt.dtype, "auto") && in_hardware);
    if (!strcmp(opt.dtype, "fp16")) {
        if (!on_cuda() && !opt.print_config) refuse_on_cpu("--dtype");
        return GPT2_F16;
    }
    if (!opt.master && !is_bf16)
        die("option -w 0: only bf16 parameters train without master weights; add --dtype bf16");
    return is_bf16 ? GPT2_BF16 : GPT2_F32;
}

// Both enums have the same order.
const char *dtype_name(gpt2_dtype dtype) { return zero_setting_named("numbers.dtype")->words[dtype]; }

// -------- the plugin's settings

zero_config settings_of(const Options *o) {
    zero_config config = o->zero;
    config.inference = is_answering(o);
    config.device = on_cuda() ? ZERO_CUDA : ZERO_CPU;
    config.machine = run.machine;
    if (run.machine) config.start.ranks = run.ranks;
    config.accumulate_layers = !strcmp(o->accumulate, "layers");
    config.numbers.no_master = !o->master;
    config.numbers.rounding_seed = (unsigned)o->seed;
    config.overlap = run.overlap;
    config.async_save = o->async_save;
    config.comm.shared_window = !o->messages;
    config.comm.nccl = !strcmp(o->comm, "auto") ? -1 : !strcmp(o->comm, "nccl");
    config.comm.reduce_nccl = !strcmp(o->reduce, "nccl");
    config.comm.reduce_fp32 = !strcmp(o->comm_type, "fp32");
    config.debug.trace_events = o->trace ? 1 << 16 : 0;
    // By default gradients follow the optimizer states, but no further than to host memory.
    config.offload.gradients = config.offload.optimizer && config.stage >= 2 ? ZERO_HOST : ZERO_DEVICE;
    if (o->offload_gradients)
        zero_setting_set(zero_setting_named("offload.gradients"), &config, o->offload_gradients);
    return config;
}

zero_config settings_at_stage(const zero_config *config, int stage) {
    zero_config c = *config;
    zero_offload_config *o = &c.offload;
    c.stage = stage;
    c.debug.naive = config->debug.naive && stage == 0;
    if (stage < 3) {
        o->params = ZERO_DEVICE;
        c.param_group = 0;
    }
    if (stage < 2) o->gradients = ZERO_DEVICE;
    if (stage < 1) {
        o->optimizer = ZERO_DEVICE;
        o->delayed_update = 0;
    }
    return c;
}

static zero_config effective;

zero_config plugin_settings(gpt2_dtype dtype, int micro_batches) {
    zero_config config = settings_of(&opt);
    config.numbers.dtype = (zero_dtype)dtype;
    config.micro_batches = micro_batches;
    zero_check(zero_settings_from_env(&config));
    effective = config;
    return config;
}

const zero_config *effective_settings(void) { return &effective; }

int settings_use_nvme(void) {
    const zero_offload_config *o = &effective.offload;
    return o->params == ZERO_NVME || o->optimizer == ZERO_NVME || o->gradients == ZERO_NVME;
}

// -------- differences between ranks that change the last bits

enum { PROGRAM_BLOCKS = 64 };  // blocks read of the executable: 1 MiB

// Warns if this line differs between ranks.
static void note_difference(const char *what, const char *value) {
    char line[FINGERPRINT + 32];
    snprintf(line, sizeof line, "%s = %s", what, value);
    int rc = zero_require_same(run.z, line);
    if (rc == ZERO_ERR_ARGUMENT)
        print0("warning: %s; the last bits of the results depend on it\n", zero_last_error());
    else
        zero_check(rc);
}

void note_differences(void) {
    char text[FINGERPRINT];
    if (fingerprint_of_file("/proc/self/exe", PROGRAM_BLOCKS, text)) strcpy(text, "unknown");
    note_difference("program", text);
    if (on_cuda()) {
        zero_job job;
        zero_job_info(run.z, &job);
        note_difference("device", job.device);
        return;
    }
    fingerprint_of_processor(text);
    note_difference("instruction set", text);
    snprintf(text, sizeof text, "%d", run.threads);
    note_difference("threads", text);
}
