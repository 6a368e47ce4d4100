#include "options.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "die.h"
#include "run.h"

Options opt = {
    .model = "l4h4c128v257t64",
    .train_data = "data/stories_train.bin",
    .val_data = "data/stories_val.bin",
    .shuffle = 1,
    .seed = 42,

    .B = 8,
    .total_batch = -1,
    .max_steps = -1,
    .lr = 3e-3,
    .schedule = "cosine",
    .warmup = 100,
    .lr_final = 0.03,

    .clip = 1.0,
    .beta1 = 0.9,
    .beta2 = 0.95,
    .eps = 1e-8,
    .master = 1,

    .stage = -1,
    .prefetch = 1,
    .overlap = "auto",
    .comm = "auto",
    .reduce = "ranks",
    .comm_type = "auto",
    .comm_timeout = 300,
    .offload_optimizer = "none",
    .offload_param = "none",
    .offload_ratio = 1,
    .sub_group_size = 4 << 20,

    .val_every = 100,
    .val_batches = 10,
    .sample_every = 500,
    .sample_tokens = 200,
    .temperature = 1,
    .progress = "auto",
    .hash = "params",

    .device = "auto",
    .dtype = "auto",
    .recompute = -1,
    .tf32 = -1,
    .gelu_fusion = -1,
    .attention = "auto",

    .start = "auto",
    .process_rank = -1,
};

Options default_options;

