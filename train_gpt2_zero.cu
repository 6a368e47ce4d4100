// Trains a GPT-2 with ZeRO stages 0 to 3, on CPUs or on CUDA devices. Plain C, compiled by `cc -x c`: see the
// Makefile.
//
//     make train_gpt2_zero && mpirun ./train_gpt2_zero            no argument needed: small model, built-in
//     stories, stage 3 mpirun -np 2 ./train_gpt2_zero -z 2 -e d12 -i train.bin -j val.bin -o log124M -n 1000
//     -y 1
//
// From top to bottom: options, model and its table for the plugin, forward and backward with the hooks,
// evaluation and sampling, checkpoints, logs, the progress bar, the training loop. The layers are in gpt2/,
// everything about ranks in llmc_zero/.
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif
// defines: gpt2_fail, gpt2_last_error
#include "gpt2/error.h"
// defines: bar_*, Progress
#include "gpt2/bar.h"
// defines: GPT2Config, GPT2Tensor, WTE..LNFB, gpt2_tensors, gpt2_config_from_descriptor, gpt2_init,
// gpt2_file_*
#include "gpt2/model.h"
// defines: gpt2_dtype, Layers, layers_cpu, layers_cuda, layers_cuda_*
#include "gpt2/layers.h"
// defines: DataLoader, dataloader_*
#include "gpt2/dataloader.h"
// defines: fingerprint_of_*
#include "gpt2/fingerprint.h"
// defines: text_file_read, text_file_write
#include "gpt2/text_file.h"
// defines: Tokenizer, tokenizer_*
#include "gpt2/tokenizer.h"
// defines: random_f32, sample_softmax
#include "gpt2/rand.h"
// defines: Schedule, schedule_*, OutlierDetector, outlier_*
#include "gpt2/schedule.h"
// defines: zero_*
#include "llmc_zero/zero.h"

// --------
// failure: one message for the job, then all ranks end

static zero *z;                  // the plugin; NULL before zero_create
static int rank = 0, ranks = 1;  // of this process
static int ranks_on_host = 1;    // as the launcher or -pg says
static int step = 0;
enum {
    ALONE = 2
};  // exit status where the ranks have not met: who started them need not wait for the others' words
static int creating =
    0;  // zero_create has been called: from there on the ranks know of each other's failures
static int not_first = 0;  // -pr says so
static int started = 0;    // the steps have begun
static double peak =
    0;  // operations a second of all ranks, measured where rank 0 shows a bar; 0: it does not

