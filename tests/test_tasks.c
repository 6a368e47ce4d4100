// Tests tasks on lanes: order, dependencies, threads, failures, and calls to a device with streams.
#include "files.h"
#include "unit.h"
#include "../llmc_zero/base/clock.h"
#include "../llmc_zero/base/error.h"
#include "../llmc_zero/base/tasks.h"

enum { ALL = (1u << LANES) - 1, MOST = 400, HANGS_AFTER_S = 60 };
static tasks t;
static memory m = { .device = &device_host };
static trace tr;

static void open_lanes(unsigned threads) {
    alarm(HANGS_AFTER_S);
    WORKS(tasks_open(&t, &device_host, NULL, threads & ~LANE_BIT(LANE_TRAINER)));
}

// Held tasks wait until the gate is open.
static int gate, at_gate;
static void shut(void) {
    __atomic_store_n(&gate, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&at_gate, 0, __ATOMIC_SEQ_CST);
}
static void let_go(void) { __atomic_store_n(&gate, 1, __ATOMIC_SEQ_CST); }
static void wait_until_held(void) {
    while (!__atomic_load_n(&at_gate, __ATOMIC_SEQ_CST)) clock_nap(1e-3);
}
static void pass_gate(void) {
    __atomic_store_n(&at_gate, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&gate, __ATOMIC_SEQ_CST)) clock_nap(1e-3);
}

// Tasks that record when they ran.
static int when[MOST], ticks;
static int run_note(void *ctx, task *k) {
    when[k->index] = __atomic_add_fetch(&ticks, 1, __ATOMIC_SEQ_CST);
    return 0;
}
static int run_held(void *ctx, task *k) {
    pass_gate();
    return run_note(ctx, k);
}
static task note(lane lane, int index) {
    when[index] = 0;
    return (task){ .run = run_note, .lane = lane, .index = index, .unit = index };
}
static task held(lane lane, int index) {
    task k = note(lane, index);
    k.run = run_held;
    return k;
}

// Tasks on several lanes that need each other. A task that needs no other must not wait for other lanes.
static void across_lanes(void **state) {
    open_lanes(ALL);
    shut();
    task read = held(LANE_IO, 0), copy = held(LANE_COPIES, 1), update = note(LANE_CPU, 2),
         gather = note(LANE_COLLECTIVES, 3), write = note(LANE_IO, 4), first = note(LANE_COLLECTIVES, 5);
    WORKS(tasks_submit(&t, &read, AFTER_NOTHING));
    WORKS(tasks_submit(&t, &copy, AFTER_NOTHING));
    WORKS(tasks_submit(&t, &update, AFTER(&copy, &read, &t.trainer)));
    WORKS(tasks_submit(&t, &first, AFTER_NOTHING));
    WORKS(tasks_submit(&t, &gather, AFTER(&update)));
    WORKS(tasks_submit(&t, &write, AFTER(&gather)));
    WORKS(tasks_wait(&t, &first));
    let_go();
    WORKS(tasks_wait(&t, &write));
    assert_true(when[0] < when[2] && when[1] < when[2]);
    assert_true(when[2] < when[3] && when[3] < when[4]);
    tasks_close(&t);
}

// Submits many tasks on random lanes. Each mixes the results of up to three earlier ones. With any threads
// the results must be the same, and each lane must run all its tasks in order before it is closed.
static uint64_t result[MOST];
static int needs_of[MOST][3], last_on[LANES], out_of_order;
static int run_mix(void *ctx, task *k) {
    uint64_t x = k->index + 1;
    for (int i = 0; i < 3; i++)
        if (needs_of[k->index][i] >= 0) x = x * 0x9e3779b97f4a7c15 + result[needs_of[k->index][i]];
    result[k->index] = x;
    if (k->index < last_on[k->lane]) __atomic_add_fetch(&out_of_order, 1, __ATOMIC_RELAXED);
    last_on[k->lane] = k->index;
    return 0;
}

static uint64_t mix_all(unsigned threads) {
    static task k[MOST];
    uint64_t sum = 0, random = 1;
    memset(last_on, 0, sizeof last_on);
    open_lanes(threads);
    for (int i = 0; i < MOST; i++) {
        const task *needs[4] = { NULL };
        int n = 0;
        result[i] = 0;
        for (int j = 0; j < 3; j++) {
            random = random * 6364136223846793005 + 1442695040888963407;
            needs_of[i][j] = (int)(random >> 33) % (i + 1) - 1;
            if (needs_of[i][j] >= 0) needs[n++] = &k[needs_of[i][j]];
        }
        k[i] = (task){ .run = run_mix, .lane = (lane)((random >> 40) % LANES), .index = i, .unit = i };
        WORKS(tasks_submit(&t, &k[i], needs));
    }
    tasks_close(&t);
    for (int i = 0; i < MOST; i++) sum = sum * 31 + result[i];
    return sum;
}

