/* Each type is read into, and written from, one of three wide ones: int64_t (all integers; where they become integers
 * again, uint64_t by its bits), uint64_t and double. */

#include <fenv.h>
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "dtype.h"

enum { CHUNK = 512 };

#define INFINITE 0x7c00u
#define QUIET 0x0200u
#define DOUBLE_MANTISSA_BITS 52
#define HALF_MANTISSA_BITS 10
#define DROPPED_BITS (DOUBLE_MANTISSA_BITS - HALF_MANTISSA_BITS)
#define BIAS_DIFFERENCE (1023 - 15)
/* The least numbers that become infinite. */
#define LEAST_TOO_LARGE_HALF 65520.0
#define LEAST_TOO_LARGE_FLOAT 0x1.ffffffp127
#define DOUBLE_BITS(exponent) ((uint64_t)(1023 + (exponent)) << DOUBLE_MANTISSA_BITS)

static uint64_t shifted_to_nearest_even(uint64_t number, int num_bits) {
    uint64_t below_half = ((uint64_t)1 << (num_bits - 1)) - 1;
    return (number + below_half + (number >> num_bits & 1)) >> num_bits;
}

/* In units of 2^-24: so a subnormal half is written, and the smallest normal one, to which it may round up. */
static uint64_t subnormal(uint64_t magnitude) {
    int exponent = (int)(magnitude >> DOUBLE_MANTISSA_BITS) - 1023;
    if (exponent < -25)
        return 0;
    uint64_t one = (uint64_t)1 << DOUBLE_MANTISSA_BITS;
    uint64_t mantissa = (magnitude & (one - 1)) | one;
    return shifted_to_nearest_even(mantissa, DOUBLE_MANTISSA_BITS - 24 - exponent);
}

/* Half precision, which C has no type for, as its 16 bits. Rounds once, to the nearest, ties to even; too large becomes
 * infinite. */
static uint16_t half_from_double(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 48 & 0x8000u);
    uint64_t magnitude = bits & ~((uint64_t)1 << 63);
    if (magnitude > DOUBLE_BITS(1024))
        return (uint16_t)(sign | INFINITE | QUIET | (magnitude >> DROPPED_BITS & 0x3ffu));
    if (magnitude >= DOUBLE_BITS(16))
        return (uint16_t)(sign | INFINITE);
    if (magnitude < DOUBLE_BITS(-14)) {
        uint64_t rounded = subnormal(magnitude);
        /* As the processor does for the other types. */
        if (rounded == 0 && magnitude != 0)
            feraiseexcept(FE_UNDERFLOW);
        return (uint16_t)(sign | rounded);
    }
    uint64_t rebiased = magnitude - ((uint64_t)BIAS_DIFFERENCE << DOUBLE_MANTISSA_BITS);
    /* Rounding up carries into the exponent, and from 65520 on into infinity. */
    return (uint16_t)(sign | shifted_to_nearest_even(rebiased, DROPPED_BITS));
}

static double half_to_double(uint16_t half) {
    uint64_t exponent = half >> HALF_MANTISSA_BITS & 0x1fu, mantissa = half & 0x3ffu;
    double value;
    if (exponent == 0) {
        value = (double)mantissa * 0x1p-24;
    } else {
        uint64_t rebiased = exponent == 0x1f ? 0x7ff : exponent + BIAS_DIFFERENCE;
        uint64_t bits = rebiased << DOUBLE_MANTISSA_BITS | mantissa << DROPPED_BITS;
        memcpy(&value, &bits, sizeof value);
    }
    return half & 0x8000u ? -value : value;
}

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

#define EACH_THAT_FITS(from_type, to_type, expression, fits)                            \
    bool all_fit = true;                                                                \
    for (size_t i = 0; i < num; ++i) {                                                  \
        from_type value;                                                                \
        memcpy(&value, (const char *)from + i * sizeof value, sizeof value);            \
        to_type result = (to_type)(expression);                                         \
        memcpy((char *)to + i * sizeof result, &result, sizeof result);                 \
        all_fit &= (fits);                                                              \
    }                                                                                   \
    return all_fit

static bool is_below(double least_too_large, double value) {
    return !(fabs(value) >= least_too_large) || isinf(value);
}

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
    case STREAM_FLOAT16: EACH(uint16_t, double, half_to_double(value));
    case STREAM_FLOAT32: EACH(float, double, value);
    default: memcpy(to, from, num * sizeof *to);
    }
}

static bool write_integers(void *to, stream_dtype dtype, const int64_t *from, size_t num) {
    switch (dtype) {
    case STREAM_BOOL: { EACH_THAT_FITS(int64_t, uint8_t, value != 0, true); }
    case STREAM_INT8: { EACH_THAT_FITS(int64_t, int8_t, value, result == value); }
    case STREAM_INT16: { EACH_THAT_FITS(int64_t, int16_t, value, result == value); }
    case STREAM_INT32: { EACH_THAT_FITS(int64_t, int32_t, value, result == value); }
    case STREAM_UINT8: { EACH_THAT_FITS(int64_t, uint8_t, value, result == value); }
    case STREAM_UINT16: { EACH_THAT_FITS(int64_t, uint16_t, value, result == value); }
    case STREAM_UINT32: { EACH_THAT_FITS(int64_t, uint32_t, value, result == value); }
    case STREAM_FLOAT16: {
        EACH_THAT_FITS(int64_t, uint16_t, half_from_double((double)value),
                       is_below(LEAST_TOO_LARGE_HALF, (double)value));
    }
    case STREAM_FLOAT32: { EACH_THAT_FITS(int64_t, float, value, true); }
    case STREAM_FLOAT64: { EACH_THAT_FITS(int64_t, double, value, true); }
    default: memcpy(to, from, num * sizeof *from); return true;
    }
}

