#include "reader.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ADDRESSES = 16, MAX_PARAMETERS = 65535 };

void sc_read_problem(sc_reader *reader, const char *format, ...) {
    if (reader->failed)
        return;
    char text[SC_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    reader->failed = sc_fail(reader->error, reader->problem_code, "'%.200s' %s", reader->key, text);
}

void sc_read_no_memory(sc_reader *reader) {
    if (!reader->failed)
        reader->failed = sc_no_memory(reader->error);
}

void *sc_read_allocate(sc_reader *reader, size_t num, size_t element_bytes) {
    if (num == 0 || reader->failed)
        return NULL;
    void *memory = calloc(num, element_bytes);
    if (memory == NULL)
        sc_read_no_memory(reader);
    return memory;
}

static bool is_text(sc_slice slice, const char *text) {
    return slice.num_bytes == strlen(text) && memcmp(slice.bytes, text, slice.num_bytes) == 0;
}

void sc_read_keys(sc_reader *reader, const sc_json_value *object, const char *const known[]) {
    if (!sc_read_entries(reader, object, SC_JSON_OBJECT, 0, SIZE_MAX))
        return;
    SC_JSON_EACH(entry, reader->json, object) {
        int i = 0;
        while (known[i] != NULL && !is_text(entry->name, known[i]))
            ++i;
        if (known[i] == NULL) {
            reader->key = (const char *)entry->name.bytes;
            sc_read_problem(reader, "is unknown");
        }
    }
}

const sc_json_value *sc_read_default(sc_reader *reader, const sc_json_value *object, const char *key) {
    if (reader->failed)
        return NULL;
    reader->key = key;
    return sc_json_member(reader->json, object, key);
}

const sc_json_value *sc_read_member(sc_reader *reader, const sc_json_value *object, const char *key) {
    const sc_json_value *value = sc_read_default(reader, object, key);
    if (value == NULL)
        sc_read_problem(reader, "is missing");
    return value;
}

const sc_json_value *sc_read_optional(sc_reader *reader, const sc_json_value *object, const char *key) {
    const sc_json_value *value = sc_read_default(reader, object, key);
    return value != NULL && value->kind == SC_JSON_NULL ? NULL : value;
}

static bool is_there(const sc_reader *reader, const sc_json_value *value) {
    return !reader->failed && value != NULL;
}

int64_t sc_read_whole(sc_reader *reader, const sc_json_value *value, int64_t low, int64_t high) {
    if (!is_there(reader, value))
        return 0;
    if (value->kind != SC_JSON_NUMBER || !value->is_whole)
        sc_read_problem(reader, "must be a whole number");
    else if (value->whole < low || value->whole > high)
        sc_read_problem(reader, "must be from %" PRId64 " to %" PRId64 ", but is %" PRId64, low, high, value->whole);
    return value->whole;
}

double sc_read_real(sc_reader *reader, const sc_json_value *value) {
    if (!is_there(reader, value))
        return 0;
    if (value->kind != SC_JSON_NUMBER)
        sc_read_problem(reader, "must be a finite number");
    return value->number;
}

bool sc_read_flag(sc_reader *reader, const sc_json_value *value) {
    if (!is_there(reader, value))
        return false;
    if (value->kind != SC_JSON_BOOLEAN)
        sc_read_problem(reader, "must be true or false");
    return value->boolean;
}

int sc_read_choice(sc_reader *reader, const sc_json_value *value, const char *const names[], int num) {
    if (!is_there(reader, value))
        return 0;
    char all[SC_ERROR_BYTES / 2] = "";
    size_t length = 0;
    for (int i = 0; i < num; ++i) {
        if (value->kind == SC_JSON_TEXT && is_text(value->text, names[i]))
            return i;
        if (length < sizeof all)
            length += (size_t)snprintf(all + length, sizeof all - length, "%s\"%s\"", i > 0 ? ", " : "", names[i]);
    }
    sc_read_problem(reader, "must be one of %s", all);
    return 0;
}

bool sc_read_entries(sc_reader *reader, const sc_json_value *value, sc_json_kind kind, size_t low, size_t high) {
    if (!is_there(reader, value))
        return false;
    if (value->kind != kind)
        sc_read_problem(reader, "must be %s", kind == SC_JSON_LIST ? "a list" : "an object");
    else if (value->num < low || value->num > high)
        sc_read_problem(reader, "must have a length from %zu to %zu, not %zu", low, high, value->num);
    return !reader->failed;
}

static char *copy_text(sc_reader *reader, sc_slice slice, size_t low, size_t high) {
    if (strlen((const char *)slice.bytes) != slice.num_bytes)
        sc_read_problem(reader, "has a zero character");
    else if (slice.num_bytes < low || slice.num_bytes > high)
        sc_read_problem(reader, "must have a length from %zu to %zu, not %zu", low, high, slice.num_bytes);
    if (reader->failed)
        return NULL;
    char *text = sc_copy_slice(slice);
    if (text == NULL)
        sc_read_no_memory(reader);
    return text;
}

char *sc_read_text(sc_reader *reader, const sc_json_value *value, size_t low, size_t high) {
    if (!is_there(reader, value))
        return NULL;
    if (value->kind == SC_JSON_TEXT)
        return copy_text(reader, value->text, low, high);
    sc_read_problem(reader, "must be a text");
    return NULL;
}

void sc_read_addresses(sc_reader *reader, const sc_json_value *value, sc_addresses *addresses) {
    if (!sc_read_entries(reader, value, SC_JSON_LIST, 1, MAX_ADDRESSES))
        return;
    addresses->addresses = sc_read_allocate(reader, value->num, sizeof *addresses->addresses);
    if (addresses->addresses == NULL)
        return;
    SC_JSON_EACH(entry, reader->json, value)
        addresses->addresses[addresses->num++] = sc_read_text(reader, entry, 0, SC_MAX_TEXT_BYTES);
}

void sc_read_parameters(sc_reader *reader, const sc_json_value *value, sc_parameters *parameters) {
    if (!sc_read_entries(reader, value, SC_JSON_OBJECT, 0, MAX_PARAMETERS))
        return;
    parameters->names = sc_read_allocate(reader, value->num, sizeof *parameters->names);
    parameters->values = sc_read_allocate(reader, value->num, sizeof *parameters->values);
    if (reader->failed)
        return;
    SC_JSON_EACH(entry, reader->json, value) {
        parameters->values[parameters->num] = sc_read_real(reader, entry);
        parameters->names[parameters->num++] =
            reader->failed ? NULL : copy_text(reader, entry->name, 0, SC_MAX_TEXT_BYTES);
    }
}
