#define _POSIX_C_SOURCE 200809L

#include "connection_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "json.h"

#define MAX_BYTES ((size_t)1024 * 1024)

enum { KEY_CHARACTERS = 40, MAX_PARAMETERS = 65535 };

/* The first problem is noted and stays; after it nothing more is read. */
typedef struct {
    const sc_json *json;
    const char *path;
    sc_error *error;
    int failed;
} reader;

static void problem(reader *it, const char *key, const char *what) {
    if (!it->failed)
        it->failed = sc_fail(it->error, STREAM_ERROR_CONNECTION_FILE,
                             "%s is not a connection file of this version: '%s' %s", it->path, key, what);
}

static void check_keys(reader *it, const sc_json_value *object, const char *const known[]) {
    SC_JSON_EACH(entry, it->json, object) {
        const char *name = (const char *)entry->name.bytes;
        int i = 0;
        while (known[i] != NULL && strcmp(known[i], name) != 0)
            ++i;
        if (known[i] == NULL)
            problem(it, name, "is unknown");
    }
}

/* NULL: it is absent or, if it has a default, null. */
static const sc_json_value *member(reader *it, const sc_json_value *object, const char *key, bool has_default) {
    const sc_json_value *value = it->failed ? NULL : sc_json_member(it->json, object, key);
    if (value == NULL && !has_default)
        problem(it, key, "is missing");
    return value != NULL && has_default && value->kind == SC_JSON_NULL ? NULL : value;
}

static char *text_of(reader *it, const sc_json_value *value, const char *key) {
    if (it->failed)
        return NULL;
    bool is_plain = value->kind == SC_JSON_TEXT && value->text.num_bytes <= SC_MAX_TEXT_BYTES &&
                    strlen((const char *)value->text.bytes) == value->text.num_bytes;
    if (!is_plain) {
        problem(it, key, "must be a text of at most 65535 bytes without a zero character");
        return NULL;
    }
    char *text = sc_copy_slice(value->text);
    if (text == NULL)
        it->failed = sc_no_memory(it->error);
    return text;
}

static int64_t whole_of(reader *it, const sc_json_value *value, const char *key, int64_t high) {
    if (it->failed)
        return 0;
    if (value->kind == SC_JSON_NUMBER && value->is_whole && value->whole >= 0 && value->whole <= high)
        return value->whole;
    problem(it, key, high == UINT32_MAX ? "must be a whole number below 2^32" : "must be a whole number below 2^63");
    return 0;
}

static void read_control(reader *it, const sc_json_value *top, sc_addresses *control) {
    const sc_json_value *list = member(it, top, "control", false);
    if (it->failed)
        return;
    if (list->kind != SC_JSON_LIST || list->num == 0) {
        problem(it, "control", "must be a list of addresses");
        return;
    }
    control->addresses = calloc(list->num, sizeof *control->addresses);
    if (control->addresses == NULL) {
        it->failed = sc_no_memory(it->error);
        return;
    }
    SC_JSON_EACH(entry, it->json, list)
        control->addresses[control->num++] = text_of(it, entry, "control");
}

static bool allocate_parameters(reader *it, size_t num, sc_parameters *parameters) {
    parameters->names = calloc(num + 1, sizeof *parameters->names);
    parameters->values = calloc(num + 1, sizeof *parameters->values);
    if (parameters->names != NULL && parameters->values != NULL)
        return true;
    it->failed = sc_no_memory(it->error);
    return false;
}

static void read_parameters(reader *it, const sc_json_value *top, sc_connection_file *file) {
    const sc_json_value *object = member(it, top, "parameters", true);
    if (object == NULL)
        return;
    if (object->kind != SC_JSON_OBJECT || object->num > MAX_PARAMETERS) {
        problem(it, "parameters", "must be an object of at most 65535 numbers, or null");
        return;
    }
    file->has_parameters = true;
    sc_parameters *parameters = &file->parameters;
    if (!allocate_parameters(it, object->num, parameters))
        return;
    SC_JSON_EACH(entry, it->json, object) {
        if (entry->kind != SC_JSON_NUMBER)
            problem(it, "parameters", "must be an object of numbers, or null");
        sc_json_value name = {.kind = SC_JSON_TEXT, .text = entry->name};
        parameters->names[parameters->num] = text_of(it, &name, "parameters");
        parameters->values[parameters->num++] = entry->number;
    }
}

static void read_key(reader *it, const sc_json_value *security, const char *key, char to[KEY_CHARACTERS + 1]) {
    const sc_json_value *value = member(it, security, key, false);
    if (it->failed)
        return;
    if (value->kind != SC_JSON_TEXT || value->text.num_bytes != KEY_CHARACTERS ||
        strlen((const char *)value->text.bytes) != KEY_CHARACTERS) {
        problem(it, key, "must be a key of 40 characters");
        return;
    }
    memcpy(to, value->text.bytes, KEY_CHARACTERS + 1);
}

