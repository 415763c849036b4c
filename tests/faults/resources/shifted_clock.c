/* Loaded into every process of a study: the wall clock jumps at one moment, in all of them, and the others go on.
 *
 * SHIFT_AT is that moment on the monotonic clock, which all processes of a machine share, and SHIFT_S the jump, both in
 * seconds. With SHIFT_ON only those of the host that is called so jump. With SHIFT_NOTES each process that has asked after the jump leaves an empty file of its number there.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

typedef int (*clock_function)(clockid_t, struct timespec *);

static void note(void) {
    static pid_t noted;
    const char *folder = getenv("SHIFT_NOTES");
    if (folder == NULL || noted == getpid())
        return;
    noted = getpid();
    char path[4096];
    snprintf(path, sizeof path, "%s/%d", folder, (int)noted);
    FILE *file = fopen(path, "w");
    if (file != NULL)
        fclose(file);
}

static int is_elsewhere(void) {
    const char *host = getenv("SHIFT_ON");
    char name[256];
    return host != NULL && gethostname(name, sizeof name) == 0 && strcmp(host, name) != 0;
}

static long shift_s(clock_function real) {
    const char *at = getenv("SHIFT_AT"), *by = getenv("SHIFT_S");
    struct timespec now;
    if (at == NULL || by == NULL || real(CLOCK_MONOTONIC, &now) != 0 || now.tv_sec < atol(at) ||
        is_elsewhere())
        return 0;
    note();
    return atol(by);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    clock_function real = (clock_function)dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, time);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        time->tv_sec += shift_s(real);
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return -1;
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *place) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (place != NULL)
        *place = now.tv_sec;
    return now.tv_sec;
}
