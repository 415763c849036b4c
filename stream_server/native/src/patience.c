#define _POSIX_C_SOURCE 200809L
#include "patience.h"

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

sc_patience sc_patience_begin(double timeout_s, double repeat_s, double silent_s) {
    double now = sc_now();
    return (sc_patience){
        .timeout_s = timeout_s,
        .repeat_s = repeat_s,
        .began = now,
        .heard = now - silent_s,
        .asked = now,
        .listened = now,
        .refused = -1,
    };
}

double sc_patience_silent_s(const sc_patience *patience) {
    return patience->listened - patience->heard;
}

bool sc_patience_is_over(const sc_patience *patience) {
    return sc_patience_silent_s(patience) >= patience->timeout_s;
}

bool sc_patience_has_lasted(const sc_patience *patience, double most_s) {
    return sc_now() - patience->began >= most_s;
}

double sc_patience_slice_s(const sc_patience *patience) {
    double until_repeat = patience->asked + patience->repeat_s;
    double until_over = patience->heard + patience->timeout_s;
    return (until_repeat < until_over ? until_repeat : until_over) - sc_now();
}

void sc_patience_listened(sc_patience *patience, double most_s) {
    double now = sc_now();
    double overslept_s = now - patience->listened - (most_s > 0 ? most_s : 0);
    if (overslept_s > SC_OVERSLEPT_S)
        patience->heard += overslept_s;
    patience->listened = now;
}

bool sc_patience_refused(sc_patience *patience) {
    double now = sc_now();
    if (patience->refused < 0)
        patience->refused = now;
    return now - patience->refused >= SC_REFUSED_S;
}

void sc_patience_heard(sc_patience *patience) {
    patience->heard = sc_now();
}

bool sc_patience_may_repeat(sc_patience *patience) {
    double now = sc_now();
    if (now - patience->asked < patience->repeat_s)
        return false;
    patience->asked = now;
    return true;
}
