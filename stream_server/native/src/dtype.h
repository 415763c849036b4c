/* Numeric types: their sizes, NumPy's casting rules between them, and copying with conversion. */
#ifndef SC_DTYPE_H
#define SC_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "stream_client.h"

#define SC_NUM_DTYPES 15
#define SC_NUMBER_BYTES 64

bool sc_dtype_is_valid(int dtype); /* one of 1 ... 14 */
size_t sc_dtype_bytes(stream_dtype dtype);
const char *sc_dtype_name(stream_dtype dtype); /* NumPy's: "float64" */
const char *sc_dtype_code(stream_dtype dtype); /* in messages: "<f8"; "" for none */
extern const char *const sc_dtype_codes[SC_NUM_DTYPES];

/* NumPy's rules numpy.can_cast(from, to, "same_kind") and (…, "safe"). */
bool sc_same_kind(stream_dtype from, stream_dtype to);
bool sc_safe(stream_dtype from, stream_dtype to);

/* Numbers of one type as numbers of another, as NumPy's astype does: integers wrap, floating numbers round once to the
 * nearest, a boolean becomes 0 or 1, and the imaginary part of a real number is 0. Both arrays are contiguous, and need
 * not be aligned; sc_same_kind holds for the types. Returns whether all numbers fit: no integer has wrapped, and none
 * has become infinite. */
bool sc_convert(void *to, stream_dtype to_dtype, const void *from, stream_dtype from_dtype, size_t num);

/* As Python's "d" and ".6g" write it. */
const char *sc_number_text(char text[SC_NUMBER_BYTES], stream_dtype dtype, const void *number);

/* Copy a block into contiguous memory, in C order, converting its elements. strides count elements; NULL: contiguous.
 * Returns whether all of them fit into the type: an integer that does not wraps, and a floating number becomes infinite.
 * *underflows, unless it is NULL: some number has lost digits because it is too small for the type. */
bool sc_copy_block(void *to, stream_dtype to_dtype, const void *from, stream_dtype from_dtype, int ndim,
                   const int64_t count[], const int64_t strides[], bool *underflows);

/* Whether a floating or complex block is 0 everywhere. */
bool sc_is_zero(const void *block, stream_dtype dtype, size_t num_bytes);

/* The largest absolute value of a block. */
double sc_largest(const void *from, stream_dtype dtype, int ndim, const int64_t count[], const int64_t strides[]);

/* The index, and the text, of the first element of a block, in C order, that does not fit. There is one. */
void sc_find_misfit(stream_dtype to_dtype, const void *from, stream_dtype from_dtype, int ndim, const int64_t count[],
                    const int64_t strides[], int64_t index[], char text[SC_NUMBER_BYTES]);

#endif
