#include "lesson.h"
#include <mpi.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_RANKS = 8, LIMIT_S = 30 };

static struct {
    int number, rank, ranks;  // of the lesson, among all ranks
    int passed, checks;
    int n_off;
    char off[400];
} lesson;

// The ranks that joined, and the messages between them since the last check.
typedef struct {
    MPI_Request request;
    void *copy;
} message;
static struct {
    MPI_Comm comm;
    int rank, ranks;  // rank: -1 if this rank did not join
    int64_t bytes;
    int sent[MOST_RANKS], received[MOST_RANKS];
    message *messages;
    int n_messages;
} wire = { .comm = MPI_COMM_NULL };

// -------- ending a lesson that cannot continue

static void end_all(void) {
    fflush(stdout);
    _exit(1);  // mpirun ends the other ranks
}
static void end_with(const char *format, ...) {
    va_list a;
    printf("lesson %d stopped: ", lesson.number);
    va_start(a, format);
    vprintf(format, a);
    va_end(a);
    printf("\n");
    end_all();
}

static void on_signal(int signal) {
    char line[200];
    if (signal == SIGALRM)
        snprintf(line, sizeof line,
                 "lesson %d stopped: rank %d was not done after %d s. It waits for a message that no rank "
                 "sends, or a loop does not end.\n",
                 lesson.number, lesson.rank, LIMIT_S);
    else
        snprintf(line, sizeof line,
                 "lesson %d stopped: rank %d crashed (%s). An index or a pointer is outside of its array, or "
                 "an integer was divided by 0.\n",
                 lesson.number, lesson.rank, strsignal(signal));
    if (write(STDOUT_FILENO, line, strlen(line)) < 0) _exit(2);
    _exit(1);
}

// -------- checks

void lesson_begin(char **argv, int ranks, int number, const char *title) {
    const int signals[] = { SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGALRM };
    char np[12];
    int given;
    lesson.number = number;
    if (!getenv("OMPI_COMM_WORLD_RANK")) {
        snprintf(np, sizeof np, "%d", ranks);
        execvp("mpirun", (char *[]){ "mpirun", "-q", "--oversubscribe", "-np", np, argv[0], NULL });
        end_with("mpirun cannot be started: scripts/install_deps.sh installs it");
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &given);
    MPI_Comm_rank(MPI_COMM_WORLD, &lesson.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &lesson.ranks);
    if (lesson.ranks != ranks) end_with("it needs %d ranks, not %d", ranks, lesson.ranks);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) signal(signals[i], on_signal);
    alarm(LIMIT_S + lesson.rank);  // one rank at a time, so that one of them reports
    lesson_join(ranks);
    if (lesson.rank == 0) printf("lesson %d: %s\n", number, title);
}

void lesson_off(const char *format, ...) {
    va_list a;
    va_start(a, format);
    if (lesson.n_off++ == 0) vsnprintf(lesson.off, sizeof lesson.off, format, a);
    va_end(a);
}

// Receives what was sent to this rank and not received.
static void drop_messages(void) {
    int to_me[MOST_RANKS];
    MPI_Alltoall(wire.sent, 1, MPI_INT, to_me, 1, MPI_INT, wire.comm);
    for (int from = 0; from < wire.ranks; from++) {
        if (to_me[from] > wire.received[from])
            lesson_off("rank %d never receives %d of the messages that rank %d sends it", wire.rank,
                       to_me[from] - wire.received[from], from);
        for (int i = wire.received[from]; i < to_me[from]; i++) {
            MPI_Status status;
            int bytes;
            MPI_Probe(from, 0, wire.comm, &status);
            MPI_Get_count(&status, MPI_BYTE, &bytes);
            void *dropped = malloc(bytes + 1);
            MPI_Recv(dropped, bytes, MPI_BYTE, from, 0, wire.comm, &status);
            free(dropped);
        }
    }
    for (int i = 0; i < wire.n_messages; i++) {
        MPI_Wait(&wire.messages[i].request, MPI_STATUS_IGNORE);
        free(wire.messages[i].copy);
    }
    wire.n_messages = 0;
    memset(wire.sent, 0, sizeof wire.sent);
    memset(wire.received, 0, sizeof wire.received);
}

