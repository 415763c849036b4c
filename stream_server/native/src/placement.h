/* Where in its field a block lies, in which type it travels, and how people read extents. */
#ifndef SC_PLACEMENT_H
#define SC_PLACEMENT_H

#include "wire.h"

/* The type in which the user's `dtype` travels: the study's if that is not larger, else the user's. */
int sc_sent_dtype(const sc_field *field, stream_dtype dtype, stream_dtype *sent, sc_error *error);

/* Fill in all of `block` but its type. `offset` NULL: it must be the whole field, or this rank's even share. */
int sc_place_block(const sc_field *field, int rank, int num_ranks, const int64_t offset[], int ndim,
                   const int64_t count[], sc_block *block, sc_error *error);

/* Offset and count when the ranks cut the first dimension as evenly as it goes, in rank order. */
void sc_even_share(const sc_field *field, int rank, int num_ranks, int64_t offset[], int64_t count[]);

#define SC_EXTENTS_BYTES 256

bool sc_has_zero(int ndim, const int64_t extents[]);
bool sc_equal_extents(int ndim, const int64_t one[], int other_ndim, const int64_t other[]);
void sc_copy_extents(int ndim, int64_t to[], const int64_t from[]);

/* As Python writes a tuple: "(6, 4)". */
const char *sc_extents_text(char to[SC_EXTENTS_BYTES], int ndim, const int64_t extents[]);

#endif
