#define _POSIX_C_SOURCE 200809L
#include "json.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int hexadecimal(char digit) {
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    if (digit >= 'a' && digit <= 'f')
        return digit - 'a' + 10;
    if (digit >= 'A' && digit <= 'F')
        return digit - 'A' + 10;
    return -1;
}

/* The four digits of \uXXXX; -1: they are none. */
static int32_t code_unit(const char *at) {
    int32_t value = 0;
    for (int i = 0; i < 4; ++i) {
        int digit = hexadecimal(at[i]);
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

static char *write_character(char *to, uint32_t code) {
    if (code < 0x80) {
        *to++ = (char)code;
        return to;
    }
    if (code < 0x800) {
        *to++ = (char)(0xc0 | code >> 6);
    } else {
        if (code < 0x10000) {
            *to++ = (char)(0xe0 | code >> 12);
        } else {
            *to++ = (char)(0xf0 | code >> 18);
            *to++ = (char)(0x80 | (code >> 12 & 0x3f));
        }
        *to++ = (char)(0x80 | (code >> 6 & 0x3f));
    }
    *to++ = (char)(0x80 | (code & 0x3f));
    return to;
}

/* *at is behind the u. */
static const char *resolve_unicode(char **at, char **to) {
    int32_t code = code_unit(*at);
    if (code < 0)
        return "a \\u needs four hexadecimal digits";
    *at += 4;
    if (code >= 0xd800 && code < 0xdc00 && (*at)[0] == '\\' && (*at)[1] == 'u') {
        int32_t low = code_unit(*at + 2);
        if (low >= 0xdc00 && low < 0xe000) {
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
            *at += 6;
        }
    }
    if (code >= 0xd800 && code < 0xe000)
        return "half of a surrogate pair";
    *to = write_character(*to, (uint32_t)code);
    return NULL;
}

/* *at is behind the backslash. */
static const char *resolve_escape(char **at, char **to) {
    static const char letters[] = "\"\\/bfnrt", characters[] = "\"\\/\b\f\n\r\t";
    char letter = **at;
    if (letter == '\0')
        return "a string without an end";
    *at += 1;
    if (letter == 'u')
        return resolve_unicode(at, to);
    const char *found = strchr(letters, letter);
    if (found == NULL)
        return "an unknown escape";
    *(*to)++ = characters[found - letters];
    return NULL;
}

/* *at is behind the opening quote, and afterwards behind the closing one. The escapes are resolved in place. NULL, or
 * what is wrong. */
static const char *parse_string(char **at, sc_slice *text) {
    char *start = *at, *to = *at;
    while (**at != '"') {
        unsigned char next = (unsigned char)**at;
        if (next == '\0')
            return "a string without an end";
        if (next < 0x20)
            return "a control character in a string";
        if (next != '\\') {
            *to++ = *(*at)++;
            continue;
        }
        *at += 1;
        const char *problem = resolve_escape(at, &to);
        if (problem != NULL)
            return problem;
    }
    *at += 1;
    *text = (sc_slice){(const uint8_t *)start, (size_t)(to - start)};
    *to = '\0';
    return NULL;
}

static bool skip_digits(char **at) {
    char *start = *at;
    while (**at >= '0' && **at <= '9')
        *at += 1;
    return *at > start;
}

/* Whether a number is here that JSON knows; *is_whole if it has neither fraction nor exponent. */
static bool skip_number(char **at, bool *is_whole) {
    if (**at == '-')
        *at += 1;
    if (**at == '0')
        *at += 1;
    else if (!skip_digits(at))
        return false;
    *is_whole = true;
    if (**at == '.') {
        *is_whole = false;
        *at += 1;
        if (!skip_digits(at))
            return false;
    }
    if (**at == 'e' || **at == 'E') {
        *is_whole = false;
        *at += 1;
        if (**at == '+' || **at == '-')
            *at += 1;
        if (!skip_digits(at))
            return false;
    }
    return true;
}

/* The thread's locale must be "C". */
static const char *parse_number(char **at, sc_json_value *value) {
    char *start = *at;
    if (!skip_number(at, &value->is_whole))
        return "a value was expected";
    /* The library functions would go on where JSON ends, as in 0x10. */
    char behind = **at;
    **at = '\0';
    int errno_before = errno;
    value->number = strtod(start, NULL);
    if (value->is_whole) {
        errno = 0;
        value->whole = strtoll(start, NULL, 10);
        value->is_whole = errno == 0 && !(value->whole == 0 && *start == '-');
    }
    errno = errno_before;
    **at = behind;
    return isfinite(value->number) ? NULL : "a number that is too large";
}

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

static size_t add_value(parser *it) {
    return it->json->num_values++;
}

static const char *parse_name(parser *it, sc_slice *name) {
    skip_space(it);
    if (!skip(it, "\""))
        return "a name in quotes was expected";
    const char *problem = parse_string(&it->at, name);
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
        return parse_string(&it->at, &value->text);
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
    return parse_number(&it->at, value);
}

static const char *parse_document(parser *it, size_t num_bytes) {
    if (!sc_is_utf8((const uint8_t *)it->json->text, num_bytes))
        return "it is not UTF-8";
    const char *problem = parse_value(it, add_value(it), 0);
    if (problem != NULL)
        return problem;
    skip_space(it);
    return it->at == it->json->text + num_bytes ? NULL : "more than one value";
}

static int parse_in_c_locale(parser *it, size_t num_bytes, int problem_code, sc_error *error) {
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
        return sc_fail(error, problem_code, "%s, at byte %td", problem, it->at - it->json->text);
    return STREAM_OK;
}

/* Every value but the first one comes behind one of these. */
static size_t most_values(const char *text, size_t num_bytes) {
    size_t num = 1;
    for (size_t i = 0; i < num_bytes; ++i)
        num += text[i] == ',' || text[i] == '[' || text[i] == '{';
    return num;
}

int sc_json_parse(const char *text, size_t num_bytes, sc_json *json, int problem_code, sc_error *error) {
    memset(json, 0, sizeof *json);
    json->text = sc_copy_slice((sc_slice){(const uint8_t *)text, num_bytes});
    json->values = calloc(most_values(text, num_bytes), sizeof *json->values);
    if (json->text == NULL || json->values == NULL) {
        sc_json_free(json);
        return sc_no_memory(error);
    }
    parser it = {json, json->text, false};
    int status = parse_in_c_locale(&it, num_bytes, problem_code, error);
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
