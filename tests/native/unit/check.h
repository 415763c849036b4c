/* Assertions for the tests of the C client: the first one that fails ends the program and says where it is. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                    \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            fprintf(stderr, "%s:%d: in %s: not so: %s\n", __FILE__, __LINE__, __func__, #condition); \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

#define CHECK_TEXT(text, part)                                                              \
    do {                                                                                    \
        if (strstr(text, part) == NULL) {                                                   \
            fprintf(stderr, "%s:%d: in %s: \"%s\" is not in \"%s\"\n", __FILE__, __LINE__, __func__, part, text); \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

#endif