void lesson_check(const char *what, ...) {
    char notes[MOST_RANKS][sizeof lesson.off];
    int n = 0, first;
    va_list a;
    if (wire.rank >= 0) drop_messages();
    MPI_Allreduce(&lesson.n_off, &n, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Gather(lesson.off, sizeof lesson.off, MPI_CHAR, notes, sizeof lesson.off, MPI_CHAR, 0,
               MPI_COMM_WORLD);
    lesson.n_off = lesson.off[0] = 0;
    lesson.checks++;
    lesson.passed += n == 0;
    if (lesson.rank > 0) return;
    printf(n ? "off  " : "ok   ");
    va_start(a, what);
    vprintf(what, a);
    va_end(a);
    for (first = 0; n && !notes[first][0];) first++;
    if (n) printf(": %s", notes[first]);
    if (n > 1) printf(" (the first of %d)", n);
    printf("\n");
}

int lesson_end(void) {
    const int status = lesson.passed < lesson.checks;
    if (lesson.rank == 0)
        printf("lesson %d: %d of %d checks passed\n", lesson.number, lesson.passed, lesson.checks);
    MPI_Finalize();
    return status;
}

// -------- the wire

int lesson_join(int ranks) {
    if (wire.comm != MPI_COMM_NULL) MPI_Comm_free(&wire.comm);
    const int joins = lesson.rank < ranks;
    MPI_Comm_split(MPI_COMM_WORLD, joins ? 0 : MPI_UNDEFINED, lesson.rank, &wire.comm);
    wire.rank = joins ? lesson.rank : -1;
    wire.ranks = ranks;
    wire.bytes = 0;
    return joins;
}

int wire_rank(void) { return wire.rank; }
int wire_ranks(void) { return wire.ranks; }
int64_t wire_sent(void) { return wire.bytes; }

static void check_peer(const char *call, int peer, size_t bytes) {
    if (peer < 0 || peer >= wire.ranks || peer == wire.rank)
        end_with("rank %d calls %s with rank %d: the others are ranks 0 to %d", wire.rank, call, peer,
                 wire.ranks - 1);
    if (bytes > INT32_MAX) end_with("rank %d calls %s with %zu bytes", wire.rank, call, bytes);
}

void wire_send(int to, const void *data, size_t bytes) {
    check_peer("wire_send", to, bytes);
    wire.messages = realloc(wire.messages, (wire.n_messages + 1) * sizeof *wire.messages);
    message *m = &wire.messages[wire.n_messages++];
    m->copy = malloc(bytes + 1);
    memcpy(m->copy, data, bytes);
    MPI_Isend(m->copy, (int)bytes, MPI_BYTE, to, 0, wire.comm, &m->request);
    wire.sent[to]++;
    wire.bytes += (int64_t)bytes;
}

void wire_receive(int from, void *data, size_t bytes) {
    MPI_Status status;
    int sent;
    check_peer("wire_receive", from, bytes);
    MPI_Probe(from, 0, wire.comm, &status);
    MPI_Get_count(&status, MPI_BYTE, &sent);
    if ((size_t)sent != bytes)
        end_with("rank %d expects %zu bytes from rank %d, which sends %d", wire.rank, bytes, from, sent);
    MPI_Recv(data, sent, MPI_BYTE, from, 0, wire.comm, &status);
    wire.received[from]++;
}

void lesson_compare(const float *yours, const float *theirs, int first, int n) {
    for (int i = 0; i < n; i++)
        if (memcmp(&yours[i], &theirs[i], sizeof *yours))
            lesson_off("rank %d, element %d: you have %.9g; the library %.9g", wire_rank(), first + i,
                       yours[i], theirs[i]);
}
void lesson_compare_bytes(int64_t yours, int64_t theirs) {
    if (yours != theirs)
        lesson_off("rank %d: you send %lld bytes; the library %lld", wire_rank(), (long long)yours,
                   (long long)theirs);
}

uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float from_bf16(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

// -------- the library

void lesson_must(int rc) {
    if (rc) end_with("%s", zero_last_error());
}

void lesson_start(zero_config *config) { config->start.mpi_comm = &wire.comm; }

// The tables of a model whose unit u has one tensor, tensor u, of elems[u] elements
static zero_tensor tensors[LESSON_UNITS];
static zero_unit units[LESSON_UNITS];
static void set_tables(const int64_t *elems, int n_units) {
    for (int u = 0; u < n_units; u++) {
        tensors[u] = (zero_tensor){ .name = "values", .n_dims = 1, .dims = { elems[u] }, .layers = 1, u, 1 };
        units[u] = (zero_unit){ "unit", 1, 1, 0 };
    }
}

zero_plan lesson_plan(zero_config *config, const int64_t *elems, int n_units, int ranks) {
    zero_plan plan;
    set_tables(elems, n_units);
    config->start.rank = 0;
    lesson_must(zero_make_plan(&plan, config, tensors, n_units, units, n_units, ranks, ranks));
    return plan;
}

zero *lesson_engine(zero_config *config, const int64_t *elems, int n_units) {
    zero *z;
    set_tables(elems, n_units);
    lesson_start(config);
    lesson_must(zero_create(&z, config, tensors, n_units, units, n_units));
    return z;
}

void lesson_micro_batch(zero *z, int micro, int of, const zero_config *config, const int64_t *elems,
                        int n_units, lesson_gradient gradient) {
    lesson_must(zero_begin_train(z, micro, of));
    for (int u = 0; u < n_units; u++) {
        lesson_must(zero_pre_forward(z, u));
        lesson_must(zero_post_forward(z, u));
    }
    for (int u = n_units - 1; u >= 0; u--) {
        lesson_must(zero_pre_backward(z, u));
        void *at = zero_grad(z, u, 0);
        lesson_must(!at);
        for (int64_t i = 0; i < elems[u]; i++) {
            const float g = gradient(zero_rank(z), micro, u, i);
            if (config->numbers.dtype == ZERO_F32)
                ((float *)at)[i] = g;
            else
                ((uint16_t *)at)[i] = to_bf16(g);
        }
        lesson_must(zero_post_backward(z, u));
    }
}

zero_traffic lesson_mean(zero_config *config, int64_t elems, lesson_gradient gradient, float *mean) {
    zero_traffic traffic;
    zero *z = lesson_engine(config, &elems, 1);
    lesson_micro_batch(z, 0, 1, config, &elems, 1, gradient);
    lesson_must(zero_finish_gradients(z, NULL));
    zero_traffic_info(z, &traffic);
    lesson_must(zero_get(z, ZERO_GRADIENT, 0, 0, 0, elems, mean));
    zero_destroy(z);
    return traffic;
}

float lesson_number(uint64_t i) {
    i = (i + 1) * 0x9e3779b97f4a7c15U;
    i = (i ^ i >> 30) * 0xbf58476d1ce4e5b9U;
    i = (i ^ i >> 27) * 0x94d049bb133111ebU;
    const double x = (double)(i >> 40) / (1 << 23) - 1;
    return (float)(x * x * x);  // small and large numbers, whose sums are rounded
}
