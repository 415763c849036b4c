/* Half precision, which C has no type for, as its 16 bits. */
#ifndef SC_HALF_H
#define SC_HALF_H

#include <stdint.h>

/* Rounds once, to the nearest, ties to even; too large becomes infinite. */
uint16_t sc_half_from_double(double value);
double sc_half_to_double(uint16_t half);

#endif
