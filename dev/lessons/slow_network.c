// A slow network without root: an LD_PRELOAD library that lets each process send at most SLOW_MBIT
// million bits per second. After sendmsg has taken n bytes it sleeps as long as a link of that rate needs
// for them. A sleeping thread leaves its core to others, as one that waits for a network card does.
//     LD_PRELOAD=build/lessons/slow_network.so SLOW_MBIT=500 ./train_gpt2_zero -pi fs --messages 1 ...
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

ssize_t sendmsg(int socket, const struct msghdr *message, int flags) {
    static ssize_t (*real)(int, const struct msghdr *, int);
    static double s_per_byte;
    if (!real) {
        const char *mbit = getenv("SLOW_MBIT");
        s_per_byte = mbit && atof(mbit) > 0 ? 8e-6 / atof(mbit) : 0;
        *(void **)&real = dlsym(RTLD_NEXT, "sendmsg");
    }
    const ssize_t sent = real(socket, message, flags);
    const double s = sent > 0 ? (double)sent * s_per_byte : 0;
    const struct timespec nap = { (time_t)s, (long)((s - (double)(time_t)s) * 1e9) };
    if (s > 0) nanosleep(&nap, NULL);
    return sent;
}
