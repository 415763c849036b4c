#include "json_text.h"

#include <errno.h>
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

const char *sc_json_string(char **at, sc_slice *text) {
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

const char *sc_json_number(char **at, sc_json_value *value) {
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
        value->is_whole = errno == 0;
    }
    errno = errno_before;
    **at = behind;
    return isfinite(value->number) ? NULL : "a number that is too large";
}
