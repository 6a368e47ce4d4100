// Lesson 8: exposed communication. dev/lessons/08_exposed.c has the task.
#include "../lesson.h"

double exposed(const span *sends, int n_sends, const span *computes, int n_computes) {
    double sum = 0;
    for (const span *s = sends; s < sends + n_sends; s++) {
        sum += s->end - s->begin;
        for (const span *c = computes; c < computes + n_computes; c++) {
            const double from = c->begin > s->begin ? c->begin : s->begin;
            const double to = c->end < s->end ? c->end : s->end;
            if (to > from) sum -= to - from;
        }
    }
    return sum;
}