static void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
static void die(const char *fmt, ...) {
    int speak = zero_first_to_fail(z) && (z || creating || !not_first);
    // The rank that speaks ends this one meanwhile. Before the ranks are connected, where rank 0 may be what
    // is missing, they take turns.
    if (!speak) usleep(3000000 + (z ? 0 : 300000 * (rank < 20 ? rank : 20)));
    if (speak || !z) {  // before the ranks are connected each one fails alone, most often all in the same way
        char sentence[2048], who[32] = "";
        va_list args;
        va_start(args, fmt);
        vsnprintf(sentence, sizeof sentence, fmt, args);
        va_end(args);
        if (strstr(sentence, "rank ")) {  // a sentence about ranks names them
            if (started) snprintf(who, sizeof who, "step %d: ", step + 1);
        } else if (ranks > 1 && (z || rank))
            snprintf(who, sizeof who, "rank %d: ", rank);
        fflush(stdout);
        // in one write, which the other ranks' output cannot come between; not into the bar's line
        fprintf(stderr, "%strain_gpt2_zero: %s%s\n", peak > 0 ? "\n" : "", who, sentence);
    }
    zero_end_all(z, z || creating ? EXIT_FAILURE : ALONE);
    abort();
}
static void zero_check(int rc) {
    if (rc) die("%s", zero_last_error());
}
static void gpt2_check(int rc) {
    if (rc) die("%s", gpt2_last_error());
}
static const Layers *layers = &layers_cpu;  // of the device that computes
static int on_cuda(void) { return layers != &layers_cpu; }
#define LAYER(call) gpt2_check(layers->call)
static void *not_null(void *p) {
    if (!p) die("%s", zero_last_error());
    return p;
}
static void *malloc_check(size_t bytes) {
    void *p = malloc(bytes);
    if (!p) die("out of memory: %zu bytes", bytes);
    return p;
}
static double mib(double bytes) { return bytes / (1 << 20); }
static void print0(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void print0(const char *fmt, ...) {
    if (rank != 0) return;
    va_list args;
    va_start(args, fmt);
    bar_clear();
    vprintf(fmt, args);
    va_end(args);
    fflush(stdout);
}

// --------
// options: llm.c's letters, and long names for what llm.c lacks

typedef struct {
    const char *train_data, *val_data, *model, *output, *tokenizer, *schedule, *device, *dtype, *overlap,
        *trace, *hash, *zero_config, *progress;
    const char *attention, *tune, *comm, *reduce, *comm_type, *start, *server, *start_file;
    int B, T, total_batch, max_steps, warmup, val_every, val_batches, sample_every, sample_tokens;
    int checkpoint_every, checkpoints_keep, checkpoint_major, resume, overfit, recompute, stage, shuffle,
        seed, threads;
    int prefetch, naive, messages, tf32, gelu_fusion, master, processes, process_rank, ranks_a_host;
    int attention_mib;
    double lr, lr_final, weight_decay, skip_loss_z, skip_grad_z, beta1, beta2, eps, clip, bucket, window,
        comm_timeout, temperature, loss_scale;
} Options;

static Options opt = { .train_data = "data/stories_train.bin",
                       .val_data = "data/stories_val.bin",
                       .model = "l4h4c128v257t64",
                       .schedule = "cosine",
                       .device = "auto",
                       .dtype = "auto",
                       .overlap = "auto",
                       .hash = "params",
                       .progress = "auto",
                       .attention = "auto",
                       .comm = "auto",
                       .reduce = "ranks",
                       .start = "auto",
                       .process_rank = -1,
                       .tf32 = -1,
                       .gelu_fusion = -1,
                       .master = 1,
                       .B = 8,
                       .total_batch = -1,
                       .max_steps = -1,
                       .val_every = 100,
                       .val_batches = 10,
                       .sample_every = 500,
                       .sample_tokens = 200,
                       .recompute = -1,
                       .stage = -1,
                       .shuffle = 1,
                       .seed = 42,
                       .prefetch = 1,
                       .lr = 3e-3,
                       .lr_final = 0.03,
                       .warmup = 100,
                       .beta1 = 0.9,
                       .beta2 = 0.95,
                       .eps = 1e-8,
                       .clip = 1.0,
                       .comm_timeout = 300,
                       .temperature = 1,
                       .comm_type = "auto" };

typedef enum {
    HEADING,
    TEXT,
    INT,
    REAL,
    NOTHING_HERE,
    NOT_BUILT
} OptionKind;  // NOTHING_HERE: accepted, without effect
typedef struct {
    const char *name;
    OptionKind kind;
    void *value;
    double min, max;
    const char *help;
} Option;
// NOT_BUILT: the one value that is built stands in min and max; without help text there is none.

static const Option option_table[] = {
    { "Model and data", HEADING, NULL, 0, 0, NULL },
    { "-e", TEXT, &opt.model, 0, 0,
      "model: llm.c's .bin file, d12, gpt2:d12, gpt3:c768, or l4h4c128v257t64 (default):\n"
      "                 layers, heads, channels, vocabulary, longest sequence" },
    { "-i", TEXT, &opt.train_data, 0, 0,
      "training token shards, a pattern (default data/stories_train.bin)" },
    { "-j", TEXT, &opt.val_data, 0, 0, "validation token shards, a pattern (default data/stories_val.bin)" },
    { "--tokenizer", TEXT, &opt.tokenizer, 0, 0,
      "file, for samples (default: the stories' where V is 257, else gpt2_tokenizer.bin)" },
    { "--shuffle", INT, &opt.shuffle, 0, 1, "1: permute the rows, alike on any number of ranks (default 1)" },
    { "--seed", INT, &opt.seed, 0, 2147483647, "seed of the shuffle and of sampling (default 42)" },
    { "-a", INT, &opt.overfit, 0, 1, "1: train on one batch of the validation data (default 0)" },

    { "Batch and schedule", HEADING, NULL, 0, 0, NULL },
    { "-b", INT, &opt.B, 1, 1 << 20, "rows of a micro-batch on each rank, B (default 8; llm.c 4)" },
    { "-t", INT, &opt.T, 1, 1 << 20,
      "tokens of a row, T (default: the model's longest sequence; llm.c 1024)" },
    { "-d", INT, &opt.total_batch, -1, 1 << 30,
      "tokens of a step over all ranks, a multiple of B*T*ranks (default B*T*ranks)" },
    { "-x", INT, &opt.max_steps, -1, 1e9, "steps (default -1: one epoch)" },
    { "-l", REAL, &opt.lr, 0, 1e3, "learning rate (default 3e-3; llm.c 3e-4)" },
    { "-k", TEXT, &opt.schedule, 0, 0, "its schedule: cosine, linear, constant, wsd (default cosine)" },
    { "-u", INT, &opt.warmup, 0, 1e9, "warm-up steps (default 100; llm.c 0)" },
    { "-q", REAL, &opt.lr_final, 0, 1, "learning rate at the end, as a fraction (default 0.03; llm.c 1.0)" },

    { "Optimizer", HEADING, NULL, 0, 0, NULL },
    { "-c", REAL, &opt.weight_decay, 0, 1e3, "weight decay of 2-D tensors (default 0)" },
    { "--clip", REAL, &opt.clip, 0, 1e9, "largest gradient norm (default 1.0; 0: no clipping)" },
    { "--beta1", REAL, &opt.beta1, 0, 0.999999, "AdamW (default 0.9)" },
    { "--beta2", REAL, &opt.beta2, 0, 0.999999, "AdamW (default 0.95)" },
    { "--eps", REAL, &opt.eps, 0, 1, "AdamW (default 1e-8)" },
    { "-sl", REAL, &opt.skip_loss_z, 0, 1e9,
      "skip the update when the loss is this many deviations out (default 0: off)" },
    { "-sg", REAL, &opt.skip_grad_z, 0, 1e9, "the same for the gradient norm (default 0: off)" },
    { "-w", INT, &opt.master, 0, 1,
      "1: fp32 master weights; 0, with bf16: none, stochastic rounding (default 1)" },
    { "--loss-scale", REAL, &opt.loss_scale, 0, 1e30, "with fp16: always this; 0: dynamic (default 0)" },

    { "ZeRO", HEADING, NULL, 0, 0, NULL },
    { "-z", INT, &opt.stage, 0, 3, "ZeRO stage 0, 1, 2 or 3 (default 3; llm.c 0)" },
    { "--bucket", REAL, &opt.bucket, 0, 1e12,
      "elements a gradient bucket must reach (default 0: the largest block)" },
    { "--prefetch", INT, &opt.prefetch, 0, 1024, "units gathered ahead (default 1)" },
    { "--overlap", TEXT, &opt.overlap, 0, 0,
      "a progress thread runs collectives: auto, 0 or 1 (default auto: 1 on a spare core)" },
    { "--window", REAL, &opt.window, 65536, 16 << 20,
      "bytes of staging a rank, 65536 to 16777216 (default 4194304; NCCL: as needed)" },
    { "--messages", INT, &opt.messages, 0, 1,
      "1: messages instead of shared memory, on one machine too (default 0)" },
    { "--comm", TEXT, &opt.comm, 0, 0,
      "between CUDA devices: nccl, host, auto (default auto: NCCL where it is)" },
    { "--reduce", TEXT, &opt.reduce, 0, 0,
      "with NCCL: ranks: summed in rank order, or nccl: in its own (default ranks)" },
    { "--comm-type", TEXT, &opt.comm_type, 0, 0,
      "how gradients travel: auto, in their own type, or fp32 (default auto)" },
    { "--comm-timeout", REAL, &opt.comm_timeout, 1e-3, 1e6,
      "seconds after which a start, a collective or a save that does not end is an error\n"
      "                 (default 300)" },
    { "--naive", INT, &opt.naive, 0, 1,
      "1: plain data parallel without any of ZeRO's means, stage 0 only (default 0)" },
    { "--zero-config", TEXT, &opt.zero_config, 0, 0,
      "DeepSpeed JSON; it goes before --bucket, --prefetch, --overlap; others must agree" },
    { "--plan", NOT_BUILT, NULL, 0, 0, "" },
    { "--offload-optimizer", NOT_BUILT, NULL, 0, 0, "" },
    { "--offload-param", NOT_BUILT, NULL, 0, 0, "" },

    { "Output and checkpoints", HEADING, NULL, 0, 0, NULL },
    { "-o", TEXT, &opt.output, 0, 0,
      "folder for main.log, metrics.jsonl, summary.json and checkpoints, one for all\n"
      "                 machines (default: none)" },
    { "-n", INT, &opt.checkpoint_every, 0, 1e9, "save a checkpoint every so many steps (default 0: never)" },
    { "-nk", INT, &opt.checkpoints_keep, 0, 1e9, "keep the last so many checkpoints (default 0: all)" },
    { "-nm", INT, &opt.checkpoint_major, 0, 1e9,
      "checkpoints at multiples of this are never removed (default 0: none)" },
    { "-y", INT, &opt.resume, 0, 1,
      "1: resume from the last complete checkpoint in -o, if there is one (default 0)" },
    { "-v", INT, &opt.val_every, 0, 1e9, "validate every so many steps (default 100; llm.c 20; 0: never)" },
    { "-m", INT, &opt.val_batches, -1, 1e9, "validation batches (default 10; llm.c 20; -1: all)" },
    { "-s", INT, &opt.sample_every, 0, 1e9,
      "sample text every so many steps (default 500; llm.c 20; 0: never)" },
    { "-g", INT, &opt.sample_tokens, 1, 1 << 20, "tokens of a sample (default 200; llm.c 64)" },
    { "--temperature", REAL, &opt.temperature, 0.01, 100,
      "of samples: below 1 likelier tokens are taken more often (default 1)" },
    { "-h", NOT_BUILT, NULL, 0, 0, "HellaSwag (1 is not built yet)" },
    { "--progress", TEXT, &opt.progress, 0, 0,
      "auto, bar or lines: a line a step, or one bar (default auto: a bar on a terminal)" },
    { "--hash", TEXT, &opt.hash, 0, 0,
      "params or full: digest at the end; full adds the optimizer state (default params)" },
    { "--trace", TEXT, &opt.trace, 0, 0,
      "file for what happened when, as Chrome/Perfetto JSON; rank r > 0 adds .r" },

    { "Machine", HEADING, NULL, 0, 0, NULL },
    { "--device", TEXT, &opt.device, 0, 0,
      "auto, cpu or cuda (default auto: cuda where there is a usable device)" },
    { "--dtype", TEXT, &opt.dtype, 0, 0,
      "auto, bf16, fp32, on CUDA fp16 (default auto: bf16 if the hardware multiplies it)" },
    { "--threads", INT, &opt.threads, 0, 4096,
      "OpenMP threads of a rank (default 0: cores / ranks on this machine)" },
    { "-r", INT, &opt.recompute, -1, 2,
      "recompute in backward: 0 nothing, 1 GELU, 2 layernorms too (default -1: on CUDA\n"
      "                 the lowest that memory allows, 0 only where it fits at every stage if the product\n"
      "                 computes GELU; on a CPU 1; llm.c 1)" },
    { "-f", INT, &opt.tf32, 0, 1, "on CUDA with fp32: products round their inputs to TF32 (default 1)" },
    { "-ge", INT, &opt.gelu_fusion, -1, 2,
      "on CUDA: GELU apart (0), in the forward product (1), in backward's too (2;\n"
      "                 default -1: 2 on Hopper and newer, else 0)" },
    { "--attention", TEXT, &opt.attention, 0, 0,
      "on CUDA: cudnn; cudnn-fast, whose bits may differ from run to run; cublaslt; or\n"
      "                 auto (default auto: cudnn where it can)" },
    { "--attention-workspace", INT, &opt.attention_mib, 0, 1 << 20,
      "on CUDA: MiB of scratch that attention's backward may take; one row\n"
      "                 of the batch takes what it needs (default 0: cuDNN 512, cuBLASLt 64)" },
    { "--tune", TEXT, &opt.tune, 0, 0,
      "on CUDA: file of the fastest algorithms of matrix products; rank 0 times those\n"
      "                 that it lacks for this card and library, and adds them (default:\n"
      "                 none, cuBLASLt's first choice, which is the same in every run)" },
    { "-lg", NOTHING_HERE, NULL, 0, 0, "nvidia-smi shows a device's state" },

    { "Start of several ranks", HEADING, NULL, 0, 0, NULL },
    { "-pi", TEXT, &opt.start, 0, 0,
      "how they find each other: mpi, tcp, fs, or auto (default auto: MPI under mpirun;\n"
      "                 TCP under srun, or where RANK and WORLD_SIZE are set; else one rank)" },
    { "-pn", INT, &opt.processes, 0, 1 << 20, "tcp, fs: number of ranks (default 0: as the launcher says)" },
    { "-pr", INT, &opt.process_rank, -1, 1 << 20,
      "tcp, fs: number of this one, from 0 (default -1: as the launcher says)" },
    { "-pg", INT, &opt.ranks_a_host, 0, 1 << 20,
      "tcp, fs: ranks on a host (default 0: as the launcher says, else all)" },
    { "-ps", TEXT, &opt.server, 0, 0,
      "tcp: host or host:port of rank 0 (default: the launcher's; port 12345)" },
    { "-pf", TEXT, &opt.start_file, 0, 0, "fs: a path that all hosts see, of a file or a folder" },
};
enum { N_OPTIONS = sizeof option_table / sizeof *option_table };

static void usage(void) {
    print0(
        "usage: [mpirun -np N] ./train_gpt2_zero [option value]...\n\n"
        "  ./train_gpt2_zero -x 200                        one rank, 200 steps of a small model on stories\n"
        "  mpirun -np 2 ./train_gpt2_zero -z 2             two ranks, ZeRO stage 2, one epoch\n"
        "  mpirun ./train_gpt2_zero -e d12 -i 'train_*.bin' -j 'val_*.bin' -o log124M -n 1000 -y 1\n"
        "                                                  GPT-2 124M; started again, it resumes\n\n"
        "llm.c's letters keep their meaning; where a default differs from llm.c's, both are named.\n");
    for (const Option *o = option_table; o < option_table + N_OPTIONS; o++) {
        if (o->kind == HEADING)
            print0("\n%s\n", o->name);
        else if (o->kind != NOTHING_HERE && *o->help)
            print0("  %-14s %s\n", o->name, o->help);
    }
    print0("  without effect, accepted:");
    for (const Option *o = option_table; o < option_table + N_OPTIONS; o++)
        if (o->kind == NOTHING_HERE) print0(" %s", o->name);
    print0("\n\nThe bar's share of peak is (6 P + 12 L C T) x tokens/s, with P the parameters without those "
           "of the\n"
           "positions, over the speed of matrix products in the run's dtype, measured on all ranks at the "
           "start.\n");
}

static const Option *find_option(const char *name) {
    for (const Option *o = option_table; o < option_table + N_OPTIONS; o++)
        if (o->kind != HEADING && !strcmp(o->name, name)) return o;
    die("unknown option %s; --help lists them", name);
}

static double to_number(const Option *o, const char *text) {
    char *end;
    errno = 0;
    double x = strtod(text, &end);
    if (end == text || *end || errno || !isfinite(x)) die("option %s: '%s' is not a number", o->name, text);
    return x;
}

static double parse_number(const Option *o, const char *text) {
    double x = to_number(o, text);
    if (o->kind == INT && x != floor(x)) die("option %s: '%s' is not a whole number", o->name, text);
    if (x < o->min || x > o->max)
        die("option %s: %s is out of range, %g to %g", o->name, text, o->min, o->max);
    return x;
}

static void set_option(const Option *o, const char *text) {
    switch (o->kind) {
    case HEADING:
        break;
    case TEXT:
        *(const char **)o->value = text;
        break;
    case INT:
        *(int *)o->value = (int)parse_number(o, text);
        break;
    case REAL:
        *(double *)o->value = parse_number(o, text);
        break;
    case NOTHING_HERE:
        print0("option %s %s: no effect (%s)\n", o->name, text, o->help);
        break;
    case NOT_BUILT:
        if (to_number(o, text) != o->min) die("option %s %s: not built yet", o->name, text);
    }
}

// What --attention says.
static void check_attention(void) {
    static const char *const words[] = { "auto", "cudnn", "cudnn-fast", "cublaslt" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(opt.attention, words[i])) return;
    die("option --attention: '%s' is neither of auto, cudnn, cudnn-fast, cublaslt", opt.attention);
}

static int one_of(const char *text, const char *name, const char *a, const char *b, const char *c) {
    const char *choices[] = { a, b, c };
    for (int i = 0; i < 3; i++)
        if (choices[i] && !strcmp(text, choices[i])) return i;
    die("option %s: '%s' is neither of %s, %s%s%s", name, text, a, b, c ? ", " : "", c ? c : "");
}

static void parse_options(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2)
        not_first |= !strcmp(argv[i], "-pr") && atoi(argv[i + 1]) > 0;  // before an option is refused
    for (int i = 1; i < argc; i += 2) {
        if (!strcmp(argv[i], "--help")) {
            usage();
            exit(EXIT_SUCCESS);
        }
        const Option *o = find_option(argv[i]);
        if (o->kind == NOT_BUILT && !*o->help) die("option %s: not built yet", argv[i]);
        if (i + 1 == argc) die("option %s: its value is missing", argv[i]);
        set_option(o, argv[i + 1]);
    }
    one_of(opt.device, "--device", "auto", "cpu", "cuda");
    check_attention();
    one_of(opt.comm, "--comm", "auto", "host", "nccl");
    if (one_of(opt.reduce, "--reduce", "ranks", "nccl", NULL) && strcmp(opt.comm, "nccl"))
        die("option --reduce nccl: add --comm nccl");
    one_of(opt.comm_type, "--comm-type", "auto", "fp32", NULL);
    if (opt.naive && opt.stage)
        die("option --naive 1: the naive path is plain data parallel, it needs -z 0 and not -z %d",
            opt.stage < 0 ? 3 : opt.stage);
    if ((opt.checkpoint_every || opt.resume) && !opt.output)
        die("options -n and -y need a folder: add -o FOLDER");
    if (opt.overfit) {
        opt.train_data = opt.val_data;
        opt.shuffle = 0;
    }
}

static zero_start start_method(void) {
    if (!strcmp(opt.start, "auto")) return ZERO_START_AUTO;
    return (zero_start)(ZERO_START_MPI + one_of(opt.start, "-pi", "mpi", "tcp", "fs"));
}

// Which rank this is, before the ranks are connected: the launcher has said so, or -pn and -pr do.
static void settle_ranks(void) {
    zero_start start = start_method();
    if (opt.server && start != ZERO_START_TCP) die("option -ps %s: it goes with -pi tcp", opt.server);
    if (opt.start_file && start != ZERO_START_FILE) die("option -pf %s: it goes with -pi fs", opt.start_file);
    if (start == ZERO_START_FILE && !opt.start_file) die("option -pi fs: add -pf, a path that all hosts see");
    if ((opt.processes > 0) != (opt.process_rank >= 0))
        die("options -pn %d and -pr %d: give both, or neither under a launcher", opt.processes,
            opt.process_rank);
    if (opt.processes) {
        if (start < ZERO_START_TCP && (opt.processes != ranks || opt.process_rank != rank))
            die("options -pn %d -pr %d: the launcher started rank %d of %d; without a launcher, add -pi tcp "
                "or -pi fs",
                opt.processes, opt.process_rank, rank, ranks);
        if (opt.process_rank >= opt.processes)
            die("option -pr %d: of %d ranks (-pn) the last is %d", opt.process_rank, opt.processes,
                opt.processes - 1);
        rank = opt.process_rank;
        ranks_on_host = ranks = opt.processes;
    }
    if (opt.ranks_a_host) ranks_on_host = opt.ranks_a_host < ranks ? opt.ranks_a_host : ranks;
}

