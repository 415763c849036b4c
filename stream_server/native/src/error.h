/* An error: a code and a sentence. */
#ifndef SC_ERROR_H
#define SC_ERROR_H

#include "stream_client.h"

#define SC_ERROR_BYTES 1024
#define SC_REASON_BYTES 128

typedef struct {
    int code;
    char text[SC_ERROR_BYTES];
} sc_error;

/* Note an error; returns its code, so that a function can end with `return sc_fail(...)`. */
int sc_fail(sc_error *error, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
int sc_no_memory(sc_error *error);

/* The meaning of an errno; like strerror, but for any thread. Gives `text`. */
const char *sc_reason(int number, char text[SC_REASON_BYTES]);

#endif
