#include "half.h"

#include <string.h>

#define INFINITE 0x7c00u
#define QUIET 0x0200u
#define DOUBLE_MANTISSA_BITS 52
#define HALF_MANTISSA_BITS 10
#define DROPPED_BITS (DOUBLE_MANTISSA_BITS - HALF_MANTISSA_BITS)
#define BIAS_DIFFERENCE (1023 - 15)
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

uint16_t sc_half_from_double(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 48 & 0x8000u);
    uint64_t magnitude = bits & ~((uint64_t)1 << 63);
    if (magnitude > DOUBLE_BITS(1024))
        return (uint16_t)(sign | INFINITE | QUIET | (magnitude >> DROPPED_BITS & 0x3ffu));
    if (magnitude >= DOUBLE_BITS(16))
        return (uint16_t)(sign | INFINITE);
    if (magnitude < DOUBLE_BITS(-14))
        return (uint16_t)(sign | subnormal(magnitude));
    uint64_t rebiased = magnitude - ((uint64_t)BIAS_DIFFERENCE << DOUBLE_MANTISSA_BITS);
    /* Rounding up carries into the exponent, and from 65520 on into infinity. */
    return (uint16_t)(sign | shifted_to_nearest_even(rebiased, DROPPED_BITS));
}

double sc_half_to_double(uint16_t half) {
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