const Option option_table[] = {
    { "Model and data", HEADING, NULL, 0, 0, NULL },
    { "-e", TEXT, &opt.model, 0, 0,
      "model: llm.c's .bin file, a GPT-2 of Hugging Face (a folder with config.json and\n"
      "model.safetensors), a folder with checkpoints, d12, gpt2:d12, gpt3:c768, or\n"
      "l4h4c128v257t64 (default): layers, heads, channels, vocabulary, longest sequence" },
    { "-i", TEXT, &opt.train_data, 0, 0,
      "training token shards, a pattern (default data/stories_train.bin)" },
    { "-j", TEXT, &opt.val_data, 0, 0, "validation token shards, a pattern (default data/stories_val.bin)" },
    { "--tokenizer", TEXT, &opt.tokenizer, 0, 0,
      "file, for samples and prompts, or none: tokens are numbers (default: the stories'\n"
      "where V is 257, else gpt2_tokenizer.bin)" },
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
      "a thread runs collectives: auto, 0, 1 (auto: on a spare core, parameters on NVMe)" },
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
      "(default 300)" },
    { "--naive", INT, &opt.naive, 0, 1,
      "1: plain data parallel without any of ZeRO's means, stage 0 only (default 0)" },
    { "--zero-config", TEXT, &opt.zero_config, 0, 0,
      "DeepSpeed JSON, as it is; an option that says otherwise is an error" },
    { "--print-config", FLAG, &opt.print_config, 0, 0,
      "print every setting, what it is and why; start and allocate nothing" },
    { "--plan", FLAG, &opt.plan, 0, 0,
      "print what a rank would hold and send, at every stage; start and allocate nothing" },
    { "--plan-ranks", INT, &opt.plan_ranks, 1, 1 << 20,
      "with --plan: for so many ranks, -pg of them on a host (default: those started)" },
    { "--offload-optimizer", TEXT, &opt.offload_optimizer, 0, 0,
      "where masters and moments lie: none, cpu, nvme (default none; no card has run it)" },
    { "--offload-param", TEXT, &opt.offload_param, 0, 0,
      "the same of the parameters, at stage 3 (default none)" },
    { "--offload-gradients", TEXT, &opt.offload_gradients, 0, 0,
      "where reduced gradients lie, from stage 2 on: none, cpu, nvme (default: beside\n"
      "masters and moments, but not on NVMe)" },
    { "--nvme", TEXT, &opt.nvme, 0, 0, "folders on NVMe disks, with commas between them; blocks alternate" },
    { "--offload-ratio", REAL, &opt.offload_ratio, 0, 1,
      "the part of masters and moments that leaves the device (default 1)" },
    { "--sub-group-size", REAL, &opt.sub_group_size, 2048, 1e12,
      "elements read, updated and written at once (default 4194304)" },
    { "--max-in-cpu", REAL, &opt.max_in_cpu, 0, 1e15,
      "with parameters on NVMe: elements of a rank that stay in host memory (default 0)" },
    { "--delayed-update", INT, &opt.delayed_update, 0, 1e9,
      "with --offload-optimizer: from update N on each runs beside the next step, which\n"
      "computes with the parameters before it; other numbers (default 0: none; the paper\n"
      "begins at 41; on CUDA not built)" },
    { "--nvme-verify", FLAG, &opt.nvme_verify, 0, 0, "compare every block read from NVMe with its checksum" },

    { "Output and checkpoints", HEADING, NULL, 0, 0, NULL },
    { "-o", TEXT, &opt.output, 0, 0,
      "folder for main.log, metrics.jsonl, summary.json and checkpoints, one for all\n"
      "machines (default: none)" },
    { "-n", INT, &opt.checkpoint_every, 0, 1e9, "save a checkpoint every so many steps (default 0: never)" },
    { "-nk", INT, &opt.checkpoints_keep, 0, 1e9, "keep the last so many checkpoints (default 0: all)" },
    { "-nm", INT, &opt.checkpoint_major, 0, 1e9,
      "checkpoints at multiples of this are never removed (default 0: none)" },
    { "--async-save", FLAG, &opt.async_save, 0, 0,
      "go on training while a checkpoint is written, from a copy in memory, and its model\n"
      "file" },
    { "-y", INT, &opt.resume, 0, 1,
      "1: resume from the last complete checkpoint in -o, if there is one (default 0: a\n"
      "folder of an earlier run is refused)" },
    { "--resume", TEXT, &opt.resume_path, 0, 0,
      "resume from this checkpoint, a folder step_NNNNNNNN of any run; with -y 1 one of\n"
      "another folder only begins the run. Later ones in -o become abandoned_NNNNNNNN at\n"
      "the next save" },
    { "--resume-anyway", FLAG, &opt.resume_anyway, 0, 0,
      "resume even with another model in -e, other data, or steps of another size" },
    { "--verify", TEXT, &opt.verify, 0, 0,
      "read a checkpoint, or all in a folder of -o, compare every checksum, and end:\n"
      "with 0 if all are good; needs no model and no ranks" },
    { "-v", INT, &opt.val_every, 0, 1e9, "validate every so many steps (default 100; llm.c 20; 0: never)" },
    { "-m", INT, &opt.val_batches, -1, 1e9, "validation batches (default 10; llm.c 20; -1: all)" },
    { "-s", INT, &opt.sample_every, 0, 1e9,
      "sample text every so many steps (default 500; llm.c 20; 0: never)" },
    { "--prompts", TEXT, &opt.prompts, 0, 0,
      "file of prompts, one a line: the model answers each, holding parameters alone,\n"
      "and nothing is trained" },
    { "--export", TEXT, &opt.export_from, 0, 0,
      "writes this model as --to says and ends: a checkpoint step_NNNNNNNN (its masters),\n"
      "a folder with checkpoints (of its newest), llm.c's .bin file, or a GPT-2 of Hugging\n"
      "Face; one process, no ranks; in fp32, or with --dtype bf16" },
    { "--to", TEXT, &opt.export_to, 0, 0,
      "what --export writes: NAME.bin for llm.c, any other name for a folder that\n"
      "transformers loads, with --tokenizer in its form; nothing is written over" },
    { "-g", INT, &opt.sample_tokens, 1, 1 << 20, "tokens of a sample or an answer (default 200; llm.c 64)" },
    { "--temperature", REAL, &opt.temperature, 0, 100,
      "of samples: below 1 likelier tokens are taken more often, at 0 always the\n"
      "likeliest (default 1)" },
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
    { "-r", INT, &opt.recompute, -1, 3,
      "recompute in backward: 0 nothing, 1 GELU, 2 layernorms too, 3 each block from its\n"
      "input, which alone is kept (default -1: on CUDA the lowest that memory allows, 0\n"
      "only where it fits at every stage if the product computes GELU; on a CPU 1;\n"
      "llm.c 1)" },
    { "--cpu-checkpointing", FLAG, &opt.cpu_checkpointing, 0, 0,
      "on CUDA, with -r 3, which it implies: the inputs of blocks are kept in pinned host\n"
      "memory" },
    { "-f", INT, &opt.tf32, 0, 1, "on CUDA with fp32: products round their inputs to TF32 (default 1)" },
    { "-ge", INT, &opt.gelu_fusion, -1, 2,
      "on CUDA: GELU apart (0), in the forward product (1), in backward's too (2;\n"
      "default -1: 2 on Hopper and newer, else 0)" },
    { "--attention", TEXT, &opt.attention, 0, 0,
      "on CUDA: cudnn; cudnn-fast, whose bits may differ from run to run; cublaslt; or\n"
      "auto (default auto: cudnn where it can)" },
    { "--attention-workspace", INT, &opt.attention_mib, 0, 1 << 20,
      "on CUDA: MiB of scratch that attention's backward may take; one row\n"
      "of the batch takes what it needs (default 0: cuDNN 512, cuBLASLt 64)" },
    { "--tune", TEXT, &opt.tune, 0, 0,
      "on CUDA: file of the fastest algorithms of matrix products; rank 0 times those\n"
      "that it lacks for this card and library, and adds them (default:\n"
      "none, cuBLASLt's first choice, which is the same in every run)" },
    { "-lg", NOTHING_HERE, NULL, 0, 0, "nvidia-smi shows a device's state" },

    { "Start of several ranks", HEADING, NULL, 0, 0, NULL },
    { "-pi", TEXT, &opt.start, 0, 0,
      "how they find each other: mpi, tcp, fs, or auto (default auto: MPI under mpirun;\n"
      "TCP under srun, or where RANK and WORLD_SIZE are set; else one rank)" },
    { "-pn", INT, &opt.processes, 0, 1 << 20, "tcp, fs: number of ranks (default 0: as the launcher says)" },
    { "-pr", INT, &opt.process_rank, -1, 1 << 20,
      "tcp, fs: number of this one, from 0 (default -1: as the launcher says)" },
    { "-pg", INT, &opt.ranks_a_host, 0, 1 << 20,
      "tcp, fs, --plan: ranks on a host (default 0: as the launcher says, else all)" },
    { "-ps", TEXT, &opt.server, 0, 0,
      "tcp: host or host:port of rank 0 (default: the launcher's; port 12345); the same\n"
      "ZERO_JOB_KEY, 16 or more characters, in all ranks' environment keeps others out" },
    { "-pf", TEXT, &opt.start_file, 0, 0, "fs: a path that all hosts see, of a file or a folder" },
};
const int num_options = sizeof option_table / sizeof *option_table;