// --------
// the model: sizes, activations, and what the plugin must know of it

typedef struct {
    GPT2Config config;
    gpt2_dtype dtype;
    GPT2Tensor tensors[NUM_PARAMETER_TENSORS];
    int B, T, chunk;       // chunk: rows of logits that exist at a time
    size_t scratch_bytes;  // that the layers work in
    // activations, in dtype unless float; [l] with one buffer for all layers where it is recomputed
    void *encoded;  // (B, T, C)
    void **ln1, **qkv, **atty, **residual2, **ln2, **fch, **fch_gelu,
        **residual3;  // (L) of (B, T, C), (B, T, 3C) .. see allocate_activations
    float **ln1_mean, **ln1_rstd, **ln2_mean, **ln2_rstd;  // (L) of (B, T)
    float **lse;                                           // (L) of (B, NH, T)
    void *lnf;                                             // (B, T, C)
    float *lnf_mean, *lnf_rstd;                            // (B, T)
    float *losses;                                         // (B, T)
    double *loss_sum;  // their sum, over all passes of a step or of a validation
    void *logits;      // (chunk, Vp)
    void *scratch_btc, *dresidual, *dl_btc, *dl_bt4c;  // (B, T, C) .. (B, T, 4C)
    float *dresidual_sums;                             // (C) of dresidual's columns
} GPT2;

// Unit 0 holds the embeddings and the final layernorm: wte is used at both ends of the net. Unit 1 + l is
// block l.
enum { EMBEDDING = 0 };
static int block(int l) { return 1 + l; }

static const char *const dtype_names[] = { "fp32", "bf16", "fp16" };  // of gpt2_dtype and of zero_dtype

// What the file asks for and options of the trainer's settle too, numbers and batch, must be the same in
// both.
static void take_zero_config(zero_config *config) {
    const char *file = opt.zero_config;
    zero_config asked = *config;
    zero_check(zero_config_from_file(&asked, file));
    if (opt.stage >= 0 && asked.stage != opt.stage)
        die("option --zero-config %s: it asks for stage %d, option -z for %d; leave one of them out", file,
            asked.stage, opt.stage);
    if (asked.numbers.dtype != config->numbers.dtype)
        die("option --zero-config %s: bf16.enabled and fp16.enabled ask for %s and the run is in %s; add "
            "--dtype %s",
            file, dtype_names[asked.numbers.dtype], dtype_names[config->numbers.dtype],
            dtype_names[asked.numbers.dtype]);
    if (asked.micro_batches != config->micro_batches)
        die("option --zero-config %s: gradient_accumulation_steps is %d, but -d, -b, -t and the ranks make "
            "%d micro-batches a step",
            file, asked.micro_batches, config->micro_batches);
    if (config->comm.reduce_fp32 && !asked.comm.reduce_fp32)
        die("option --zero-config %s: its communication_data_type is not the fp32 of option --comm-type; "
            "leave one of them out",
            file);
    *config = asked;
}

// The plugin's settings, from the options and the file of --zero-config. Options that the file overrules take
// its values.
static zero_config plugin_config(const GPT2 *model, int micro_batches, int *overlap) {
    zero_config config = zero_defaults();
    config.stage = opt.stage < 0 ? 3 : opt.stage;
    config.debug.naive = opt.naive;
    config.device = on_cuda() ? ZERO_CUDA : ZERO_CPU;
    config.numbers.dtype = (zero_dtype)model->dtype;  // the same order
    config.numbers.no_master = !opt.master;
    config.numbers.rounding_seed = (unsigned)opt.seed;
    config.numbers.loss_scale = opt.loss_scale;
    config.micro_batches = micro_batches;
    config.reduce_bucket_size = (int64_t)opt.bucket;
    config.prefetch = opt.prefetch;
    config.overlap = *overlap;
    config.comm.window_bytes = (int64_t)opt.window;
    config.comm.shared_window = !opt.messages;
    config.comm.nccl = one_of(opt.comm, "--comm", "auto", "host", "nccl") - 1;
    config.comm.reduce_nccl = !strcmp(opt.reduce, "nccl");
    config.comm.reduce_fp32 = !strcmp(opt.comm_type, "fp32");
    config.start.method = start_method();
    config.start.ranks = opt.processes;
    config.start.rank = opt.process_rank;
    config.start.server = opt.server;
    config.start.file = opt.start_file;
    config.comm.timeout_s = opt.comm_timeout;
    config.debug.trace_events = opt.trace ? 1 << 16 : 0;
    if (opt.zero_config) take_zero_config(&config);
    opt.stage = config.stage;
    if (config.comm.reduce_fp32) opt.comm_type = "fp32";
    opt.prefetch = config.prefetch;
    *overlap = config.overlap;
    return config;
}

static void out_of_memory(const GPT2 *model, const zero_config *config) __attribute__((noreturn));
static void print_memory(void);
static size_t host_bytes(void);

static zero_config create_plugin(GPT2 *model, int micro_batches, int *overlap, const char *same) {
    int L = model->config.num_layers;
    zero_tensor tensors[NUM_PARAMETER_TENSORS];
    zero_unit units[1 + L];
    char names[L][24];
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        const GPT2Tensor *t = &model->tensors[i];
        int written = t->n_dims == 2 && i != WPE;  // matmul_backward's first product is = and not +=
        tensors[i] = (zero_tensor){
            .name = t->name,
            .n_dims = t->n_dims,
            .dims = { t->dims[0], t->dims[1] },
            .layers = t->per_layer ? L : 1,
            .unit = t->per_layer ? block(0) : EMBEDDING,
            .decay = t->n_dims == 2,
            .written = written,
        };
    }
    // forward: encoder, head; backward: head, encoder, which only adds to gradients
    units[EMBEDDING] = (zero_unit){ "embedding", 2, 2, 1 };
    for (int l = 0; l < L; l++) {
        snprintf(names[l], sizeof names[l], "block %d", l);
        units[block(l)] = (zero_unit){ names[l], 1, 1, 0 };
    }
    zero_config config = plugin_config(model, micro_batches, overlap);
    config.start.same = same;
    creating = 1;
    int rc = zero_create(&z, &config, tensors, NUM_PARAMETER_TENSORS, units, 1 + L);
    if (rc == ZERO_ERR_MEMORY) out_of_memory(model, &config);
    zero_check(rc);
    if (rank != zero_rank(z) || ranks != zero_ranks(z))
        die("the launcher started rank %d of %d, but this is %d of %d: with MPI, start it with the mpirun of "
            "the Open MPI it was built with",
            rank, ranks, zero_rank(z), zero_ranks(z));
    return config;
}

// What zero_alloc takes for them.
static size_t whole_pages(size_t bytes) {
    enum { PAGE = 4096 };
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

// Activations are allocated, or only added up in *counted.
static size_t *counted;
static int missing;  // the device had no memory for one: the plugin has the sentence

static void *allocate(const char *purpose, size_t bytes) {
    void *p = missing ? NULL : counted ? (void *)counted : zero_alloc(z, ZERO_ACTIVATIONS, purpose, bytes);
    if (counted)
        *counted += whole_pages(bytes);
    else
        missing = !p;
    return p;
}
static void *activation(size_t bytes) { return allocate("activations", bytes); }

// One buffer a layer, or one for all of them.
static void **per_layer(int L, size_t bytes, int shared) {
    void **p = malloc_check(L * sizeof(void *));
    size_t stride = (bytes + 255) / 256 * 256;
    char *base = activation(shared ? stride : L * stride);
    for (int l = 0; l < L; l++) p[l] = base && !counted ? base + (shared ? 0 : l * stride) : NULL;
    return p;
}

// All but the logits and the layers' scratch, whose sizes settle_memory finds.
static void allocate_buffers(GPT2 *model) {
    size_t B = model->B, T = model->T, C = model->config.channels, NH = model->config.num_heads;
    size_t BT = B * T, btc = BT * C * gpt2_dtype_size(model->dtype);
    int L = model->config.num_layers;
    model->encoded = activation(btc);
    model->ln1 = per_layer(L, btc, opt.recompute >= 2);
    model->qkv = per_layer(L, 3 * btc, 0);
    model->atty = per_layer(L, btc, 0);
    model->residual2 = per_layer(L, btc, 0);
    model->ln2 = per_layer(L, btc, opt.recompute >= 2);
    model->fch = per_layer(L, 4 * btc, 0);
    model->fch_gelu = per_layer(L, 4 * btc, opt.recompute >= 1);
    model->residual3 = per_layer(L, btc, 0);
    model->ln1_mean = (float **)per_layer(L, BT * sizeof(float), 0);
    model->ln1_rstd = (float **)per_layer(L, BT * sizeof(float), 0);
    model->ln2_mean = (float **)per_layer(L, BT * sizeof(float), 0);
    model->ln2_rstd = (float **)per_layer(L, BT * sizeof(float), 0);
    model->lse = (float **)per_layer(L, B * NH * T * sizeof(float), 0);
    model->lnf = activation(btc);
    model->lnf_mean = activation(BT * sizeof(float));
    model->lnf_rstd = activation(BT * sizeof(float));
    model->losses = activation(BT * sizeof(float));
    model->loss_sum = activation(sizeof(double));
    model->scratch_btc = activation(btc);
    model->dresidual = activation(btc);
    model->dresidual_sums = activation(C * sizeof(float));
    model->dl_btc = activation(btc);
    model->dl_bt4c = activation(4 * btc);
}

static void free_tables(GPT2 *model) {  // the memory is the plugin's
    void *tables[] = { model->ln1,      model->qkv,      model->atty,      model->residual2, model->ln2,
                       model->fch,      model->fch_gelu, model->residual3, model->ln1_mean,  model->ln1_rstd,
                       model->ln2_mean, model->ln2_rstd, model->lse };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) free(tables[i]);
}

static void free_model(GPT2 *model) {
    free_tables(model);
    layers->free();
}

static size_t logits_bytes(const GPT2 *model, size_t rows) {
    return rows * model->config.padded_vocab_size * gpt2_dtype_size(model->dtype);
}

static void allocate_activations(GPT2 *model) {
    allocate_buffers(model);
    model->logits = activation(logits_bytes(model, model->chunk));
    void *memory = allocate("scratch of the layers", model->scratch_bytes);
    if (!missing) LAYER(use_scratch(memory));
}

// --------
// what fits into memory: the head's parts, the level of recompute, and what to do where nothing fits

// As allocate_buffers would take at this level.
static size_t buffer_bytes(GPT2 model, int recompute) {
    int asked = opt.recompute;
    size_t bytes = 0;
    opt.recompute = recompute;
    counted = &bytes;
    allocate_buffers(&model);
    counted = NULL;
    opt.recompute = asked;
    free_tables(&model);
    return bytes;
}

static size_t activation_bytes(const GPT2 *model, int recompute) {
    size_t logits = logits_bytes(model, model->chunk);
    return buffer_bytes(*model, recompute) + whole_pages(logits) + whole_pages(model->scratch_bytes);
}

// Model states and working buffers of a rank, as in the memory table, but for small ones.
static size_t plugin_bytes(const GPT2 *model, const zero_config *config, int stage) {
    int64_t parameters = gpt2_num_parameters(&model->config), in_block = 0, working = 0;
    int64_t size = gpt2_dtype_size(model->dtype);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++)
        in_block += model->tensors[i].per_layer ? model->tensors[i].elems : 0;
    int64_t embeddings = parameters - in_block * model->config.num_layers;
    if (stage >= 2 || config->micro_batches > 1) working += (2 * in_block + embeddings) * size;  // buckets
    if (config->comm.reduce_fp32 && size == 2 && ranks > 1 && (stage >= 2 || config->micro_batches == 1))
        working += (in_block > embeddings ? in_block : embeddings) * 4;                  // one on the wire
    if (stage == 3) working += ((1 + config->prefetch) * in_block + embeddings) * size;  // slots
    return zero_states_bytes(config, parameters, ranks, stage) + working;
}

