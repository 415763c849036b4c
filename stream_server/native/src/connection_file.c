#define _POSIX_C_SOURCE 200809L

#include "connection_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "address.h"
#include "reader.h"

#define MAX_BYTES ((size_t)1024 * 1024)

enum { KEY_CHARACTERS = 40 };

static void read_key(sc_reader *reader, const sc_json_value *security, const char *key, char to[KEY_CHARACTERS + 1]) {
    char *text = sc_read_text(reader, sc_read_member(reader, security, key), KEY_CHARACTERS, KEY_CHARACTERS);
    if (text != NULL)
        memcpy(to, text, KEY_CHARACTERS + 1);
    free(text);
}

static void read_security(sc_reader *reader, const sc_json_value *security, sc_connection_file *file) {
    static const char *const keys[] = {"server_public_key", "client_public_key", "client_secret_key", NULL};
    if (security == NULL)
        return;
    sc_read_keys(reader, security, keys);
    read_key(reader, security, keys[0], file->server_public_key);
    read_key(reader, security, keys[1], file->client_public_key);
    read_key(reader, security, keys[2], file->client_secret_key);
    file->is_encrypted = true;
}

static void read_all(sc_reader *reader, const sc_json_value *top, sc_connection_file *file) {
    static const char *const keys[] = {"study",   "incarnation", "host",     "control", "simulation",
                                       "attempt", "parameters",  "security", NULL};
    sc_read_keys(reader, top, keys);
    file->study = sc_read_text(reader, sc_read_member(reader, top, "study"), 0, SC_MAX_TEXT_BYTES);
    file->incarnation = (uint32_t)sc_read_whole(reader, sc_read_member(reader, top, "incarnation"), 0, UINT32_MAX);
    file->host = sc_read_text(reader, sc_read_member(reader, top, "host"), 0, SC_MAX_TEXT_BYTES);
    sc_read_addresses(reader, sc_read_member(reader, top, "control"), &file->control);
    const sc_json_value *simulation = sc_read_optional(reader, top, "simulation");
    file->simulation = simulation == NULL ? -1 : sc_read_whole(reader, simulation, 0, INT64_MAX);
    file->attempt = (uint32_t)sc_read_whole(reader, sc_read_default(reader, top, "attempt"), 0, UINT32_MAX);
    const sc_json_value *parameters = sc_read_optional(reader, top, "parameters");
    file->has_parameters = parameters != NULL;
    sc_read_parameters(reader, parameters, &file->parameters);
    read_security(reader, sc_read_optional(reader, top, "security"), file);
}

int sc_connection_file_parse(const char *text, size_t num_bytes, const char *path, sc_connection_file *file,
                             sc_error *error) {
    memset(file, 0, sizeof *file);
    sc_json json;
    int status = sc_json_parse(text, num_bytes, &json, STREAM_ERROR_CONNECTION_FILE, error);
    if (status == STREAM_ERROR_CONNECTION_FILE)
        return sc_fail(error, status, "%s is not a connection file: %s", path, error->text);
    if (status != STREAM_OK)
        return status;
    sc_reader reader = {&json, error, STREAM_ERROR_CONNECTION_FILE, "the file", STREAM_OK};
    read_all(&reader, &json.values[0], file);
    sc_json_free(&json);
    if (reader.failed)
        sc_connection_file_free(file);
    if (reader.failed == STREAM_ERROR_CONNECTION_FILE)
        sc_fail(error, reader.failed, "%s is not a connection file of this version: %s", path, error->text);
    return reader.failed;
}

static bool read_file(const char *path, char *to, size_t capacity, size_t *num_bytes, struct stat *status) {
    int descriptor = sc_open_ordinary(path);
    if (descriptor < 0)
        return false;
    ssize_t num = fstat(descriptor, status) == 0 ? 1 : -1;
    *num_bytes = 0;
    while (num > 0 && *num_bytes < capacity) {
        do
            num = read(descriptor, to + *num_bytes, capacity - *num_bytes);
        while (num < 0 && errno == EINTR);
        *num_bytes += num > 0 ? (size_t)num : 0;
    }
    int read_errno = errno;
    close(descriptor);
    errno = read_errno;
    return num >= 0 || *num_bytes == capacity;
}

/* See that nobody else can have written where we are sent to, or read the key. */
static int require_trusted(const struct stat *read_status, const char *path, sc_connection_file *file,
                           sc_error *error) {
    int status = STREAM_OK;
    unsigned forbidden = file->is_encrypted ? S_IRWXG | S_IRWXO : S_IWGRP | S_IWOTH;
    if (!sc_is_ours(read_status))
        status = sc_fail(error, STREAM_ERROR_CONNECTION_FILE,
                         "%s belongs to user %lu: a connection file must be your own", path,
                         (unsigned long)read_status->st_uid);
    else if ((read_status->st_mode & forbidden) != 0)
        status = sc_fail(error, STREAM_ERROR_CONNECTION_FILE,
                         "%s is open to others (mode %04o): a connection file must be yours alone, as chmod 600 makes "
                         "it",
                         path, (unsigned)(read_status->st_mode & 07777));
    if (status != STREAM_OK)
        sc_connection_file_free(file);
    return status;
}

int sc_connection_file_read(const char *path, sc_connection_file *file, sc_error *error) {
    size_t num_bytes;
    struct stat read_status;
    char reason[SC_REASON_BYTES];
    char *text = malloc(MAX_BYTES + 1);
    if (text == NULL)
        return sc_no_memory(error);
    int status;
    if (!read_file(path, text, MAX_BYTES + 1, &num_bytes, &read_status))
        status = sc_fail(error, STREAM_ERROR_CONNECTION_FILE, "cannot read the connection file %s: %s", path,
                         errno == EINVAL ? "It is no ordinary file" : sc_reason(errno, reason));
    else if (num_bytes > MAX_BYTES)
        status = sc_fail(error, STREAM_ERROR_CONNECTION_FILE, "%s is not a connection file: it has more than 1 MiB",
                         path);
    else
        status = sc_connection_file_parse(text, num_bytes, path, file, error);
    free(text);
    if (status == STREAM_OK)
        status = require_trusted(&read_status, path, file, error);
    return status;
}

void sc_connection_file_free(sc_connection_file *file) {
    free(file->study);
    free(file->host);
    sc_addresses_free(&file->control);
    sc_parameters_free(&file->parameters);
    memset(file, 0, sizeof *file);
}
