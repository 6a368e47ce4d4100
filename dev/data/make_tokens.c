// Converts text to token shards for training.
//
//     make_tokens -o data/my my.txt
//         One token per byte; also writes data/my_tokenizer.bin.
//     make_tokens -o data/my --tokenizer gpt2_tokenizer.bin my.txt
//         GPT-2's tokens.
//
// The first tokens (--val) go to data/my_val.bin and the others to data/my_train.bin. With --shard the files
// are data/my_val_000000.bin, data/my_train_000001.bin and so on. The end-of-text token precedes each
// document. The program reads the text in pieces, so it may be larger than memory. The files get their final
// names once all of them are complete.
#include <errno.h>
#include <getopt.h>
#include <glob.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "byte_tokenizer.h"
#include "documents.h"

enum { BUFFER = 1 << 16, MAX_TOKENS = INT32_MAX };

static const char usage[] =
    "usage: make_tokens -o DIR/NAME [option]... FILE...\n"
    "Converts text files to the token shards DIR/NAME_train.bin and DIR/NAME_val.bin.\n"
    "  --tokenizer FILE  GPT-2's byte-pair encoding with the tokens of this tokenizer.bin; the text must be\n"
    "                    UTF-8 (default: one token per byte; also writes DIR/NAME_tokenizer.bin)\n"
    "  --documents KIND  where end-of-text goes: before each file (file, the default), before each\n"
    "                    paragraph (paragraph; an empty line ends one), or instead of each <|endoftext|>\n"
    "                    and a line feed after it (mark); or the files have one JSON object per line,\n"
    "                    and its \"text\" is a document (json)\n"
    "  --val N | P%      puts the first N tokens, or those of the first P % of the bytes, into the\n"
    "                    validation shard (default 10%; may be 0 or 100%)\n"
    "  --shard N         writes numbered shards of N tokens, at most one of them for validation (default:\n"
    "                    one file for training)\n"
    "  --piece N         bytes read at a time (default 1048576); the tokens do not depend on it\n"
    "A FILE may be a pipe, such as /dev/stdin; then --val must be a number of tokens.\n";

static struct {
    const char *output, *tokenizer, *mark;  // mark: ends a document, or NULL
    int keep_mark;                          // the mark is part of the text
    int json;                               // the files have JSON lines
    double val_percent;                     // -1: val_tokens applies
    long long val_tokens, shard, piece;
} opt = { .val_percent = 10, .piece = 1 << 20 };

// The output. Shard 0 is for validation, the others for training. All have temporary names until the end.
static struct {
    FILE *file;
    int shard, first;      // number of the open shard, and of the first one
    int64_t count, limit;  // number of tokens in the open shard, and the most it may have
    uint16_t buffer[BUFFER];
    int filled;
    int64_t tokens[2];  // in closed shards, for validation and for training
} out;

// The input.
static struct {
    const char *path;
    uint8_t *bytes;  // `fill` bytes of the file, from `offset` on; the first `checked` are whole characters
    size_t fill, checked;
    int64_t offset;
    int eof;
    int begins, after_mark;  // whether the next byte starts a document, or follows a mark
    int64_t used, total;     // bytes of text converted to tokens; bytes of all files, or -1 if one is a pipe
} in;

// -------- shards

static void shard_path(char path[PATH_MAX], int shard, const char *suffix) {
    const char *kind = shard ? "train" : "val";
    if (opt.shard)
        snprintf(path, PATH_MAX, "%s_%s_%06d.bin%s", opt.output, kind, shard, suffix);
    else
        snprintf(path, PATH_MAX, "%s_%s.bin%s", opt.output, kind, suffix);
}

