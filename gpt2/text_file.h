// Small text files, read and written whole.
#ifndef GPT2_TEXT_FILE_H
#define GPT2_TEXT_FILE_H

// Returns the file's text, which the caller frees; "" if there is no such file; NULL with gpt2_fail's
// message on failure, or if the file has a zero byte.
char *text_file_read(const char *path);
// Returns 0 once the text is on disk under this name, else -1 with gpt2_fail's message. At any time, either
// the old or the new file exists.
int text_file_write(const char *path, const char *text);

#endif
