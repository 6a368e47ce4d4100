// The progress bar: the last line of a terminal, rewritten in place. One rank draws it; until bar_start all
// but bar_terminal do nothing.
#ifndef GPT2_BAR_H
#define GPT2_BAR_H

typedef struct {
    int step, steps;      // done, in all
    double at_s, left_s;  // now, on any clock that only runs forwards; time to the end
    double loss, tokens_per_s;
    double share;  // of peak, 0 to 1
} Progress;

// File descriptor of the terminal that the user sees stdout on, or -1.
int bar_terminal(void);
void bar_start(int terminal);               // -1: as wide as COLUMNS says, or 80
void bar_update(const Progress *progress);  // draws ten times a second at most, and the last step
void bar_clear(void);                       // makes room for text
void bar_show(void);                        // below that text, which has ended its line
void bar_end(void);                         // leaves the bar as it is and goes to the next line

#endif
