/* What a program says of its blocks before it sends any. */
#include "dtype.h"
#include "own_field.h"
#include "placement.h"
#include "shares.h"

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

bool sc_is_empty(const sc_own_field *own, int ndim, const int64_t count[]) {
    return own->num_ranks > 1 && sc_has_zero(ndim, count);
}

int sc_place_own(const sc_own_field *own, int ndim, const int64_t count[], sc_block *block, sc_error *error) {
    const int64_t *offset = own->has_offset ? own->offset : NULL;
    return sc_place_block(own->field, own->rank, own->num_ranks, offset, ndim, count, block, error);
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
    if (own->is_settled)
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

int sc_own_settle_unseen(sc_own_field *own, sc_error *error) {
    const sc_field *field = own->field;
    int64_t offset[STREAM_MAX_DIMENSIONS], even_count[STREAM_MAX_DIMENSIONS];
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
