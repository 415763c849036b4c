/* Numbers of one type as numbers of another, as NumPy's astype does: integers wrap, floating numbers round once to the
 * nearest, a boolean becomes 0 or 1, and the imaginary part of a real number is 0. */
#ifndef SC_CONVERT_H
#define SC_CONVERT_H

#include <stdbool.h>
#include <stddef.h>

#include "stream_client.h"

#define SC_NUMBER_BYTES 64

/* Both arrays are contiguous, and need not be aligned; sc_same_kind holds for the types. Returns whether all numbers
 * fit: no integer has wrapped, and none has become infinite. */
bool sc_convert(void *to, stream_dtype to_dtype, const void *from, stream_dtype from_dtype, size_t num);

/* As Python's "d" and ".6g" write it. */
const char *sc_number_text(char text[SC_NUMBER_BYTES], stream_dtype dtype, const void *number);

#endif
