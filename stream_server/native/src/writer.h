/* A growing row of bytes, little-endian and packed. After a lack of memory, or of room for a value, it has `failed` and
 * takes nothing more. */
#ifndef SC_WRITER_H
#define SC_WRITER_H

#include "wire.h"

typedef struct {
    uint8_t *bytes;
    size_t num_bytes;
    size_t capacity;
    bool failed;
} sc_writer;

/* With the 8 bytes with which every message begins. */
sc_writer sc_begin_message(int kind);
/* What was written; the writer is empty afterwards. */
sc_message sc_end_message(sc_writer *writer);

void sc_write_u8(sc_writer *writer, uint32_t value);
void sc_write_u16(sc_writer *writer, uint32_t value);
void sc_write_u32(sc_writer *writer, uint32_t value);
void sc_write_u64(sc_writer *writer, uint64_t value);
void sc_write_real(sc_writer *writer, double value);
void sc_write_text(sc_writer *writer, const char *text);
/* Text for people: cut at 4096 bytes, and what is not UTF-8 is replaced. */
void sc_write_prose(sc_writer *writer, const char *text);
void sc_write_extents(sc_writer *writer, int ndim, const int64_t extents[]);

#endif
