/* JSON as a tree of values. Total: any bytes give a tree, or what is wrong with them and where. Stricter than JSON asks
 * for in three points: no name twice in an object, no lone surrogates, and at most SC_JSON_DEPTH levels. */
#ifndef SC_JSON_H
#define SC_JSON_H

#include "error.h"
#include "text.h"

#define SC_JSON_DEPTH 32

typedef enum { SC_JSON_NULL, SC_JSON_BOOLEAN, SC_JSON_NUMBER, SC_JSON_TEXT, SC_JSON_LIST, SC_JSON_OBJECT } sc_json_kind;

typedef struct {
    sc_json_kind kind;
    bool boolean;
    bool is_whole; /* a number without fraction and exponent that fits into `whole`, and not -0 */
    int64_t whole;
    double number;
    sc_slice text; /* ends with a zero that is not counted */
    sc_slice name; /* in an object; likewise */
    size_t num;    /* of entries in a list or object */
    size_t first;  /* place of the first entry, and of the next one of the list or object that this value is in; */
    size_t next;   /* 0: there is none */
} sc_json_value;

typedef struct {
    char *text;
    sc_json_value *values; /* the first one is the whole */
    size_t num_values;
} sc_json;

/* `problem_code`: it is no JSON. On an error there is nothing to free. */
int sc_json_parse(const char *text, size_t num_bytes, sc_json *json, int problem_code, sc_error *error);
void sc_json_free(sc_json *json);

/* The entries of a list or object, one after the other; NULL behind the last. */
const sc_json_value *sc_json_first(const sc_json *json, const sc_json_value *parent);
const sc_json_value *sc_json_next(const sc_json *json, const sc_json_value *value);
#define SC_JSON_EACH(entry, json, parent) \
    for (const sc_json_value *entry = sc_json_first(json, parent); entry != NULL; entry = sc_json_next(json, entry))

/* NULL: `object` has no entry of this name. */
const sc_json_value *sc_json_member(const sc_json *json, const sc_json_value *object, const char *name);

#endif
