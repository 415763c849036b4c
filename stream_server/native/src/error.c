#define _POSIX_C_SOURCE 200809L
#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int sc_fail(sc_error *error, int code, const char *format, ...) {
    /* The arguments may lie in error->text, as when a sentence is put around another one. */
    char text[SC_ERROR_BYTES] = "";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (error != NULL) {
        error->code = code;
        memcpy(error->text, text, sizeof text);
    }
    return code;
}

int sc_no_memory(sc_error *error) {
    return sc_fail(error, STREAM_ERROR_MEMORY, "no memory");
}

const char *sc_reason(int number, char text[SC_REASON_BYTES]) {
    if (strerror_r(number, text, SC_REASON_BYTES) != 0)
        snprintf(text, SC_REASON_BYTES, "error %d", number);
    return text;
}
