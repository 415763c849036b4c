/* A growing set of small numbers: bit i of the bytes, the lowest bit of each byte first, is number i. */
#ifndef SC_BITS_H
#define SC_BITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint8_t *bytes;
    size_t num_bytes;
} sc_bits;

bool sc_bits_has(const sc_bits *bits, int64_t number);
/* 1: it is new, 0: it was there, -1: no memory. */
int sc_bits_add(sc_bits *bits, int64_t number);
/* Become a copy of these bytes; false: no memory. */
bool sc_bits_load(sc_bits *bits, const uint8_t *bytes, size_t num_bytes);
void sc_bits_free(sc_bits *bits);

/* Which time steps one client rank has had for the study: a set that remembers in which order they came first. */
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