// Ranks that share a device share its memory evenly. Before there is a plugin nothing is known of the others.
static int ranks_on_device(void) {
    zero_effective e = { .ranks_on_device = 1 };
    if (z) zero_get_effective(z, &e);
    return e.ranks_on_device;
}

// The rank's part of its device, used or not.
static size_t device_bytes(void) {
    size_t total;
    LAYER(device_bytes(&total));
    return total / ranks_on_device();
}

// What a device has left with nothing recomputed at the stage that takes most. It follows from the size of
// the device, the model and the batch alone, and not from the stage or from what is free at the moment, so
// that bits may depend on it. An eighth of the device is for the CUDA context, NCCL and the layers' scratch.
static size_t left_at_any_stage(const GPT2 *model, const zero_config *config) {
    zero_config plain = *config;
    plain.prefetch = 1;  // these two take memory and change no bits
    plain.comm.reduce_fp32 = 0;
    size_t device = device_bytes(), largest = 0;
    for (int stage = 0; stage <= 3; stage++) {
        size_t bytes = plugin_bytes(model, &plain, stage);
        if (bytes > largest) largest = bytes;
    }
    size_t taken = largest + buffer_bytes(*model, 0) + device / 8;
    return taken < device ? device - taken : 0;
}

// How many bytes of logits may exist at once. The run's bits depend on it: the classifier's bf16 gradient is
// rounded once a part. On CUDA it is what any stage leaves. It is at least 1 GiB, on a small device a
// sixteenth of it. It is at most 4 GiB, since little is gained beyond: each part reads and writes the
// gradient (V, C) once more, and by an H100's data sheet the products of 4 GiB (42000 rows with GPT-2's
// vocabulary in bf16) take more than 100 times as long.
static size_t logits_at_once(const GPT2 *model, const zero_config *config) {
    const size_t most = (size_t)4 << 30;
    if (!on_cuda()) return 128 << 20;
    size_t device = device_bytes(), least = device / 16 < 1 << 30 ? device / 16 : 1 << 30;
    size_t left = left_at_any_stage(model, config);
    return left < least ? least : left < most ? left : most;
}

enum { MOST_PARTS = 8, TILE_ROWS = 256 };  // few parts: each rounds the gradient once more