// Prints a message, removes the temporary files, and exits.
static void __attribute__((noreturn, format(printf, 1, 2))) die(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    fputs("make_tokens: ", stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    char path[PATH_MAX];
    int written = out.file ? out.shard : out.first - 1;
    for (int i = out.first; i <= written; i++) {
        shard_path(path, i, ".tmp");
        unlink(path);
    }
    exit(EXIT_FAILURE);
}

static void die_of_output(void) {
    int error = errno;
    char path[PATH_MAX];
    shard_path(path, out.shard, ".tmp");
    die("%s: cannot write: %s", path, strerror(error));
}

static void flush_tokens(void) {
    size_t n = (size_t)out.filled;
    if (fwrite(out.buffer, sizeof *out.buffer, n, out.file) != n) die_of_output();
    out.filled = 0;
}

static void write_header(void) {
    const uint32_t header[256] = { 20240520, 1, (uint32_t)out.count };
    if (fseek(out.file, 0, SEEK_SET) || fwrite(header, sizeof header, 1, out.file) != 1) die_of_output();
}

static void open_shard(int shard) {
    char path[PATH_MAX];
    out.shard = shard;
    out.count = 0;
    out.limit = opt.shard ? opt.shard : MAX_TOKENS;
    if (!shard && opt.val_percent < 0 && opt.val_tokens < out.limit) out.limit = opt.val_tokens;
    shard_path(path, shard, ".tmp");
    FILE *f = fopen(path, "wb");
    if (!f) die("%s: cannot create: %s", path, strerror(errno));
    out.file = f;
    write_header();
}

static void close_shard(void) {
    flush_tokens();
    write_header();
    if (fflush(out.file) || fsync(fileno(out.file)) || fclose(out.file)) die_of_output();
    out.tokens[out.shard > 0] += out.count;
}

static void next_shard(void) {
    if (out.shard && !opt.shard)
        die("more than %d tokens do not fit in one file; give --shard 100000000", MAX_TOKENS);
    close_shard();
    open_shard(out.shard + 1);
}

static inline void put(const uint16_t *tokens, int n) {
    for (int i = 0; i < n; i++) {
        if (out.count == out.limit) next_shard();
        if (out.filled == BUFFER) flush_tokens();
        out.buffer[out.filled++] = tokens[i];
        out.count++;
    }
}

static void name_shards(void) {
    char path[PATH_MAX], temporary[PATH_MAX];
    close_shard();
    for (int i = out.first; i <= out.shard; i++) {
        shard_path(path, i, "");
        shard_path(temporary, i, ".tmp");
        if (rename(temporary, path)) die("%s: cannot rename it to %s: %s", temporary, path, strerror(errno));
    }
}

// Refuses to mix with numbered shards of an earlier run, because a trainer would read both.
static void refuse_leftovers(void) {
    char pattern[2 * PATH_MAX];
    size_t n = 0;
    for (const char *c = opt.output; *c && n < PATH_MAX; c++) {
        if (strchr("\\*?[]", *c)) pattern[n++] = '\\';
        pattern[n++] = *c;
    }
    strcpy(pattern + n, "_train_[0-9]*.bin");
    glob_t found;
    if (opt.shard && !glob(pattern, 0, NULL, &found))
        die("%s exists from another run; remove %s_train_*.bin, or give another name with -o",
            found.gl_pathv[0], opt.output);
}

// Warns that a validation shard of an earlier run remains: its text may be in this run's training shards.
static void report_leftover(void) {
    char path[PATH_MAX];
    shard_path(path, 0, "");
    if (out.first == 1 && !access(path, F_OK))
        printf("%s is from an earlier run: this run, with --val 0, writes none\n", path);
}

static void write_tokenizer(void) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s_tokenizer.bin", opt.output);
    if (write_byte_tokenizer(path)) die("%s", gpt2_last_error());
}

// -------- text to tokens

// Finds the first tokens of bytes [at, end) of the text. Returns their number, or 0 if it needs more text.
// whole: the document ends at `end`.
static int next_tokens(Bpe *bpe, const uint8_t *text, size_t at, size_t end, int whole, int *length,
                       const uint16_t **tokens) {
    int n = first_tokens(bpe, text + at, end - at, whole, length, tokens);
    if (n < 0) die("%s: byte %lld: %s", in.path, (long long)(in.offset + (int64_t)at), gpt2_last_error());
    return n;
}

