// Writes tiny_model.bin and tiny_tokens.bin: ./make_files maxT V L C
#include <math.h>
#include <stdint.h>
#include "llmc/utils.h"

static uint64_t state = 42;
static double uniform(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 11) / 9007199254740992.0;
}

int main(int argc, char **argv) {
    if (argc != 5) { fail("usage:", "make_files maxT V L C"); }
    int header[5] = { 20240326, atoi(argv[1]), atoi(argv[2]), atoi(argv[3]), atoi(argv[4]) };
    int64_t maxT = header[1], V = header[2], L = header[3], C = header[4], n_tokens = 4096;
    int64_t n = V * C + maxT * C + C + L * (2 * C * C + 2 * C + C * 2 * C);
    FILE *model = fopenCheck("tiny_model.bin", "wb"), *tokens = fopenCheck("tiny_tokens.bin", "wb");
    int bad = fwrite(header, sizeof(int), 5, model) != 5 || fwrite(&n_tokens, sizeof(n_tokens), 1, tokens) != 1;
    for (int64_t i = 0; i < n; i++) {
        float value = (float)((uniform() - 0.5) * sqrt(8.0 / C));
        bad |= fwrite(&value, sizeof(value), 1, model) != 1;
    }
    for (int64_t i = 0; i < n_tokens; i++) { // a pattern that can be learnt, and noise
        uint16_t token = (i * i / 3 + (uniform() < 0.1)) % 7;
        bad |= fwrite(&token, sizeof(token), 1, tokens) != 1;
    }
    bad |= fclose(model) != 0;
    bad |= fclose(tokens) != 0;
    if (bad) { fail("cannot write", "the files"); }
    return 0;
}