// Rows of logits at a time. On CUDA they fill whole tiles of the products; the last part takes the rest.
static int rows_of_part(const GPT2 *model, int parts) {
    size_t BT = (size_t)model->B * model->T, rows = (BT + parts - 1) / parts;
    if (on_cuda()) rows = (rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    return (int)(rows < BT ? rows : BT);
}

static int parts_of_head(const GPT2 *model, const zero_config *config) {
    size_t at_once = logits_at_once(model, config), all = logits_bytes(model, (size_t)model->B * model->T);
    size_t parts = (all + at_once - 1) / at_once;
    return parts < MOST_PARTS ? (int)parts : MOST_PARTS;
}

// Sets the rows of a part and asks the layers for their scratch.
static void plan_layers(GPT2 *model, int parts) {
    const GPT2Config *c = &model->config;
    model->chunk = rows_of_part(model, parts);
    LAYER(plan(model->dtype, model->B, model->T, c->channels, c->num_heads, c->padded_vocab_size,
               model->chunk, &model->scratch_bytes));
}

static char *tuning_of_rank_0(char *text) {  // what rank 0 has in text, on all ranks, to be freed
    uint64_t bytes = rank == 0 ? strlen(text) + 1 : 0;
    zero_check(zero_broadcast(z, 0, &bytes, sizeof bytes));
    if (rank != 0) text = malloc_check(bytes);
    zero_check(zero_broadcast(z, 0, text, bytes));
    return text;
}

// With --tune, rank 0 times the matrix products that the file lacks, and all ranks take its choices, so that
// bits depend on the file and not on who measured what.
static void plan_tuned_layers(GPT2 *model, int parts) {
    const char *card = layers_cuda_card();
    char line[512];
    if (!card) die("%s", gpt2_last_error());
    snprintf(line, sizeof line, "what --tune times on = %s", card);
    zero_check(zero_require_same(z, line));
    char *text = rank == 0 ? text_file_read(opt.tune) : tuning_of_rank_0(NULL);
    if (!text) die("option --tune: %s", gpt2_last_error());
    gpt2_check(layers_cuda_tune(opt.tune, text, rank == 0));
    plan_layers(model, parts);
    if (rank == 0) {
        char *tuned = layers_cuda_tuned();
        if (!tuned) die("option --tune: %s", gpt2_last_error());
        int changed = strcmp(tuned, text);
        if (changed && text_file_write(opt.tune, tuned)) die("option --tune: %s", gpt2_last_error());
        print0("tuning     %s%s\n", opt.tune, changed ? ", with what was timed just now" : "");
        tuning_of_rank_0(tuned);
        free(tuned);
    }
    free(text);
}

enum { MOST_RECOMPUTE = 2 };
static int recompute_chosen;  // nobody has asked for the level

// The lowest level whose activations fit into what the device has left once the plugin holds its own memory.
// A thirty-second of the device stays free: kernels are loaded and NCCL connects later, and allocations
// leave gaps. Where the forward product computes GELU itself, level 0 has other bits than the others, so it
// is taken only where it fits at every stage.
static int lowest_recompute(const GPT2 *model, const zero_config *config) {
    size_t left, reserve = device_bytes() / 32;
    int level = 0;
    if (layers_cuda_gelu_fused(4 * model->config.channels)) {
        if (logits_bytes(model, model->chunk) <= left_at_any_stage(model, config)) return 0;
        level = 1;
    }
    zero_check(zero_memory_left(config, &left));
    left /= ranks_on_device();
    while (level < MOST_RECOMPUTE && activation_bytes(model, level) + reserve > left) level++;
    return level;
}

// The largest of the ranks' numbers, each from 0 to `most`, which is at most 64.
static int largest_of_ranks(int number, int most) {
    double ranks_above[64];
    int largest = 0;
    for (int i = 0; i < most; i++) ranks_above[i] = number > i;
    zero_check(zero_sum(z, ranks_above, most));
    while (largest < most && ranks_above[largest] > 0) largest++;
    return largest;
}

// Settles the head's parts and the level of recompute, before activations are allocated. All ranks take what
// the one with the least memory needs. On a processor both are fixed.
static void settle_memory(GPT2 *model, const zero_config *config) {
    int parts = parts_of_head(model, config);
    if (on_cuda()) parts = largest_of_ranks(parts, MOST_PARTS);
    if (opt.tune)
        plan_tuned_layers(model, parts);
    else
        plan_layers(model, parts);
    // Ranks that share a device have freed what they tried products in.
    if (on_cuda()) zero_check(zero_barrier(z));
    recompute_chosen = opt.recompute < 0 && on_cuda();
    if (recompute_chosen)
        opt.recompute = largest_of_ranks(lowest_recompute(model, config), MOST_RECOMPUTE);
    else if (opt.recompute < 0)
        opt.recompute = 1;
}

// Bytes of a rank with another stage, recompute level or batch.
static size_t bytes_with(GPT2 model, zero_config config, int stage, int recompute, int B) {
    config.micro_batches *= model.B / B;
    model.B = B;
    if (on_cuda()) gpt2_check(layers_cuda_tune(NULL, NULL, 0));  // only its memory counts
    plan_layers(&model, parts_of_head(&model, &config));
    return plugin_bytes(&model, &config, stage) + activation_bytes(&model, recompute);
}

// Says what was asked for and held, and what of stage, recompute and batch would make the run fit.
static void out_of_memory(const GPT2 *model, const zero_config *config) {
    char sentence[512], fits[256] = "";
    size_t room = 0, held = z ? zero_memory_bytes(z, ZERO_STATES) + zero_memory_bytes(z, ZERO_WORKING) +
                                    zero_memory_bytes(z, ZERO_ACTIVATIONS)
                              : 0;
    int stage = config->stage, B = model->B, most = ranks > 1 ? 3 : stage, n = 0;
    int r = opt.recompute >= 0 ? opt.recompute : on_cuda() ? MOST_RECOMPUTE : 1;  // else: not settled yet
    snprintf(sentence, sizeof sentence, "%s", zero_last_error());
    missing = 0;
    if (z) held -= host_bytes();
    if (z) print_memory();
    if (zero_memory_left(config, &room)) die("%s", sentence);
    room = room / ranks_on_device() + held;
    for (int s = stage + 1; s <= most && !n; s++)
        if (bytes_with(*model, *config, s, r, B) < room)
            n += snprintf(fits + n, sizeof fits - n, " -z %d", s);
    for (int level = r + 1, found = 0; level <= MOST_RECOMPUTE && !found; level++) {
        if (bytes_with(*model, *config, stage, level, B) >= room) continue;
        n += snprintf(fits + n, sizeof fits - n, "%s -r %d", n ? ", or" : "", level);
        found = 1;
    }
    for (int b = B / 2, found = 0; b && !found; b /= 2) {
        if (B % b || bytes_with(*model, *config, stage, r, b) >= room) continue;
        n += snprintf(fits + n, sizeof fits - n, "%s -b %d -d %lld", n ? ", or" : "", b,
                      (long long)B * model->T * ranks * config->micro_batches);
        found = 1;
    }
    for (int b = B; b && !n; b /= 2)
        if (B % b == 0 && bytes_with(*model, *config, most, 2, b) < room)
            n += snprintf(fits, sizeof fits, " -z %d -r 2 -b %d -d %lld", most, b,
                          (long long)B * model->T * ranks * config->micro_batches);
    die("%s; a rank can have %.0f MiB. What would fit:%s", sentence, mib(room),
        n ? fits
          : " neither a higher stage, nor -r 2, nor a smaller "
            "-b: the model needs more ranks or larger devices");
}

// --------
// forward and backward: the layers, and around each use of a unit its hooks

static void *param(int tensor, int layer) { return not_null(zero_param(z, tensor, layer)); }
static void *grad(int tensor, int layer) { return not_null(zero_grad(z, tensor, layer)); }

// inputs (B, T) -> the residual stream after the last block, as two summands (B, T, C): residual2[L-1] and
// scratch_btc. The layernorm that follows a block adds them in its own pass and leaves the sum in residual3.
// That needs no parameter of the block, which is closed before.
static void gpt2_forward(GPT2 *model, const int *inputs, int B, int T) {
    int L = model->config.num_layers, C = model->config.channels, NH = model->config.num_heads, BT = B * T;
    gpt2_dtype dt = model->dtype;

    zero_check(zero_pre_forward(z, EMBEDDING));
    LAYER(encoder_forward(dt, model->encoded, inputs, param(WTE, 0), param(WPE, 0), B, T, C));
    zero_check(zero_post_forward(z, EMBEDDING));

    for (int l = 0; l < L; l++) {
        void *residual = l == 0 ? model->encoded : model->residual3[l - 1];
        zero_check(zero_pre_forward(z, block(l)));
        if (l == 0) {
            LAYER(layernorm_forward(dt, model->ln1[0], model->ln1_mean[0], model->ln1_rstd[0], residual,
                                    param(LN1W, 0), param(LN1B, 0), BT, C));
        } else {
            LAYER(residual_layernorm_forward(dt, residual, model->ln1[l], model->ln1_mean[l],
                                             model->ln1_rstd[l], model->residual2[l - 1], model->scratch_btc,
                                             param(LN1W, l), param(LN1B, l), BT, C));
        }
        LAYER(matmul_forward(dt, model->qkv[l], model->ln1[l], param(QKVW, l), param(QKVB, l), BT, C, 3 * C));
        LAYER(attention_forward(dt, model->atty[l], model->lse[l], model->qkv[l], B, T, C, NH));
        LAYER(matmul_forward(dt, model->scratch_btc, model->atty[l], param(ATTPROJW, l), param(ATTPROJB, l),
                             BT, C, C));
        LAYER(residual_layernorm_forward(dt, model->residual2[l], model->ln2[l], model->ln2_mean[l],
                                         model->ln2_rstd[l], residual, model->scratch_btc, param(LN2W, l),
                                         param(LN2B, l), BT, C));
        LAYER(matmul_gelu_forward(dt, model->fch_gelu[l], model->fch[l], model->ln2[l], param(FCW, l),
                                  param(FCB, l), BT, C, 4 * C));
        LAYER(matmul_forward(dt, model->scratch_btc, model->fch_gelu[l], param(FCPROJW, l), param(FCPROJB, l),
                             BT, 4 * C, C));
        zero_check(zero_post_forward(z, block(l)));
    }
}

static void *rows(const GPT2 *model, void *base, size_t row, size_t width) {
    return (char *)base + row * width * gpt2_dtype_size(model->dtype);
}

// The final layernorm, the classifier and the loss. With dloss != 0 the backward pass of all three follows
// chunk by chunk, so that the logits of the whole batch never exist: the unit is open for forward and
// backward together. The losses' sum goes to loss_sum: it starts there with the first pass, the others add to
// it. Nothing waits for it here.
static void gpt2_head(GPT2 *model, const int *targets, int B, int T, float dloss, int first) {
    int L = model->config.num_layers, C = model->config.channels, V = model->config.vocab_size,
        Vp = model->config.padded_vocab_size;
    int BT = B * T;
    gpt2_dtype dt = model->dtype;
    void *residual = model->residual3[L - 1], *dlnf = model->dl_btc;

    zero_check(zero_pre_forward(z, EMBEDDING));
    if (dloss) zero_check(zero_pre_backward(z, EMBEDDING));
    LAYER(residual_layernorm_forward(dt, residual, model->lnf, model->lnf_mean, model->lnf_rstd,
                                     model->residual2[L - 1], model->scratch_btc, param(LNFW, 0),
                                     param(LNFB, 0), BT, C));
    for (int row = 0; row < BT; row += model->chunk) {
        int n = BT - row < model->chunk ? BT - row : model->chunk, add = row > 0;
        void *lnf = rows(model, model->lnf, row, C), *dout = rows(model, dlnf, row, C);
        LAYER(matmul_forward(dt, model->logits, lnf, param(WTE, 0), NULL, n, C, Vp));
        LAYER(softmax_crossentropy(dt, model->losses + row, model->logits, dloss, targets + row, n, V, Vp));
        if (dloss)
            LAYER(matmul_backward(dt, dout, NULL, grad(WTE, 0), NULL, model->logits, lnf, param(WTE, 0), NULL,
                                  n, C, Vp, add));
    }
    LAYER(sum(model->loss_sum, model->losses, BT, !first));
    zero_check(zero_post_forward(z, EMBEDDING));
    if (dloss) {
        LAYER(clear(model->dresidual, (size_t)BT * C * gpt2_dtype_size(dt)));
        LAYER(layernorm_backward(dt, model->dresidual, grad(LNFW, 0), grad(LNFB, 0), model->dresidual_sums,
                                 dlnf, residual, param(LNFW, 0), model->lnf_mean, model->lnf_rstd, BT, C));
        zero_check(zero_post_backward(z, EMBEDDING));
    }
}

// From the gradient of the residual stream after the last block (dresidual) back to the embeddings. A block's
// weights have one product each, which writes the gradient instead of adding to it: so create_plugin says
// that those are `written`. dresidual is the gradient of attproj's and of fcproj's output. The layernorm that
// adds to it before them also sums its columns, which gives the gradients of their biases.
static void gpt2_backward(GPT2 *model, const int *inputs, int B, int T) {
    int L = model->config.num_layers, C = model->config.channels, NH = model->config.num_heads, BT = B * T;
    gpt2_dtype dt = model->dtype;
    void *dresidual = model->dresidual, *dl_btc = model->dl_btc, *dl_bt4c = model->dl_bt4c;
    float *dresidual_sums = model->dresidual_sums;
    int fused = layers->dinp_bias_fused(dt, BT, 4 * C, C);  // FCB's gradient comes with fcproj's product

    for (int l = L - 1; l >= 0; l--) {
        void *residual = l == 0 ? model->encoded : model->residual3[l - 1];
        zero_check(zero_pre_backward(z, block(l)));
        if (opt.recompute >= 1)
            LAYER(gelu_forward(dt, model->fch_gelu[l], model->fch[l], (size_t)BT * 4 * C));
        LAYER(bias_from_sums(dt, grad(FCPROJB, l), dresidual_sums, C));
        LAYER(matmul_backward(dt, dl_bt4c, fused ? grad(FCB, l) : NULL, grad(FCPROJW, l), NULL, dresidual,
                              model->fch_gelu[l], param(FCPROJW, l), model->fch[l], BT, 4 * C, C, 0));
        if (opt.recompute >= 2)
            LAYER(layernorm_forward(dt, model->ln2[l], model->ln2_mean[l], model->ln2_rstd[l],
                                    model->residual2[l], param(LN2W, l), param(LN2B, l), BT, C));
        LAYER(matmul_backward(dt, dl_btc, NULL, grad(FCW, l), fused ? NULL : grad(FCB, l), dl_bt4c,
                              model->ln2[l], param(FCW, l), NULL, BT, C, 4 * C, 0));
        LAYER(layernorm_backward(dt, dresidual, grad(LN2W, l), grad(LN2B, l), dresidual_sums, dl_btc,
                                 model->residual2[l], param(LN2W, l), model->ln2_mean[l], model->ln2_rstd[l],
                                 BT, C));
        LAYER(bias_from_sums(dt, grad(ATTPROJB, l), dresidual_sums, C));
        LAYER(matmul_backward(dt, dl_btc, NULL, grad(ATTPROJW, l), NULL, dresidual, model->atty[l],
                              param(ATTPROJW, l), NULL, BT, C, C, 0));
        LAYER(attention_backward(dt, dl_bt4c, dl_btc, model->qkv[l], model->atty[l], model->lse[l], B, T, C,
                                 NH));
        if (opt.recompute >= 2)
            LAYER(layernorm_forward(dt, model->ln1[l], model->ln1_mean[l], model->ln1_rstd[l], residual,
                                    param(LN1W, l), param(LN1B, l), BT, C));
        LAYER(matmul_backward(dt, dl_btc, NULL, grad(QKVW, l), grad(QKVB, l), dl_bt4c, model->ln1[l],
                              param(QKVW, l), NULL, BT, C, 3 * C, 0));
        LAYER(layernorm_backward(dt, dresidual, grad(LN1W, l), grad(LN1B, l), l > 0 ? dresidual_sums : NULL,
                                 dl_btc, residual, param(LN1W, l), model->ln1_mean[l], model->ln1_rstd[l], BT,
                                 C));
        zero_check(zero_post_backward(z, block(l)));
    }

    zero_check(zero_pre_backward(z, EMBEDDING));
    LAYER(encoder_backward(dt, grad(WTE, 0), grad(WPE, 0), dresidual, inputs, B, T, C));
    zero_check(zero_post_backward(z, EMBEDDING));
}

// One training step's gradients over A micro-batches; returns the mean loss over the global batch.
static double gpt2_gradients(GPT2 *model, DataLoader *loader, int A) {
    double tokens = (double)model->B * model->T * A, loss;
    for (int micro = 0; micro < A; micro++) {
        gpt2_check(dataloader_next(loader));
        zero_check(zero_begin_train(z, micro, A));
        gpt2_forward(model, loader->inputs, model->B, model->T);
        gpt2_head(model, loader->targets, model->B, model->T, (float)(zero_loss_scale(z) / tokens),
                  micro == 0);
        gpt2_backward(model, loader->inputs, model->B, model->T);
    }
    LAYER(download(&loss, model->loss_sum, sizeof loss));
    zero_check(zero_sum(
        z, &loss, 1));  // first: where a collective has failed, the loss is the numbers that it left behind
    if (!isfinite(loss))
        die("step %d: the loss is not finite (%f); the last checkpoint stays as it is", step + 1, loss);
    return loss / (tokens * ranks);
}

// --------
// evaluation and sampling: forward passes on all ranks, since at stage 3 a forward pass is collective

static double gpt2_validate(GPT2 *model, DataLoader *loader, int batches) {
    double loss;
    gpt2_check(dataloader_reset(loader));
    for (int i = 0; i < batches; i++) {
        gpt2_check(dataloader_next(loader));
        zero_check(zero_begin_eval(z));
        gpt2_forward(model, loader->inputs, model->B, model->T);
        gpt2_head(model, loader->targets, model->B, model->T, 0, i == 0);
    }
    LAYER(download(&loss, model->loss_sum, sizeof loss));
    zero_check(zero_sum(z, &loss, 1));
    return loss / ((double)batches * model->B * model->T * ranks);
}

// Logits of the token after position t-1, in fp32; `row` has room for V of the model's dtype.
static void next_logits(GPT2 *model, const int *tokens, int t, float *logits, void *row) {
    int L = model->config.num_layers, C = model->config.channels, V = model->config.vocab_size,
        Vp = model->config.padded_vocab_size;
    int T = (t + 63) / 64 * 64;  // few different lengths: the matrix products of each are prepared once
    gpt2_dtype dt = model->dtype;
    if (T > model->T) T = model->T;
    zero_check(zero_begin_eval(z));
    gpt2_forward(model, tokens, 1, T);
    zero_check(zero_pre_forward(z, EMBEDDING));
    LAYER(residual_layernorm_forward(dt, model->residual3[L - 1], model->lnf, model->lnf_mean,
                                     model->lnf_rstd, rows(model, model->residual2[L - 1], t - 1, C),
                                     rows(model, model->scratch_btc, t - 1, C), param(LNFW, 0),
                                     param(LNFB, 0), 1, C));
    LAYER(matmul_forward(dt, model->logits, model->lnf, param(WTE, 0), NULL, 1, C, Vp));
    zero_check(zero_post_forward(z, EMBEDDING));
    LAYER(download(row, model->logits, V * gpt2_dtype_size(dt)));
    for (int i = 0; i < V; i++) logits[i] = gpt2_value(dt, row, i);
}

// Text from the end-of-text token on. Past T tokens the model sees the last T of them.
static void gpt2_sample(GPT2 *model, const Tokenizer *tokenizer) {
    int length = opt.sample_tokens, V = model->config.vocab_size, T = model->T;
    int *tokens = malloc_check(
        (length + T) *
        sizeof(int));  // what a forward pass sees behind the last token does not matter: it is causal
    float *logits = malloc_check(V * sizeof(float));
    void *row = malloc_check(V * gpt2_dtype_size(model->dtype));
    uint64_t rng = 1337 + (uint64_t)opt.seed;  // alike on all ranks: they all choose the same tokens
    for (int i = 0; i < length + T; i++) tokens[i] = tokenizer->eot_token;
    print0("generating:\n---\n");
    for (int t = 1; t < length; t++) {
        int from = t > T ? t - T : 0;
        next_logits(model, tokens + from, t - from, logits, row);
        for (int i = 0; i < V; i++) logits[i] /= (float)opt.temperature;
        tokens[t] = sample_softmax(logits, V, random_f32(&rng));
        if (rank == 0 && tokenizer->vocab_size)
            tokenizer_print(tokenizer, stdout, tokens[t]);
        else
            print0("%d ", tokens[t]);
    }
    print0("\n---\n");
    free(row);
    free(logits);
    free(tokens);
}

// --------
// checkpoints: model_%08d.bin as llm.c has it (fp16, which it does not know, as fp32), one state file a rank,
// and DONE_%08d once all of it is on disk

typedef struct {
    int32_t step, overflows;  // steps that fp16 could not represent: neither update nor learning rate moved
    DataPosition position;
    OutlierDetector loss_outliers, norm_outliers;
} TrainerState;

// Name of a checkpoint's file; of_rank -1: it belongs to no rank. Valid until the next call.
static const char *checkpoint_path(const char *kind, int at, int of_rank) {
    static char path[4096];
    int n = of_rank < 0 ? snprintf(path, sizeof path, "%s/%s_%08d%s", opt.output, kind, at,
                                   strcmp(kind, "model") ? "" : ".bin")
                        : snprintf(path, sizeof path, "%s/%s_%08d_%05d.bin", opt.output, kind, at, of_rank);
    if (n >= (int)sizeof path) die("option -o: the name is too long");
    return path;
}

static int receive_values(void *ctx, int tensor, int layer, int64_t offset, int64_t n, const float *values) {
    (void)ctx;
    return zero_set(z, ZERO_PARAM, tensor, layer, offset, n, values) ? gpt2_fail("%s", zero_last_error()) : 0;
}
static int give_values(void *ctx, int tensor, int layer, int64_t offset, int64_t n, float *values) {
    (void)ctx;
    return zero_get(z, ZERO_PARAM, tensor, layer, offset, n, values) ? gpt2_fail("%s", zero_last_error()) : 0;
}

static void sync_or_die(int fd, const char *path) {
    int bad = fd < 0 || fsync(fd);
    if (bad) die("%s: %s", path, strerror(errno));
    close(fd);
}

// From here on step `at` has no complete checkpoint, whatever else happens.
static void withdraw_checkpoint(int at) {
    if (rank == 0 && remove(checkpoint_path("DONE", at, -1)) && errno != ENOENT)
        die("%s: %s", checkpoint_path("DONE", at, -1), strerror(errno));
    zero_check(zero_barrier(z));
}

static void declare_checkpoint(int at) {
    zero_check(zero_barrier(z));
    if (rank != 0) return;
    sync_or_die(open(checkpoint_path("DONE", at, -1), O_CREAT | O_WRONLY | O_TRUNC, 0666),
                checkpoint_path("DONE", at, -1));
    sync_or_die(open(opt.output, O_RDONLY | O_DIRECTORY), opt.output);
}

static void delete_checkpoint(int at) {
    withdraw_checkpoint(at);
    if (rank == 0) remove(checkpoint_path("model", at, -1));
    remove(checkpoint_path("state", at, rank));
}

static void write_checkpoint(GPT2 *model, const TrainerState *state) {
    print0("writing checkpoint at step %d\n", state->step);
    withdraw_checkpoint(state->step);
    gpt2_dtype stored = model->dtype == GPT2_BF16 ? GPT2_BF16 : GPT2_F32;
    gpt2_check(gpt2_file_write(checkpoint_path("model", state->step, -1), &model->config, stored, give_values,
                               NULL, rank == 0));
    zero_check(zero_barrier(z));  // a rank that cannot write ends the job here, before the others begin files
                                  // that nobody finishes
    zero_check(zero_save(z, checkpoint_path("state", state->step, rank), state, sizeof *state));
    declare_checkpoint(state->step);
    long long old = state->step - (long long)opt.checkpoints_keep * opt.checkpoint_every;
    if (opt.checkpoints_keep && old > 0 && !(opt.checkpoint_major && old % opt.checkpoint_major == 0))
        delete_checkpoint((int)old);
}

// The step of the last complete checkpoint in the output folder, -1 if there is none.
static int find_checkpoint(void) {
    int last = -1, at;
    DIR *dir = opt.output ? opendir(opt.output) : NULL;
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (sscanf(e->d_name, "DONE_%8d", &at) == 1 && at > last) last = at;
    if (dir) closedir(dir);
    return last;
}

// --------
// logs

static void open_output(int resuming) {
    if (!opt.output) return;
    if (mkdir(opt.output, 0777) && errno != EEXIST)
        die("option -o: %s cannot be made: %s", opt.output, strerror(errno));
    struct stat st;
    if (!stat(opt.output, &st) && !S_ISDIR(st.st_mode)) die("option -o: %s is not a folder", opt.output);
    if (!opt.resume && find_checkpoint() >= 0)
        die("option -o: %s holds a checkpoint at step %d; -y 1 resumes it, and a new run needs a folder of "
            "its own",
            opt.output, find_checkpoint());
    if (access(opt.output, W_OK | X_OK))
        die("option -o: %s cannot be written to: %s", opt.output, strerror(errno));
    static const char *const names[] = { "main.log", "metrics.jsonl" };
    for (int i = 0; rank == 0 && i < 2; i++) {
        char path[4200];
        snprintf(path, sizeof path, "%s/%s", opt.output, names[i]);
        FILE *f = fopen(path, resuming ? "a" : "w");
        if (!f || fclose(f)) die("%s: %s", path, strerror(errno));
    }
}

// A checkpoint's parts, one of each rank, in folders of several hosts would be none. All ranks see what rank
// 0 writes; by NFS a little later.
static void check_one_folder(void) {
    char name[64] = "", path[4200];
    uint64_t word;
    enum { PAUSE_US = 20000 };
    int looks = (int)((opt.comm_timeout < 6 ? opt.comm_timeout / 2 : 3) * 1e6 /
                      PAUSE_US);  // meanwhile the others wait for this rank
    int there = 0, fd = -1;
    if (!opt.output || !opt.checkpoint_every || ranks == 1) return;
    if (rank == 0) {
        if (getrandom(&word, sizeof word, 0) != sizeof word) die("no random number: %s", strerror(errno));
        snprintf(name, sizeof name, ".one_folder_%016llx", (unsigned long long)word);
    }
    zero_check(zero_broadcast(z, 0, name, sizeof name));
    snprintf(path, sizeof path, "%s/%s", opt.output, name);
    if (rank == 0 && ((fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0666)) < 0 || close(fd)))
        die("%s: %s", path, strerror(errno));
    int rc = zero_barrier(z);
    while (!rc && !(there = !access(path, F_OK)) && looks-- > 0) usleep(PAUSE_US);
    if (!rc)
        rc = zero_require_same(z, there ? "-o = the folder that rank 0 writes to" : "-o = another folder");
    if (rank == 0) unlink(path);
    zero_check(rc);
}

