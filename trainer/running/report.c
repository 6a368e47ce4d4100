#include "report.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "../../gpt2/bar.h"
#include "../../gpt2/disk.h"
#include "../../gpt2/gpt2_error.h"
#include "activations.h"
#include "../options/config_table.h"
#include "../planning/room.h"
#include "../checkpoints/folder.h"
#include "machine.h"
#include "../options/options.h"
#include "run.h"
#include "../checkpoints/saving.h"
#include "signals.h"

// -------- the bar instead of a line per step

// Returns 1 on all ranks if rank 0 shows a bar. *terminal is what it draws on.
static int bar_wanted(int *terminal) {
    double wanted = 0;
    *terminal = -1;
    if (run.rank == 0 && strcmp(opt.progress, "lines") && strcmp(opt.progress, "few")) {
        *terminal = bar_terminal();
        wanted = *terminal >= 0 || !strcmp(opt.progress, "bar");
    }
    zero_check(zero_sum(run.z, &wanted, 1));
    return wanted > 0;
}

static void update_bar(const Report *r, const GPT2 *model, double loss) {
    double at_s = now(), step_s = (at_s - r->start_s) / (run.step + 1 - r->first_step);
    Progress p = {
        .step = run.step + 1,
        .steps = r->steps,
        .at_s = at_s,
        .left_s = step_s * (r->steps - run.step - 1),
        .loss = loss,
        .tokens_per_s = r->average_rate,
        .share = r->average_rate * flops_per_token(model) / run.peak_flops,
    };
    bar_update(&p);
}

// -------- the logs

#define MAIN_LOG "main.log"
#define METRICS "metrics.jsonl"

static void log_line(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void log_line(const char *name, const char *fmt, ...) {
    const int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    va_list args;
    if (run.rank != 0 || !opt.output) return;
    const char *path = in_output("%s", name);
    const int fd = open(path, flags, 0666);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "a");
    if (!f) die("%s: %s", path, strerror(errno));
    va_start(args, fmt);
    vfprintf(f, fmt, args);
    va_end(args);
    const int failed = ferror(f);
    if (fclose(f) || failed) die("%s: not written: %s", path, strerror(errno));
}

// -------- logs of an earlier run

static int has_lines(const char *name) {
    const char *path = in_output("%s", name);
    struct stat st;
    if (!stat(path, &st)) return st.st_size > 0;
    if (errno != ENOENT) die("%s: %s", path, strerror(errno));
    return 0;
}

int logs_exist(void) { return opt.output && (has_lines(MAIN_LOG) || has_lines(METRICS)); }

// Returns 1 if the line stays. In main.log "s:4 trl:.." belongs to the step after 4; "s:4 tel:.." and
// "s:4 eval:.." to the validation at step 4.
static int keeps(const char *line, int step, int validates) {
    char kind[4];
    int n;
    if (sscanf(line, "{\"step\": %d,", &n) == 1) return n <= step;
    if (sscanf(line, "s:%d %3[a-z]:", &n, kind) != 2) return 1;
    return n < step || (n == step && strcmp(kind, "trl") && !validates);
}

// Replaces a log with the lines to keep, unless it has no others. Drops an incomplete last line, left by a
// process that died.
static void cut_log(const char *name, int step, int validates) {
    const char *path = in_output("%s", name);
    char *line = NULL;
    size_t room = 0;
    disk_file to;
    FILE *from;
    if (disk_open_stream(path, &from)) die("option -o: %s", gpt2_last_error());
    if (!from) return;
    int failed = disk_create(&to, path), cut = 0;
    for (ssize_t n; !failed && (n = getline(&line, &room, from)) > 0;) {
        if (line[n - 1] == '\n' && keeps(line, step, validates))
            failed = disk_write(&to, line, (size_t)n);
        else
            cut++;
    }
    if (!failed && ferror(from)) failed = gpt2_fail("%s: cannot be read: %s", path, strerror(errno));
    free(line);
    fclose(from);  // nothing was written
    if (disk_finish(&to, failed || !cut) && cut) failed = -1;
    gpt2_check(failed);
}

void logs_continue(int step, int validates) {
    if (run.rank != 0 || !logs_exist()) return;
    cut_log(MAIN_LOG, step, validates);
    cut_log(METRICS, step, validates);
}

// -------- lines printed for each step

// Formats a number for JSON. JSON has no NaN, so values that were not measured are null.
static const char *json_number(char text[32], double x) {
    if (!isfinite(x)) return "null";
    snprintf(text, 32, "%.9g", x);
    return text;
}