// Further lines of a help text begin below its first one. A long name has a line to itself.
static void print_help(const Option *o) {
    const char *line = o->help;
    print0(strlen(o->name) > 14 ? "  %s\n%17s" : "  %-14s %s", o->name, "");
    for (const char *end = strchr(line, '\n'); end; end = strchr(line, '\n')) {
        print0("%.*s\n%17s", (int)(end - line), line, "");
        line = end + 1;
    }
    print0("%s\n", line);
}

static void usage(void) {
    print0(
        "usage: [mpirun -np N] ./train_gpt2_zero [option value]...\n\n"
        "  ./train_gpt2_zero -x 200                        one rank, 200 steps of a small model on stories\n"
        "  mpirun -np 2 ./train_gpt2_zero -z 2             two ranks, ZeRO stage 2, one epoch\n"
        "  mpirun ./train_gpt2_zero -e d12 -i 'train_*.bin' -j 'val_*.bin' -o log124M -n 1000 -y 1\n"
        "                                                  GPT-2 124M; started again, it resumes\n\n"
        "llm.c's letters keep their meaning; where a default differs from llm.c's, both are named.\n");
    for (const Option *o = option_table; o < option_table + num_options; o++) {
        if (o->kind == HEADING)
            print0("\n%s\n", o->name);
        else if (o->kind != NOTHING_HERE && *o->help)
            print_help(o);
    }
    print0("  without effect, accepted:");
    for (const Option *o = option_table; o < option_table + num_options; o++)
        if (o->kind == NOTHING_HERE) print0(" %s", o->name);
    print0("\n\nThe bar's share of peak is (6 P + 12 L C T) x tokens/s, with P the parameters without those "
           "of the\n"
           "positions, over the speed of matrix products in the run's dtype, measured on all ranks at the "
           "start.\n");
    print0(
        "\n"
        "SIGTERM, SIGINT, SIGHUP or SIGUSR2, sent to any rank, stops the run after the step: it saves if\n"
        "there is -o, and prints the command that goes on. A second one ends it at once. SIGUSR1 saves and\n"
        "goes on. mpirun passes on only SIGUSR1 and SIGUSR2: see docs/running.md.\n"
        "Exit status: 0 done, or stopped by a signal (summary.json is there only when done); 1 failed;\n"
        "2 failed before the ranks met, as with a wrong option; 128 + N ended by signal N.\n");
}

