/* Which time steps one client rank has had for the study: a set that remembers in which order they came first. */
#ifndef SC_ENTERED_H
#define SC_ENTERED_H

#include "bits.h"

typedef struct {
    sc_bits bits;
    int64_t *order;
    size_t num;
    size_t capacity;
} sc_entered;

/* 1: it is new, 0: it was there, -1: no memory. */
int sc_entered_add(sc_entered *entered, int64_t index);
void sc_entered_free(sc_entered *entered);

#endif