static void same_results(void **state) {
    uint64_t expected = mix_all(0);
    for (unsigned threads = 1; threads <= ALL; threads++) assert_true(mix_all(threads) == expected);
    assert_int_equal(out_of_order, 0);
}

// A task waits only for earlier submissions, and not for a second submission of the task that it needs.
static void submitted_again(void **state) {
    open_lanes(ALL);
    shut();
    task read = note(LANE_IO, 0), slow = held(LANE_COLLECTIVES, 1), gather = note(LANE_COLLECTIVES, 2);
    WORKS(tasks_submit(&t, &slow, AFTER_NOTHING));
    WORKS(tasks_submit(&t, &read, AFTER_NOTHING));
    WORKS(tasks_submit(&t, &gather, AFTER(&read)));
    WORKS(tasks_wait(&t, &read));
    WORKS(tasks_submit(&t, &read, AFTER(&gather)));
    let_go();
    WORKS(tasks_wait(&t, &read));
    assert_true(when[1] < when[2] && when[2] < when[0]);
    tasks_close(&t);
}

static void too_many_needs(void **state) {
    open_lanes(ALL);
    task a = note(LANE_IO, 0), b = note(LANE_COPIES, 1);
    WORKS(tasks_submit(&t, &b, AFTER(&a, &a, &a, &a, &t.trainer)));
    WORKS(tasks_wait(&t, &b));
    assert_int_equal(tasks_submit(&t, &b, AFTER(&a, &a, &a, &a, &a)), ZERO_ERR_MISUSE);
    tasks_close(&t);
}

static int threads_now(void) { return files_in("/proc/self/task"); }

static void threads_for_lanes(void **state) {
    task io = note(LANE_IO, 0), copy = note(LANE_COPIES, 1), update = note(LANE_TRAINER, 2);
    open_lanes(ALL);
    WORKS(tasks_submit(&t, &io, AFTER_NOTHING));  // a sanitizer starts a thread along with the first one
    const int before = threads_now() - 1;
    tasks_close(&t);
    while (threads_now() != before) clock_nap(1e-3);  // an ended thread stays visible for a moment
    open_lanes(ALL);
    assert_int_equal(threads_now(), before);
    WORKS(tasks_submit(&t, &update, AFTER_NOTHING));
    assert_int_equal(threads_now(), before);
    for (int i = 0; i < 3; i++) {
        WORKS(tasks_submit(&t, &io, AFTER_NOTHING));
        WORKS(tasks_wait(&t, &io));
        assert_int_equal(threads_now(), before + 1);
    }
    WORKS(tasks_submit(&t, &copy, AFTER_NOTHING));
    WORKS(tasks_wait(&t, &copy));
    assert_int_equal(threads_now(), before + 2);
    tasks_close(&t);
    while (threads_now() != before) clock_nap(1e-3);
    open_lanes(0);
    WORKS(tasks_submit(&t, &io, AFTER_NOTHING));
    assert_int_equal(threads_now(), before);
    tasks_close(&t);
}

// -------- failures

static int run_fail(void *message, task *k) { return zero_fail(ZERO_ERR_COMM, "%s", (char *)message); }

static int run_fail_held(void *message, task *k) {
    pass_gate();
    return run_fail(message, k);
}

static void gives(int rc, const char *message) {
    assert_int_equal(rc, ZERO_ERR_COMM);
    assert_string_equal(zero_last_error(), message);
}

// A task fails: tasks that have run remain valid, and a running one finishes, but no other may begin.
static void failure(void **state) {
    open_lanes(ALL);
    shut();
    task before = note(LANE_COLLECTIVES, 0), behind = note(LANE_COLLECTIVES, 1), running = held(LANE_IO, 2),
         queued = note(LANE_IO, 3), after = note(LANE_COPIES, 4), late = note(LANE_CPU, 5),
         own = note(LANE_TRAINER, 6), started = note(LANE_IO, 7);
    task broken = { .run = run_fail, .ctx = "the cable is cut", .lane = LANE_COLLECTIVES };
    WORKS(tasks_submit(&t, &before, AFTER_NOTHING));
    WORKS(tasks_submit(&t, &started, AFTER_NOTHING));
    WORKS(tasks_submit(&t, &running, AFTER_NOTHING));
    WORKS(tasks_submit(&t, &queued, AFTER_NOTHING));
    WORKS(tasks_wait(&t, &started));
    wait_until_held();  // by `running`
    WORKS(tasks_submit(&t, &broken, AFTER_NOTHING));
    WORKS(tasks_submit(&t, &behind, AFTER_NOTHING));
    WORKS(tasks_submit(&t, &after, AFTER(&broken)));
    gives(tasks_wait(&t, &after), "the cable is cut");
    gives(tasks_wait(&t, &broken), "the cable is cut");
    gives(tasks_wait(&t, &behind), "the cable is cut");
    let_go();
    WORKS(tasks_wait(&t, &before));
    WORKS(tasks_wait(&t, &running));
    gives(tasks_wait(&t, &queued), "the cable is cut");
    WORKS(tasks_submit(&t, &late, AFTER_NOTHING));
    gives(tasks_wait(&t, &late), "the cable is cut");
    gives(tasks_submit(&t, &own, AFTER_NOTHING), "the cable is cut");
    assert_true(when[0] && when[2]);
    assert_false(when[1] || when[3] || when[4] || when[5] || when[6]);
    tasks_close(&t);
}

