#include "reader.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void sc_read_problem(sc_reader *reader, const char *format, ...) {
    if (reader->failed)
        return;
    char text[SC_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    reader->failed = sc_fail(reader->error, STREAM_ERROR_REFUSED, "%s", text);
}

void sc_read_no_memory(sc_reader *reader) {
    if (!reader->failed)
        reader->failed = sc_no_memory(reader->error);
}

/* NULL: there are too few. */
static const uint8_t *take(sc_reader *reader, size_t num) {
    if (!reader->failed && num > reader->num_bytes - reader->position)
        sc_read_problem(reader, "the message ends after %zu bytes where at least %zu are due", reader->num_bytes,
                        reader->position + num);
    if (reader->failed)
        return NULL;
    const uint8_t *taken = reader->bytes + reader->position;
    reader->position += num;
    return taken;
}

static uint64_t read_unsigned(sc_reader *reader, size_t num_bytes) {
    const uint8_t *bytes = take(reader, num_bytes);
    uint64_t value = 0;
    for (size_t i = 0; bytes != NULL && i < num_bytes; ++i)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

uint32_t sc_read_u8(sc_reader *reader) {
    return (uint32_t)read_unsigned(reader, 1);
}

uint32_t sc_read_u16(sc_reader *reader) {
    return (uint32_t)read_unsigned(reader, 2);
}

uint32_t sc_read_u32(sc_reader *reader, uint32_t low) {
    uint32_t value = (uint32_t)read_unsigned(reader, 4);
    if (value < low)
        sc_read_problem(reader, "%" PRIu32 " is not between %" PRIu32 " and %" PRIu32, value, low, UINT32_MAX);
    return value;
}

int64_t sc_read_count(sc_reader *reader, int64_t low) {
    uint64_t value = read_unsigned(reader, 8);
    if (value > INT64_MAX || (int64_t)value < low)
        sc_read_problem(reader, "%" PRIu64 " is not between %" PRId64 " and %" PRId64, value, low, INT64_MAX);
    return (int64_t)value;
}

int64_t sc_read_label(sc_reader *reader) {
    return (int64_t)read_unsigned(reader, 8);
}

bool sc_read_flag(sc_reader *reader) {
    uint32_t value = sc_read_u8(reader);
    if (value > 1)
        sc_read_problem(reader, "a flag is 0 or 1, not %" PRIu32, value);
    return value == 1;
}

double sc_read_real(sc_reader *reader) {
    uint64_t bits = read_unsigned(reader, 8);
    double value;
    memcpy(&value, &bits, sizeof value);
    if (!isfinite(value))
        sc_read_problem(reader, "%g is not finite", value);
    return value;
}

int64_t sc_read_maybe_count(sc_reader *reader, int64_t low) {
    return sc_read_flag(reader) ? sc_read_count(reader, low) : -1;
}

int sc_read_length(sc_reader *reader, uint32_t limit, size_t least_bytes) {
    uint32_t num = sc_read_u16(reader);
    if (num > limit)
        sc_read_problem(reader, "%" PRIu32 " is not between 0 and %" PRIu32, num, limit);
    if (num > (reader->num_bytes - reader->position) / least_bytes)
        sc_read_problem(reader, "the message ends after %zu bytes where at least %zu are due", reader->num_bytes,
                        reader->position + num * least_bytes);
    return reader->failed ? 0 : (int)num;
}

static sc_slice read_slice(sc_reader *reader, size_t num_bytes) {
    const uint8_t *bytes = take(reader, num_bytes);
    return (sc_slice){bytes, bytes == NULL ? 0 : num_bytes};
}

sc_slice sc_read_slice(sc_reader *reader) {
    sc_slice slice = read_slice(reader, sc_read_u16(reader));
    if (!sc_is_utf8(slice.bytes, slice.num_bytes))
        sc_read_problem(reader, "a text is not UTF-8");
    return slice;
}

char *sc_read_text(sc_reader *reader) {
    sc_slice slice = sc_read_slice(reader);
    if (reader->failed)
        return NULL;
    char *text = sc_copy_slice(slice);
    if (text == NULL)
        sc_read_no_memory(reader);
    return text;
}

sc_slice sc_read_blob(sc_reader *reader) {
    return read_slice(reader, sc_read_u32(reader, 0));
}

void sc_read_end(sc_reader *reader) {
    if (reader->position != reader->num_bytes)
        sc_read_problem(reader, "%zu bytes too many at the end of the message", reader->num_bytes - reader->position);
}
