/* Converts and copies arrays, tells the casting rules, and makes checksums. */
#include "check.h"
#include "dtype.h"
#include "wire.h"
#include "words.h"

/* A block inside of an array, from the element `first` on, as contiguous bytes of another type. */
static void copy(void) {
    stream_dtype from_dtype = (stream_dtype)next_number(), to_dtype = (stream_dtype)next_number();
    int64_t count[STREAM_MAX_DIMENSIONS], strides[STREAM_MAX_DIMENSIONS];
    int ndim = next_extents(count);
    bool is_strided = next_extents(strides) == ndim;
    int64_t first = next_number();
    char *from = next_bytes(NULL);
    size_t num = 1;
    for (int d = 0; d < ndim; ++d)
        num *= (size_t)count[d];
    char *to = malloc(num * sc_dtype_bytes(to_dtype));
    CHECK(to != NULL || num == 0);
    const char *begin = from + first * (int64_t)sc_dtype_bytes(from_dtype);
    bool fits = sc_copy_block(to, to_dtype, begin, from_dtype, ndim, count, is_strided ? strides : NULL, NULL);
    say_bytes(to, num * sc_dtype_bytes(to_dtype));
    if (!fits) {
        char text[SC_NUMBER_BYTES];
        int64_t index[STREAM_MAX_DIMENSIONS];
        sc_find_misfit(to_dtype, begin, from_dtype, ndim, count, is_strided ? strides : NULL, index, text);
        say_word(text);
        for (int d = 0; d < ndim; ++d)
            say_number(index[d]);
    }
    free(to);
    free(from);
}

static void rules(void) {
    for (int from = 1; from < SC_NUM_DTYPES; ++from)
        for (int to = 1; to < SC_NUM_DTYPES; ++to) {
            say_number(sc_same_kind((stream_dtype)from, (stream_dtype)to));
            say_number(sc_safe((stream_dtype)from, (stream_dtype)to));
        }
}

static void names(void) {
    for (int dtype = 1; dtype < SC_NUM_DTYPES; ++dtype) {
        say_word(sc_dtype_name((stream_dtype)dtype));
        say_natural(sc_dtype_bytes((stream_dtype)dtype));
    }
}

static void checksum(void) {
    uint32_t crc = (uint32_t)next_natural();
    size_t num_bytes;
    char *bytes = next_bytes(&num_bytes);
    say_natural(sc_crc32(crc, bytes, num_bytes));
    free(bytes);
}

int main(void) {
    while (next_line()) {
        if (next_word_is("copy"))
            copy();
        else if (next_word_is("rules"))
            rules();
        else if (next_word_is("names"))
            names();
        else if (next_word_is("checksum"))
            checksum();
        else
            CHECK(false);
        end_answer();
    }
    return 0;
}
