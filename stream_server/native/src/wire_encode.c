#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "text.h"
#include "writer.h"

enum { LAST = 1, CHECKED = 2, DATA_UNUSED = 0, MAX_NAMES = 65535 };

static void write_parameters(sc_writer *writer, const sc_parameters *parameters) {
    sc_write_u16(writer, (uint32_t)parameters->num);
    for (int i = 0; i < parameters->num; ++i) {
        sc_write_text(writer, parameters->names[i]);
        sc_write_real(writer, parameters->values[i]);
    }
}

sc_message sc_encode_hello(const sc_hello *hello) {
    sc_writer writer = sc_begin_message(SC_HELLO);
    sc_write_text(&writer, hello->study);
    sc_write_u8(&writer, hello->simulation >= 0);
    if (hello->simulation >= 0)
        sc_write_u64(&writer, (uint64_t)hello->simulation);
    sc_write_u32(&writer, hello->attempt);
    sc_write_u32(&writer, hello->rank);
    sc_write_u32(&writer, hello->num_ranks);
    sc_write_u8(&writer, hello->parameters != NULL);
    if (hello->parameters != NULL)
        write_parameters(&writer, hello->parameters);
    return sc_end_message(&writer);
}

static void write_block(sc_writer *writer, const sc_block *block) {
    sc_write_text(writer, block->field);
    sc_write_u8(writer, block->dtype);
    sc_write_extents(writer, block->ndim, block->shape);
    sc_write_extents(writer, block->ndim, block->offset);
    sc_write_extents(writer, block->ndim, block->count);
}

sc_message sc_encode_open(const sc_welcome *welcome, uint32_t rank, uint32_t num_ranks, const sc_block *blocks,
                          int num_blocks) {
    sc_writer writer = sc_begin_message(SC_OPEN);
    sc_write_text(&writer, welcome->study);
    sc_write_u64(&writer, (uint64_t)welcome->simulation);
    sc_write_u32(&writer, welcome->attempt);
    sc_write_u32(&writer, welcome->epoch);
    sc_write_u32(&writer, rank);
    sc_write_u32(&writer, num_ranks);
    sc_write_u16(&writer, (uint32_t)num_blocks);
    for (int i = 0; i < num_blocks; ++i)
        write_block(&writer, &blocks[i]);
    return sc_end_message(&writer);
}

sc_message sc_encode_end(const sc_welcome *welcome, uint32_t epoch, int64_t share, int64_t total) {
    sc_writer writer = sc_begin_message(SC_END);
    sc_write_u64(&writer, (uint64_t)welcome->simulation);
    sc_write_u32(&writer, welcome->attempt);
    sc_write_u32(&writer, epoch);
    sc_write_u64(&writer, (uint64_t)share);
    sc_write_u64(&writer, (uint64_t)total);
    return sc_end_message(&writer);
}

sc_message sc_encode_ping(void) {
    sc_writer writer = sc_begin_message(SC_PING);
    return sc_end_message(&writer);
}

sc_message sc_encode_invalidate(const sc_welcome *welcome, const char *reason) {
    sc_writer writer = sc_begin_message(SC_INVALIDATE);
    sc_write_text(&writer, welcome->study);
    sc_write_u64(&writer, (uint64_t)welcome->simulation);
    sc_write_u32(&writer, welcome->attempt);
    sc_write_prose(&writer, reason);
    return sc_end_message(&writer);
}

static uint8_t *put(uint8_t *at, uint64_t value, int num_bytes) {
    for (int i = 0; i < num_bytes; ++i)
        *at++ = (uint8_t)(value >> (8 * i));
    return at;
}

void sc_encode_data(const sc_data *data, uint8_t header[SC_DATA_BYTES]) {
    memcpy(header, "STRM", 4);
    uint8_t *at = put(header + 4, SC_PROTOCOL_VERSION, 2);
    at = put(at, SC_DATA, 2);
    at = put(at, (uint64_t)data->simulation, 8);
    at = put(at, data->attempt, 4);
    at = put(at, data->epoch, 4);
    at = put(at, (uint64_t)data->sequence, 8);
    at = put(at, (uint64_t)data->index, 8);
    at = put(at, data->present, 8);
    at = put(at, (uint64_t)data->offset, 8);
    at = put(at, data->num_steps, 4);
    at = put(at, (uint64_t)data->field, 2);
    at = put(at, (data->last ? LAST : 0) | (data->has_checksum ? CHECKED : 0), 1);
    at = put(at, DATA_UNUSED, 1);
    put(at, data->has_checksum ? data->checksum : 0, 4);
}

size_t sc_block_bytes(const sc_block *block) {
    size_t num_bytes = sc_dtype_bytes(block->dtype);
    for (int d = 0; d < block->ndim; ++d)
        num_bytes *= (size_t)block->count[d];
    return num_bytes;
}

int sc_check_parameters(const sc_parameters *parameters, sc_error *error) {
    if (parameters->num < 0 || parameters->num > MAX_NAMES)
        return sc_fail(error, STREAM_ERROR_ARGUMENT, "at most %d parameters can be sent, not %d", MAX_NAMES,
                       parameters->num);
    sc_slice *names = calloc((size_t)parameters->num + 1, sizeof *names);
    if (names == NULL)
        return sc_no_memory(error);
    int status = STREAM_OK;
    for (int i = 0; i < parameters->num && !status; ++i) {
        const char *name = parameters->names[i];
        names[i] = (sc_slice){(const uint8_t *)name, strlen(name)};
        if (names[i].num_bytes > SC_MAX_TEXT_BYTES || !sc_is_utf8(names[i].bytes, names[i].num_bytes))
            status = sc_fail(error, STREAM_ERROR_ARGUMENT, "the name of parameter %d is too long, or not UTF-8", i);
        else if (!isfinite(parameters->values[i]))
            status = sc_fail(error, STREAM_ERROR_ARGUMENT, "parameter '%s' must be finite, but is %g", name,
                             parameters->values[i]);
    }
    if (!status && sc_any_twice(names, (size_t)parameters->num))
        status = sc_fail(error, STREAM_ERROR_ARGUMENT, "a parameter occurs twice");
    free(names);
    return status;
}