// Two lanes fail. The error must be the first one's, and queued tasks must not run when the lanes close.
static void first_failure(void **state) {
    task k[20];
    open_lanes(ALL);
    shut();
    task first = { .run = run_fail, .ctx = "the cause", .lane = LANE_IO };
    task second = { .run = run_fail_held, .ctx = "a consequence", .lane = LANE_COPIES };
    WORKS(tasks_submit(&t, &second, AFTER_NOTHING));
    for (int i = 0; i < 20; i++) {
        k[i] = note(i % 2 ? LANE_CPU : LANE_COPIES, i);
        WORKS(tasks_submit(&t, &k[i], AFTER(&second)));
    }
    wait_until_held();  // by `second`
    WORKS(tasks_submit(&t, &first, AFTER_NOTHING));
    gives(tasks_wait(&t, &first), "the cause");
    let_go();
    gives(tasks_wait(&t, &second), "the cause");
    tasks_close(&t);
    for (int i = 0; i < 20; i++) assert_false(when[i]);
}

static void failure_without_threads(void **state) {
    open_lanes(0);
    task broken = { .run = run_fail, .ctx = "no such file", .lane = LANE_IO }, other = note(LANE_COPIES, 1);
    gives(tasks_submit(&t, &broken, AFTER_NOTHING), "no such file");
    gives(tasks_submit(&t, &other, AFTER(&broken)), "no such file");
    gives(tasks_wait(&t, &other), "no such file");
    assert_false(when[1]);
    tasks_close(&t);
}

// A long message must be returned in full, both by the wait for the task and by every later call.
static void whole_message(void **state) {
    char text[900];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    open_lanes(ALL);
    for (int i = 0; i < 2; i++) {
        zero_fail(0, "-");
        gives(tasks_run(&t, run_fail, text), text);
    }
    tasks_close(&t);
}

// -------- the trace

static int waits(lane who, int unit) {
    int n = 0;
    for (int i = 0; i < tr.used; i++) {
        const trace_event *e = &tr.events[i];
        n += e->kind == EVENT_WAIT && e->lane == who && e->unit == unit && e->end_s > e->start_s;
    }
    return n;
}

static int run_nap_and_note(void *ms, task *k) {
    clock_nap(1e-3 * (double)*(long *)ms);
    return run_note(ms, k);
}

// A task on the trainer's lane runs when it is submitted, so the submission waits for the tasks that it
// needs. Returns 1 if the trace shows all waits for a task that takes `ms`, and no others.
static int waits_are_traced(long ms) {
    alarm(HANGS_AFTER_S);
    WORKS(
        trace_open(&tr, 16, &device_host, &m,
                   &(memory_request){ ZERO_WORKING, "trace", ZERO_DEVICE, 16 * sizeof(trace_event), 1, 0 }));
    WORKS(tasks_open(&t, &device_host, &tr, LANE_BIT(LANE_IO) | LANE_BIT(LANE_COPIES)));
    task read = note(LANE_IO, 7), copy = note(LANE_COPIES, 8), own = note(LANE_TRAINER, 9);
    read.run = run_nap_and_note;
    read.ctx = &ms;
    WORKS(tasks_submit(&t, &read, AFTER_NOTHING));
    WORKS(tasks_submit(&t, &copy, AFTER(&read)));
    WORKS(tasks_wait(&t, &copy));
    WORKS(tasks_wait(&t, &copy));  // the copy has ended, so no wait is recorded
    int right = tr.used == 2 && waits(LANE_COPIES, 7) == 1 && waits(LANE_TRAINER, 8) == 1;
    WORKS(tasks_submit(&t, &read, AFTER_NOTHING));
    WORKS(tasks_submit(&t, &own, AFTER(&read)));
    right &= waits(LANE_TRAINER, 7) == 1;
    assert_true(when[7] && when[7] < when[9]);
    tasks_close(&t);
    memory_free_all(&m);
    return right;
}

