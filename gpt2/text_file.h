// Small text files, read and written whole.
#ifndef GPT2_TEXT_FILE_H
#define GPT2_TEXT_FILE_H

// Returns the file's text, which the caller frees; "" where there is no such file; NULL with gpt2_fail's
// sentence on failure, also for a file with a zero byte.
char *text_file_read(const char *path);
// Returns 0 once the text is on disk under this name, else -1 with gpt2_fail's sentence. At any instant there
// is the old file or the new one.
int text_file_write(const char *path, const char *text);

#endif
