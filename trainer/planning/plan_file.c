#include "plan_file.h"
#include <stdint.h>
#include <stdio.h>
#include "../checkpoints/folder.h"
#include "../running/machine.h"
#include "../running/run.h"
#include "fit.h"
#include "memory_table.h"

static const char *truth(int is_true) { return is_true ? "true" : "false"; }

// Writes what a rank needs in each place, and what it has there; null: not known. process: bytes on a CPU
// that the table leaves out.
static void write_memory(FILE *f, const MemoryTable *t, const Bytes *room, size_t process) {
    static const char *const places[] = { "device", "host", "disk" };
    int fits = 1;
    for (int i = 0; i < PLACES; i++) {
        const size_t needed = bytes_on(t->lines, t->n, i) + (i == ZERO_DEVICE ? process : 0);
        const size_t available = room->on[i];
        fprintf(f, "  \"%s\": {\"needed\": %zu, \"available\": ", places[i], needed);
        fprintf(f, available < SIZE_MAX ? "%zu" : "null", available);
        fprintf(f, ", \"fits\": %s},\n", truth(needed <= available));
        fits &= needed <= available;
    }
    fprintf(f, "  \"fits\": %s,\n  \"memory\": ", truth(fits));
    write_table(f, t);
}

static void write_times(FILE *f, const GPT2 *model, double tokens, const StepTimes *times) {
    fprintf(f, ",\n  \"tokens_per_step\": %.0f,\n  \"step_seconds\": %.6g,\n  \"tokens_per_s\": %.0f,\n",
            tokens, times->is.seconds, tokens / times->is.seconds);
    fprintf(f, "  \"mfu\": %.4f,\n  \"comm_share\": %.4f,\n  \"comm_exposed_share\": %.4f,\n",
            share_of_peak(model, tokens, times), share_busy(times, NETWORK), share_exposed(times, NETWORK));
}

void write_plan_file(const GPT2 *model, int micro_batches, const StepTimes *times) {
    zero_config config = plugin_settings(model->dtype, micro_batches);
    config.start.rank = 0;
    const zero_plan plan = plan_of(model, &config);
    const MemoryTable table = table_of_plan(model, &plan);
    const double tokens = (double)model->B * model->T * run.ranks * micro_batches;
    const zero_traffic *sent = &plan.traffic;
    Bytes room;
    Text text;
    zero_check(find_room(&room, model, &config));
    // The room is that of the plan, so what the process or a GPU's libraries take is added again.
    const size_t process = process_bytes(model, &config);
    if (room.on[ZERO_DEVICE] < SIZE_MAX)
        room.on[ZERO_DEVICE] += process + bytes_estimated(CUDA_CONTEXT) + bytes_estimated(NCCL_BUFFERS);
    if (run.rank > 0) return;
    text_begin(&text);
    fprintf(text.f, "{\n  \"machine\": ");
    write_json_text(text.f, machine_of_plan()->title);
    fprintf(text.f, ",\n  \"measured\": %s,\n  \"ranks\": %d,\n  \"ranks_per_host\": %d,\n",
            truth(!machine_of_plan()->is_gpu), run.ranks, run.ranks_on_host);
    write_memory(text.f, &table, &room, process);
    write_times(text.f, model, tokens, times);
    fprintf(text.f, "  \"sent_bytes\": %lld,\n  \"disk_bytes\": %lld\n}\n",
            (long long)(sent->all_gather[ZERO_FOR_STEP] + sent->reduce_scatter[ZERO_FOR_STEP] +
                        sent->other[ZERO_FOR_STEP] + sent->other[ZERO_FOR_SCALARS]),
            (long long)(plan.file_read + plan.file_written));
    make_folder();
    write_to_output("plan.json", &text);
}
