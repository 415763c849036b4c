/* The body of a Welcome, which is longer than all other messages of the server together. */
#ifndef SC_WELCOME_H
#define SC_WELCOME_H

#include "reader.h"
#include "wire.h"

/* `welcome` begins as zeros; sc_welcome_free frees it, after a failure, too. */
void sc_read_welcome(sc_reader *reader, sc_welcome *welcome);

#endif
