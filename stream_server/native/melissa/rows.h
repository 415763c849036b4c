/* A range of a field's values, counted through in C order, as a block: whole rows of the first dimension. */
#ifndef SC_ROWS_H
#define SC_ROWS_H

#include <stdbool.h>
#include <stdint.h>

int64_t sc_num_values(int ndim, const int64_t shape[]);

/* Offset and count of the block of `size` values from `before` on; false: they are no whole rows. */
bool sc_rows(int ndim, const int64_t shape[], int64_t before, int64_t size, int64_t offset[], int64_t count[]);

#endif
