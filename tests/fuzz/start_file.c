// The file in which rank 0 writes where it listens, and the addresses in it.
#include "../../llmc_zero/net/rendezvous_file.h"
#include <string.h>
#include "fuzz.h"

static void give_seeds(void) {
    static const char card[] =
        "llmc_zero rendezvous 2\nhost a pid 12 port 12345\nrun 1f node 2e time 1700000000\nkey "
        "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n"
        "address 127.0.0.1:1234\naddress [::1]:99\n";
    fuzz_seed("card", card, sizeof card - 1);
}

static int read_file(const uint8_t *bytes, size_t n) {
    char host[NET_HOST], text[NET_NAME], *all = fuzz_text(bytes, n);
    int port = 0;
    card c;
    const char *path = fuzz_file("start", bytes, n);
    int taken = !card_read(path, &c);
    if (!net_split(all, host, &port)) FUZZ_MUST(port > 0 && port <= 65535);
    free(all);
    FUZZ_MUST(c.n >= 0 && c.n <= CARD_ADDRESSES && (taken || !c.n));
    for (int i = 0; i < c.n; i++) FUZZ_MUST(*net_text(&c.at[i], text));
    if (!taken) return 0;
    FUZZ_MUST(c.port > 0 && c.port <= 65535 && memchr(c.host, 0, sizeof c.host));
    FUZZ_MUST(memchr(c.key, 0, sizeof c.key));
    return 1;
}

const fuzz_target fuzz_start_file = {
    .name = "start_file", .is_text = 1, .seeds = give_seeds, .read = read_file
};