static void append(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void append(const char *name, const char *fmt, ...) {
    if (rank != 0 || !opt.output) return;
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", opt.output, name);
    FILE *f = fopen(path, "a");
    if (!f) die("%s: %s", path, strerror(errno));
    va_list args;
    va_start(args, fmt);
    int bad = vfprintf(f, fmt, args) < 0;
    va_end(args);
    if (fclose(f) || bad) die("%s: not written: %s", path, strerror(errno));
}

static void print_memory(void) {
    static const char *const classes[] = { "model states", "working", "activations" };
    zero_memory_line line;
    print0("memory of a rank                          MiB\n");
    for (int c = 0; c < ZERO_MEMORY_CLASSES; c++) {
        for (int i = 0; !zero_memory(z, i, &line); i++)
            if (line.class_ == (zero_memory_class)c)
                print0("  %-12s %-24s %7.1f%s\n", classes[c], line.purpose, mib(line.bytes),
                       line.tier == ZERO_HOST ? "  on the host" : "");
    }
    double states = zero_memory_bytes(z, ZERO_STATES);
    print0("  model states %.1f (formula %.1f), working %.1f, activations %.1f, together %.1f MiB\n",
           mib(states), mib(zero_states_formula(z, opt.stage)), mib(zero_memory_bytes(z, ZERO_WORKING)),
           mib(zero_memory_bytes(z, ZERO_ACTIVATIONS)),
           mib(states + zero_memory_bytes(z, ZERO_WORKING) + zero_memory_bytes(z, ZERO_ACTIVATIONS)));
    print0("  plain data parallel would hold %.1f MiB of model states on every rank: stage %d holds %.0f %% "
           "of that\n",
           mib(zero_states_formula(z, 0)), opt.stage, 100 * states / zero_states_formula(z, 0));
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(const double *x, int n) {
    double *sorted = malloc_check((n + 1) * sizeof(double));
    memcpy(sorted, x, n * sizeof(double));
    qsort(sorted, n, sizeof(double), compare_doubles);
    double m = n ? (sorted[(n - 1) / 2] + sorted[n / 2]) / 2 : 0;
    free(sorted);
    return m;
}

typedef struct {
    double loss, val_loss, norm, tokens_per_s;
    int steps_run;
    zero_traffic at_start;
} RunResult;

static void print_number(FILE *f, const char *name,
                         double x) {  // JSON has no NaN: what was not measured is null
    if (isfinite(x))
        fprintf(f, " \"%s\": %.9g,", name, x);
    else
        fprintf(f, " \"%s\": null,", name);
}

// What a run on CUDA keeps in the host's memory.
static size_t host_bytes(void) {
    zero_memory_line line;
    size_t bytes = 0;
    for (int i = 0; !zero_memory(z, i, &line); i++)
        if (line.tier == ZERO_HOST) bytes += line.bytes;
    return bytes;
}

// The last lines of a run, and summary.json.
static void finish(const GPT2 *model, const RunResult *r) {
    char params_hash[17], state_hash[17] = "";
    zero_traffic t;
    zero_check(zero_hash(z, 0, params_hash));
    if (!strcmp(opt.hash, "full")) zero_check(zero_hash(z, 1, state_hash));
    zero_get_traffic(z, &t);
    double n = r->steps_run ? r->steps_run : 1;
    double gather = (t.all_gather[ZERO_FOR_STEP] - r->at_start.all_gather[ZERO_FOR_STEP]) / n;
    double scatter = (t.reduce_scatter[ZERO_FOR_STEP] - r->at_start.reduce_scatter[ZERO_FOR_STEP]) / n;
    double all_reduce = (t.other[ZERO_FOR_STEP] - r->at_start.other[ZERO_FOR_STEP]) / n;
    if (opt.stage == 0) {
        all_reduce += gather + scatter;
        gather = scatter = 0;
    }
    print0("median step %.0f tokens/s | sent per rank and step %.2f MiB | params_hash %s%s%s\n",
           r->tokens_per_s, mib(gather + scatter + all_reduce), params_hash,
           *state_hash ? " | state_hash " : "", state_hash);
    if (rank != 0 || !opt.output) return;
    char path[4200], temporary[4210], others[512] = "";
    static const char *const purposes[] = { "step", "eval", "checkpoint", "hash", "scalars" };
    for (int p = ZERO_FOR_EVAL, used = 0; p < ZERO_TRAFFIC_PURPOSES; p++)
        used += snprintf(others + used, sizeof others - used, "%s\"%s\": %lld", used ? ", " : "", purposes[p],
                         (long long)(t.all_gather[p] + t.reduce_scatter[p] + t.other[p]));
    snprintf(path, sizeof path, "%s/summary.json", opt.output);
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    FILE *f = fopen(temporary, "w");
    if (!f) die("%s: %s", temporary, strerror(errno));
    fprintf(f, "{\"steps\": %d, \"ranks\": %d, \"stage\": %d, \"dtype\": \"%s\", \"device\": \"%s\",\n", step,
            ranks, opt.stage, dtype_names[model->dtype], layers->device);
    print_number(f, "loss", r->loss);
    print_number(f, "val_loss", r->val_loss);
    print_number(f, "grad_norm", r->norm);
    fprintf(f, " \"params_hash\": \"%s\", \"state_hash\": ", params_hash);
    fprintf(f, *state_hash ? "\"%s\"" : "null", state_hash);
    fprintf(f,
            ",\n \"tokens_per_s\": %.2f, \"model_state_bytes\": %zu, \"working_bytes\": %zu, "
            "\"activation_bytes\": %zu,\n",
            r->tokens_per_s, zero_memory_bytes(z, ZERO_STATES), zero_memory_bytes(z, ZERO_WORKING),
            zero_memory_bytes(z, ZERO_ACTIVATIONS));
    fprintf(f,
            " \"comm_bytes\": {\"all_gather\": %.0f, \"reduce_scatter\": %.0f, \"all_reduce\": %.0f, "
            "\"others\": {\"start\": 0, %s}},\n",
            gather, scatter, all_reduce, others);
    fprintf(f, " \"host_bytes\": %zu, \"nvme_bytes\": 0}\n", host_bytes());
    int bad = ferror(f);
    if (fclose(f) || bad || rename(temporary, path)) {
        remove(temporary);
        die("%s: not written: %s", path, strerror(errno));
    }
}

// --------
// start: threads, dtype, model, data

static int cores_allowed(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? (int)sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
}

// Cores of this machine / ranks on it. A launcher that binds the rank to fewer is reported.
static int settle_threads(void) {
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN), bound = cores_allowed(), threads = opt.threads;
    if (!threads) threads = cores / ranks_on_host > 1 ? cores / ranks_on_host : 1;
    if (bound < threads) {
        const char *plural = bound == 1 ? "" : "s";
        if (opt.threads)
            print0("threads: %d as asked for, on %d core%s\n", threads, bound, plural);
        else
            print0("threads: a rank is bound to %d of %d cores, so it uses %d thread%s; mpirun --bind-to "
                   "none lifts that\n",
                   bound, cores, bound, plural);
        if (!opt.threads) threads = bound;
    }
#ifdef _OPENMP
    omp_set_num_threads(threads);
#endif
    return threads;
}

// Overlap needs a core for the progress thread.
static int settle_overlap(int threads) {
    int choice = one_of(opt.overlap, "--overlap", "0", "1", "auto");
    if (choice < 2) return choice;
    if (on_cuda())
        return 1;  // the plugin's own streams; a thread that waits for other ranks takes little of a core
    return (long)(threads + 1) * ranks_on_host <= sysconf(_SC_NPROCESSORS_ONLN) && threads < cores_allowed();
}

static void settle_device(void) {
    enum { AUTO, CPU, CUDA } choice = one_of(opt.device, "--device", "auto", "cpu", "cuda");
    int usable = choice != CPU && layers_cuda() && zero_cuda_devices() > 0;
    if (choice == CUDA && !layers_cuda())
        die("option --device cuda: this program was built without CUDA; build it where nvcc is found");
    if (choice == CUDA && !usable) die("option --device cuda: %s", zero_last_error());
    if (usable) {
        layers = layers_cuda();
        gpt2_check(layers_cuda_options(opt.tf32 != 0, opt.gelu_fusion,
                                       strcmp(opt.attention, "auto") ? opt.attention : NULL));
        layers_cuda_attention_limit((size_t)opt.attention_mib << 20);
        return;
    }
    if (opt.tf32 >= 0) print0("option -f %d: no effect on a CPU (TF32)\n", opt.tf32);
    if (opt.gelu_fusion >= 0) print0("option -ge %d: no effect on a CPU (GELU fusion)\n", opt.gelu_fusion);
    if (!strcmp(opt.comm, "nccl"))
        die("option --comm nccl: it goes with --device cuda, and this run is on the CPU");
    if (strcmp(opt.attention, "auto"))
        die("option --attention %s: it goes with --device cuda, and this run is on the CPU", opt.attention);
    if (opt.attention_mib)
        die("option --attention-workspace %d: it goes with --device cuda, and this run is on the CPU",
            opt.attention_mib);
    if (opt.tune) die("option --tune %s: it goes with --device cuda, and this run is on the CPU", opt.tune);
}

static gpt2_dtype settle_dtype(void) {
    if (!strcmp(opt.dtype, "fp16")) {
        if (!on_cuda()) die("option --dtype fp16: it goes with --device cuda, and this run is on the CPU");
        return GPT2_F16;
    }
    int choice = one_of(opt.dtype, "--dtype", "auto", "bf16", "fp32");
    gpt2_dtype dtype = choice == 1 || (choice == 0 && (on_cuda() || layers->has_dtype(GPT2_BF16))) ? GPT2_BF16
                                                                                                   : GPT2_F32;
    if (!opt.master && dtype != GPT2_BF16)
        die("option -w 0: without master weights parameters are bf16; add --dtype bf16");
    return dtype;
}

static int model_is_file(void) {
    const char *dot = strrchr(opt.model, '.');
    return dot && !strcmp(dot, ".bin");
}

static void settle_model(GPT2 *model, int resume_step) {
    model->dtype = settle_dtype();
    gpt2_dtype stored;
    if (resume_step >= 0)
        gpt2_check(gpt2_file_read_header(checkpoint_path("model", resume_step, -1), &model->config, &stored));
    else if (model_is_file())
        gpt2_check(gpt2_file_read_header(opt.model, &model->config, &stored));
    else
        gpt2_check(gpt2_config_from_descriptor(&model->config, opt.model));
    gpt2_tensors(&model->config, model->tensors);
    model->B = opt.B;
    model->T = opt.T ? opt.T : model->config.max_seq_len;
    if (model->T > model->config.max_seq_len)
        die("option -t %d: longer than the model's longest sequence, %d", model->T,
            model->config.max_seq_len);
}

static void load_values(GPT2 *model) {
    if (model_is_file())
        gpt2_check(gpt2_file_read(opt.model, receive_values, NULL));
    else
        gpt2_check(gpt2_init(&model->config, receive_values, NULL));
}

// The tokenizer that was asked for; else the one that goes with the vocabulary, and token numbers where that
// is not there, as in llm.c.
static void open_tokenizer(Tokenizer *tokenizer, int V) {
    const char *path = opt.tokenizer ? opt.tokenizer
                       : V == 257    ? "data/stories_tokenizer.bin"
                                     : "gpt2_tokenizer.bin";
    if (!opt.tokenizer && V != 257 && access(path, F_OK))
        path = "data/gpt2_tokenizer.bin";  // where scripts/download.sh puts it
    if (!opt.tokenizer && access(path, F_OK)) {
        print0("tokenizer  no %s: samples are printed as token numbers\n", path);
        tokenizer->eot_token = V - 1;  // as in GPT-2's vocabulary
        return;
    }
    gpt2_check(tokenizer_init(tokenizer, path));
    if ((int)tokenizer->vocab_size != V)
        die("option --tokenizer: %s has %u tokens, the model %d; give the one that fits, or -s 0 for no "
            "samples",
            path, tokenizer->vocab_size, V);
}

// --------
// what must be the same on all ranks, and what had better be

// Options that a rank may have to itself: paths, whose files are compared instead, and what changes neither
// numbers nor what ranks do together.
static int may_differ(const Option *o) {
    static const char *const own[] = { "-i",        "-j",        "-e",        "--tokenizer",
                                       "-o",        "--trace",   "--tune",    "--zero-config",
                                       "--threads", "--overlap", "--progress" };
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!strcmp(o->name, own[i])) return 1;
    return !strncmp(o->name, "-p", 2);  // llm.c's, of processes: the ranks have found each other
}

