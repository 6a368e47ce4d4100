// The rows of --help, and which settings they decide.
#include <stdio.h>
#include <string.h>
#include "options.h"

Options opt;
Options default_options;

#define CHOICES(...) ((const char *const[]){ __VA_ARGS__, NULL })
// An option that only sets a setting of the plugin.
#define SETS(member) \
    _Generic(opt.zero.member, int: INT, int64_t: WIDE, double: REAL, const char *: TEXT, default: CHOICE), \
        .value = &opt.zero.member, .setting = #member

#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
Option option_table[] = {
    { "Model and data", .kind = HEADING },
    { "-e", TEXT, &opt.model, "l4h4c128v257t64",
      "model: llm.c's .bin file, a GPT-2 of Hugging Face (a folder with config.json and\n"
      "model.safetensors), a folder with checkpoints, d12, gpt2:d12, gpt3:c768, or\n"
      "l4h4c128v257t64 (default): layers, heads, channels, vocabulary, longest sequence" },
    { "-i", TEXT, &opt.train_data, "data/stories_train.bin", "training token shards, a pattern" },
    { "-j", TEXT, &opt.val_data, "data/stories_val.bin", "validation token shards, a pattern" },
    { "--tokenizer", TEXT, &opt.tokenizer, NULL,
      "file, for samples and prompts, or none: tokens are numbers (default: the stories'\n"
      "where V is 257, else gpt2_tokenizer.bin)" },
    { "--shuffle", INT, &opt.shuffle, "1", "1: permute the rows, alike on any number of ranks", 0, 1 },
    { "--seed", INT, &opt.seed, "42", "seed of the shuffle and of sampling", 0, 2147483647,
      "numbers.rounding_seed" },
    { "-a", INT, &opt.overfit, "0", "1: train on one batch of the validation data", 0, 1 },

    { "Batch and schedule", .kind = HEADING },
    { "-b", INT, &opt.B, "8", "rows of a micro-batch on each rank, B (default 8; llm.c 4)", 1, 1 << 20,
      "trainer.rows" },
    { "-t", INT, &opt.T, NULL, "tokens of a row, T (default: the model's longest sequence; llm.c 1024)", 1,
      1 << 20 },
    { "-d", INT, &opt.total_batch, "-1",
      "tokens of a step over all ranks, a multiple of B*T*ranks (default B*T*ranks)", -1, 1 << 30,
      "micro_batches trainer.rows_a_step" },
    { "-x", INT, &opt.max_steps, "-1", "steps (default -1: one epoch)", -1, 1e9 },
    { "-l", REAL, &opt.lr, "3e-3", "learning rate (default 3e-3; llm.c 3e-4)", 0, 1e3, "trainer.lr" },
    { "-k", TEXT, &opt.schedule, "cosine", "its schedule: cosine, linear, constant, wsd",
      .setting = "trainer.schedule" },
    { "-u", INT, &opt.warmup, "100", "warm-up steps (default 100; llm.c 0)", 0, 1e9, "trainer.schedule" },
    { "-q", REAL, &opt.lr_final, "0.03", "learning rate at the end, as a fraction (default 0.03; llm.c 1.0)",
      0, 1, "trainer.schedule" },

    { "Optimizer", .kind = HEADING },
    { "-c", REAL, &opt.weight_decay, "0", "weight decay of 2-D tensors", 0, 1e3, "trainer.weight_decay" },
    { "--clip", REAL, &opt.clip, "1.0", "largest gradient norm (default 1.0; 0: no clipping)", 0, 1e9,
      "trainer.grad_clip" },
    { "--beta1", REAL, &opt.beta1, "0.9", "AdamW", 0, 0.999999, "trainer.beta1" },
    { "--beta2", REAL, &opt.beta2, "0.95", "AdamW", 0, 0.999999, "trainer.beta2" },
    { "--eps", REAL, &opt.eps, "1e-8", "AdamW", 0, 1, "trainer.eps" },
    { "-sl", REAL, &opt.skip_loss_z, NULL,
      "skip the update when the loss is this many deviations out (default 0: off)", 0, 1e9 },
    { "-sg", REAL, &opt.skip_grad_z, NULL, "the same for the gradient norm (default 0: off)", 0, 1e9 },
    { "-w", INT, &opt.master, "1", "1: fp32 master weights; 0, with bf16: none, stochastic rounding", 0, 1,
      "numbers.no_master" },
    { "--loss-scale", SETS(numbers.loss_scale) },

    { "ZeRO", .kind = HEADING },
    { "-z", SETS(stage), .help = "ZeRO stage 0, 1, 2 or 3 (default 3; llm.c 0)" },
    { "--bucket", SETS(reduce_bucket_size) },
    { "--prefetch", SETS(prefetch) },
    { "--overlap", TEXT, &opt.overlap, "auto",
      "a thread runs collectives: auto, 0, 1 (default auto: on a spare core, and with\n"
      "parameters on NVMe)",
      .choices = CHOICES("auto", "0", "1"), .setting = "overlap" },
    { "--window", SETS(comm.window_bytes) },
    { "--messages", INT, &opt.messages, "0", "1: messages instead of shared memory, on one machine too", 0, 1,
      "comm.shared_window" },
    { "--comm", TEXT, &opt.comm, "auto",
      "between CUDA devices: nccl, host, auto (default auto: NCCL where it is)",
      .choices = CHOICES("auto", "host", "nccl"), .setting = "comm.nccl" },
    { "--reduce", TEXT, &opt.reduce, "ranks", "with NCCL: ranks: summed in rank order, or nccl: in its own",
      .choices = CHOICES("ranks", "nccl"), .setting = "comm.reduce_nccl" },
    { "--comm-type", TEXT, &opt.comm_type, "auto", "how gradients travel: auto, in their own type, or fp32",
      .choices = CHOICES("auto", "fp32"), .setting = "comm.reduce_fp32" },
    { "--comm-timeout", SETS(comm.timeout_s) },
    { "--naive", SETS(debug.naive) },
    { "--zero-config", TEXT, &opt.zero_config, NULL,
      "DeepSpeed JSON, as it is; an option that says otherwise is an error" },
    { "--print-config", FLAG, &opt.print_config, NULL,
      "print every setting, what it is and why; start and allocate nothing" },
    { "--plan", FLAG, &opt.plan, NULL,
      "print what a rank would hold and send, at every stage; start and allocate nothing" },
    { "--plan-ranks", INT, &opt.plan_ranks, NULL,
      "with --plan: for so many ranks, -pg of them on a host (default: those started)", 1, 1 << 20 },
    { "--offload-optimizer", SETS(offload.optimizer),
      .help = "where masters and moments lie: none, cpu, nvme (default none; no card has run it)" },
    { "--offload-param", SETS(offload.params) },
    { "--offload-gradients", TEXT, &opt.offload_gradients, NULL,
      "where reduced gradients lie, from stage 2 on: none, cpu, nvme (default: beside\n"
      "masters and moments, but not on NVMe)",
      .choices = CHOICES("none", "cpu", "nvme"), .setting = "offload.gradients" },
    { "--nvme", SETS(offload.nvme) },
    { "--offload-ratio", SETS(offload.optimizer_ratio) },
    { "--sub-group-size", SETS(offload.sub_group_size) },
    { "--max-in-cpu", SETS(offload.params_in_host) },
    { "--delayed-update", SETS(offload.delayed_update),
      .help = "with --offload-optimizer: from update N on each runs beside the next step, which\n"
              "computes with the parameters before it; other numbers (default 0: none; the paper\n"
              "begins at 41; has not run on a GPU)" },
    { "--nvme-verify", FLAG, &opt.zero.offload.nvme_verify, .setting = "offload.nvme_verify" },

    { "Output and checkpoints", .kind = HEADING },
    { "-o", TEXT, &opt.output, NULL,
      "folder for main.log, metrics.jsonl, summary.json and checkpoints, one for all\n"
      "machines (default: none)",
      .setting = "trainer.logs" },
    { "-n", INT, &opt.checkpoint_every, NULL, "save a checkpoint every so many steps (default 0: never)", 0,
      1e9 },
    { "-nk", INT, &opt.checkpoints_keep, NULL, "keep the last so many checkpoints (default 0: all)", 0, 1e9 },
    { "-nm", INT, &opt.checkpoint_major, NULL,
      "checkpoints at multiples of this are never removed (default 0: none)", 0, 1e9 },
    { "--async-save", FLAG, &opt.async_save, NULL,
      "go on training while a checkpoint is written, from a copy in memory, and its model\n"
      "file",
      .setting = "async_save" },
    { "-y", INT, &opt.resume, NULL,
      "1: resume from the last complete checkpoint in -o, if there is one (default 0: a\n"
      "folder of an earlier run is refused)",
      0, 1 },
    { "--resume", TEXT, &opt.resume_path, NULL,
      "resume from this checkpoint, a folder step_NNNNNNNN of any run; with -y 1 one of\n"
      "another folder only begins the run. Later ones in -o become abandoned_NNNNNNNN at\n"
      "the next save" },
    { "--resume-anyway", FLAG, &opt.resume_anyway, NULL,
      "resume even with another model in -e, other data, or steps of another size" },
    { "--verify", TEXT, &opt.verify, NULL,
      "read a checkpoint, or all in a folder of -o, compare every checksum, and end:\n"
      "with 0 if all are good; needs no model and no ranks" },
    { "-v", INT, &opt.val_every, "100", "validate every so many steps (default 100; llm.c 20; 0: never)", 0,
      1e9 },
    { "-m", INT, &opt.val_batches, "10", "validation batches (default 10; llm.c 20; -1: all)", -1, 1e9 },
    { "-s", INT, &opt.sample_every, "500",
      "sample text every so many steps (default 500; llm.c 20; 0: never)", 0, 1e9 },
    { "--prompts", TEXT, &opt.prompts, NULL,
      "file of prompts, one a line: the model answers each, holding parameters alone,\n"
      "and nothing is trained",
      .setting = "inference" },
    { "--export", TEXT, &opt.export_from, NULL,
      "writes this model as --to says and ends: a checkpoint step_NNNNNNNN (its masters),\n"
      "a folder with checkpoints (of its newest), llm.c's .bin file, or a GPT-2 of Hugging\n"
      "Face; one process, no ranks; in fp32, or with --dtype bf16" },
    { "--to", TEXT, &opt.export_to, NULL,
      "what --export writes: NAME.bin for llm.c, any other name for a folder that\n"
      "transformers loads, with --tokenizer in its form; nothing is written over" },
    { "-g", INT, &opt.sample_tokens, "200", "tokens of a sample or an answer (default 200; llm.c 64)", 1,
      1 << 20 },
    { "--temperature", REAL, &opt.temperature, "1",
      "of samples: below 1 likelier tokens are taken more often, at 0 always the\n"
      "likeliest",
      0, 100 },
    { "-h", NOT_BUILT, NULL, NULL, "HellaSwag (1 is not built yet)" },
    { "--progress", TEXT, &opt.progress, "auto",
      "auto, bar or lines: a line a step, or one bar (default auto: a bar on a terminal)",
      .choices = CHOICES("auto", "bar", "lines") },
    { "--hash", TEXT, &opt.hash, "params", "params or full: digest at the end; full adds the optimizer state",
      .choices = CHOICES("params", "full") },
    { "--trace", TEXT, &opt.trace, NULL,
      "file for what happened when, as Chrome/Perfetto JSON; rank r > 0 adds .r",
      .setting = "debug.trace_events" },

    { "Machine", .kind = HEADING },
    { "--device", TEXT, &opt.device, "auto",
      "auto, cpu or cuda (default auto: cuda where there is a usable device)",
      .choices = CHOICES("auto", "cpu", "cuda"), .setting = "device" },
    { "--dtype", TEXT, &opt.dtype, "auto",
      "auto, bf16, fp32, on CUDA fp16 (default auto: bf16 if the hardware multiplies it)",
      .choices = CHOICES("auto", "bf16", "fp32", "fp16"), .setting = "numbers.dtype" },
    { "--threads", INT, &opt.threads, NULL,
      "OpenMP threads of a rank (default 0: cores / ranks on this machine)", 0, 4096 },
    { "-r", INT, &opt.recompute, "-1",
      "recompute in backward: 0 nothing, 1 GELU, 2 layernorms too, 3 each block from its\n"
      "input, which alone is kept (default -1: on CUDA the lowest that memory allows, 0\n"
      "only where it fits at every stage if the product computes GELU; on a CPU 1;\n"
      "llm.c 1)",
      -1, 3 },
    { "--cpu-checkpointing", FLAG, &opt.cpu_checkpointing, NULL,
      "on CUDA, with -r 3, which it implies: the inputs of blocks are kept in pinned host\n"
      "memory",
      .setting = "trainer.offload_activations" },
    { "-f", INT, &opt.tf32, "-1", "on CUDA with fp32: products round their inputs to TF32 (default 1)", 0,
      1 },
    { "-ge", INT, &opt.gelu_fusion, "-1",
      "on CUDA: GELU apart (0), in the forward product (1), in backward's too (2;\n"
      "default -1: 2 on Hopper and newer, else 0)",
      -1, 2 },
    { "--attention", TEXT, &opt.attention, "auto",
      "on CUDA: cudnn; cudnn-fast, whose bits may differ from run to run; cublaslt; or\n"
      "auto (default auto: cudnn where it can)",
      .choices = CHOICES("auto", "cudnn", "cudnn-fast", "cublaslt") },
    { "--attention-workspace", INT, &opt.attention_mib, NULL,
      "on CUDA: MiB of scratch that attention's backward may take; one row\n"
      "of the batch takes what it needs (default 0: cuDNN 512, cuBLASLt 64)",
      0, 1 << 20 },
    { "--tune", TEXT, &opt.tune, NULL,
      "on CUDA: file of the fastest algorithms of matrix products; rank 0 times those\n"
      "that it lacks for this card and library, and adds them (default:\n"
      "none, cuBLASLt's first choice, which is the same in every run)" },
    { "-lg", NOTHING_HERE, NULL, NULL, "nvidia-smi shows a device's state" },

    { "Start of several ranks", .kind = HEADING },
    { "-pi", TEXT, &opt.start, "auto",
      "how they find each other: mpi, tcp, fs, or auto (default auto: MPI under mpirun;\n"
      "TCP under srun, or where RANK and WORLD_SIZE are set; else one rank)",
      .choices = CHOICES("auto", "mpi", "tcp", "fs"), .setting = "start.method" },
    { "-pn", SETS(start.ranks), .help = "tcp, fs: number of ranks (default 0: as the launcher says)" },
    { "-pr", SETS(start.rank),
      .help = "tcp, fs: number of this one, from 0 (default -1: as the launcher says)" },
    { "-pg", INT, &opt.ranks_a_host, NULL,
      "tcp, fs, --plan: ranks on a host (default 0: as the launcher says, else all)", 0, 1 << 20 },
    { "-ps", SETS(start.server),
      .help = "tcp: host or host:port of rank 0 (default: the launcher's; port 12345); the same\n"
              "ZERO_JOB_KEY, 16 or more characters, in all ranks' environment keeps others out" },
    { "-pf", SETS(start.file), .help = "fs: a path that all hosts see, of a file or a folder" },
};
const int num_options = sizeof option_table / sizeof *option_table;

// --------
// the settings that options decide

// Whether the option decides this setting, the first `length` bytes of `name`.
static int decides(const Option *o, const char *name, size_t length) {
    for (const char *at = o->setting; at && *at; at += strspn(at, " ")) {
        const size_t n = strcspn(at, " ");
        if (n == length && !memcmp(at, name, n)) return 1;
        at += n;
    }
    return 0;
}

void options_of_settings(const char *settings, char *options, size_t size) {
    *options = 0;
    for (const char *name = settings; *name; name += strspn(name, " ")) {
        const size_t length = strcspn(name, " ");
        for (const Option *o = option_table; o < option_table + num_options; o++) {
            const size_t used = strlen(options);
            if (!decides(o, name, length)) continue;
            snprintf(options + used, size - used, "%s%s", used ? ", " : "", o->name);
        }
        name += length;
    }
}

const Option *option_of_setting(const char *setting) {
    for (const Option *o = option_table; o < option_table + num_options; o++)
        if (decides(o, setting, strlen(setting))) return o;
    return NULL;
}
