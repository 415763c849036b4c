/* Any bytes as a connection file. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "connection_file.h"

#define MUST(condition)   \
    do {                  \
        if (!(condition)) \
            abort();      \
    } while (0)

static void check_file(const sc_connection_file *it) {
    MUST(strlen(it->study) <= SC_MAX_TEXT_BYTES && strlen(it->host) <= SC_MAX_TEXT_BYTES && it->control.num >= 1);
    for (int i = 0; i < it->control.num; ++i)
        MUST(strlen(it->control.addresses[i]) <= SC_MAX_TEXT_BYTES);
    MUST(it->simulation >= -1 && (it->has_parameters || it->parameters.num == 0));
    for (int i = 0; i < it->parameters.num; ++i)
        MUST(strlen(it->parameters.names[i]) <= SC_MAX_TEXT_BYTES && isfinite(it->parameters.values[i]));
    size_t key_bytes = it->is_encrypted ? 40 : 0;
    MUST(strlen(it->server_public_key) == key_bytes && strlen(it->client_public_key) == key_bytes);
    MUST(strlen(it->client_secret_key) == key_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t num_bytes) {
    sc_connection_file file;
    sc_error error;
    int status = sc_connection_file_parse((const char *)bytes, num_bytes, "FILE", &file, &error);
    if (status != STREAM_OK) {
        MUST(status == STREAM_ERROR_CONNECTION_FILE && error.code == status);
        return 0;
    }
    check_file(&file);
    sc_connection_file_free(&file);
    return 0;
}
