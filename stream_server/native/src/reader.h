/* The bytes of a message that are still to be read.
 *
 * The first problem is noted and stays; after it all reading gives zeros. So a caller reads everything, and looks once
 * whether it `failed`; only loops have to look before each turn. */
#ifndef SC_READER_H
#define SC_READER_H

#include "error.h"
#include "text.h"

typedef struct {
    const uint8_t *bytes;
    size_t num_bytes;
    size_t position;
    sc_error *error;
    int failed; /* STREAM_OK, or the code of the error */
} sc_reader;

void sc_read_problem(sc_reader *reader, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sc_read_no_memory(sc_reader *reader);

uint32_t sc_read_u8(sc_reader *reader);
uint32_t sc_read_u16(sc_reader *reader);
uint32_t sc_read_u32(sc_reader *reader, uint32_t low);
int64_t sc_read_count(sc_reader *reader, int64_t low);
int64_t sc_read_label(sc_reader *reader);
bool sc_read_flag(sc_reader *reader);
double sc_read_real(sc_reader *reader);
int64_t sc_read_maybe_count(sc_reader *reader, int64_t low); /* -1: absent */

/* How many entries a list has that take so many bytes at least: no more than there are bytes for. */
int sc_read_length(sc_reader *reader, uint32_t limit, size_t least_bytes);

/* UTF-8 in the message itself, or as a copy of its own (NULL after a failure). */
sc_slice sc_read_slice(sc_reader *reader);
char *sc_read_text(sc_reader *reader);
sc_slice sc_read_blob(sc_reader *reader);

/* Refuses bytes that nobody asked for. */
void sc_read_end(sc_reader *reader);

#endif
