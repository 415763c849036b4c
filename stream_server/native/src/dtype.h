/* Numeric types: their sizes, NumPy's casting rules between them, and copying with conversion. */
#ifndef SC_DTYPE_H
#define SC_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "stream_client.h"

#define SC_NUM_DTYPES 15

bool sc_dtype_is_valid(int dtype); /* one of 1 ... 14 */
size_t sc_dtype_bytes(stream_dtype dtype);
const char *sc_dtype_name(stream_dtype dtype); /* NumPy's: "float64" */
const char *sc_dtype_code(stream_dtype dtype); /* in messages: "<f8"; "" for none */
extern const char *const sc_dtype_codes[SC_NUM_DTYPES];

/* NumPy's rules numpy.can_cast(from, to, "same_kind") and (…, "safe"). */
bool sc_same_kind(stream_dtype from, stream_dtype to);
bool sc_safe(stream_dtype from, stream_dtype to);

/* Copy a block into contiguous memory, in C order, converting its elements. strides count elements; NULL: contiguous.
 * A value too large for a narrower floating type becomes infinite. */
void sc_copy_block(void *to, stream_dtype to_dtype, const void *from, stream_dtype from_dtype, int ndim,
                   const int64_t count[], const int64_t strides[]);

#endif
