// Converts HellaSwag's JSON lines to llm.c's file of multiple-choice examples, for the trainer's -h 1.
//
//     make_hellaswag -o data/hellaswag_val.bin --tokenizer data/gpt2_tokenizer.bin hellaswag_val.jsonl
//
// Each line has a "ctx", four "endings" and a "label", the number of the right ending from 0. As in llm.c, a
// space precedes each ending, and there is no end-of-text. gpt2/hellaswag.h describes the output.
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include "gpt2/hellaswag.h"
#include "byte_tokenizer.h"
#include "documents.h"

enum { MAX_EXAMPLES = UINT16_MAX + 1, MAX_WORDS = UINT16_MAX / 2 };

static const char usage[] =
    "usage: make_hellaswag -o FILE.bin [--tokenizer TOKENIZER.bin] FILE.jsonl\n"
    "Converts HellaSwag's JSON lines to llm.c's format, with GPT-2's byte-pair encoding and the tokens of\n"
    "this tokenizer.bin (default: one token per byte).\n";

// The examples, without the file's header.
static struct {
    uint16_t *data;
    size_t words, room;
    size_t begin;  // of the last example
    int examples;
} out;

static JsonLines in;

static void __attribute__((noreturn, format(printf, 1, 2))) die(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    fputs("make_hellaswag: ", stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    exit(EXIT_FAILURE);
}

static void put(uint16_t word) {
    if (out.words == out.room) {
        out.room = out.room ? 2 * out.room : 1 << 20;
        out.data = realloc(out.data, out.room * sizeof *out.data);
        if (!out.data) die("out of memory for %zu tokens", out.room);
    }
    if (out.words - out.begin == MAX_WORDS)
        die("%s: byte %lld: more than %d tokens in one example", in.path, in.at, MAX_WORDS);
    out.data[out.words++] = word;
}

// Writes the number of the text's tokens, then the tokens. before: written before the text.
static void put_text(Bpe *bpe, const char *before, const json_t *value) {
    const size_t count = out.words, indent = strlen(before), size = indent + json_string_length(value);
    const uint16_t *tokens;
    if (size == indent) die("%s: byte %lld: its \"ctx\" or an ending is not a text", in.path, in.at);
    uint8_t *text = malloc(size);
    if (!text) die("out of memory for %zu bytes of text", size);
    memcpy(text, before, indent);
    memcpy(text + indent, json_string_value(value), size - indent);
    put(0);
    for (size_t at = 0, length = 0; at < size; at += length) {
        int covered;
        const int n = first_tokens(bpe, text + at, size - at, 1, &covered, &tokens);
        if (n < 0) die("%s: byte %lld: %s", in.path, in.at, gpt2_last_error());
        for (int i = 0; i < n; i++) put(tokens[i]);
        length = (size_t)covered;
    }
    out.data[count] = (uint16_t)(out.words - count - 1);
    free(text);
}

// Returns the number of the right ending, which is a text in Hugging Face's copy, or -1.
static json_int_t label_of(const json_t *object) {
    const json_t *label = json_object_get(object, "label");
    if (json_is_integer(label)) return json_integer_value(label);
    return json_string_length(label) == 1 ? *json_string_value(label) - '0' : -1;
}

static void put_example(Bpe *bpe, const json_t *object) {
    const json_t *endings = json_object_get(object, "endings");
    const json_int_t right = label_of(object);
    if (json_array_size(endings) != HELLASWAG_COMPLETIONS || right < 0 || right >= HELLASWAG_COMPLETIONS)
        die("%s: byte %lld: expected four \"endings\" and a \"label\" from 0 to 3; HellaSwag's test file has "
            "no labels",
            in.path, in.at);
    if (out.examples == MAX_EXAMPLES) die("%s: more than %d examples", in.path, MAX_EXAMPLES);
    out.begin = out.words;
    const uint16_t head[] = { UINT16_MAX, 0, (uint16_t)out.examples++, (uint16_t)right,
                              HELLASWAG_COMPLETIONS };
    for (size_t i = 0; i < sizeof head / sizeof *head; i++) put(head[i]);
    put_text(bpe, "", json_object_get(object, "ctx"));
    for (size_t i = 0; i < HELLASWAG_COMPLETIONS; i++) put_text(bpe, " ", json_array_get(endings, i));
    out.data[out.begin + 1] = (uint16_t)(2 * (out.words - out.begin));
}

static void parse_options(int argc, char **argv, const char **output, const char **tokenizer) {
    static const struct option options[] = { { "tokenizer", 1, NULL, 't' }, { 0 } };
    int wrong = 0;
    for (int c; (c = getopt_long(argc, argv, "o:", options, NULL)) != -1;) {
        if (c == 'o') *output = optarg;
        if (c == 't') *tokenizer = optarg;
        if (c == '?') wrong = 1;
    }
    if (!wrong && *output && optind == argc - 1) return;
    fputs(usage, stderr);
    exit(EXIT_FAILURE);
}

int main(int argc, char **argv) {
    const char *output = NULL, *tokenizer = NULL;
    uint16_t eot;
    Bpe *bpe = NULL;
    json_t *object;
    size_t longest = 0;
    int more;
    parse_options(argc, argv, &output, &tokenizer);
    if (tokenizer && open_encoding(&bpe, tokenizer, &eot)) die("%s", gpt2_last_error());
    in = (JsonLines){ .path = argv[optind], .f = fopen(argv[optind], "rb") };
    if (!in.f) die("%s: cannot open: %s", in.path, strerror(errno));
    while ((more = next_object(&in, &object)) > 0) {
        put_example(bpe, object);
        json_decref(object);
        if (out.words - out.begin > longest) longest = out.words - out.begin;
    }
    if (more < 0) die("%s", gpt2_last_error());
    if (!out.examples) die("%s: is empty", in.path);
    const uint32_t header[256] = { 20240522, 1, (uint32_t)out.examples, (uint32_t)(2 * longest) };
    if (write_whole(output, header, out.data, 2 * out.words)) die("%s", gpt2_last_error());
    printf("%s: %d examples, the longest with %zu tokens\n", output, out.examples, longest - 10);
    fclose(in.f);  // no check, because it was only read
    free(in.line);
    free(out.data);
    bpe_free(bpe);
    return fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
}