static void describe_option(FILE *f, const Option *o) {
    const char *text = o->kind == TEXT ? *(const char **)o->value : NULL;
    double x = o->kind == INT ? *(int *)o->value : o->kind == REAL ? *(double *)o->value : 0;
    if ((o->kind != TEXT && o->kind != INT && o->kind != REAL) || may_differ(o)) return;
    if (o->kind == TEXT ? !text : x < o->min)
        fprintf(f, "%s = not given\n", o->name);
    else if (text)
        fprintf(f, "%s = %s\n", o->name, text);
    else
        fprintf(f, "%s = %.15g\n", o->name, x);
}

enum { FILE_BLOCKS = 64 };  // that are looked at of a file or of all shards, 1 MiB

static void describe_shards(FILE *f, const char *option, const DataLoader *l) {
    int n = (int)l->files.gl_pathc, blocks = FILE_BLOCKS / n > 1 ? FILE_BLOCKS / n : 1;
    char print[FINGERPRINT];
    fprintf(f, "%s, number of shards = %d\n", option, n);
    for (int i = 0; i < n; i++) {
        const char *path = l->files.gl_pathv[i], *slash = strrchr(path, '/');
        gpt2_check(fingerprint_of_file(path, blocks, print));
        fprintf(f, "%s, shard %d = %s, %s\n", option, i, slash ? slash + 1 : path, print);
    }
}

// As text for config.same, to be freed.
static char *must_be_same(const GPT2 *model, int resume_step, const DataLoader *train,
                          const DataLoader *val) {
    char *text = NULL, print[FINGERPRINT];
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    if (!f) die("out of memory for what the ranks compare");
    for (const Option *o = option_table; o < option_table + N_OPTIONS; o++) describe_option(f, o);
    fprintf(f, "--device %s = %s\n--dtype %s = %s\n", opt.device, layers->device, opt.dtype,
            dtype_names[model->dtype]);
    if (resume_step >= 0) {
        const char *path = checkpoint_path("model", resume_step, -1);
        gpt2_check(fingerprint_of_file(path, FILE_BLOCKS, print));
        fprintf(f, "last checkpoint in -o = step %d\n%s in -o = a file of %s\n", resume_step,
                strrchr(path, '/') + 1, print);
    } else
        fprintf(f, "last checkpoint in -o = %s\n", opt.resume ? "none" : "not looked for");
    if (resume_step < 0 && model_is_file()) {
        gpt2_check(fingerprint_of_file(opt.model, FILE_BLOCKS, print));
        fprintf(f, "-e = a file of %s\n", print);
    } else if (resume_step < 0)
        fprintf(f, "-e = %s\n", opt.model);
    const GPT2Config *c = &model->config;
    fprintf(f, "model = L %d, NH %d, C %d, V %d, longest sequence %d\n", c->num_layers, c->num_heads,
            c->channels, c->vocab_size, c->max_seq_len);
    fprintf(f, "--tune = %s\n", opt.tune ? "a file, of rank 0" : "not given");
    describe_shards(f, "-i", train);
    if (opt.val_every) describe_shards(f, "-j", val);
    int failed = ferror(f);
    if (fclose(f) || failed) die("out of memory for what the ranks compare");
    return text;
}

// What hosts may well differ in: a run is right all the same, but not the one that it would be with ranks
// that are alike.
static void note_differences(int threads) {
    char lines[3][FINGERPRINT + 32], print[FINGERPRINT];
    zero_effective e;
    zero_get_effective(z, &e);
    if (fingerprint_of_file("/proc/self/exe", FILE_BLOCKS, print)) strcpy(print, "unknown");
    snprintf(lines[0], sizeof lines[0], "program = %s", print);
    fingerprint_of_processor(print);
    if (on_cuda())
        snprintf(lines[1], sizeof lines[1], "device = %.80s", e.device);
    else
        snprintf(lines[1], sizeof lines[1], "instruction set = %s", print);
    snprintf(lines[2], sizeof lines[2], "threads = %d", on_cuda() ? 0 : threads);
    for (int i = 0; i < 3; i++) {
        int rc = zero_require_same(z, lines[i]);
        if (rc == ZERO_ERR_ARGUMENT)
            print0("warning: %s; the last bits of the results depend on it\n", zero_last_error());
        else
            zero_check(rc);
    }
}

// How the head and attention's backward go through the batch.
static void print_cuda(const GPT2 *model) {
    layers_attention_backward backward = layers_cuda_attention_backward();
    int BT = model->B * model->T, parts = (BT + model->chunk - 1) / model->chunk;
    int last = BT - (parts - 1) * model->chunk;
    print0("head       logits in %d part%s of %d rows", parts, parts == 1 ? "" : "s", model->chunk);
    if (last < model->chunk) print0(", the last of %d", last);
    print0("\n");
    print0("attention  backward takes %d of %d rows of the batch at a time: %.1f MiB of scratch, "
           "limit %.0f MiB%s\n",
           backward.rows, model->B, mib(backward.bytes), mib(backward.limit),
           backward.bytes > backward.limit ? ", which one row exceeds" : "");
}

