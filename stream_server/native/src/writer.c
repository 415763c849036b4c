#include "writer.h"

#include <stdlib.h>
#include <string.h>

#include "text.h"

#define LONGEST_PROSE 4096

static bool reserve(sc_writer *writer, size_t num) {
    if (writer->failed)
        return false;
    if (num <= writer->capacity - writer->num_bytes)
        return true;
    size_t capacity = 2 * writer->capacity + num + 64;
    uint8_t *bytes = realloc(writer->bytes, capacity);
    if (bytes == NULL) {
        writer->failed = true;
        return false;
    }
    writer->bytes = bytes;
    writer->capacity = capacity;
    return true;
}

static void write_bytes(sc_writer *writer, const void *bytes, size_t num) {
    if (num == 0 || !reserve(writer, num))
        return;
    memcpy(writer->bytes + writer->num_bytes, bytes, num);
    writer->num_bytes += num;
}

static void write_unsigned(sc_writer *writer, uint64_t value, size_t num_bytes) {
    uint8_t bytes[8];
    for (size_t i = 0; i < num_bytes; ++i)
        bytes[i] = (uint8_t)(value >> (8 * i));
    write_bytes(writer, bytes, num_bytes);
}

sc_writer sc_begin_message(int kind) {
    sc_writer writer = {NULL, 0, 0, false};
    write_bytes(&writer, "STRM", 4);
    sc_write_u16(&writer, SC_PROTOCOL_VERSION);
    sc_write_u16(&writer, (uint32_t)kind);
    return writer;
}

sc_message sc_end_message(sc_writer *writer) {
    sc_message message = {writer->bytes, writer->num_bytes};
    if (writer->failed)
        sc_message_free(&message);
    *writer = (sc_writer){NULL, 0, 0, false};
    return message;
}

void sc_message_free(sc_message *message) {
    free(message->bytes);
    *message = (sc_message){NULL, 0};
}

void sc_write_u8(sc_writer *writer, uint32_t value) {
    write_unsigned(writer, value, 1);
}

void sc_write_u16(sc_writer *writer, uint32_t value) {
    write_unsigned(writer, value, 2);
}

void sc_write_u32(sc_writer *writer, uint32_t value) {
    write_unsigned(writer, value, 4);
}

void sc_write_u64(sc_writer *writer, uint64_t value) {
    write_unsigned(writer, value, 8);
}

void sc_write_real(sc_writer *writer, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    sc_write_u64(writer, bits);
}

void sc_write_text(sc_writer *writer, const char *text) {
    size_t num = strlen(text);
    if (num > SC_MAX_TEXT_BYTES) {
        writer->failed = true;
        return;
    }
    sc_write_u16(writer, (uint32_t)num);
    write_bytes(writer, text, num);
}

void sc_write_prose(sc_writer *writer, const char *text) {
    const uint8_t *from = (const uint8_t *)text;
    size_t num_left = strlen(text), num = 0;
    uint8_t prose[LONGEST_PROSE];
    while (num_left > 0) {
        size_t length = sc_character_bytes(from, num_left);
        size_t num_taken = length > 0 ? length : 1;
        if (num + num_taken > LONGEST_PROSE)
            break;
        memcpy(prose + num, length > 0 ? from : (const uint8_t *)"?", num_taken);
        from += num_taken;
        num_left -= num_taken;
        num += num_taken;
    }
    sc_write_u16(writer, (uint32_t)num);
    write_bytes(writer, prose, num);
}

void sc_write_extents(sc_writer *writer, int ndim, const int64_t extents[]) {
    sc_write_u8(writer, (uint32_t)ndim);
    for (int d = 0; d < ndim; ++d)
        sc_write_u64(writer, (uint64_t)extents[d]);
}
