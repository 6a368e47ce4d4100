// The start file, and rank 0's address as users specify it.
#include "../../llmc_zero/net/start_file.h"
#include <string.h>
#include "fuzz.h"

static void give_seeds(void) {
    static const char address[] = "[::1]:99";
    static const start_file start = { .begins = "llmc_zero start file 3\n",
                                      .host = "a",
                                      .pid = 12,
                                      .port = 12345,
                                      .n = 1,
                                      .written = 1700000000 };
    fuzz_seed("start file", &start, sizeof start);
    fuzz_seed("address", address, sizeof address - 1);
}

static int read_file(const uint8_t *bytes, size_t n) {
    char host[NET_HOST], text[NET_NAME], *all = fuzz_text(bytes, n);
    int port = 0, is_address = !net_split(all, host, &port);
    start_file c;
    int taken = !start_file_read(fuzz_file("start", bytes, n), &c);
    FUZZ_MUST(!is_address || (port > 0 && port <= 65535));
    free(all);
    FUZZ_MUST(c.n >= 0 && c.n <= START_FILE_ADDRESSES && (taken || !c.n));
    for (int i = 0; i < c.n; i++) FUZZ_MUST(*net_text(&c.at[i], text));
    if (taken) FUZZ_MUST(c.port > 0 && c.port <= 65535 && c.pid > 0 && memchr(c.host, 0, sizeof c.host));
    return taken || is_address;
}

const fuzz_target fuzz_start_file = { .name = "start_file", .seeds = give_seeds, .read = read_file };
