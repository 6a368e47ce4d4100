// How the processes of a job find each other without MPI: rank 0 listens, at a given address or at one that
// it writes to a shared file. The others connect to rank 0. It sends them all addresses, and every rank
// connects to every other.
//
// Ranks prove to each other that they know the job's secret: `key`, `job` and, if a file is used, a random
// key in that file, which only this user can read. Connections without the secret are dropped and cannot
// disturb the startup. Job numbers are public, so without key and file, anyone who reaches the port can join.
// The secret protects only the startup: later traffic between ranks is not encrypted or authenticated.
#ifndef LLMC_ZERO_NET_RENDEZVOUS_H
#define LLMC_ZERO_NET_RENDEZVOUS_H
#include <stdint.h>

typedef struct {
    int rank, ranks;
    const char *server;  // "host:port" of rank 0, "[address]:port" with IPv6, or NULL
    const char *file;    // a path that all ranks see (see start_file_path); NULL: server is used
    const char *key;     // the same on all ranks, at least 16 characters; NULL: none
    double timeout_s;    // of every wait, the same on all ranks; each returns the error within 4 s of it
    int silence_s;       // a connected host that is silent for this many seconds counts as dead; 0: 25
    uint64_t job;        // the same on all ranks of a job, and different between jobs if possible; 0: unknown
    const char *version;  // at most 47 characters, must match on all ranks; NULL: not compared
    void (*waiting)(int connected, int ranks, double left_s);  // of zero_start_config
} rendezvous_settings;

enum { RENDEZVOUS_SILENCE_S = 25 };

typedef struct {
    char host[64];  // name of its machine
    uint64_t node;  // identifies its machine
    int pid;
} rendezvous_peer;

// (all ranks) Fills peers[ranks], and sockets[ranks] with connected, non-blocking sockets that the caller
// owns (-1 for this rank itself). Returns 0; or a ZERO_ERR_* with nothing left open, and the same message on
// every rank that could be reached. Ignores connections that are not from ranks of this job.
int rendezvous(const rendezvous_settings *s, int *sockets, rendezvous_peer *peers);

#endif
