/* Each type is read into, and written from, one of three wide ones: int64_t (all integers; where they become integers
 * again, uint64_t by its bits), uint64_t and double. */
#include "convert.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "dtype.h"
#include "half.h"

enum { CHUNK = 512 };

typedef union {
    int64_t integers[CHUNK];
    uint64_t naturals[CHUNK];
    double reals[CHUNK];
} wide;

#define EACH(from_type, to_type, expression)                                            \
    for (size_t i = 0; i < num; ++i) {                                                  \
        from_type value;                                                                \
        memcpy(&value, (const char *)from + i * sizeof value, sizeof value);            \
        to_type result = (to_type)(expression);                                         \
        memcpy((char *)to + i * sizeof result, &result, sizeof result);                 \
    }                                                                                   \
    return

static void read_integers(int64_t *to, const void *from, stream_dtype dtype, size_t num) {
    switch (dtype) {
    case STREAM_BOOL: EACH(uint8_t, int64_t, value != 0);
    case STREAM_INT8: EACH(int8_t, int64_t, value);
    case STREAM_INT16: EACH(int16_t, int64_t, value);
    case STREAM_INT32: EACH(int32_t, int64_t, value);
    case STREAM_UINT8: EACH(uint8_t, int64_t, value);
    case STREAM_UINT16: EACH(uint16_t, int64_t, value);
    case STREAM_UINT32: EACH(uint32_t, int64_t, value);
    default: memcpy(to, from, num * sizeof *to);
    }
}

static void read_reals(double *to, const void *from, stream_dtype dtype, size_t num) {
    switch (dtype) {
    case STREAM_FLOAT16: EACH(uint16_t, double, sc_half_to_double(value));
    case STREAM_FLOAT32: EACH(float, double, value);
    default: memcpy(to, from, num * sizeof *to);
    }
}

static void write_integers(void *to, stream_dtype dtype, const int64_t *from, size_t num) {
    switch (dtype) {
    case STREAM_BOOL: EACH(int64_t, uint8_t, value != 0);
    case STREAM_INT8:
    case STREAM_UINT8: EACH(int64_t, uint8_t, value);
    case STREAM_INT16:
    case STREAM_UINT16: EACH(int64_t, uint16_t, value);
    case STREAM_INT32:
    case STREAM_UINT32: EACH(int64_t, uint32_t, value);
    case STREAM_FLOAT16: EACH(int64_t, uint16_t, sc_half_from_double((double)value));
    case STREAM_FLOAT32: EACH(int64_t, float, value);
    case STREAM_FLOAT64: EACH(int64_t, double, value);
    default: memcpy(to, from, num * sizeof *from);
    }
}

/* Of uint64_t alone, into floating numbers. */
static void write_naturals(void *to, stream_dtype dtype, const uint64_t *from, size_t num) {
    switch (dtype) {
    case STREAM_FLOAT16: EACH(uint64_t, uint16_t, sc_half_from_double((double)value));
    case STREAM_FLOAT32: EACH(uint64_t, float, value);
    default: EACH(uint64_t, double, value);
    }
}

static void write_reals(void *to, stream_dtype dtype, const double *from, size_t num) {
    switch (dtype) {
    case STREAM_FLOAT16: EACH(double, uint16_t, sc_half_from_double(value));
    case STREAM_FLOAT32: EACH(double, float, value);
    default: memcpy(to, from, num * sizeof *from);
    }
}

/* What most solvers need: they compute in double, and the study keeps float. */
static void doubles_to_floats(void *to, const void *from, size_t num) {
    EACH(double, float, value);
}

static bool is_real(stream_dtype dtype) {
    return dtype >= STREAM_FLOAT16 && dtype <= STREAM_FLOAT64;
}

static bool is_complex(stream_dtype dtype) {
    return dtype == STREAM_COMPLEX64 || dtype == STREAM_COMPLEX128;
}

static stream_dtype component(stream_dtype dtype) {
    return dtype == STREAM_COMPLEX64 ? STREAM_FLOAT32 : dtype == STREAM_COMPLEX128 ? STREAM_FLOAT64 : dtype;
}

/* At most CHUNK numbers, none of them complex. */
static void convert_chunk(void *to, stream_dtype to_dtype, const void *from, stream_dtype from_dtype, size_t num) {
    wide chunk;
    if (is_real(from_dtype)) {
        read_reals(chunk.reals, from, from_dtype, num);
        write_reals(to, to_dtype, chunk.reals, num);
    } else if (from_dtype == STREAM_UINT64 && is_real(to_dtype)) {
        memcpy(chunk.naturals, from, num * sizeof *chunk.naturals);
        write_naturals(to, to_dtype, chunk.naturals, num);
    } else {
        read_integers(chunk.integers, from, from_dtype, num);
        write_integers(to, to_dtype, chunk.integers, num);
    }
}

/* At most CHUNK numbers. */
static void convert_to_complex(void *to, stream_dtype to_dtype, const void *from, stream_dtype from_dtype, size_t num) {
    double components[CHUNK];
    size_t num_bytes = sc_dtype_bytes(component(to_dtype));
    convert_chunk(components, component(to_dtype), from, from_dtype, num);
    memset(to, 0, 2 * num * num_bytes);
    for (size_t i = 0; i < num; ++i)
        memcpy((char *)to + 2 * i * num_bytes, (const char *)components + i * num_bytes, num_bytes);
}

void sc_convert(void *to, stream_dtype to_dtype, const void *from, stream_dtype from_dtype, size_t num) {
    if (is_complex(from_dtype)) {
        sc_convert(to, component(to_dtype), from, component(from_dtype), 2 * num);
        return;
    }
    if (from_dtype == STREAM_FLOAT64 && to_dtype == STREAM_FLOAT32) {
        doubles_to_floats(to, from, num);
        return;
    }
    size_t from_bytes = sc_dtype_bytes(from_dtype), to_bytes = sc_dtype_bytes(to_dtype);
    for (size_t i = 0; i < num; i += CHUNK) {
        size_t num_here = num - i < CHUNK ? num - i : CHUNK;
        void *to_here = (char *)to + i * to_bytes;
        const void *from_here = (const char *)from + i * from_bytes;
        if (is_complex(to_dtype))
            convert_to_complex(to_here, to_dtype, from_here, from_dtype, num_here);
        else
            convert_chunk(to_here, to_dtype, from_here, from_dtype, num_here);
    }
}