static void read_security(reader *it, const sc_json_value *top, sc_connection_file *file) {
    static const char *const known[] = {"server_public_key", "client_public_key", "client_secret_key", NULL};
    const sc_json_value *security = member(it, top, "security", true);
    if (security == NULL)
        return;
    if (security->kind != SC_JSON_OBJECT) {
        problem(it, "security", "must be an object of three keys, or null");
        return;
    }
    file->is_encrypted = true;
    check_keys(it, security, known);
    read_key(it, security, "server_public_key", file->server_public_key);
    read_key(it, security, "client_public_key", file->client_public_key);
    read_key(it, security, "client_secret_key", file->client_secret_key);
}

static void read_all(reader *it, sc_connection_file *file) {
    static const char *const known[] = {"study",   "epoch",      "host",     "control", "simulation",
                                        "attempt", "parameters", "security", NULL};
    const sc_json_value *top = &it->json->values[0];
    if (top->kind != SC_JSON_OBJECT) {
        it->failed =
            sc_fail(it->error, STREAM_ERROR_CONNECTION_FILE, "%s is not a connection file: it is no object", it->path);
        return;
    }
    check_keys(it, top, known);
    file->study = text_of(it, member(it, top, "study", false), "study");
    file->epoch = (uint32_t)whole_of(it, member(it, top, "epoch", false), "epoch", UINT32_MAX);
    file->host = text_of(it, member(it, top, "host", false), "host");
    read_control(it, top, &file->control);
    const sc_json_value *simulation = member(it, top, "simulation", true);
    file->simulation = simulation == NULL ? -1 : whole_of(it, simulation, "simulation", INT64_MAX);
    if (!it->failed && sc_json_member(it->json, top, "attempt") != NULL)
        file->attempt = (uint32_t)whole_of(it, sc_json_member(it->json, top, "attempt"), "attempt", UINT32_MAX);
    read_parameters(it, top, file);
    read_security(it, top, file);
}

int sc_connection_file_parse(const char *text, size_t num_bytes, const char *path, sc_connection_file *file,
                             sc_error *error) {
    memset(file, 0, sizeof *file);
    sc_json json;
    int status = sc_json_parse(text, num_bytes, &json, error);
    if (status == STREAM_ERROR_CONNECTION_FILE)
        return sc_fail(error, status, "%s is not a connection file: %s", path, error->text);
    if (status != STREAM_OK)
        return status;
    reader it = {&json, path, error, STREAM_OK};
    read_all(&it, file);
    sc_json_free(&json);
    if (it.failed)
        sc_connection_file_free(file);
    return it.failed;
}

static bool read_file(const char *path, char *to, size_t capacity, size_t *num_bytes) {
    int descriptor;
    do
        descriptor = open(path, O_RDONLY | O_CLOEXEC);
    while (descriptor < 0 && errno == EINTR);
    if (descriptor < 0)
        return false;
    ssize_t num = 1;
    *num_bytes = 0;
    while (num != 0 && *num_bytes < capacity) {
        num = read(descriptor, to + *num_bytes, capacity - *num_bytes);
        if (num < 0 && errno != EINTR)
            break;
        *num_bytes += num > 0 ? (size_t)num : 0;
    }
    int read_errno = errno;
    close(descriptor);
    errno = read_errno;
    return num >= 0 || *num_bytes == capacity;
}

int sc_connection_file_read(const char *path, sc_connection_file *file, sc_error *error) {
    size_t num_bytes;
    char reason[SC_REASON_BYTES];
    char *text = malloc(MAX_BYTES + 1);
    if (text == NULL)
        return sc_no_memory(error);
    int status;
    if (!read_file(path, text, MAX_BYTES + 1, &num_bytes))
        status = sc_fail(error, STREAM_ERROR_CONNECTION_FILE, "cannot read the connection file %s: %s", path,
                         sc_reason(errno, reason));
    else if (num_bytes > MAX_BYTES)
        status = sc_fail(error, STREAM_ERROR_CONNECTION_FILE, "%s is not a connection file: it has more than 1 MiB",
                         path);
    else
        status = sc_connection_file_parse(text, num_bytes, path, file, error);
    free(text);
    return status;
}

void sc_connection_file_free(sc_connection_file *file) {
    free(file->study);
    free(file->host);
    sc_addresses_free(&file->control);
    sc_parameters_free(&file->parameters);
    memset(file, 0, sizeof *file);
}
