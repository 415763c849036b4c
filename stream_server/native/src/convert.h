/* Numbers of one type as numbers of another, as NumPy's astype does: integers wrap, floating numbers round once to the
 * nearest, a boolean becomes 0 or 1, and the imaginary part of a real number is 0. */
#ifndef SC_CONVERT_H
#define SC_CONVERT_H

#include <stddef.h>

#include "stream_client.h"

/* Both arrays are contiguous, and need not be aligned; sc_same_kind holds for the types. */
void sc_convert(void *to, stream_dtype to_dtype, const void *from, stream_dtype from_dtype, size_t num);

#endif