// On a busy machine a lane may begin to wait late, so the task takes longer in each round.
static void traced_waits(void **state) {
    int right = 0;
    for (long ms = 50; !right && ms < 8000; ms *= 2) right = waits_are_traced(ms);
    assert_true(right);
}

// -------- a device with streams, which only logs its calls

static char calls[256];
static int events;
static void log_call(const char *what, int number, device_stream s) {
    size_t n = strlen(calls);
    snprintf(calls + n, sizeof calls - n, "%s%s%d%c", n ? " " : "", what, number, "CMG"[s]);
}
static int create_event(device *d, void **event) {
    *event = (void *)(intptr_t)++events;
    return 0;
}
static void destroy_event(device *d, void *event) { events -= event != NULL; }
static int record(device *d, void *event, device_stream s) {
    log_call("record", (int)(intptr_t)event, s);
    return 0;
}
static int order(device *d, device_stream s, void *event) {
    log_call("order", (int)(intptr_t)event, s);
    return 0;
}
static int wait_for_stream(device *d, device_stream s) {
    log_call("wait", 0, s);
    return 0;
}
static int wait_for_event(device *d, void *event) {
    log_call("await", (int)(intptr_t)event, COMPUTE);
    return 0;
}
static int check_nothing(void *ctx) { return 0; }
static int run_log(void *ctx, task *k) {
    log_call("run", k->index, k->stream);
    return 0;
}
static void called(const char *expected) {
    assert_string_equal(calls, expected);
    calls[0] = 0;
}

// In the log C, M and G are the streams COMPUTE, COMM and GATHER. Events 1 and 2 belong to the reduction, 3
// and 4 to the gather. The first of each pair is recorded on the trainer's stream, the second on the task's.
static void device_with_streams(void **state) {
    for (unsigned threads = 0; threads <= ALL; threads += ALL) {
        device_functions f = *device_host.f;
        f.create_event = create_event;
        f.destroy_event = destroy_event;
        f.record = record;
        f.order = order;
        f.wait = wait_for_stream;
        f.wait_event = wait_for_event;
        device d = { .f = &f, .asynchronous = 1 };
        task reduce = { .run = run_log, .lane = LANE_COLLECTIVES, .index = 1 },
             gather = { .run = run_log, .lane = LANE_COLLECTIVES, .index = 2 },
             adamw = { .run = run_log, .lane = LANE_TRAINER, .index = 3 },
             save = { .run = run_log, .lane = LANE_IO, .index = 4 };
        alarm(HANGS_AFTER_S);
        WORKS(tasks_open(&t, &d, NULL, threads & ~LANE_BIT(LANE_TRAINER)));
        WORKS(tasks_prepare(&t, &reduce, COMM));
        WORKS(tasks_prepare(&t, &gather, GATHER));
        calls[0] = 0;
        // The host must wait for neither task, and the gather must not wait for the trainer's stream.
        WORKS(tasks_submit(&t, &reduce, AFTER(&t.trainer)));
        WORKS(tasks_submit(&t, &gather, AFTER(&reduce)));
        WORKS(tasks_wait(&t, &gather));
        called("record1C order1M run1M record2M order2G run2G record4G order4C");
        // A task on the trainer's lane has no event, so the next task waits for the whole trainer's stream.
        WORKS(tasks_submit(&t, &adamw, AFTER(&reduce)));
        WORKS(tasks_submit(&t, &gather, AFTER(&adamw)));
        WORKS(tasks_wait(&t, &gather));
        called("order2C run3C record3C order3G run2G record4G order4C");
        // If a task runs on the host, the host must wait for the streams that the task needs.
        WORKS(tasks_submit(&t, &save, AFTER(&gather)));
        WORKS(tasks_wait(&t, &save));
        called("wait0G run4C");
        WORKS(tasks_submit(&t, &save, AFTER(&adamw)));
        WORKS(tasks_wait(&t, &save));
        called("wait0C run4C");
        // If other ranks can stall a stream, the host waits for what the trainer's stream needs.
        d.check = check_nothing;
        WORKS(tasks_submit(&t, &gather, AFTER(&reduce)));
        WORKS(tasks_wait(&t, &gather));
        WORKS(tasks_submit(&t, &adamw, AFTER(&reduce)));
        called("order2G run2G record4G await4C await2C run3C");
        tasks_close(&t);
        assert_int_equal(events, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_for_lanes), cmocka_unit_test(too_many_needs),
        cmocka_unit_test(across_lanes),      cmocka_unit_test(submitted_again),
        cmocka_unit_test(same_results),      cmocka_unit_test(whole_message),
        cmocka_unit_test(failure),           cmocka_unit_test(failure_without_threads),
        cmocka_unit_test(first_failure),     cmocka_unit_test(device_with_streams),
        cmocka_unit_test(traced_waits),
    };
    return cmocka_run_group_tests_name("tasks", tests, NULL, NULL) != 0;
}
