// The order of uses and of the update, without ranks: recorded, recorded anew, and walked ahead to any
// distance.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "../llmc_zero/schedule.h"

enum { UNITS = 5, TO_THE_END = 1000 };
static schedule s;

static int open_schedule(void **state) {
    (void)state;
    return schedule_create(&s, UNITS, 1);
}
static int close_schedule(void **state) {
    (void)state;
    schedule_free(&s);
    return 0;
}

// A row of units ends with -1.
static int length(const int *units) {
    int n = 0;
    while (units[n] >= 0) n++;
    return n;
}
static void use_all(const int *units) {
    for (; *units >= 0; units++) assert_int_equal(schedule_use(&s, *units), 0);
}
static void pass(zero_mode mode, const int *units, int is_last) {
    schedule_begin_pass(&s, mode, length(units), is_last);
    use_all(units);
}

// Checks what comes next, up to `distance`: "u" a use, "U" an update, "n" a use by the next pass.
static void comes(int distance, const char *expected) {
    char seen[256];
    int n = 0;
    for (schedule_walk w = schedule_ahead(&s); distance-- > 0 && schedule_next(&w);) {
        seen[n++] = w.what == SCHEDULED_UPDATE ? 'U' : w.next_pass ? 'n' : 'u';
        seen[n++] = (char)('0' + w.unit);
    }
    seen[n] = 0;
    assert_string_equal(seen, expected);
}

static void updates_in(const char *expected) {
    const int *order = schedule_begin_update(&s);
    char seen[UNITS + 1] = "";
    for (int i = 0; i < UNITS; i++) seen[i] = (char)('0' + order[i]);
    assert_string_equal(seen, expected);
}

static const int ups[] = { 0, 1, 2, 3, 4, -1 }, there_and_back[] = { 0, 1, 2, 0, 2, 1, -1 };

static void recorded(void **state) {
    (void)state;
    assert_int_equal(schedule_first_use(&s), -1);
    comes(TO_THE_END, "");
    schedule_begin_pass(&s, ZERO_TRAIN, length(there_and_back), 0);
    for (const int *unit = there_and_back; *unit >= 0; unit++) {
        comes(TO_THE_END, "");  // the first pass knows no future uses
        assert_int_equal(schedule_use(&s, *unit), 0);
    }
    assert_int_equal(schedule_first_use(&s), 0);
    comes(TO_THE_END, "n0n1n2n0n2n1");
}

// Every distance gives a prefix of the same row, also across the end of a micro-batch.
static void distances(void **state) {
    (void)state;
    static const char row[] = "u2u0u2u1n0n1n2n0n2n1";
    pass(ZERO_TRAIN, there_and_back, 0);
    schedule_begin_pass(&s, ZERO_TRAIN, length(there_and_back), 0);
    assert_int_equal(schedule_use(&s, 0), 0);
    assert_int_equal(schedule_use(&s, 1), 0);
    for (int distance = 0; distance <= 12; distance++) {
        char begins[sizeof row] = "";
        for (int i = 0; i < 2 * distance && row[i]; i++) begins[i] = row[i];
        comes(distance, begins);
    }
}

static void across_the_update(void **state) {
    (void)state;
    pass(ZERO_TRAIN, there_and_back, 1);
    comes(TO_THE_END, "U0U1U2U3U4n0n1n2n0n2n1");
    schedule_begin_pass(&s, ZERO_TRAIN, length(there_and_back), 1);
    comes(8, "u0u1u2u0u2u1U0U1");
    use_all(there_and_back);
    updates_in("01234");
    comes(2, "U0U1");
    schedule_updated(&s);
    comes(5, "U1U2U3U4n0");
    for (int i = 1; i < UNITS; i++) schedule_updated(&s);
    comes(TO_THE_END, "n0n1n2n0n2n1");
}

static void other_order(void **state) {
    (void)state;
    static const int other[] = { 0, 2, 1, 0, 1, 2, -1 };
    pass(ZERO_TRAIN, there_and_back, 0);
    schedule_begin_pass(&s, ZERO_TRAIN, length(other), 0);
    assert_int_equal(schedule_use(&s, 0), 0);
    comes(TO_THE_END, "u1u2u0u2u1n0n1n2n0n2n1");
    assert_int_equal(schedule_use(&s, 2), 0);  // the rest of the record is dropped, and the end is unknown
    comes(TO_THE_END, "");
    use_all(other + 2);
    comes(TO_THE_END, "n0n2n1n0n1n2");
    schedule_begin_pass(&s, ZERO_TRAIN, length(other), 0);
    comes(6, "u0u2u1u0u1u2");
}

static void shorter_pass(void **state) {
    (void)state;
    static const int shorter[] = { 0, 1, -1 };
    pass(ZERO_EVAL, ups, 0);
    pass(ZERO_EVAL, shorter, 0);
    comes(TO_THE_END, "u2u3u4");  // while these uses may still come
    schedule_begin_pass(&s, ZERO_EVAL, length(shorter), 0);
    comes(TO_THE_END, "u0u1");
}

// An evaluation between two training passes has an order of its own, and leaves theirs alone.
static void modes(void **state) {
    (void)state;
    static const int evaluation[] = { 4, 3, -1 };
    pass(ZERO_TRAIN, there_and_back, 1);
    updates_in("01234");
    pass(ZERO_EVAL, evaluation, 1);
    comes(TO_THE_END, "");  // its successor is not known
    schedule_begin_pass(&s, ZERO_EVAL, length(evaluation), 1);
    comes(TO_THE_END, "u4u3");
    schedule_begin_pass(&s, ZERO_TRAIN, length(there_and_back), 1);
    comes(6, "u0u1u2u0u2u1");
}

// Units in the order of their first use, then those that are not used at all; after a changed pass anew.
static void order_of_update(void **state) {
    (void)state;
    static const int back_first[] = { 3, 1, 3, 2, -1 }, changed[] = { 3, 2, 3, 1, -1 };
    pass(ZERO_TRAIN, back_first, 1);
    updates_in("31204");
    pass(ZERO_TRAIN, changed, 1);
    comes(5, "U3U2U1U0U4");
    updates_in("32104");
}

// Where ranks may differ in the order of their uses, they still update in one order: the table's.
static void ranks_that_differ(void **state) {
    (void)state;
    static const int back[] = { 4, 3, 2, 1, 0, -1 };
    schedule_free(&s);
    assert_int_equal(schedule_create(&s, UNITS, 0), 0);
    updates_in("01234");
    pass(ZERO_TRAIN, back, 1);
    updates_in("01234");
    comes(6, "U0U1U2U3U4n4");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, open_schedule, close_schedule)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(recorded),     TEST(distances), TEST(across_the_update), TEST(other_order),
        TEST(shorter_pass), TEST(modes),     TEST(order_of_update),   TEST(ranks_that_differ),
    };
    return cmocka_run_group_tests_name("schedule", tests, NULL, NULL) != 0;
}
