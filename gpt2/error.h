// gpt2/ reports like the plugin: a function returns 0, or -1 and leaves one sentence here. It never prints,
// never exits.
#ifndef GPT2_ERROR_H
#define GPT2_ERROR_H

// Stores the message (file, value, what to do) and returns -1, so that `return gpt2_fail(...)` reads well.
int gpt2_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

// The sentence of this thread's last failure; "" if there was none. Valid until the next failure.
const char *gpt2_last_error(void);

#endif
