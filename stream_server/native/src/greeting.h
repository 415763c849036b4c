/* How a simulation introduces itself to a study. */
#ifndef SC_GREETING_H
#define SC_GREETING_H

#include "connection_file.h"

/* Whether rank, num_ranks and options can be meant; options may not be NULL. */
int sc_check_options(int rank, int num_ranks, const stream_options *options, sc_error *error);

/* Copy parameters; an empty one where `num` is 0. */
int sc_parameters_copy(sc_parameters *parameters, int num, const char *const names[], const double values[],
                       sc_error *error);

/* The Hello of this process. It owns its study and parameters: free with sc_greeting_free. */
typedef struct {
    sc_hello hello;
    char *study;
    sc_parameters parameters;
} sc_greeting;

int sc_greeting_begin(sc_greeting *greeting, const sc_connection_file *file, int rank, int num_ranks,
                      const stream_options *options, sc_error *error);
void sc_greeting_free(sc_greeting *greeting);

/* "simulation 4 rank 0" or "a simulation rank 0" */
void sc_greeting_who(const sc_greeting *greeting, char *text, size_t num_bytes);

#endif
