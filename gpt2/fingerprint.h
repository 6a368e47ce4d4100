// What tells things apart that must be alike on all ranks: a file's contents, whatever its path, and the
// processor's instruction set.
#ifndef GPT2_FINGERPRINT_H
#define GPT2_FINGERPRINT_H

enum { FINGERPRINT = 80, FINGERPRINT_BLOCK = 16 << 10 };

// "1234 bytes, digest 0123456789abcdef": of the whole file where it has at most `blocks` blocks of
// FINGERPRINT_BLOCK bytes, else of so many of them, spread evenly from the first to the last. Files with
// other sizes have other digests. 0, or -1 with file and reason in gpt2_last_error().
int fingerprint_of_file(const char *path, int blocks, char text[FINGERPRINT]);
// What decides with which instructions the CPU's layers, and oneDNN below them, compute.
void fingerprint_of_processor(char text[FINGERPRINT]);

#endif