// Returns the position where encoding stopped, which is `end` if the document is whole.
static size_t encode(Bpe *bpe, uint16_t eot, const uint8_t *text, size_t at, size_t end, int whole) {
    const uint16_t *tokens;
    int64_t val_bytes = opt.val_percent < 0 ? INT64_MAX
                                            : 1 + (int64_t)((double)in.total * opt.val_percent / 100);
    for (int n, length; at < end && (n = next_tokens(bpe, text, at, end, whole, &length, &tokens)) > 0;
         at += (size_t)length) {
        if (!out.shard && in.used >= val_bytes) next_shard();
        if (in.begins) put(&eot, 1);
        put(tokens, n);
        in.begins = 0;
        in.used += length;
    }
    return at;
}

// Encodes the part of the buffer whose tokens do not depend on later text. Returns its length in bytes.
static size_t encode_documents(Bpe *bpe, uint16_t eot) {
    size_t at = 0, mark = opt.mark ? strlen(opt.mark) : 0;
    for (;;) {
        size_t left = in.checked - at;
        if (in.after_mark && left) {
            if (!opt.keep_mark && in.bytes[at] == '\n') {
                at++;
                left--;
            }
            in.after_mark = 0;
        }
        const uint8_t *found = mark ? memmem(in.bytes + at, left, opt.mark, mark) : NULL;
        if (!found) {  // the last bytes may be the start of a mark
            size_t held = in.eof || !mark ? 0 : left < mark - 1 ? left : mark - 1, end = in.checked - held;
            // never splits a character
            while (bpe && held && end > at && (in.bytes[end] & 0xc0) == 0x80) end--;
            return encode(bpe, eot, in.bytes, at, end, in.eof);
        }
        size_t end = (size_t)(found - in.bytes);
        encode(bpe, eot, in.bytes, at, end + (opt.keep_mark ? mark : 0), 1);
        at = end + mark;
        in.begins = in.after_mark = 1;
    }
}

static volatile sig_atomic_t interrupted;
static void interrupt(int signal) { interrupted = signal; }

// Makes signals only set a flag, so that the program can remove its temporary files. Without SA_RESTART, a
// signal interrupts a read from a pipe.
static void catch_signals(void) {
    const struct sigaction action = { .sa_handler = interrupt };
    const int signals[] = { SIGINT, SIGTERM, SIGHUP };
    for (int i = 0; i < 3; i++)
        if (sigaction(signals[i], &action, NULL)) die("sigaction: %s", strerror(errno));
}

static void read_piece(FILE *f) {
    size_t n = fread(in.bytes + in.fill, 1, (size_t)opt.piece, f);
    if (interrupted) die("%s: stopped by signal %d; nothing was written", in.path, (int)interrupted);
    if (ferror(f)) die("%s: cannot read: %s", in.path, strerror(errno));
    in.fill += n;
    in.eof = n < (size_t)opt.piece;
}

