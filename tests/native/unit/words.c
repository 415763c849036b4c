#define _POSIX_C_SOURCE 200809L

#include "words.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

static char *line;
static size_t capacity;
static char *rest;

bool next_line(void) {
    if (getline(&line, &capacity, stdin) < 0) {
        free(line);
        return false;
    }
    line[strcspn(line, "\n")] = '\0';
    rest = line;
    return true;
}

const char *next_word(void) {
    CHECK(*rest != '\0');
    char *word = rest;
    rest += strcspn(rest, " ");
    if (*rest == ' ')
        *rest++ = '\0';
    return word;
}

bool next_word_is(const char *expected) {
    size_t num = strlen(expected);
    if (strncmp(rest, expected, num) != 0 || (rest[num] != ' ' && rest[num] != '\0'))
        return false;
    next_word();
    return true;
}

int64_t next_number(void) {
    return strtoll(next_word(), NULL, 10);
}

uint64_t next_natural(void) {
    return strtoull(next_word(), NULL, 10);
}

double next_double(void) {
    uint64_t bits = next_natural();
    double number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

char *next_bytes(size_t *num_bytes) {
    const char *word = next_word();
    CHECK(word[0] == 'x');
    size_t num = strlen(word + 1) / 2;
    char *bytes = malloc(num + 1);
    CHECK(bytes != NULL);
    for (size_t i = 0; i < num; ++i) {
        char digits[3] = {word[1 + 2 * i], word[2 + 2 * i], '\0'};
        bytes[i] = (char)strtoul(digits, NULL, 16);
    }
    bytes[num] = '\0';
    if (num_bytes != NULL)
        *num_bytes = num;
    return bytes;
}

int next_extents(int64_t extents[]) {
    int ndim = (int)next_number();
    for (int d = 0; d < ndim; ++d)
        extents[d] = next_number();
    return ndim;
}

void say_word(const char *word) {
    printf("%s ", word);
}

void say_number(int64_t number) {
    printf("%" PRId64 " ", number);
}

void say_natural(uint64_t number) {
    printf("%" PRIu64 " ", number);
}

void say_double(double number) {
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    say_natural(bits);
}

void say_bytes(const void *bytes, size_t num_bytes) {
    const unsigned char *at = bytes;
    putchar('x');
    for (size_t i = 0; i < num_bytes; ++i)
        printf("%02x", at[i]);
    putchar(' ');
}

void say_text(const char *text) {
    say_bytes(text, strlen(text));
}

void say_extents(int ndim, const int64_t extents[]) {
    say_number(ndim);
    for (int d = 0; d < ndim; ++d)
        say_number(extents[d]);
}

void end_answer(void) {
    putchar('\n');
    fflush(stdout);
}
