#define _POSIX_C_SOURCE 200809L

#include "nearest.h"

#include <stdio.h>
#include <string.h>

enum { COMPARED_BYTES = 64, LIST_BYTES = 600 };

static int smaller(int one, int other) {
    return one < other ? one : other;
}

static int larger(int one, int other) {
    return one > other ? one : other;
}

static int compared_length(const char *name) {
    return (int)strnlen(name, COMPARED_BYTES);
}

/* Levenshtein's, of the beginnings of the names: how many letters to change, add or leave out. */
static int distance(const char *one, const char *other) {
    int costs[COMPARED_BYTES + 1];
    int length = compared_length(other);
    for (int j = 0; j <= length; ++j)
        costs[j] = j;
    for (int i = 0; i < COMPARED_BYTES && one[i] != '\0'; ++i) {
        int diagonal = costs[0];
        costs[0] = i + 1;
        for (int j = 0; j < length; ++j) {
            int changed = diagonal + (one[i] != other[j]);
            diagonal = costs[j + 1];
            costs[j + 1] = smaller(changed, smaller(costs[j], costs[j + 1]) + 1);
        }
    }
    return costs[length];
}

/* NULL if half of the letters of any would have to be others. */
static const char *nearest(const char *name, const sc_field *fields, int num_fields) {
    const char *found = NULL;
    int least = 0;
    for (int i = 0; i < num_fields; ++i) {
        int here = distance(name, fields[i].name);
        int longer = larger(compared_length(name), compared_length(fields[i].name));
        if (2 * here < longer && (found == NULL || here < least)) {
            found = fields[i].name;
            least = here;
        }
    }
    return found;
}

/* Cut where it gets too long, so that there is room for the hint behind it. */
static void list_names(char to[LIST_BYTES], const sc_field *fields, int num_fields) {
    size_t num = 0;
    to[0] = '\0';
    for (int i = 0; i < num_fields; ++i) {
        const char *comma = i == 0 ? "" : ", ";
        if (num + strlen(fields[i].name) + sizeof ", '', ..." > LIST_BYTES) {
            snprintf(to + num, LIST_BYTES - num, "%s...", comma);
            return;
        }
        num += (size_t)snprintf(to + num, LIST_BYTES - num, "%s'%s'", comma, fields[i].name);
    }
}

int sc_unknown_field(const char *name, const sc_field *fields, int num_fields, sc_error *error) {
    char names[LIST_BYTES];
    list_names(names, fields, num_fields);
    const char *meant = nearest(name, fields, num_fields);
    if (num_fields == 0)
        return sc_fail(error, STREAM_ERROR_ARGUMENT, "the study has no field '%.100s', nor any other", name);
    if (meant == NULL)
        return sc_fail(error, STREAM_ERROR_ARGUMENT, "the study has no field '%.100s', only %s", name, names);
    return sc_fail(error, STREAM_ERROR_ARGUMENT, "the study has no field '%.100s', only %s; did you mean '%.100s'?",
                   name, names, meant);
}
