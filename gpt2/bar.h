// The progress bar: the last line of a terminal, rewritten in place. One rank draws it. Before bar_start,
// all functions except bar_terminal do nothing.
#ifndef GPT2_BAR_H
#define GPT2_BAR_H

typedef struct {
    int step, steps;      // steps done, total steps
    double at_s, left_s;  // current time on a monotonic clock; time left
    double loss, tokens_per_s;
    double share;  // of peak, 0 to 1
} Progress;

// Returns the file descriptor of the terminal on which the user sees stdout, or -1.
int bar_terminal(void);
void bar_start(int terminal);               // -1: the width is COLUMNS, or 80
void bar_update(const Progress *progress);  // draws at most ten times a second, and always at the last step
void bar_clear(void);                       // erases the bar before text is printed
void bar_show(void);                        // redraws the bar below text that ended its line
void bar_end(void);                         // leaves the bar on the screen and goes to the next line

#endif
