/* What a program says of its blocks before it sends any. */
#include <stdio.h>

#include "dtype.h"
#include "own_field.h"
#include "placement.h"

int sc_check_extents(const char *name, int ndim, const int64_t extents[], sc_error *error) {
    if (ndim < 0 || ndim > STREAM_MAX_DIMENSIONS)
        return sc_fail(error, STREAM_ERROR_ARGUMENT, "field '%s' cannot have %d dimensions, but 0 to %d", name, ndim,
                       STREAM_MAX_DIMENSIONS);
    if (ndim > 0 && extents == NULL)
        return sc_fail(error, STREAM_ERROR_ARGUMENT, "the shape of field '%s' is NULL", name);
    return STREAM_OK;
}

int sc_check_type(const char *name, stream_dtype dtype, sc_error *error) {
    if (sc_dtype_is_valid(dtype))
        return STREAM_OK;
    return sc_fail(error, STREAM_ERROR_ARGUMENT, "%d is no type that field '%s' can have", (int)dtype, name);
}

int sc_check_rows(const sc_field *field, int ndim, const int64_t count[], sc_error *error) {
    char rows[SC_EXTENTS_BYTES] = "n,", found[SC_EXTENTS_BYTES];
    if (ndim == field->ndim && sc_equal_extents(ndim - 1, count + 1, ndim - 1, field->shape + 1)) {
        if (count[0] >= 0 && count[0] <= field->shape[0])
            return STREAM_OK;
        return sc_fail(error, STREAM_ERROR_ARGUMENT,
                       "field '%s' has %lld rows, but study.json allows %lld: raise its \"max\" there", field->name,
                       (long long)count[0], (long long)field->shape[0]);
    }
    for (int d = 1, at = 1; d < field->ndim; ++d)
        at += snprintf(rows + at, sizeof rows - (size_t)at, ", %lld", (long long)field->shape[d]);
    return sc_fail(error, STREAM_ERROR_ARGUMENT, "field '%s' must have a shape (%s), but has %s", field->name, rows,
                   sc_extents_text(found, ndim, count));
}

/* A rank that puts rows of a ragged field sends it, with no rows at some steps. Of one that is sent once, no rows are
 * nothing. */
bool sc_is_empty(const sc_own_field *own, int ndim, const int64_t count[]) {
    const sc_field *field = own->field;
    bool are_rows = ndim == field->ndim && sc_equal_extents(ndim - 1, count + 1, ndim - 1, field->shape + 1);
    if (field->ragged && field->is_static && are_rows)
        return count[0] == 0;
    bool sends_it = field->ragged && (own->has_block || (!own->has_count && are_rows));
    return own->num_ranks > 1 && !sends_it && sc_has_zero(ndim, count);
}

/* Where a ragged field says what this rank sends, it is rows, or nothing. */
static int check_whole(const sc_own_field *own, sc_error *error) {
    const char *name = own->field->name;
    if (own->has_offset)
        return sc_fail(error, STREAM_ERROR_ARGUMENT,
                       "field '%s' differs in size: its rows come in the order of the ranks, without an offset", name);
    if (own->has_count && !sc_is_empty(own, own->field->ndim, own->count))
        return sc_fail(error, STREAM_ERROR_ARGUMENT,
                       "field '%s' differs in size, which is told when it is put", name);
    return STREAM_OK;
}

/* The rows that this rank has of a field that is sent once, behind those of the ranks before it. */
static void place_rows(const sc_field *field, const int64_t count[], sc_block *block) {
    *block = (sc_block){.field = field->name, .ndim = field->ndim};
    sc_copy_extents(field->ndim, block->shape, field->shape);
    sc_copy_extents(field->ndim, block->count, count);
}

int sc_place_own(const sc_own_field *own, int ndim, const int64_t count[], sc_block *block, sc_error *error) {
    const sc_field *field = own->field;
    const int64_t *offset = own->has_offset ? own->offset : NULL;
    if (field->ragged) {
        int status = sc_check_rows(field, ndim, count, error);
        if (status != STREAM_OK)
            return status;
        if (field->is_static) {
            place_rows(field, count, block);
            return STREAM_OK;
        }
        count = field->shape;
    }
    return sc_place_block(field, own->rank, own->num_ranks, offset, ndim, count, block, error);
}