// (collective) With --hash-every: sets hash to the digest of the parameters after this step; "": none is due.
static void hash_step(const Report *r, char hash[17]) {
    const int step = run.step + 1;
    *hash = 0;
    if (!opt.hash_every || (step % opt.hash_every && step != r->steps)) return;
    zero_check(zero_hash(run.z, 0, hash));
}

static void log_step(const StepResult *step, double seconds, double rate, const char *hash) {
    char norm[32];  // null in a step that overflowed
    log_line(MAIN_LOG, "s:%d trl:%.4f lr:%.6f norm:%.2f\n", run.step, step->loss, step->lr, step->norm);
    log_line(METRICS,
             "{\"step\": %d, \"loss\": %.9g, \"grad_norm\": %s, \"lr\": %.9g, \"ms\": %.3f, "
             "\"tokens_per_s\": %.2f%s%s%s}\n",
             run.step + 1, step->loss, json_number(norm, step->norm), step->lr, seconds * 1e3, rate,
             *hash ? ", \"params_hash\": \"" : "", hash, *hash ? "\"" : "");
}

int summary_exists(void) { return run.rank == 0 && opt.output && file_is_there(in_output("summary.json")); }

// -------- the loop

void write_run(FILE *f, const GPT2 *model) {
    fprintf(f, "\"ranks\": %d, \"stage\": %d, \"dtype\": \"%s\", \"device\": \"%s\",\n", run.ranks,
            opt.zero.stage, dtype_name(model->dtype), run.layers->device);
}

void write_memory(FILE *f) {
    fprintf(f, " \"model_state_bytes\": %zu, \"working_bytes\": %zu, \"activation_bytes\": %zu",
            zero_memory_bytes(run.z, ZERO_STATES), zero_memory_bytes(run.z, ZERO_WORKING),
            zero_memory_bytes(run.z, ZERO_ACTIVATIONS));
}

// Writes run.json at the start, so that plots can describe a run that has not finished, and
// scripts/replay.sh can run a part of it again.
static void save_run(const GPT2 *model) {
    Text t;
    text_begin(&t);
    fprintf(t.f, "{\"model\": \"%s\", \"parameters\": %lld,\n ", sizes_of(&model->config),
            (long long)gpt2_num_parameters(&model->config));
    write_run(t.f, model);
    write_memory(t.f);
    fprintf(t.f, ",\n \"threads\": %d, \"options\": [", run.threads);
    write_given_options(t.f);
    fprintf(t.f, "\n ]}\n");
    write_to_output("run.json", &t);
}

// Returns 1 if this process writes the files in -o.
static int writes_files(const Report *r) { return run.rank == 0 && opt.output && !r->is_done; }

void report_begin(Report *r, const GPT2 *model, int first_step, int steps, long long tokens_a_step,
                  int is_done) {
    int terminal;
    *r = (Report){
        .first_step = first_step, .steps = steps, .tokens_a_step = tokens_a_step, .is_done = is_done
    };
    // summary.json marks a finished run, so one left by an earlier run must go.
    if (writes_files(r) && remove(in_output("summary.json")) && errno != ENOENT)
        die("%s/summary.json: %s", opt.output, strerror(errno));
    r->loss = r->norm = r->val_loss = NAN;
    if (bar_wanted(&terminal)) {
        LAYER(peak_flops(model->dtype, &run.peak_flops));  // on all ranks at once, as in training
        zero_check(zero_sum(run.z, &run.peak_flops, 1));
        print0("peak       %.0f GFLOP/s in matmuls of %s, measured on all ranks at once\n",
               run.peak_flops * 1e-9, dtype_name(model->dtype));
        if (run.rank == 0) bar_start(terminal);
    }
    if (writes_files(r)) save_run(model);
    zero_traffic_info(run.z, &r->traffic_at_start);
    zero_files_info(run.z, &r->files_at_start);
    r->start_s = now();
}

void report_validation(Report *r, double loss) {
    if (!isfinite(loss))
        die("validation after step %d: the loss is not finite (%f); %s", run.step, loss, last_checkpoint());
    r->val_loss = loss;
    print0("val loss %f\n", loss);
    if (writes_files(r)) log_line(MAIN_LOG, "s:%d tel:%.4f\n", run.step, loss);
}

void report_hellaswag(const Report *r, int correct, int examples) {
    const double share = (double)correct / examples;
    print0("HellaSwag: %d/%d = %f\n", correct, examples, share);
    if (writes_files(r)) log_line(MAIN_LOG, "s:%d eval:%.4f\n", run.step, share);
}

// Formats a z-score; "-" until there is one.
static const char *z_score(char text[16], double z) {
    snprintf(text, 16, isfinite(z) ? "%+.2fz" : "-", z);
    return text;
}

