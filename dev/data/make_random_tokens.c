// Writes a shard of random tokens, for measurements on a machine without data. The frequency of token i is
// roughly proportional to 1/(i + 1), like that of words in text; with equal frequencies the embedding's
// gradient would have fewer collisions. The same arguments give the same file.
//     make_random_tokens FILE COUNT VOCABULARY
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEADER = 256 };

static long number(const char *text, long most) {
    char *end;
    long n = strtol(text, &end, 10);
    if (*end || n < 1 || n > most) {
        fprintf(stderr, "make_random_tokens: '%s' is not a whole number from 1 to %ld\n", text, most);
        exit(EXIT_FAILURE);
    }
    return n;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: make_random_tokens FILE COUNT VOCABULARY\n");
        return EXIT_FAILURE;
    }
    int32_t header[HEADER] = { 20240520, 1, (int32_t)number(argv[2], INT32_MAX) };
    double log_v = log((double)number(argv[3], 65535) + 1);
    FILE *f = fopen(argv[1], "wb");
    int bad = !f || fwrite(header, sizeof header, 1, f) != 1;
    uint64_t state = 1;
    for (int32_t i = 0; i < header[2] && !bad; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint16_t token =
            (uint16_t)(exp((double)(state >> 11) / 9007199254740992.0 * log_v) - 1);  // 0 .. V - 1
        bad = fwrite(&token, sizeof token, 1, f) != 1;
    }
    if ((f && fclose(f)) || bad) {
        perror(argv[1]);
        return EXIT_FAILURE;
    }
    return 0;
}
