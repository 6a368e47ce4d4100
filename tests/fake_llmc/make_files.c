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
    int header[256] = { 20240326, 3, atoi(argv[1]), atoi(argv[2]), atoi(argv[3]), 1, atoi(argv[4]) };
    int64_t maxT = header[2], V = header[3], L = header[4], C = header[6];
    int data[256] = { 20240520, 1, 4096 }, n_tokens = data[2];
    int64_t n = V * C + maxT * C + C + L * (2 * C * C + 2 * C + C * 2 * C);
    FILE *model = fopenCheck("tiny_model.bin", "wb"), *tokens = fopenCheck("tiny_tokens.bin", "wb");
    int bad = fwrite(header, sizeof(int), 256, model) != 256 || fwrite(data, sizeof(int), 256, tokens) != 256;
    for (int64_t i = 0; i < n; i++) {
        float value = (float)((uniform() - 0.5) * sqrt(8.0 / C));
        bad |= fwrite(&value, sizeof(value), 1, model) != 1;
    }
    for (int64_t i = 0; i < n_tokens; i++) { // a pattern to learn, and noise
        uint16_t token = (i * i / 3 + (uniform() < 0.1)) % 7;
        bad |= fwrite(&token, sizeof(token), 1, tokens) != 1;
    }
    bad |= fclose(model) != 0;
    bad |= fclose(tokens) != 0;
    if (bad) { fail("cannot write", "the files"); }
    return 0;
}
