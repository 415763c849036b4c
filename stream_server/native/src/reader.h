/* The members of JSON objects, with their types and bounds.
 *
 * The first problem is noted and stays; after it all reading gives zeros. So a caller reads everything, and looks once
 * whether it `failed`; only loops have to look before each turn. */
#ifndef SC_READER_H
#define SC_READER_H

#include "json.h"
#include "wire.h"

typedef struct {
    const sc_json *json;
    sc_error *error;
    int problem_code; /* of the error for a problem */
    const char *key;  /* of the member that was asked for last */
    int failed;       /* STREAM_OK, or the code of the error */
} sc_reader;

/* Begins with the name of the key. */
void sc_read_problem(sc_reader *reader, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sc_read_no_memory(sc_reader *reader);
/* Zeros; NULL for none of them, or after a failure. */
void *sc_read_allocate(sc_reader *reader, size_t num, size_t element_bytes);

/* Refuses what is no object, and keys that are not among these, of which the last one is NULL. */
void sc_read_keys(sc_reader *reader, const sc_json_value *object, const char *const known[]);
/* A member that must be there; one that may be absent (NULL); and one that may be null, too. NULL after a failure. */
const sc_json_value *sc_read_member(sc_reader *reader, const sc_json_value *object, const char *key);
const sc_json_value *sc_read_default(sc_reader *reader, const sc_json_value *object, const char *key);
const sc_json_value *sc_read_optional(sc_reader *reader, const sc_json_value *object, const char *key);

/* The type of a value. The value NULL gives zeros. */
int64_t sc_read_whole(sc_reader *reader, const sc_json_value *value, int64_t low, int64_t high);
double sc_read_real(sc_reader *reader, const sc_json_value *value);
bool sc_read_flag(sc_reader *reader, const sc_json_value *value);
/* The place of a text among `names`. */
int sc_read_choice(sc_reader *reader, const sc_json_value *value, const char *const names[], int num);
/* Whether the value is a list or object of so many entries. */
bool sc_read_entries(sc_reader *reader, const sc_json_value *value, sc_json_kind kind, size_t low, size_t high);
/* A copy of a text of so many bytes, without a zero character. */
char *sc_read_text(sc_reader *reader, const sc_json_value *value, size_t low, size_t high);
void sc_read_addresses(sc_reader *reader, const sc_json_value *value, sc_addresses *addresses);
void sc_read_parameters(sc_reader *reader, const sc_json_value *value, sc_parameters *parameters);

#endif