/* Of uint64_t alone, into floating numbers. */
static bool write_naturals(void *to, stream_dtype dtype, const uint64_t *from, size_t num) {
    switch (dtype) {
    case STREAM_FLOAT16: {
        EACH_THAT_FITS(uint64_t, uint16_t, half_from_double((double)value),
                       is_below(LEAST_TOO_LARGE_HALF, (double)value));
    }
    case STREAM_FLOAT32: { EACH_THAT_FITS(uint64_t, float, value, true); }
    default: { EACH_THAT_FITS(uint64_t, double, value, true); }
    }
}

static bool write_reals(void *to, stream_dtype dtype, const double *from, size_t num) {
    switch (dtype) {
    case STREAM_FLOAT16: {
        EACH_THAT_FITS(double, uint16_t, half_from_double(value), is_below(LEAST_TOO_LARGE_HALF, value));
    }
    case STREAM_FLOAT32: { EACH_THAT_FITS(double, float, value, is_below(LEAST_TOO_LARGE_FLOAT, value)); }
    default: memcpy(to, from, num * sizeof *from); return true;
    }
}

/* The conversion that most solvers need: they compute in double, and the study keeps float. */
static bool doubles_to_floats(void *to, const void *from, size_t num) {
    EACH_THAT_FITS(double, float, value, is_below(LEAST_TOO_LARGE_FLOAT, value));
}

/* Of the bits of a uint64_t, read as int64_t. */
static bool has_negative(const int64_t *from, size_t num) {
    bool found = false;
    for (size_t i = 0; i < num; ++i)
        found |= from[i] < 0;
    return found;
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
static bool convert_chunk(void *to, stream_dtype to_dtype, const void *from, stream_dtype from_dtype, size_t num) {
    wide chunk;
    if (is_real(from_dtype)) {
        read_reals(chunk.reals, from, from_dtype, num);
        return write_reals(to, to_dtype, chunk.reals, num);
    }
    if (from_dtype == STREAM_UINT64 && is_real(to_dtype)) {
        memcpy(chunk.naturals, from, num * sizeof *chunk.naturals);
        return write_naturals(to, to_dtype, chunk.naturals, num);
    }
    read_integers(chunk.integers, from, from_dtype, num);
    bool fits = from_dtype != STREAM_UINT64 || to_dtype == STREAM_UINT64 || !has_negative(chunk.integers, num);
    return write_integers(to, to_dtype, chunk.integers, num) && fits;
}

/* At most CHUNK numbers. */
static bool convert_to_complex(void *to, stream_dtype to_dtype, const void *from, stream_dtype from_dtype, size_t num) {
    double components[CHUNK];
    size_t num_bytes = sc_dtype_bytes(component(to_dtype));
    bool fits = convert_chunk(components, component(to_dtype), from, from_dtype, num);
    memset(to, 0, 2 * num * num_bytes);
    for (size_t i = 0; i < num; ++i)
        memcpy((char *)to + 2 * i * num_bytes, (const char *)components + i * num_bytes, num_bytes);
    return fits;
}

bool sc_convert(void *to, stream_dtype to_dtype, const void *from, stream_dtype from_dtype, size_t num) {
    if (is_complex(from_dtype))
        return sc_convert(to, component(to_dtype), from, component(from_dtype), 2 * num);
    if (from_dtype == STREAM_FLOAT64 && to_dtype == STREAM_FLOAT32)
        return doubles_to_floats(to, from, num);
    size_t from_bytes = sc_dtype_bytes(from_dtype), to_bytes = sc_dtype_bytes(to_dtype);
    bool fits = true;
    for (size_t i = 0; i < num; i += CHUNK) {
        size_t num_here = num - i < CHUNK ? num - i : CHUNK;
        void *to_here = (char *)to + i * to_bytes;
        const void *from_here = (const char *)from + i * from_bytes;
        fits &= is_complex(to_dtype) ? convert_to_complex(to_here, to_dtype, from_here, from_dtype, num_here)
                                     : convert_chunk(to_here, to_dtype, from_here, from_dtype, num_here);
    }
    return fits;
}

const char *sc_number_text(char text[SC_NUMBER_BYTES], stream_dtype dtype, const void *number) {
    double reals[2];
    int64_t integer;
    uint64_t natural;
    if (is_complex(dtype)) {
        read_reals(reals, number, component(dtype), 2);
        snprintf(text, SC_NUMBER_BYTES, "%.6g%+.6gj", reals[0], reals[1]);
    } else if (is_real(dtype)) {
        read_reals(reals, number, dtype, 1);
        snprintf(text, SC_NUMBER_BYTES, "%.6g", reals[0]);
    } else if (dtype == STREAM_UINT64) {
        memcpy(&natural, number, sizeof natural);
        snprintf(text, SC_NUMBER_BYTES, "%" PRIu64, natural);
    } else {
        read_integers(&integer, number, dtype, 1);
        snprintf(text, SC_NUMBER_BYTES, "%" PRId64, integer);
    }
    return text;
}
