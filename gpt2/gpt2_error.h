// gpt2/ reports errors as the plugin does: a function returns 0, or stores a message here and returns -1. It
// never prints or exits.
#ifndef GPT2_ERROR_H
#define GPT2_ERROR_H

// Stores the message (file, value, remedy) and returns -1, for `return gpt2_fail(...)`.
int gpt2_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

// Returns the message of this thread's last failure, or "" if there was none. It is valid until the next
// one.
const char *gpt2_last_error(void);

#endif
