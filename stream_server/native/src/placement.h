/* Where in its field a block lies, and in which type it travels. */
#ifndef SC_PLACEMENT_H
#define SC_PLACEMENT_H

#include "wire.h"

/* The type in which the user's `dtype` travels: the study's if that is not larger, else the user's. */
int sc_sent_dtype(const sc_field *field, stream_dtype dtype, stream_dtype *sent, sc_error *error);

/* Fill in all of `block` but its type. `offset` NULL: it must be the whole field, or this rank's even share. */
int sc_place_block(const sc_field *field, int rank, int num_ranks, const int64_t offset[], int ndim,
                   const int64_t count[], sc_block *block, sc_error *error);

#endif
