// A slow network without root: an LD_PRELOAD library that lets each process send at most SLOW_MBIT
// million bits per second. After writev, with which Open MPI sends over TCP, has taken n bytes for a socket,
// it sleeps as long as a link of that rate needs for them. A sleeping thread leaves the core to the others,
// like one that waits for a network card.
//     mpirun --mca btl self,tcp --mca btl_tcp_if_include lo -np 2
//         -x LD_PRELOAD=build/lessons/slow_network.so -x SLOW_MBIT=500 ./train_gpt2_zero --messages 1 ...
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>

ssize_t writev(int file, const struct iovec *parts, int n) {
    static ssize_t (*real)(int, const struct iovec *, int);
    static double s_per_byte;
    struct stat is;
    if (!real) {
        const char *mbit = getenv("SLOW_MBIT");
        s_per_byte = mbit && atof(mbit) > 0 ? 8e-6 / atof(mbit) : 0;
        *(void **)&real = dlsym(RTLD_NEXT, "writev");
    }
    const ssize_t sent = real(file, parts, n);
    const int counts = sent > 0 && !fstat(file, &is) && S_ISSOCK(is.st_mode);
    const double s = counts ? (double)sent * s_per_byte : 0;
    const struct timespec nap = { (time_t)s, (long)((s - (double)(time_t)s) * 1e9) };
    if (s > 0) nanosleep(&nap, NULL);
    return sent;
}
