#define _POSIX_C_SOURCE 200809L
#include "fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "own_field.h"

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

struct sc_fields {
    const sc_field *specs;
    int num;
    int num_ranks;
    int num_blocks; /* -1: the first sample is still to come */
    sc_block blocks[SC_MAX_FIELDS];
    sc_own_field *of_block[SC_MAX_FIELDS];
    int num_statics;
    sc_block static_blocks[SC_MAX_FIELDS];
    sc_slice static_arrays[SC_MAX_FIELDS];
    sc_own_field own[SC_MAX_FIELDS];
};

sc_fields *sc_fields_new(const sc_field *specs, int num_specs, int rank, int num_ranks) {
    sc_fields *fields = calloc(1, sizeof *fields);
    if (fields == NULL)
        return NULL;
    fields->specs = specs;
    fields->num = num_specs;
    fields->num_ranks = num_ranks;
    fields->num_blocks = -1;
    for (int i = 0; i < num_specs; ++i) {
        fields->own[i].field = &specs[i];
        fields->own[i].rank = rank;
        fields->own[i].num_ranks = num_ranks;
    }
    return fields;
}

void sc_fields_free(sc_fields *fields) {
    if (fields == NULL)
        return;
    for (int i = 0; i < fields->num; ++i)
        free(fields->own[i].memory);
    free(fields);
}

const sc_block *sc_fields_blocks(const sc_fields *fields, int *num) {
    *num = fields->num_blocks;
    return fields->blocks;
}

sc_statics sc_fields_statics(const sc_fields *fields) {
    return (sc_statics){
        .num = fields->num_statics,
        .blocks = fields->static_blocks,
        .arrays = fields->static_arrays,
    };
}

/* NULL: there is no such field. */
static sc_own_field *find(sc_fields *fields, const char *name, sc_error *error) {
    if (name == NULL) {
        sc_fail(error, STREAM_ERROR_ARGUMENT, "the name of a field is NULL");
        return NULL;
    }
    for (int i = 0; i < fields->num; ++i)
        if (strcmp(fields->specs[i].name, name) == 0)
            return &fields->own[i];
    sc_unknown_field(name, fields->specs, fields->num, error);
    return NULL;
}

int sc_fields_declare(sc_fields *fields, const char *name, stream_dtype dtype, int ndim, const int64_t shape[],
                      const int64_t offset[], const int64_t count[], sc_error *error) {
    sc_own_field *own = find(fields, name, error);
    return own == NULL ? STREAM_ERROR_ARGUMENT : sc_own_declare(own, dtype, ndim, shape, offset, count, error);
}

/* A field that may be put now; NULL: there is none of this name, or it was sent. */
static sc_own_field *find_open(sc_fields *fields, const char *name, sc_error *error) {
    sc_own_field *own = find(fields, name, error);
    if (own == NULL || !own->field->is_static || (!own->is_put && fields->num_blocks < 0))
        return own;
    if (own->is_put)
        sc_fail(error, STREAM_ERROR_ARGUMENT, "field '%s' was given before: it is sent once per simulation", name);
    else
        sc_fail(error, STREAM_ERROR_ARGUMENT,
                "field '%s' is sent once per simulation, and must be given before the first send", name);
    return NULL;
}

int sc_fields_put(sc_fields *fields, const char *name, const void *data, const int64_t strides[], sc_error *error) {
    sc_own_field *own = find_open(fields, name, error);
    return own == NULL ? STREAM_ERROR_ARGUMENT : sc_own_put(own, data, strides, error);
}

int sc_fields_put_array(sc_fields *fields, const char *name, stream_dtype dtype, int ndim, const int64_t count[],
                        const int64_t strides[], const void *data, sc_error *error) {
    sc_own_field *own = find_open(fields, name, error);
    return own == NULL ? STREAM_ERROR_ARGUMENT : sc_own_put_array(own, dtype, ndim, count, strides, data, error);
}

static int fix_statics(sc_fields *fields, sc_error *error) {
    fields->num_statics = 0;
    for (int i = 0; i < fields->num; ++i) {
        sc_own_field *own = &fields->own[i];
        if (!own->field->is_static)
            continue;
        if (!own->is_put && sc_own_fix_unseen(own, error) != STREAM_OK)
            return sc_fail(error, STREAM_ERROR_ARGUMENT,
                           "field '%s' is missing: it is sent once per simulation, and must be given before the first send",
                           own->field->name);
        if (!own->has_block)
            continue;
        fields->static_blocks[fields->num_statics] = own->block;
        fields->static_arrays[fields->num_statics++] = (sc_slice){own->memory, own->num_bytes};
    }
    return STREAM_OK;
}

static int fix_blocks(sc_fields *fields, sc_error *error) {
    int num_blocks = 0;
    int code = fix_statics(fields, error);
    if (code != STREAM_OK)
        return code;
    for (int i = 0; i < fields->num; ++i) {
        sc_own_field *own = &fields->own[i];
        if (own->field->is_static)
            continue;
        int status = own->is_put ? STREAM_OK : sc_own_fix_unseen(own, error);
        if (status != STREAM_OK)
            return status;
        if (!own->has_block)
            continue;
        fields->blocks[num_blocks] = own->block;
        fields->of_block[num_blocks++] = own;
    }
    if (num_blocks == 0 && fields->num_ranks == 1)
        return sc_fail(error, STREAM_ERROR_ARGUMENT, "a sample needs at least one field");
    fields->num_blocks = num_blocks;
    for (int i = 0; i < fields->num; ++i)
        fields->own[i].is_fixed = true;
    return STREAM_OK;
}

static int collect(const sc_fields *fields, uint64_t *present, sc_slice arrays[SC_MAX_FIELDS], sc_error *error) {
    *present = 0;
    for (int i = 0; i < fields->num_blocks; ++i) {
        const sc_own_field *own = fields->of_block[i];
        if (!own->is_put && !own->field->optional)
            return sc_fail(error, STREAM_ERROR_ARGUMENT,
                           "field '%s' is missing; only a field that study.json calls optional may be left out",
                           own->field->name);
        arrays[i] = own->is_put ? (sc_slice){own->memory, own->num_bytes} : (sc_slice){NULL, 0};
        *present |= (uint64_t)own->is_put << i;
    }
    if (*present == 0 && fields->num_blocks > 0)
        return sc_fail(error, STREAM_ERROR_ARGUMENT, "a sample needs at least one field");
    return STREAM_OK;
}

int sc_fields_take(sc_fields *fields, uint64_t *present, sc_slice arrays[SC_MAX_FIELDS], sc_error *error) {
    int status = fields->num_blocks >= 0 ? STREAM_OK : fix_blocks(fields, error);
    if (status == STREAM_OK)
        status = collect(fields, present, arrays, error);
    sc_fields_drop(fields);
    return status;
}

void sc_fields_drop(sc_fields *fields) {
    for (int i = 0; i < fields->num; ++i)
        fields->own[i].is_put &= fields->own[i].field->is_static;
}
