// Fingerprints for comparing ranks: of a file's contents, whatever its path, and of the CPU's instruction
// set.
#ifndef GPT2_FINGERPRINT_H
#define GPT2_FINGERPRINT_H

enum { FINGERPRINT = 80, FINGERPRINT_BLOCK = 16 << 10 };

// Writes "1234 bytes, digest 0123456789abcdef". The digest covers `blocks` blocks of FINGERPRINT_BLOCK bytes,
// spread evenly from the first to the last, or the whole file if it is smaller. Files of different sizes have
// different digests. Returns 0, or -1 with the file and the reason in gpt2_last_error().
int fingerprint_of_file(const char *path, int blocks, char text[FINGERPRINT]);
// Names the instruction sets that the CPU's layers and oneDNN use.
void fingerprint_of_processor(char text[FINGERPRINT]);

#endif
