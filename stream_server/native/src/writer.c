#include "writer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

#define LONGEST_PROSE 4096

static void write_bytes(sc_writer *writer, const char *bytes, size_t num) {
    if (!writer->failed && num > writer->capacity - writer->num_bytes) {
        size_t capacity = 2 * writer->capacity + num + 256;
        char *text = realloc(writer->text, capacity);
        writer->failed = text == NULL;
        if (!writer->failed) {
            writer->text = text;
            writer->capacity = capacity;
        }
    }
    if (writer->failed || num == 0)
        return;
    memcpy(writer->text + writer->num_bytes, bytes, num);
    writer->num_bytes += num;
}

static void write_quoted(sc_writer *writer, const char *text) {
    write_bytes(writer, "\"", 1);
    for (const char *at = text; *at != '\0'; ++at) {
        unsigned char character = (unsigned char)*at;
        char escape[8] = "";
        if (character < 0x20)
            snprintf(escape, sizeof escape, "\\u%04x", character);
        else if (character == '"' || character == '\\')
            snprintf(escape, sizeof escape, "\\%c", character);
        write_bytes(writer, escape[0] == '\0' ? at : escape, escape[0] == '\0' ? 1 : strlen(escape));
    }
    write_bytes(writer, "\"", 1);
}

static void begin_value(sc_writer *writer, const char *key) {
    char last = writer->num_bytes == 0 ? '{' : writer->text[writer->num_bytes - 1];
    if (last != '{' && last != '[')
        write_bytes(writer, ",", 1);
    if (key == NULL)
        return;
    write_quoted(writer, key);
    write_bytes(writer, ":", 1);
}

sc_writer sc_begin_message(const char *name) {
    sc_writer writer = {NULL, 0, 0, false};
    write_bytes(&writer, "{", 1);
    sc_write_text(&writer, "message", name);
    sc_write_whole(&writer, "protocol", SC_PROTOCOL_VERSION);
    return writer;
}

sc_message sc_end_message(sc_writer *writer) {
    write_bytes(writer, "}", 1);
    sc_message message = {(uint8_t *)writer->text, writer->num_bytes};
    if (writer->failed)
        sc_message_free(&message);
    *writer = (sc_writer){NULL, 0, 0, false};
    return message;
}

void sc_message_free(sc_message *message) {
    free(message->bytes);
    *message = (sc_message){NULL, 0};
}

void sc_write_null(sc_writer *writer, const char *key) {
    begin_value(writer, key);
    write_bytes(writer, "null", 4);
}

void sc_write_whole(sc_writer *writer, const char *key, int64_t value) {
    char digits[24];
    begin_value(writer, key);
    write_bytes(writer, digits, (size_t)snprintf(digits, sizeof digits, "%" PRId64, value));
}

void sc_write_real(sc_writer *writer, const char *key, double value) {
    char digits[64], number[64];
    size_t num = 0;
    bool is_whole = true;
    snprintf(digits, sizeof digits, "%.17g", value);
    for (const char *at = digits; *at != '\0'; ++at) {
        bool is_known = strchr("+-0123456789e", *at) != NULL;
        is_whole = is_whole && is_known && *at != 'e';
        /* In the user's locale the decimal point may be another character, of one byte or more. */
        if (is_known || (num > 0 && number[num - 1] != '.'))
            number[num++] = is_known ? *at : '.';
    }
    begin_value(writer, key);
    write_bytes(writer, number, num);
    /* Without a point a reader may take it for a whole number, and lose the sign of -0. */
    if (is_whole)
        write_bytes(writer, ".0", 2);
}

void sc_write_text(sc_writer *writer, const char *key, const char *text) {
    if (strlen(text) > SC_MAX_TEXT_BYTES)
        writer->failed = true;
    begin_value(writer, key);
    write_quoted(writer, text);
}

void sc_write_prose(sc_writer *writer, const char *key, const char *text) {
    const uint8_t *from = (const uint8_t *)text;
    size_t num_left = strlen(text), num = 0;
    char prose[LONGEST_PROSE + 1];
    while (num_left > 0) {
        size_t length = sc_character_bytes(from, num_left);
        size_t num_taken = length > 0 ? length : 1;
        if (num + num_taken > LONGEST_PROSE)
            break;
        memcpy(prose + num, length > 0 ? (const char *)from : "?", num_taken);
        from += num_taken;
        num_left -= num_taken;
        num += num_taken;
    }
    prose[num] = '\0';
    sc_write_text(writer, key, prose);
}

void sc_write_extents(sc_writer *writer, const char *key, int ndim, const int64_t extents[]) {
    sc_write_begin(writer, key, '[');
    for (int d = 0; d < ndim; ++d)
        sc_write_whole(writer, NULL, extents[d]);
    sc_write_end(writer, ']');
}

void sc_write_begin(sc_writer *writer, const char *key, char bracket) {
    begin_value(writer, key);
    write_bytes(writer, &bracket, 1);
}

void sc_write_end(sc_writer *writer, char bracket) {
    write_bytes(writer, &bracket, 1);
}
