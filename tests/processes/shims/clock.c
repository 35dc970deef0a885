/* Preloaded into a process: its wall clock is ahead by what stands in the file named by CLOCK_OFFSET_FILE, at any time.
 *
 * The file holds one number of seconds, 8 bytes as a double, and may be written while the process runs. Only the wall
 * clock is shifted; the boot clock and the monotonic clock are left alone. All three of clock_gettime, gettimeofday and
 * time are needed: with the first alone SQLite sees the true time, and a test of it proves nothing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile double *offset = NULL;

__attribute__((constructor)) static void find_offset(void) {
    const char *path = getenv("CLOCK_OFFSET_FILE");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    void *found = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) offset = found;
    close(file);
}

static void shift(struct timespec *at) {
    if (offset == NULL) return;
    double by = *offset;
    long whole = (long)by;
    at->tv_sec += whole;
    at->tv_nsec += (long)((by - (double)whole) * 1e9);
    if (at->tv_nsec >= 1000000000L) { at->tv_sec++; at->tv_nsec -= 1000000000L; }
    if (at->tv_nsec < 0) { at->tv_sec--; at->tv_nsec += 1000000000L; }
}

int clock_gettime(clockid_t which, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *) = NULL;
    if (real == NULL) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(which, at);
    if (result == 0 && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) shift(at);
    return result;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at != NULL) *at = now.tv_sec;
    return now.tv_sec;
}
