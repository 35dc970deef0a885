/* Preloaded into a process: SIGKILL at the n-th system call that changes a file, before it or in the middle of it; or
 * that call and those after it fail, as on a disk that is full or broken.
 *
 * What the kernel was told before the kill stays, so these are all the states a killed process can leave on a disk that
 * keeps its power. "In the middle" is real too: a write of several pages is cut between two of them by a SIGKILL.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/types.h>
#include <unistd.h>

static long calls_left = 0;
static int is_in_the_middle = 0;
static long calls_until_failure = 0;
static long failures_left = 0;
static int failure = 0;
static long met = 0;

/* count: die at the count-th call from now on. in_the_middle: half of what it writes is written. */
void die_at_call(long count, int in_the_middle) {
    calls_left = count;
    is_in_the_middle = in_the_middle;
}

/* from the count-th call on, so many calls fail with this errno */
void fail_at_call(long count, long calls, int with) {
    calls_until_failure = count;
    failures_left = calls;
    failure = with;
}

/* how many calls have failed so far */
long failures_met(void) { return met; }

static int fails(void) {
    if (failures_left <= 0 || (calls_until_failure > 0 && --calls_until_failure > 0)) return 0;
    failures_left--;
    met++;
    errno = failure;
    return 1;
}

static int is_last(void) { return calls_left > 0 && --calls_left == 0; }

static void die(void) { kill(getpid(), SIGKILL); for (;;) pause(); }

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define WRITER(name, offset_type)                                                    \
    ssize_t name(int file, const void *bytes, size_t size, offset_type offset) {     \
        REAL(name);                                                                  \
        if (fails()) return -1;                                                      \
        if (is_last()) {                                                             \
            if (is_in_the_middle) real(file, bytes, size / 2, offset);               \
            die();                                                                   \
        }                                                                            \
        return real(file, bytes, size, offset);                                      \
    }

WRITER(pwrite, off_t)
WRITER(pwrite64, off64_t)

ssize_t write(int file, const void *bytes, size_t size) {
    REAL(write);
    if (file > 2 && fails()) return -1;
    if (is_last()) {
        if (is_in_the_middle) real(file, bytes, size / 2);
        die();
    }
    return real(file, bytes, size);
}

#define CHANGER(result, name, declared, passed)                                      \
    result name declared {                                                           \
        REAL(name);                                                                  \
        if (fails()) return -1;                                                      \
        if (is_last()) die();                                                        \
        return real passed;                                                          \
    }

CHANGER(int, ftruncate, (int file, off_t size), (file, size))
CHANGER(int, ftruncate64, (int file, off64_t size), (file, size))
CHANGER(int, fsync, (int file), (file))
CHANGER(int, fdatasync, (int file), (file))
CHANGER(int, unlink, (const char *path), (path))
