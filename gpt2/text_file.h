// Small text files, read and written whole.
#ifndef GPT2_TEXT_FILE_H
#define GPT2_TEXT_FILE_H

// The file's text, to be freed; "" where there is no such file. NULL: gpt2_fail's sentence, also for a file
// with a byte that is 0.
char *text_file_read(const char *path);
// 0 once the text is on disk under this name: at any instant there is the old file or the new one. Else -1
// with gpt2_fail's sentence.
int text_file_write(const char *path, const char *text);

#endif