// Returns 1 if this step has a line. --progress few prints twelve, and the last.
static int has_line(const Report *r) {
    const int every = (r->steps - r->first_step) / 12;
    if (strcmp(opt.progress, "few") || every < 2 || run.step + 1 == r->steps) return 1;
    return (run.step - r->first_step) % every == 0;
}

void report_step(Report *r, const GPT2 *model, const StepResult *step, double seconds) {
    char zloss[16], znorm[16], hash[17];
    double rate = r->tokens_a_step / seconds;
    r->loss = step->loss;
    r->norm = step->norm;
    r->times[r->steps_run % MOST_TIMES] = seconds;
    r->average_rate = r->steps_run ? 0.95 * r->average_rate + 0.05 * rate : rate;
    r->steps_run++;
    if (run.peak_flops > 0)
        update_bar(r, model, step->loss);
    else if (has_line(r))
        print0("step %4d/%d | loss %7.6f (%s)| norm %6.4f (%s)| lr %.2e | %.2f ms | %.0f tok/s\n",
               run.step + 1, r->steps, step->loss, z_score(zloss, step->zloss), step->norm,
               z_score(znorm, step->znorm), step->lr, seconds * 1e3, r->average_rate);
    hash_step(r, hash);
    log_step(step, seconds, rate, hash);
}

// -------- the end

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Returns the tokens per second of the median step; 0: no steps. Skips the first two steps, which warm up.
static double typical_rate(Report *r) {
    const int all = r->steps_run < MOST_TIMES ? r->steps_run : MOST_TIMES;
    const int skip = r->steps_run > 2 && r->steps_run <= MOST_TIMES ? 2 : 0, n = all - skip;
    double *times = r->times + skip;
    if (!n) return 0;
    qsort(times, n, sizeof *times, compare_doubles);
    const double median = (times[(n - 1) / 2] + times[n / 2]) / 2;
    return median > 0 ? r->tokens_a_step / median : 0;
}

// The contents of summary.json, besides those of `run` and the plugin's counters.
typedef struct {
    const Report *report;
    const GPT2 *model;
    double tokens_per_s;
    char params_hash[17], state_hash[17];  // "" if not requested
    zero_traffic traffic;                  // of the whole run
    // averages per step: bytes that a rank sends, reads, takes from memory instead, and writes, and its wait
    // for files
    double all_gather, reduce_scatter, all_reduce, read, not_read, written, waited_s;
    double written_by_all, written_tb_a_day;  // by all ranks: per step, and at the median speed
} Summary;

// Stage 0's all-reduce consists of gathers and reductions.
static void add_averages(Summary *s) {
    enum { STEP = ZERO_FOR_STEP };
    const Report *r = s->report;
    const zero_traffic *before = &r->traffic_at_start;
    const double n = r->steps_run ? r->steps_run : 1;
    zero_traffic_info(run.z, &s->traffic);
    s->all_gather = (s->traffic.all_gather[STEP] - before->all_gather[STEP]) / n;
    s->reduce_scatter = (s->traffic.reduce_scatter[STEP] - before->reduce_scatter[STEP]) / n;
    s->all_reduce = (s->traffic.other[STEP] - before->other[STEP]) / n;
    if (opt.zero.stage == 0) {
        s->all_reduce += s->all_gather + s->reduce_scatter;
        s->all_gather = s->reduce_scatter = 0;
    }
    s->read = (r->files_at_end.read[STEP] - r->files_at_start.read[STEP]) / n;
    s->not_read = (r->files_at_end.not_read[STEP] - r->files_at_start.not_read[STEP]) / n;
    s->written = (r->files_at_end.written[STEP] - r->files_at_start.written[STEP]) / n;
    s->waited_s = (r->files_at_end.waited_s - r->files_at_start.waited_s) / n;
    if (!settings_use_nvme()) return;
    // Drives are rated by total terabytes written; this is the number per day at the median speed.
    s->written_by_all = s->written;
    zero_check(zero_sum(run.z, &s->written_by_all, 1));
    s->written_tb_a_day = s->written_by_all * s->tokens_per_s / r->tokens_a_step * 24 * 3600 * 1e-12;
}