static int check_shape(const sc_field *field, int ndim, const int64_t shape[], sc_error *error) {
    char kept[SC_EXTENTS_BYTES], given[SC_EXTENTS_BYTES];
    int status = sc_check_extents(field->name, ndim, shape, error);
    if (status != STREAM_OK || sc_equal_extents(ndim, shape, field->ndim, field->shape))
        return status;
    return sc_fail(error, STREAM_ERROR_ARGUMENT, "field '%s' has the shape %s in study.json, but is declared with %s",
                   field->name, sc_extents_text(kept, field->ndim, field->shape), sc_extents_text(given, ndim, shape));
}

static int check_time(const sc_own_field *own, sc_error *error) {
    const char *name = own->field->name;
    if (own->is_fixed)
        return sc_fail(error, STREAM_ERROR_ARGUMENT, "field '%s' must be declared before the first send", name);
    if (own->is_put)
        return sc_fail(error, STREAM_ERROR_ARGUMENT, "field '%s' must be declared before it is put", name);
    return STREAM_OK;
}

/* Whether blocks like this can be sent. */
static int check_block(const sc_own_field *own, sc_error *error) {
    sc_block block;
    int status = STREAM_OK;
    if (own->dtype != STREAM_AS_PUT) {
        status = sc_check_type(own->field->name, own->dtype, error);
        if (status == STREAM_OK)
            status = sc_sent_dtype(own->field, own->dtype, &block.dtype, error);
    }
    if (status == STREAM_OK && own->field->ragged)
        return check_whole(own, error);
    if (status == STREAM_OK && own->has_count && !sc_is_empty(own, own->field->ndim, own->count))
        status = sc_place_own(own, own->field->ndim, own->count, &block, error);
    return status;
}

int sc_own_declare(sc_own_field *own, stream_dtype dtype, int ndim, const int64_t shape[], const int64_t offset[],
                   const int64_t count[], sc_error *error) {
    int status = check_time(own, error);
    if (status == STREAM_OK)
        status = check_shape(own->field, ndim, shape, error);
    if (status != STREAM_OK)
        return status;
    sc_own_field declared = *own;
    declared.is_declared = true;
    declared.dtype = dtype;
    declared.has_offset = offset != NULL;
    declared.has_count = count != NULL;
    sc_copy_extents(offset != NULL ? ndim : 0, declared.offset, offset);
    sc_copy_extents(count != NULL ? ndim : 0, declared.count, count);
    status = check_block(&declared, error);
    if (status == STREAM_OK)
        *own = declared;
    return status;
}

static stream_dtype unseen_dtype(const sc_own_field *own) {
    if (own->dtype != STREAM_AS_PUT)
        return own->dtype;
    return own->field->dtype != STREAM_AS_PUT ? own->field->dtype : STREAM_FLOAT64;
}

int sc_own_fix_unseen(sc_own_field *own, sc_error *error) {
    const sc_field *field = own->field;
    int64_t offset[STREAM_MAX_DIMENSIONS], even_count[STREAM_MAX_DIMENSIONS];
    if (field->ragged)
        sc_copy_extents(field->ndim, even_count, field->shape);
    else
        sc_even_share(field, own->rank, own->num_ranks, offset, even_count);
    const int64_t *count = own->has_count ? own->count : even_count;
    bool is_known = own->has_count || !own->has_offset;
    own->has_block = false;
    if (own->num_ranks > 1 && (!own->is_declared || (is_known && sc_has_zero(field->ndim, count))))
        return STREAM_OK;
    if (!field->optional)
        return sc_fail(error, STREAM_ERROR_ARGUMENT, "field '%s' is missing in the first sample", field->name);
    if (!is_known)
        return sc_fail(error, STREAM_ERROR_ARGUMENT,
                       "field '%s' is declared with an offset, but no count: its first array must come with the first "
                       "send",
                       field->name);
    int status = sc_place_own(own, field->ndim, count, &own->block, error);
    if (status == STREAM_OK)
        status = sc_sent_dtype(field, unseen_dtype(own), &own->block.dtype, error);
    own->has_block = status == STREAM_OK;
    return status;
}
