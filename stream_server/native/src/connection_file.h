/* The connection file: where a study is, and how a simulation gets in. JSON, described in docs/reference/protocol.md. */
#ifndef SC_CONNECTION_FILE_H
#define SC_CONNECTION_FILE_H

#include "wire.h"

typedef struct {
    char *study;
    uint32_t incarnation;
    char *host;
    sc_addresses control;
    int64_t simulation; /* -1: the server chooses */
    uint32_t attempt;
    bool has_parameters;
    sc_parameters parameters;
    bool is_encrypted;
    char server_public_key[41]; /* Z85 text */
    char client_public_key[41];
    char client_secret_key[41];
} sc_connection_file;

/* Parse the text of a connection file. Keys that this version does not know are an error, as in the Python client.
 * STREAM_ERROR_CONNECTION_FILE: it is none; `path` is for the message. On an error there is nothing to free. */
int sc_connection_file_parse(const char *text, size_t num_bytes, const char *path, sc_connection_file *file,
                             sc_error *error);
/* The same, from the file at `path`. */
int sc_connection_file_read(const char *path, sc_connection_file *file, sc_error *error);
void sc_connection_file_free(sc_connection_file *file);

#endif