static void write_traffic(FILE *f, const Summary *s) {
    static const char *const purposes[] = { "step", "eval", "checkpoint", "hash", "scalars", "unused" };
    const zero_traffic *t = &s->traffic;
    fprintf(f, " \"comm_bytes\": {\"all_gather\": %.0f, \"reduce_scatter\": %.0f, \"all_reduce\": %.0f,",
            s->all_gather, s->reduce_scatter, s->all_reduce);
    fprintf(f, " \"others\": {\"start\": 0");
    for (int p = ZERO_FOR_EVAL; p < ZERO_TRAFFIC_PURPOSES; p++)
        fprintf(f, ", \"%s\": %lld", purposes[p],
                (long long)(t->all_gather[p] + t->reduce_scatter[p] + t->other[p]));
    fprintf(f, "}},\n");
}

static void write_summary(FILE *f, const Summary *s) {
    const Report *r = s->report;
    const char *quote = *s->state_hash ? "\"" : "";
    char loss[32], val_loss[32], norm[32];
    fprintf(f, "{\"steps\": %d, ", run.step);
    write_run(f, s->model);
    fprintf(f, " \"loss\": %s, \"val_loss\": %s, \"grad_norm\": %s,", json_number(loss, r->loss),
            json_number(val_loss, r->val_loss), json_number(norm, r->norm));
    fprintf(f, " \"params_hash\": \"%s\", \"state_hash\": %s%s%s,\n", s->params_hash, quote,
            *s->state_hash ? s->state_hash : "null", quote);
    fprintf(f, " \"tokens_per_s\": %.2f,", s->tokens_per_s);
    write_memory(f);
    fprintf(f, ",\n");
    write_traffic(f, s);
    fprintf(f, " \"host_bytes\": %zu, \"nvme_bytes\": %zu,\n", bytes_held_on(ZERO_HOST),
            bytes_held_on(ZERO_NVME));
    fprintf(
        f, " \"nvme_traffic\": {\"read\": %.0f, \"written\": %.0f, \"not_read\": %.0f, \"waited_s\": %.6f,\n",
        s->read, s->written, s->not_read, s->waited_s);
    fprintf(f, "  \"written_by_all_ranks\": %.0f, \"written_tb_a_day\": %.9g},\n", s->written_by_all,
            s->written_tb_a_day);
    write_config(f);
    fprintf(f, "}\n");
}

void report_end(Report *r, const GPT2 *model) {
    Summary s = { .report = r, .model = model };
    bar_end();
    s.tokens_per_s = typical_rate(r);
    check_last_update();
    zero_check(zero_hash(run.z, 0, s.params_hash));
    if (!strcmp(opt.hash, "full")) zero_check(zero_hash(run.z, 1, s.state_hash));
    add_averages(&s);
    if (r->steps_run)
        print0("%.0f tokens/s in the median step | sent per rank and step %.2f MiB", s.tokens_per_s,
               mib(s.all_gather + s.reduce_scatter + s.all_reduce));
    else
        print0("no step was run");
    print0(" | params_hash %s%s%s\n", s.params_hash, *s.state_hash ? " | state_hash " : "", s.state_hash);
    if (settings_use_nvme() && r->steps_run)
        print0("NVMe, per rank and step: %.2f of %.2f MiB read (the rest was still in memory), "
               "%.2f MiB written, %.1f ms waiting\n"
               "NVMe, all ranks: %.2f MiB written per step, %.3g TB per day at the median step\n",
               mib(s.read), mib(s.read + s.not_read), mib(s.written), s.waited_s * 1e3, mib(s.written_by_all),
               s.written_tb_a_day);
    if (writes_files(r)) {
        Text t;
        text_begin(&t);
        write_summary(t.f, &s);
        write_to_output("summary.json", &t);
    }
    check_output(NULL);
}

// Before its first step a run has nothing new to save.
void report_stop(const Report *r) {
    const char *why_not = why_no_checkpoint();
    const int saved = checkpoint_is_saved();
    char what[100] = "nothing to save yet", outcome[200];
    if (run.step > 0 && !why_not) why_not = "-n is 0";  // and no signal, but --stop-after stopped the run
    bar_end();
    if (saved) snprintf(what, sizeof what, "its checkpoint is saved");
    if (!saved && why_not) snprintf(what, sizeof what, "nothing is saved, because %s", why_not);
    snprintf(outcome, sizeof outcome, "stopped after step %d of %d; %s", run.step, r->steps, what);
    check_output(outcome);
    print0("%s%s\n", outcome, saved ? "; the same command with -y 1 resumes it" : "");
}

void try_outputs(void) {
    disk_file d;
    struct stat st;
    if (run.rank != 0 || !opt.trace) return;
    if (!lstat(opt.trace, &st) && !S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))
        die("option --trace: %s exists and is not a regular file; name another one", opt.trace);
    if (disk_create(&d, opt.trace)) die("option --trace: %s", gpt2_last_error());
    disk_finish(&d, 1);  // removes it
}
