/* Where a block of a field lies if nobody says: arithmetic on extents, and how people read them. */
#ifndef SC_SHARES_H
#define SC_SHARES_H

#include <stdbool.h>
#include <stdint.h>

#include "wire.h"

#define SC_EXTENTS_BYTES 256

/* Offset and count when the ranks cut the first dimension as evenly as it goes, in rank order. */
void sc_even_share(const sc_field *field, int rank, int num_ranks, int64_t offset[], int64_t count[]);

bool sc_has_zero(int ndim, const int64_t extents[]);
bool sc_equal_extents(int ndim, const int64_t one[], int other_ndim, const int64_t other[]);
void sc_copy_extents(int ndim, int64_t to[], const int64_t from[]);

/* As Python writes a tuple: "(6, 4)". */
const char *sc_extents_text(char to[SC_EXTENTS_BYTES], int ndim, const int64_t extents[]);

#endif