static void print_start(const GPT2 *model, int A, int steps, int threads, int overlap, int resume_step) {
    zero_effective e;
    const char *how_chosen = recompute_chosen ? " (the lowest that memory allows)" : "";
    zero_get_effective(z, &e);
    print0("model      %s: %lld parameters, L %d, NH %d, C %d, V %d, longest sequence %d\n",
           resume_step >= 0 ? "checkpoint" : opt.model, (long long)e.num_parameters, model->config.num_layers,
           model->config.num_heads, model->config.channels, model->config.vocab_size,
           model->config.max_seq_len);
    print0("batch      B %d x T %d x %d ranks x %d micro-batches = %lld tokens a step, %d steps\n", model->B,
           model->T, ranks, A, (long long)model->B * model->T * ranks * A, steps);
    print0("numbers    %s%s, recompute %d%s, ", dtype_names[model->dtype],
           model->dtype == GPT2_F32 ? ""
           : opt.master             ? " with fp32 master weights"
                                    : " without master weights",
           opt.recompute, how_chosen);
    if (on_cuda())
        print0("on %s (device %d), attention by %s\n", e.device, e.cuda_device, layers_cuda_attention());
    else
        print0("%d thread%s a rank\n", threads, threads == 1 ? "" : "s");
    if (on_cuda()) print_cuda(model);
    print0("ZeRO       stage %d%s, %s, overlap %s, prefetch %d\n", opt.stage,
           opt.naive ? " (naive path)" : "", e.comm,
           overlap                    ? "on"
           : strcmp(opt.overlap, "0") ? "off (no spare core for a progress thread)"
                                      : "off",
           opt.prefetch);
    if (e.ranks_on_host != ranks)
        print0("hosts      %d of the %d ranks are on rank 0's\n", e.ranks_on_host, ranks);
    if (!opt.threads && e.ranks_on_host != ranks_on_host)
        print0("threads    were settled for %d rank%s on a host: say it with -pg %d, or --threads\n",
               ranks_on_host, ranks_on_host == 1 ? "" : "s", e.ranks_on_host);
    zero_step_traffic traffic = zero_expected_traffic(z, A);
    print0("buckets    %lld elements, %.1f MiB; slots %d\n", (long long)e.bucket_elems, mib(e.bucket_bytes),
           e.slots);
    if (!opt.naive)
        print0("traffic    a rank sends %.2f MiB a step: gathers %.2f, reductions %.2f\n",
               mib(traffic.all_gather + traffic.reduce_scatter), mib(traffic.all_gather),
               mib(traffic.reduce_scatter));
    if (ranks > 1 && !strcmp(opt.comm_type, "fp32"))
        print0("wire       gradients travel to their sum as fp32\n");
    print_memory();
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

// --------
// the bar in place of a line a step

// Rank 0 draws it and so decides; all ranks measure their peak at once, as they will compute.
static void start_bar(const GPT2 *model) {
    enum { AUTO, BAR, LINES } choice = one_of(opt.progress, "--progress", "auto", "bar", "lines");
    int terminal = rank == 0 && choice != LINES ? bar_terminal() : -1;
    double wanted = rank == 0 && (choice == BAR || terminal >= 0);
    zero_check(zero_sum(z, &wanted, 1));
    if (!wanted) return;
    LAYER(peak_flops(model->dtype, &peak));
    zero_check(zero_sum(z, &peak, 1));
    print0("peak       %.0f GFLOP/s in products of %s matrices, measured on all ranks at once\n", peak * 1e-9,
           dtype_names[model->dtype]);
    if (rank == 0) bar_start(terminal);
}

// As PaLM (arXiv 2204.02311, appendix B) counts them: 6 for a parameter, without the positions', and
// attention's products over whole rows; what is recomputed does not count.
static double flops_per_token(const GPT2 *model) {
    double parameters = gpt2_num_parameters(&model->config) - model->tensors[WPE].elems;
    return 6 * parameters + 12.0 * model->config.num_layers * model->config.channels * model->T;
}

// A step has been made; `first` is the one that this run began with, at start_s.
static void update_bar(const GPT2 *model, int steps, int first, double start_s, double loss, double rate) {
    double at_s = now(), left_s = (at_s - start_s) / (step + 1 - first) * (steps - step - 1);
    bar_update(
        &(Progress){ step + 1, steps, at_s, left_s, loss, rate, rate * flops_per_token(model) / peak });
}

#ifndef TESTING  // tests include this file and bring a main of their own
// --------
// the training loop

typedef struct {
    double loss, norm, zloss, znorm;
    float lr;
} StepReport;  // z: how many deviations out

static int is_outlier(const char *what, double z_score, double limit) {
    if (!limit || !isfinite(z_score) || z_score <= limit) return 0;
    print0("skipping the update: the %s is %.2f deviations out\n", what, z_score);
    return 1;
}

static StepReport overflow(TrainerState *state, const zero_step_info *info, StepReport r) {
    zero_check(zero_discard(z));
    state->overflows++;
    print0("skipping the update: gradients overflow fp16 at loss scale %g; the next is %g\n",
           info->loss_scale, zero_loss_scale(z));
    r.zloss = r.znorm = NAN;
    return r;
}

// Gradients of A micro-batches, their norm, and the update, unless they are out of the ordinary.
static StepReport train_step(GPT2 *model, DataLoader *train, const Schedule *schedule, TrainerState *state,
                             int A) {
    int update = step - state->overflows;  // how many there have been
    StepReport r = { .lr = schedule_lr(schedule, update) };
    zero_step_info info;
    if (opt.overfit) gpt2_check(dataloader_reset(train));
    r.loss = gpt2_gradients(model, train, A);
    zero_check(zero_reduce(z, &info));
    r.norm = info.grad_norm;
    if (!info.finite && model->dtype == GPT2_F16) return overflow(state, &info, r);
    if (!info.finite)
        die("step %d: the gradient norm is not finite (%f); the last checkpoint stays as it is", step + 1,
            r.norm);
    r.zloss = outlier_update(&state->loss_outliers, r.loss);
    r.znorm = outlier_update(&state->norm_outliers, r.norm);
    if (is_outlier("loss", r.zloss, opt.skip_loss_z) || is_outlier("gradient norm", r.znorm, opt.skip_grad_z))
        zero_check(zero_discard(z));
    else {
        zero_hyper hyper = { r.lr,           (float)opt.beta1,        (float)opt.beta2,
                             (float)opt.eps, (float)opt.weight_decay, (float)opt.clip,
                             update + 1 };
        zero_check(zero_update(z, &hyper));
    }
    return r;
}

int main(int argc, char **argv) {
    GPT2 model = { 0 };
    DataLoader train, val;
    Tokenizer tokenizer = { 0 };
    Schedule schedule;
    TrainerState state = { 0 };
    RunResult result = { .loss = NAN, .val_loss = NAN, .norm = NAN };

    zero_launch_info launched = zero_launched();
    rank = launched.rank;
    ranks = launched.ranks;
    ranks_on_host = launched.ranks_on_node;
    parse_options(argc, argv);
    settle_ranks();
    one_of(opt.hash, "--hash", "params", "full", NULL);
    one_of(opt.progress, "--progress", "auto", "bar", "lines");
    settle_device();
    int threads = settle_threads(), overlap = settle_overlap(threads);
    int resume_step = opt.resume ? find_checkpoint() : -1;
    settle_model(&model, resume_step);
    long long tokens_at_once = (long long)model.B * model.T * ranks,
              tokens_a_step = opt.total_batch > 0 ? opt.total_batch : tokens_at_once;
    if (tokens_a_step % tokens_at_once)
        die("option -d %lld: not a multiple of B x T x ranks = %d x %d x %d = %lld", tokens_a_step, model.B,
            model.T, ranks, tokens_at_once);
    int A = (int)(tokens_a_step / tokens_at_once);

    gpt2_check(dataloader_init(&train, opt.train_data, model.B, model.T, model.config.vocab_size, rank, ranks,
                               opt.shuffle, (uint32_t)opt.seed));
    if (opt.val_every)
        gpt2_check(dataloader_init(&val, opt.val_data, model.B, model.T, model.config.vocab_size, rank, ranks,
                                   0, 0));
    if (opt.sample_every) open_tokenizer(&tokenizer, model.config.vocab_size);
    int steps = opt.max_steps >= 0 ? opt.max_steps : (int)(train.num_tokens / tokens_a_step);
    int val_batches = opt.val_batches >= 0 || !opt.val_every ? opt.val_batches
                                                             : (int)((val.num_tokens - 1) / tokens_at_once);
    if (opt.max_steps)
        gpt2_check(
            schedule_init(&schedule, opt.schedule, (float)opt.lr, opt.warmup, steps, (float)opt.lr_final));
    open_output(resume_step >= 0);

    char *same = must_be_same(&model, resume_step, &train, &val);
    zero_config config = create_plugin(&model, A, &overlap, same);
    free(same);
    check_one_folder();
    note_differences(threads);
    settle_memory(&model, &config);
    allocate_activations(&model);
    if (missing) out_of_memory(&model, &config);
    outlier_init(&state.loss_outliers);
    outlier_init(&state.norm_outliers);
    if (resume_step < 0)
        load_values(&model);
    else {
        zero_check(zero_load(z, checkpoint_path("state", resume_step, rank), &state, sizeof state));
        step = state.step;
        gpt2_check(dataloader_seek(&train, state.position));
        if (step > steps)
            die("option -x %d: the checkpoint in %s is at step %d already", steps, opt.output, step);
        print0("resuming at step %d\n", step);
    }
    print_start(&model, A, steps, threads, overlap, resume_step);
    start_bar(&model);
    zero_get_traffic(z, &result.at_start);
    enum { MOST_TIMES = 4096 };
    static double times[MOST_TIMES];  // seconds of the last steps, for the median
    double ema = 0, first_s = now();
    int first = step;

    started = 1;
    for (; step <= steps; step++) {
        int last = step == steps, fresh = step != resume_step;

        if (opt.val_every && val_batches > 0 && (step % opt.val_every == 0 || last)) {
            result.val_loss = gpt2_validate(&model, &val, val_batches);
            print0("val loss %f\n", result.val_loss);
            append("main.log", "s:%d tel:%.4f\n", step, result.val_loss);
        }
        if (opt.sample_every && ((step > 0 && step % opt.sample_every == 0) || last))
            gpt2_sample(&model, &tokenizer);
        if (opt.checkpoint_every && fresh && ((step > 0 && step % opt.checkpoint_every == 0) || last)) {
            state.step = step;
            state.position = dataloader_tell(&train);
            write_checkpoint(&model, &state);
        }
        bar_show();
        if (last) break;

        double start = now();
        StepReport r = train_step(&model, &train, &schedule, &state, A);
        double seconds = now() - start, rate = tokens_a_step / seconds;
        result.loss = r.loss;
        result.norm = r.norm;
        times[result.steps_run++ % MOST_TIMES] = seconds;
        ema = result.steps_run == 1 ? rate : 0.95 * ema + 0.05 * rate;
        if (peak > 0)
            update_bar(&model, steps, first, first_s, r.loss, ema);
        else
            print0("step %4d/%d | loss %7.6f (%+.2fz)| norm %6.4f (%+.2fz)| lr %.2e | %.2f ms | %.0f tok/s\n",
                   step + 1, steps, r.loss, r.zloss, r.norm, r.znorm, r.lr, seconds * 1e3, ema);
        append("main.log", "s:%d trl:%.4f lr:%.6f norm:%.2f\n", step, r.loss, r.lr, r.norm);
        char norm[32] = "null";  // of a step that overflowed
        if (isfinite(r.norm)) snprintf(norm, sizeof norm, "%.9g", r.norm);
        append("metrics.jsonl",
               "{\"step\": %d, \"loss\": %.9g, \"grad_norm\": %s, \"lr\": %.9g, \"ms\": %.3f, "
               "\"tokens_per_s\": %.2f}\n",
               step + 1, r.loss, norm, r.lr, seconds * 1e3, rate);
    }

    bar_end();
    int skip = result.steps_run > 2 && result.steps_run <= MOST_TIMES ? 2 : 0;  // the first two warm up
    double typical = median(times + skip,
                            (result.steps_run < MOST_TIMES ? result.steps_run : MOST_TIMES) - skip);
    result.tokens_per_s = typical > 0 ? tokens_a_step / typical : 0;
    finish(&model, &result);
    if (opt.trace) {
        char path[4200];
        snprintf(path, sizeof path, rank ? "%s.%d" : "%s", opt.trace, rank);
        zero_check(zero_trace_write(z, path));
    }
    dataloader_free(&train);
    if (opt.val_every) dataloader_free(&val);
    tokenizer_free(&tokenizer);
    free_model(&model);
    zero_destroy(z);
    return 0;
}
#endif
