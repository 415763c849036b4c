/* The name that somebody probably meant. */
#ifndef SC_NEAREST_H
#define SC_NEAREST_H

#include "wire.h"

/* "the study has no field 'x', only 'y'; did you mean 'y'?", as STREAM_ERROR_ARGUMENT. */
int sc_unknown_field(const char *name, const sc_field *fields, int num_fields, sc_error *error);

#endif
