// Learning-rate schedules and the outlier detector, with llm.c's formulas.
#ifndef GPT2_LEARNING_RATE_H
#define GPT2_LEARNING_RATE_H

typedef struct {
    enum { LR_COSINE, LR_LINEAR, LR_CONSTANT, LR_WSD } kind;
    float lr;              // the highest rate
    int warmup, steps;     // steps of linear warm-up; total steps
    float final_fraction;  // the rate at the end, divided by lr
} Schedule;
// Returns 0 or -1.
int schedule_init(Schedule *s, const char *kind, float lr, int warmup, int steps, float final_fraction);
float schedule_lr(const Schedule *s, int step);  // step counts from 0

#define OUTLIER_WINDOW 128
typedef struct {
    double buffer[OUTLIER_WINDOW];
    int count, index;
    double sum, sum_sq;
} OutlierDetector;
void outlier_init(OutlierDetector *d);
double outlier_update(OutlierDetector *d, double x);  // returns the z-score, or NaN until the window is full

#endif
