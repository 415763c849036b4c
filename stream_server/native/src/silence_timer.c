#define _POSIX_C_SOURCE 200809L
#include "silence_timer.h"

#include <time.h>

#ifndef SC_OVERSLEPT_S
#define SC_OVERSLEPT_S 1.0
#endif

/* A server that has just begun may learn of a key a moment later. */
#ifndef SC_REFUSED_S
#define SC_REFUSED_S 3.0
#endif

double sc_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

sc_silence_timer sc_silence_timer_begin(double timeout_s, double repeat_s, double silent_s) {
    double now = sc_now();
    return (sc_silence_timer){
        .timeout_s = timeout_s,
        .repeat_s = repeat_s,
        .began = now,
        .heard = now - silent_s,
        .asked = now,
        .listened = now,
        .refused = -1,
    };
}

double sc_silence_timer_silent_s(const sc_silence_timer *silence) {
    return silence->listened - silence->heard;
}

bool sc_silence_timer_is_over(const sc_silence_timer *silence) {
    return sc_silence_timer_silent_s(silence) >= silence->timeout_s;
}

bool sc_silence_timer_has_lasted(const sc_silence_timer *silence, double most_s) {
    return sc_now() - silence->began >= most_s;
}

double sc_silence_timer_slice_s(const sc_silence_timer *silence) {
    double until_repeat = silence->asked + silence->repeat_s;
    double until_over = silence->heard + silence->timeout_s;
    return (until_repeat < until_over ? until_repeat : until_over) - sc_now();
}

void sc_silence_timer_listened(sc_silence_timer *silence, double most_s) {
    double now = sc_now();
    double overslept_s = now - silence->listened - (most_s > 0 ? most_s : 0);
    if (overslept_s > SC_OVERSLEPT_S)
        silence->heard += overslept_s;
    silence->listened = now;
}

bool sc_silence_timer_refused(sc_silence_timer *silence) {
    double now = sc_now();
    if (silence->refused < 0)
        silence->refused = now;
    return now - silence->refused >= SC_REFUSED_S;
}

void sc_silence_timer_heard(sc_silence_timer *silence) {
    silence->heard = sc_now();
}

bool sc_silence_timer_may_repeat(sc_silence_timer *silence) {
    double now = sc_now();
    if (now - silence->asked < silence->repeat_s)
        return false;
    silence->asked = now;
    return true;
}
