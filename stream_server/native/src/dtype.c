#include "dtype.h"

/* In the order in which NumPy lets one kind become another. */
enum { NONE, BOOLEAN, UNSIGNED, SIGNED, REAL, COMPLEX };

static const struct {
    int kind;
    size_t num_bytes;
    const char *name;
} dtypes[SC_NUM_DTYPES] = {
    {NONE, 0, "none"},       {BOOLEAN, 1, "bool"},    {SIGNED, 1, "int8"},        {SIGNED, 2, "int16"},
    {SIGNED, 4, "int32"},    {SIGNED, 8, "int64"},    {UNSIGNED, 1, "uint8"},     {UNSIGNED, 2, "uint16"},
    {UNSIGNED, 4, "uint32"}, {UNSIGNED, 8, "uint64"}, {REAL, 2, "float16"},       {REAL, 4, "float32"},
    {REAL, 8, "float64"},    {COMPLEX, 8, "complex64"}, {COMPLEX, 16, "complex128"},
};

const char *const sc_dtype_codes[SC_NUM_DTYPES] = {
    "", "|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16",
};

bool sc_dtype_is_valid(int dtype) {
    return dtype >= 1 && dtype < SC_NUM_DTYPES;
}

size_t sc_dtype_bytes(stream_dtype dtype) {
    return sc_dtype_is_valid(dtype) ? dtypes[dtype].num_bytes : 0;
}

const char *sc_dtype_name(stream_dtype dtype) {
    return sc_dtype_is_valid(dtype) ? dtypes[dtype].name : dtypes[0].name;
}

const char *sc_dtype_code(stream_dtype dtype) {
    return sc_dtype_codes[sc_dtype_is_valid(dtype) ? dtype : 0];
}

bool sc_same_kind(stream_dtype from, stream_dtype to) {
    return sc_dtype_is_valid(from) && sc_dtype_is_valid(to) && dtypes[from].kind <= dtypes[to].kind;
}

/* Bytes of one floating number of a real or complex type. */
static size_t component_bytes(stream_dtype dtype) {
    return dtypes[dtype].kind == COMPLEX ? dtypes[dtype].num_bytes / 2 : dtypes[dtype].num_bytes;
}

bool sc_safe(stream_dtype from, stream_dtype to) {
    if (!sc_same_kind(from, to))
        return false;
    int from_kind = dtypes[from].kind, to_kind = dtypes[to].kind;
    size_t from_bytes = component_bytes(from), to_bytes = component_bytes(to);
    if (from_kind == BOOLEAN)
        return true;
    if (from_kind == to_kind || from_kind == REAL)
        return from_bytes <= to_bytes;
    /* NumPy calls int64 to float64 safe, though it is not exact. */
    return from_bytes < to_bytes || (to_kind >= REAL && to_bytes == 8);
}
