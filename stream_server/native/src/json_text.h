/* Strings and numbers of JSON, in a text that ends with a zero and may be written to. */
#ifndef SC_JSON_TEXT_H
#define SC_JSON_TEXT_H

#include "json.h"

/* *at is behind the opening quote, and afterwards behind the closing one. The escapes are resolved in place. NULL, or
 * what is wrong. */
const char *sc_json_string(char **at, sc_slice *text);

/* The thread's locale must be "C". */
const char *sc_json_number(char **at, sc_json_value *value);

#endif
