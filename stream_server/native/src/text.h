/* UTF-8, and pieces of it inside of other bytes. */
#ifndef SC_TEXT_H
#define SC_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const uint8_t *bytes;
    size_t num_bytes;
} sc_slice;

/* How many bytes the character takes with which the bytes begin; 0: they begin with none. */
size_t sc_character_bytes(const uint8_t *bytes, size_t num_bytes);
bool sc_is_utf8(const uint8_t *bytes, size_t num_bytes);

/* A copy that ends with a zero. NULL: no memory. */
char *sc_copy_slice(sc_slice slice);
char *sc_copy_text(const char *text);

/* 32 random digits, 0 to 9 and a to f; "" if there is no source of random bytes. */
#define SC_NAME_BYTES 33
void sc_new_name(char name[SC_NAME_BYTES]);

/* Whether two of them are equal. Sorts them. */
bool sc_any_twice(sc_slice *slices, size_t num);

#endif
