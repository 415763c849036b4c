/* How the probes are talked to: a request is a line of words, and so is its answer.
 *
 * Numbers are decimal, bytes and texts hexadecimal behind an x, doubles are written as their 64 bits. */
#ifndef WORDS_H
#define WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The next line of the standard input; false at its end. */
bool next_line(void);

/* The words of the line, one after the other. */
const char *next_word(void);
bool next_word_is(const char *expected);
int64_t next_number(void);
uint64_t next_natural(void);
double next_double(void);
/* To be freed; ends with a zero that is not counted. */
char *next_bytes(size_t *num_bytes);
int next_extents(int64_t extents[]);

void say_word(const char *word);
void say_number(int64_t number);
void say_natural(uint64_t number);
void say_double(double number);
void say_bytes(const void *bytes, size_t num_bytes);
void say_text(const char *text);
void say_extents(int ndim, const int64_t extents[]);
/* Ends the answer. */
void end_answer(void);

#endif
