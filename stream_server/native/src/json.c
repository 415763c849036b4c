#define _POSIX_C_SOURCE 200809L

#include "json.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "json_text.h"

typedef struct {
    sc_json *json;
    char *at;
    bool no_memory;
} parser;

static const char *parse_value(parser *it, size_t place, int depth);

static void skip_space(parser *it) {
    while (*it->at == ' ' || *it->at == '\t' || *it->at == '\n' || *it->at == '\r')
        it->at += 1;
}

static bool skip(parser *it, const char *expected) {
    size_t num = strlen(expected);
    if (strncmp(it->at, expected, num) != 0)
        return false;
    it->at += num;
    return true;
}

/* The place of a new value; 0: no memory. */
static size_t add_value(parser *it) {
    sc_json *json = it->json;
    if (json->num_values == json->capacity) {
        size_t capacity = 2 * json->capacity + 16;
        sc_json_value *values = realloc(json->values, capacity * sizeof *values);
        if (values == NULL) {
            it->no_memory = true;
            return 0;
        }
        json->values = values;
        json->capacity = capacity;
    }
    memset(&json->values[json->num_values], 0, sizeof *json->values);
    return json->num_values++;
}

static const char *parse_name(parser *it, sc_slice *name) {
    skip_space(it);
    if (!skip(it, "\""))
        return "a name in quotes was expected";
    const char *problem = sc_json_string(&it->at, name);
    if (problem != NULL)
        return problem;
    skip_space(it);
    return skip(it, ":") ? NULL : "a : was expected";
}

/* One entry behind the entry at `last` (0: the first one) of the list or object at `parent`. */
static const char *parse_entry(parser *it, size_t parent, size_t *last, int depth) {
    sc_slice name = {NULL, 0};
    if (it->json->values[parent].kind == SC_JSON_OBJECT) {
        const char *problem = parse_name(it, &name);
        if (problem != NULL)
            return problem;
    }
    size_t place = add_value(it);
    if (place == 0)
        return "no memory";
    sc_json_value *values = it->json->values;
    values[place].name = name;
    values[parent].num += 1;
    *(*last == 0 ? &values[parent].first : &values[*last].next) = place;
    *last = place;
    return parse_value(it, place, depth + 1);
}

static const char *find_repetition(parser *it, size_t object) {
    const sc_json *json = it->json;
    if (json->values[object].num < 2)
        return NULL;
    sc_slice *names = malloc(json->values[object].num * sizeof *names);
    if (names == NULL) {
        it->no_memory = true;
        return "no memory";
    }
    size_t num = 0;
    SC_JSON_EACH(entry, json, &json->values[object])
        names[num++] = entry->name;
    bool is_twice = sc_any_twice(names, num);
    free(names);
    return is_twice ? "a name occurs twice in an object" : NULL;
}

static const char *parse_entries(parser *it, size_t place, const char *end, int depth) {
    if (depth == SC_JSON_DEPTH)
        return "too many levels";
    skip_space(it);
    if (skip(it, end))
        return NULL;
    size_t last = 0;
    do {
        const char *problem = parse_entry(it, place, &last, depth);
        if (problem != NULL)
            return problem;
        skip_space(it);
    } while (skip(it, ","));
    if (!skip(it, end))
        return "a , or the end of a list or object was expected";
    return it->json->values[place].kind == SC_JSON_OBJECT ? find_repetition(it, place) : NULL;
}

static const char *parse_value(parser *it, size_t place, int depth) {
    skip_space(it);
    /* Valid until a value is added. */
    sc_json_value *value = &it->json->values[place];
    if (skip(it, "null"))
        return NULL;
    value->boolean = *it->at == 't';
    if (skip(it, "true") || skip(it, "false")) {
        value->kind = SC_JSON_BOOLEAN;
        return NULL;
    }
    if (skip(it, "\"")) {
        value->kind = SC_JSON_TEXT;
        return sc_json_string(&it->at, &value->text);
    }
    if (skip(it, "[")) {
        value->kind = SC_JSON_LIST;
        return parse_entries(it, place, "]", depth);
    }
    if (skip(it, "{")) {
        value->kind = SC_JSON_OBJECT;
        return parse_entries(it, place, "}", depth);
    }
    value->kind = SC_JSON_NUMBER;
    return sc_json_number(&it->at, value);
}

static const char *parse_document(parser *it, size_t num_bytes) {
    if (!sc_is_utf8((const uint8_t *)it->json->text, num_bytes))
        return "it is not UTF-8";
    add_value(it);
    const char *problem = it->no_memory ? "no memory" : parse_value(it, 0, 0);
    if (problem != NULL)
        return problem;
    skip_space(it);
    return it->at == it->json->text + num_bytes ? NULL : "more than one value";
}

static int parse_in_c_locale(parser *it, size_t num_bytes, sc_error *error) {
    /* In the user's locale a number may have a decimal comma. */
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0)
        return sc_no_memory(error);
    locale_t before = uselocale(plain);
    const char *problem = parse_document(it, num_bytes);
    uselocale(before);
    freelocale(plain);
    if (it->no_memory)
        return sc_no_memory(error);
    if (problem != NULL)
        return sc_fail(error, STREAM_ERROR_CONNECTION_FILE, "%s, at byte %td", problem, it->at - it->json->text);
    return STREAM_OK;
}

int sc_json_parse(const char *text, size_t num_bytes, sc_json *json, sc_error *error) {
    memset(json, 0, sizeof *json);
    json->text = sc_copy_slice((sc_slice){(const uint8_t *)text, num_bytes});
    if (json->text == NULL)
        return sc_no_memory(error);
    parser it = {json, json->text, false};
    int status = parse_in_c_locale(&it, num_bytes, error);
    if (status != STREAM_OK)
        sc_json_free(json);
    return status;
}

void sc_json_free(sc_json *json) {
    free(json->text);
    free(json->values);
    memset(json, 0, sizeof *json);
}

static const sc_json_value *at_place(const sc_json *json, size_t place) {
    return place == 0 ? NULL : &json->values[place];
}

const sc_json_value *sc_json_first(const sc_json *json, const sc_json_value *parent) {
    return at_place(json, parent->first);
}

const sc_json_value *sc_json_next(const sc_json *json, const sc_json_value *value) {
    return at_place(json, value->next);
}

const sc_json_value *sc_json_member(const sc_json *json, const sc_json_value *object, const char *name) {
    size_t num_bytes = strlen(name);
    SC_JSON_EACH(entry, json, object)
        if (entry->name.num_bytes == num_bytes && memcmp(entry->name.bytes, name, num_bytes) == 0)
            return entry;
    return NULL;
}
