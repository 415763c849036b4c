/* A message as JSON, member by member. After a lack of memory, or of room for a value, it has `failed` and takes nothing
 * more. A key of NULL writes an entry of a list. */
#ifndef SC_WRITER_H
#define SC_WRITER_H

#include "wire.h"

typedef struct {
    char *text;
    size_t num_bytes;
    size_t capacity;
    bool failed;
} sc_writer;

/* With the name of the message and the version of the protocol. */
sc_writer sc_begin_message(const char *name);
/* The text that was written; the writer is empty afterwards. */
sc_message sc_end_message(sc_writer *writer);

void sc_write_null(sc_writer *writer, const char *key);
void sc_write_whole(sc_writer *writer, const char *key, int64_t value);
/* Finite; a reader gets it back bit by bit. */
void sc_write_real(sc_writer *writer, const char *key, double value);
/* UTF-8. */
void sc_write_text(sc_writer *writer, const char *key, const char *text);
/* Text for people: cut at 4096 bytes, and what is not UTF-8 is replaced. */
void sc_write_prose(sc_writer *writer, const char *key, const char *text);
void sc_write_extents(sc_writer *writer, const char *key, int ndim, const int64_t extents[]);
/* A list or object: its bracket, its entries, its other bracket. */
void sc_write_begin(sc_writer *writer, const char *key, char bracket);
void sc_write_end(sc_writer *writer, char bracket);

#endif