// A character may span two pieces; any other invalid UTF-8 is an error.
static void check_utf8(void) {
    in.checked += utf8_prefix(in.bytes + in.checked, in.fill - in.checked);
    size_t rest = in.fill - in.checked;
    if (rest > 3 || (rest && in.eof))
        die("%s: byte %lld is not UTF-8; convert the file (iconv -t utf-8), or leave --tokenizer out: "
            "byte-level tokens accept any bytes",
            in.path, (long long)(in.offset + (int64_t)in.checked));
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// Shows progress: on a terminal in one line that changes, elsewhere in a new line every ten seconds.
static void show_progress(double start) {
    static double last;
    int terminal = isatty(STDERR_FILENO);
    double t = now();
    if (!last) last = start;
    if (t - last < (terminal ? 0.5 : 10)) return;
    last = t;
    double mb = (double)in.used / 1e6;
    if (in.total > 0)
        fprintf(stderr, "%5.1f %% of %.0f MB", 100 * (double)in.used / (double)in.total,
                (double)in.total / 1e6);
    else
        fprintf(stderr, "%.0f MB", mb);
    fprintf(stderr, ", %.1f MB/s%s", mb / (t - start), terminal ? "   \r" : "\n");
}

static void encode_file(Bpe *bpe, uint16_t eot, const char *path, double start) {
    FILE *f = fopen(path, "rb");
    if (!f) die("%s: cannot open: %s", path, strerror(errno));
    in.path = path;
    in.begins = 1;
    in.fill = in.checked = 0;
    in.offset = in.after_mark = in.eof = 0;
    while (!in.eof) {
        read_piece(f);
        if (!in.offset && !in.fill) die("%s: is empty", path);
        if (bpe)
            check_utf8();
        else
            in.checked = in.fill;
        size_t used = encode_documents(bpe, eot);
        memmove(in.bytes, in.bytes + used, in.fill - used);
        in.fill -= used;
        in.checked -= used;
        in.offset += (int64_t)used;
        show_progress(start);
    }
    fclose(f);  // no check, because it was only read
}

// --val in % counts the bytes of whole lines.
static void encode_object(Bpe *bpe, uint16_t eot, const JsonLines *lines, const json_t *object) {
    const json_t *text = json_object_get(object, "text");
    const size_t size = json_string_length(text);
    in.offset = lines->at;
    if (!json_is_string(text)) die("%s: byte %lld: the line has no \"text\"", in.path, (long long)in.offset);
    in.begins = 1;
    encode(bpe, eot, (const uint8_t *)json_string_value(text), 0, size, 1);
    if (in.begins) put(&eot, 1);  // of an empty document
    in.used += lines->bytes - (int64_t)size;
}

static void encode_lines(Bpe *bpe, uint16_t eot, const char *path, double start) {
    JsonLines lines = { .path = path, .f = fopen(path, "rb") };
    json_t *object;
    int more;
    if (!lines.f) die("%s: cannot open: %s", path, strerror(errno));
    in.path = path;
    while ((more = next_object(&lines, &object)) > 0 && !interrupted) {
        encode_object(bpe, eot, &lines, object);
        json_decref(object);
        show_progress(start);
    }
    if (interrupted) die("%s: stopped by signal %d; nothing was written", path, (int)interrupted);
    if (more < 0) die("%s", gpt2_last_error());
    if (!lines.at) die("%s: is empty", path);
    fclose(lines.f);  // no check, because it was only read
    free(lines.line);
}

// -------- options

static long long number(const char *option, const char *text, long long min, long long max) {
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (errno || end == text || *end || n < min || n > max)
        die("%s %s: expected a number from %lld to %lld", option, text, min, max);
    return n;
}

static void set_val(const char *text) {
    size_t n = strlen(text);
    opt.val_percent = -1;
    if (!n || text[n - 1] != '%') {
        opt.val_tokens = number("--val", text, 0, MAX_TOKENS);
        return;
    }
    char *end;
    opt.val_percent = strtod(text, &end);
    if (end != text + n - 1 || !(opt.val_percent > 0 && opt.val_percent <= 100))
        die("--val %s: expected above 0%% and up to 100%%", text);
}

static void set_documents(const char *kind) {
    opt.keep_mark = !strcmp(kind, "paragraph");
    opt.json = !strcmp(kind, "json");
    opt.mark = opt.keep_mark ? "\n\n" : !strcmp(kind, "mark") ? END_OF_TEXT : NULL;
    if (!opt.mark && !opt.json && strcmp(kind, "file"))
        die("--documents %s: expected file, paragraph, mark or json", kind);
}

static void parse_options(int argc, char **argv) {
    static const struct option options[] = {
        { "tokenizer", 1, NULL, 't' },
        { "documents", 1, NULL, 'd' },
        { "val", 1, NULL, 'v' },
        { "shard", 1, NULL, 's' },
        { "piece", 1, NULL, 'p' },
        { "help", 0, NULL, 'h' },
        { 0 },
    };
    int wrong = 0;
    for (int c; (c = getopt_long(argc, argv, "o:", options, NULL)) != -1;) {
        if (c == 'o') opt.output = optarg;
        if (c == 't') opt.tokenizer = optarg;
        if (c == 'd') set_documents(optarg);
        if (c == 'v') set_val(optarg);
        if (c == 's') opt.shard = number("--shard", optarg, 1, MAX_TOKENS);
        if (c == 'p') opt.piece = number("--piece", optarg, 1, 1 << 30);
        if (c == '?') wrong = 1;
        if (c != 'h') continue;
        fputs(usage, stdout);
        exit(EXIT_SUCCESS);
    }
    if (wrong || !opt.output || optind == argc) {
        fputs(usage, stderr);
        exit(EXIT_FAILURE);
    }
    if (strlen(opt.output) > PATH_MAX - 64) die("-o: a name of %zu bytes is too long", strlen(opt.output));
}

// Checks that the files exist before any work is done, and adds up their sizes.
static void measure_files(char **paths) {
    struct stat st;
    for (; *paths; paths++) {
        if (stat(*paths, &st)) die("%s: %s", *paths, strerror(errno));
        if (S_ISDIR(st.st_mode)) die("%s: is a folder; expected a text file", *paths);
        in.total = S_ISREG(st.st_mode) && in.total >= 0 ? in.total + st.st_size : -1;
    }
    if (in.total < 0 && opt.val_percent >= 0)
        die("--val in %% needs the size of the text, and a pipe has none; give --val a number of tokens");
    if (in.total > MAX_TOKENS && !opt.shard && !opt.tokenizer)
        die("%lld bytes of text are too many tokens for one file; give --shard 100000000",
            (long long)in.total);
}

static void check_result(void) {
    if (out.shard == out.first && !out.count) die("the text has only marks");
    if (!out.shard && opt.val_percent != 100)
        die("all %lld tokens of the text are for validation; give more text, or a smaller --val",
            (long long)out.count);
}

int main(int argc, char **argv) {
    Bpe *bpe = NULL;
    uint16_t eot = BYTE_EOT;
    parse_options(argc, argv);
    measure_files(argv + optind);
    if (opt.tokenizer && open_encoding(&bpe, opt.tokenizer, &eot)) die("%s", gpt2_last_error());
    refuse_leftovers();
    // The 64 bytes hold a mark, a character, and the bytes that bpe_next needs after a word.
    in.bytes = malloc((size_t)opt.piece + BPE_MAX_WORD + 64);
    if (!in.bytes) die("out of memory for reading %lld bytes at a time; give a smaller --piece", opt.piece);
    out.first = opt.val_percent < 0 && !opt.val_tokens;
    catch_signals();
    open_shard(out.first);

    double start = now();
    for (int i = optind; i < argc; i++) (opt.json ? encode_lines : encode_file)(bpe, eot, argv[i], start);
    double seconds = now() - start;
    check_result();
    if (!bpe) write_tokenizer();
    name_shards();
    report_leftover();

    int64_t tokens = out.tokens[0] + out.tokens[1];
    printf(
        "%s: %lld bytes, %lld tokens: %lld for training in %d %s, %lld for validation; %.2f s, %.1f MB/s\n",
        opt.output, (long long)in.used, (long long)tokens, (long long)out.tokens[1], out.shard,
        out.shard == 1 ? "shard" : "shards", (long long)out.tokens[0], seconds,
        (double)in.used / 1e6 / seconds);
    bpe_free(bpe);
    free(in.bytes);
    if (fflush(stdout)) return EXIT_FAILURE;
    return EXIT_SUCCESS;
}
