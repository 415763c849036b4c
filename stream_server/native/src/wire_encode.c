#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "text.h"
#include "writer.h"

enum { LAST = 1, CHECKED = 2, STATIC = 4, IN_SEGMENT = 8, DATA_UNUSED = 0, MAX_NAMES = 65535 };

sc_message sc_encode_hello(const sc_hello *hello) {
    sc_writer writer = sc_begin_message("Hello");
    sc_write_text(&writer, "study", hello->study);
    if (hello->simulation >= 0)
        sc_write_whole(&writer, "simulation", hello->simulation);
    else
        sc_write_null(&writer, "simulation");
    sc_write_whole(&writer, "attempt", hello->attempt);
    sc_write_whole(&writer, "rank", hello->rank);
    sc_write_whole(&writer, "num_ranks", hello->num_ranks);
    if (hello->parameters != NULL) {
        sc_write_begin(&writer, "parameters", '{');
        for (int i = 0; i < hello->parameters->num; ++i)
            sc_write_real(&writer, hello->parameters->names[i], hello->parameters->values[i]);
        sc_write_end(&writer, '}');
    } else {
        sc_write_null(&writer, "parameters");
    }
    return sc_end_message(&writer);
}

static void write_block(sc_writer *writer, const sc_block *block) {
    sc_write_begin(writer, NULL, '{');
    sc_write_text(writer, "field", block->field);
    sc_write_text(writer, "dtype", sc_dtype_code(block->dtype));
    sc_write_extents(writer, "shape", block->ndim, block->shape);
    sc_write_extents(writer, "offset", block->ndim, block->offset);
    sc_write_extents(writer, "count", block->ndim, block->count);
    sc_write_end(writer, '}');
}

static void write_blocks(sc_writer *writer, const char *name, const sc_block *blocks, int num_blocks) {
    sc_write_begin(writer, name, '[');
    for (int i = 0; i < num_blocks; ++i)
        write_block(writer, &blocks[i]);
    sc_write_end(writer, ']');
}

static void write_segment(sc_writer *writer, const sc_segment *segment) {
    sc_write_begin(writer, "segment", '{');
    sc_write_whole(writer, "pid", segment->process);
    sc_write_whole(writer, "descriptor", segment->descriptor);
    sc_write_whole(writer, "bytes", (int64_t)segment->num_bytes);
    sc_write_text(writer, "token", segment->token);
    sc_write_end(writer, '}');
}

sc_message sc_encode_open(const sc_welcome *welcome, uint32_t rank, uint32_t num_ranks, const sc_block *blocks,
                          int num_blocks, const sc_block *static_blocks, int num_static_blocks,
                          const sc_segment *segment) {
    sc_writer writer = sc_begin_message("Open");
    sc_write_text(&writer, "study", welcome->study);
    sc_write_whole(&writer, "simulation", welcome->simulation);
    sc_write_whole(&writer, "attempt", welcome->attempt);
    sc_write_whole(&writer, "incarnation", welcome->incarnation);
    sc_write_whole(&writer, "rank", rank);
    sc_write_whole(&writer, "num_ranks", num_ranks);
    write_blocks(&writer, "blocks", blocks, num_blocks);
    write_blocks(&writer, "static_blocks", static_blocks, num_static_blocks);
    if (segment != NULL)
        write_segment(&writer, segment);
    return sc_end_message(&writer);
}

sc_message sc_encode_end(const sc_welcome *welcome, uint32_t incarnation, int64_t share, int64_t total) {
    sc_writer writer = sc_begin_message("End");
    sc_write_whole(&writer, "simulation", welcome->simulation);
    sc_write_whole(&writer, "attempt", welcome->attempt);
    sc_write_whole(&writer, "incarnation", incarnation);
    sc_write_whole(&writer, "share", share);
    sc_write_whole(&writer, "total", total);
    return sc_end_message(&writer);
}

sc_message sc_encode_ping(void) {
    sc_writer writer = sc_begin_message("Ping");
    return sc_end_message(&writer);
}

sc_message sc_encode_invalidate(const sc_welcome *welcome, const char *reason) {
    sc_writer writer = sc_begin_message("Invalidate");
    sc_write_text(&writer, "study", welcome->study);
    sc_write_whole(&writer, "simulation", welcome->simulation);
    sc_write_whole(&writer, "attempt", welcome->attempt);
    sc_write_prose(&writer, "reason", reason);
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
    at = put(at, SC_DATA_KIND, 2);
    at = put(at, (uint64_t)data->simulation, 8);
    at = put(at, data->attempt, 4);
    at = put(at, data->incarnation, 4);
    at = put(at, (uint64_t)data->sequence, 8);
    at = put(at, (uint64_t)data->index, 8);
    at = put(at, data->present, 8);
    at = put(at, (uint64_t)data->offset, 8);
    at = put(at, data->num_steps, 4);
    at = put(at, (uint64_t)data->field, 2);
    unsigned flags = (data->last ? LAST : 0) | (data->has_checksum ? CHECKED : 0) | (data->is_static ? STATIC : 0) |
                     (data->in_segment ? IN_SEGMENT : 0);
    at = put(at, flags, 1);
    at = put(at, DATA_UNUSED, 1);
    put(at, data->has_checksum ? data->checksum : 0, 4);
}

void sc_encode_place(uint64_t offset, uint8_t payload[SC_PLACE_BYTES]) {
    put(payload, offset, SC_PLACE_BYTES);
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