const Option *option_named(const char *name) {
    for (int i = 0; i < num_options; i++) {
        const Option *o = &option_table[i];
        if (o->kind != HEADING && !strcmp(o->name, name)) return o;
    }
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

void option_set(const Option *o, const char *text) {
    switch (o->kind) {
    case HEADING:
        break;
    case FLAG:
        *(int *)o->value = 1;
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

// --------
// what options are, for who takes values from elsewhere

static char given[sizeof option_table / sizeof *option_table];  // on the command line

int option_is_given(const Option *o) {
    if (o->kind == TEXT && *(const char **)o->value && !strcmp(*(const char **)o->value, "auto")) return 0;
    return given[o - option_table];
}

void option_text(const Option *o, const Options *options, char *text, size_t size) {
    const void *at = (const char *)options + ((const char *)o->value - (const char *)&opt);
    const char *words = o->kind == TEXT ? *(const char *const *)at : NULL;
    *text = '\0';
    if (words) snprintf(text, size, "%s", words);
    if (o->kind == INT || o->kind == FLAG) snprintf(text, size, "%d", *(const int *)at);
    if (o->kind == REAL) snprintf(text, size, "%.15g", *(const double *)at);
}

int option_can_be(const Option *o, const char *text) {
    if (o->kind == TEXT) return 1;
    double x = strtod(text, NULL);
    if (o->kind == FLAG) return x == 1;
    return (o->kind == INT || o->kind == REAL) && x >= o->min && x <= o->max;
}

#define CHOICES(...) ((const char *const[]){ __VA_ARGS__, NULL })

static void must_be_one_of(const char *name, const char *value, const char *const choices[]) {
    char list[256] = "";
    for (int i = 0; choices[i]; i++) {
        if (!strcmp(value, choices[i])) return;
        if (i > 0) strcat(list, ", ");
        strcat(list, choices[i]);
    }
    die("option %s: '%s' is not one of %s", name, value, list);
}

static void check_choices(void) {
    must_be_one_of("--overlap", opt.overlap, CHOICES("auto", "0", "1"));
    must_be_one_of("--comm", opt.comm, CHOICES("auto", "host", "nccl"));
    must_be_one_of("--reduce", opt.reduce, CHOICES("ranks", "nccl"));
    must_be_one_of("--comm-type", opt.comm_type, CHOICES("auto", "fp32"));
    must_be_one_of("--progress", opt.progress, CHOICES("auto", "bar", "lines"));
    must_be_one_of("--hash", opt.hash, CHOICES("params", "full"));
    must_be_one_of("--device", opt.device, CHOICES("auto", "cpu", "cuda"));
    must_be_one_of("--dtype", opt.dtype, CHOICES("auto", "bf16", "fp32", "fp16"));
    must_be_one_of("--attention", opt.attention, CHOICES("auto", "cudnn", "cudnn-fast", "cublaslt"));
    must_be_one_of("--offload-optimizer", opt.offload_optimizer, CHOICES("none", "cpu", "nvme"));
    must_be_one_of("--offload-param", opt.offload_param, CHOICES("none", "cpu", "nvme"));
    if (opt.offload_gradients)
        must_be_one_of("--offload-gradients", opt.offload_gradients, CHOICES("none", "cpu", "nvme"));
    must_be_one_of("-pi", opt.start, CHOICES("auto", "mpi", "tcp", "fs"));
}

// Some options need others.
static void check_combinations(void) {
    if (!strcmp(opt.reduce, "nccl") && strcmp(opt.comm, "nccl")) die("option --reduce nccl: add --comm nccl");
    if (opt.naive && opt.stage)
        die("option --naive 1: the naive path is plain data parallel, it needs -z 0 and not -z %d",
            opt.stage < 0 ? 3 : opt.stage);
    if (opt.cpu_checkpointing && opt.recompute >= 0 && opt.recompute != 3)
        die("option --cpu-checkpointing: it keeps the inputs of blocks on the host, so it needs -r 3 and not "
            "-r %d",
            opt.recompute);
    if (opt.cpu_checkpointing && opt.prompts)
        die("option --cpu-checkpointing: it is for backward, and with --prompts there is none");
    if (opt.plan_ranks && !opt.plan) die("option --plan-ranks %d: add --plan", opt.plan_ranks);
    if (opt.prompts && (opt.checkpoint_every || opt.resume || opt.resume_path || opt.naive))
        die("option --prompts %s: nothing is trained, so leave out -n, -y, --resume and --naive; -e takes a "
            "folder of "
            "checkpoints",
            opt.prompts);
    if (opt.async_save && !opt.checkpoint_every)
        die("option --async-save: there are no checkpoints to write; -n N saves one every N steps");
    if ((opt.checkpoint_every || opt.resume) && !opt.output)
        die("options -n and -y need a folder: add -o FOLDER");
}

void parse_options(int argc, char **argv) {
    default_options = opt;
    // This comes first, since any option may be refused.
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], "-pr") && atoi(argv[i + 1]) > 0) die_silently_before_create();
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help")) {
            usage();
            exit(EXIT_SUCCESS);
        }
        const Option *o = option_named(argv[i]);
        given[o - option_table] = 1;
        if (o->kind == FLAG) {
            option_set(o, "1");
            continue;
        }
        if (i + 1 == argc) die("option %s: its value is missing", argv[i]);
        option_set(o, argv[++i]);
    }
    check_choices();
}

void settle_options(void) {
    check_combinations();
    if (opt.cpu_checkpointing) opt.recompute = 3;
    if (opt.overfit) {
        opt.train_data = opt.val_data;
        opt.shuffle = 0;
    }
}
