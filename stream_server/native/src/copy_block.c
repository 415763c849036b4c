#include <fenv.h>
#include <math.h>
#include <string.h>

#include "dtype.h"

enum { CHUNK_BYTES = 8192 };

/* A block as rows: `num` elements that are `stride` apart, in each step of the `num_outer` first dimensions. */
typedef struct {
    stream_dtype to_dtype, from_dtype;
    size_t to_bytes, from_bytes;
    const int64_t *count, *strides;
    int num_outer;
    int64_t num, stride;
} rows;

/* Strided elements, one after the other. Each size has a loop of its own: a copy whose size the compiler knows is one
 * instruction. */
static void gather(void *to, const char *from, ptrdiff_t stride_bytes, size_t num, size_t element_bytes) {
#define GATHER(bytes)                                                                   \
    case bytes:                                                                         \
        for (size_t i = 0; i < num; ++i)                                                \
            memcpy((char *)to + i * (bytes), from + (ptrdiff_t)i * stride_bytes, bytes); \
        break
    switch (element_bytes) {
        GATHER(1);
        GATHER(2);
        GATHER(4);
        GATHER(8);
        GATHER(16);
    }
}

static bool copy_strided(const rows *it, char *to, const char *from) {
    ptrdiff_t stride_bytes = (ptrdiff_t)(it->stride * (int64_t)it->from_bytes);
    if (it->to_dtype == it->from_dtype) {
        gather(to, from, stride_bytes, (size_t)it->num, it->from_bytes);
        return true;
    }
    bool fits = true;
    char chunk[CHUNK_BYTES];
    int64_t num_fit = CHUNK_BYTES / (int64_t)it->from_bytes;
    for (int64_t i = 0; i < it->num; i += num_fit) {
        size_t num = (size_t)(it->num - i < num_fit ? it->num - i : num_fit);
        gather(chunk, from + (ptrdiff_t)i * stride_bytes, stride_bytes, num, it->from_bytes);
        fits &= sc_convert(to + (size_t)i * it->to_bytes, it->to_dtype, chunk, it->from_dtype, num);
    }
    return fits;
}

static bool copy_row(const rows *it, char *to, const char *from) {
    if (it->stride != 1)
        return copy_strided(it, to, from);
    if (it->to_dtype != it->from_dtype)
        return sc_convert(to, it->to_dtype, from, it->from_dtype, (size_t)it->num);
    memcpy(to, from, (size_t)it->num * it->from_bytes);
    return true;
}

/* The rows from dimension d on; returns the end of what was written. */
static char *copy_rows(const rows *it, int d, char *to, const char *from, bool *fits) {
    if (d == it->num_outer) {
        *fits &= copy_row(it, to, from);
        return to + (size_t)it->num * it->to_bytes;
    }
    ptrdiff_t stride_bytes = (ptrdiff_t)(it->strides[d] * (int64_t)it->from_bytes);
    for (int64_t i = 0; i < it->count[d]; ++i)
        to = copy_rows(it, d + 1, to, from + (ptrdiff_t)i * stride_bytes, fits);
    return to;
}

/* As few and as long rows as there are: dimensions that lie without a gap behind each other are one. */
static void find_rows(rows *it, int ndim) {
    it->num = it->stride = 1;
    it->num_outer = ndim;
    while (it->num_outer > 0) {
        int d = it->num_outer - 1;
        bool continues = it->count[d] == 1 || it->strides == NULL || it->strides[d] == it->num;
        if (!continues)
            break;
        it->num *= it->count[d];
        it->num_outer = d;
    }
    if (it->num == 1 && it->num_outer > 0) {
        it->num_outer -= 1;
        it->num = it->count[it->num_outer];
        it->stride = it->strides[it->num_outer];
    }
}

bool sc_copy_block(void *to, stream_dtype to_dtype, const void *from, stream_dtype from_dtype, int ndim,
                   const int64_t count[], const int64_t strides[], bool *underflows) {
    bool fits = true;
    if (underflows != NULL)
        *underflows = false;
    for (int d = 0; d < ndim; ++d)
        if (count[d] == 0)
            return true;
    rows it = {to_dtype, from_dtype, sc_dtype_bytes(to_dtype), sc_dtype_bytes(from_dtype), count, strides, 0, 0, 0};
    find_rows(&it, ndim);
    if (to_dtype == from_dtype) {
        copy_rows(&it, 0, to, from, &fits);
        return fits;
    }
    /* A program may have asked for a signal at an overflow; one of ours is none of its own. */
    fenv_t environment;
    feholdexcept(&environment);
    copy_rows(&it, 0, to, from, &fits);
    /* The flags of the processor cost no pass over the data. */
    if (underflows != NULL)
        *underflows = fetestexcept(FE_UNDERFLOW) != 0;
    fesetenv(&environment);
    return fits;
}

/* The last index moves first; false behind the last element. */
static bool move_on(int ndim, const int64_t count[], int64_t index[]) {
    for (int d = ndim - 1; d >= 0; --d) {
        if (++index[d] < count[d])
            return true;
        index[d] = 0;
    }
    return false;
}

/* The element at `index`, which is the one with this number in C order. */
static const char *element_at(const void *from, stream_dtype dtype, int ndim, const int64_t index[],
                              const int64_t strides[], int64_t number) {
    int64_t place = strides == NULL ? number : 0;
    for (int d = 0; strides != NULL && d < ndim; ++d)
        place += index[d] * strides[d];
    return (const char *)from + place * (int64_t)sc_dtype_bytes(dtype);
}

bool sc_is_zero(const void *block, stream_dtype dtype, size_t num_bytes) {
    size_t component = dtype == STREAM_FLOAT16 ? 2 : dtype == STREAM_FLOAT32 || dtype == STREAM_COMPLEX64 ? 4 : 8;
    for (size_t i = 0; i < num_bytes; i += component) {
        uint64_t bits = 0;
        memcpy(&bits, (const char *)block + i, component);
        /* Without the sign. */
        if (bits << (65 - 8 * component) != 0)
            return false;
    }
    return true;
}

double sc_largest(const void *from, stream_dtype dtype, int ndim, const int64_t count[], const int64_t strides[]) {
    double largest = 0;
    int64_t index[STREAM_MAX_DIMENSIONS] = {0}, number = 0;
    do {
        double parts[2];
        const char *element = element_at(from, dtype, ndim, index, strides, number++);
        sc_copy_block(parts, STREAM_COMPLEX128, element, dtype, 0, NULL, NULL, NULL);
        largest = fmax(largest, hypot(parts[0], parts[1]));
    } while (move_on(ndim, count, index));
    return largest;
}

void sc_find_misfit(stream_dtype to_dtype, const void *from, stream_dtype from_dtype, int ndim, const int64_t count[],
                    const int64_t strides[], int64_t index[], char text[SC_NUMBER_BYTES]) {
    char converted[2 * sizeof(double)];
    const char *element = from;
    int64_t number = 0;
    memset(index, 0, (size_t)ndim * sizeof *index);
    do
        element = element_at(from, from_dtype, ndim, index, strides, number++);
    while (sc_copy_block(converted, to_dtype, element, from_dtype, 0, NULL, NULL, NULL) && move_on(ndim, count, index));
    sc_number_text(text, from_dtype, element);
}
