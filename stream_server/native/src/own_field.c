#include "own_field.h"

#include <stdio.h>
#include <stdlib.h>

#include "dtype.h"
#include "placement.h"

static int check_count(const sc_own_field *own, const int64_t expected[], int ndim, const int64_t count[],
                       sc_error *error) {
    char expected_text[SC_EXTENTS_BYTES], count_text[SC_EXTENTS_BYTES];
    const sc_field *field = own->field;
    if (sc_equal_extents(field->ndim, expected, ndim, count))
        return STREAM_OK;
    return sc_fail(error, STREAM_ERROR_ARGUMENT, "field '%s' must have the shape %s, but has %s", field->name,
                   sc_extents_text(expected_text, field->ndim, expected), sc_extents_text(count_text, ndim, count));
}

static int check_convertible(const sc_field *field, stream_dtype dtype, stream_dtype sent, sc_error *error) {
    if (field->dtype != STREAM_AS_PUT ? sc_same_kind(dtype, sent) : sc_safe(dtype, sent))
        return STREAM_OK;
    return sc_fail(error, STREAM_ERROR_ARGUMENT,
                   "field '%s' is sent as %s, which %s cannot become without loss: send one dtype throughout, or give "
                   "the field a dtype in study.json",
                   field->name, sc_dtype_name(sent), sc_dtype_name(dtype));
}

/* The block of what is put before the first sample has fixed it. */
static int plan(const sc_own_field *own, stream_dtype dtype, int ndim, const int64_t count[], sc_block *block,
                sc_error *error) {
    bool is_typed = own->dtype != STREAM_AS_PUT;
    int status = sc_place_own(own, ndim, count, block, error);
    if (status == STREAM_OK)
        status = sc_sent_dtype(own->field, is_typed ? own->dtype : dtype, &block->dtype, error);
    if (status == STREAM_OK && is_typed)
        status = check_convertible(own->field, dtype, block->dtype, error);
    return status;
}

/* Whether what is put fits to the block that is fixed. */
static int match(const sc_own_field *own, stream_dtype dtype, int ndim, const int64_t count[], sc_error *error) {
    if (!own->has_block)
        return sc_fail(error, STREAM_ERROR_ARGUMENT,
                       "rank %d left field '%s' out of its first sample without declaring it", own->rank,
                       own->field->name);
    int status = own->field->ragged ? sc_check_rows(own->field, ndim, count, error)
                                    : check_count(own, own->block.count, ndim, count, error);
    return status != STREAM_OK ? status : check_convertible(own->field, dtype, own->block.dtype, error);
}

static int put_nothing(sc_own_field *own, int ndim, const int64_t count[], sc_error *error) {
    if (own->is_fixed && own->has_block)
        return check_count(own, own->block.count, ndim, count, error);
    own->has_block = false;
    own->is_put = true;
    return STREAM_OK;
}

static bool reserve(sc_own_field *own, size_t num_bytes) {
    if (num_bytes <= own->capacity && own->memory != NULL)
        return true;
    void *memory = malloc(num_bytes > 0 ? num_bytes : 1);
    if (memory == NULL)
        return false;
    free(own->memory);
    own->memory = memory;
    own->capacity = num_bytes;
    return true;
}

/* Say, once, that nothing is left of a field. It may grow later, and is no error. */
static void tell_of_underflow(sc_own_field *own, stream_dtype dtype, const int64_t count[], const int64_t strides[],
                              const void *data) {
    const sc_block *block = &own->block;
    if (own->has_vanished || !sc_is_zero(own->memory, block->dtype, own->num_bytes))
        return;
    own->has_vanished = true;
    fprintf(stderr,
            "stream_client, rank %d: field '%s' is sent as %s, in which all its values become 0 (the largest is %.6g): "
            "give the field a wider dtype in study.json, or send it in another unit\n",
            own->rank, own->field->name, sc_dtype_name(block->dtype),
            sc_largest(data, dtype, block->ndim, count, strides));
}

static int keep(sc_own_field *own, stream_dtype dtype, const int64_t count[], const int64_t strides[],
                const void *data, sc_error *error) {
    sc_block block = own->block;
    sc_copy_extents(block.ndim, block.count, count);
    own->num_bytes = sc_block_bytes(&block);
    own->is_put = reserve(own, own->num_bytes);
    if (!own->is_put)
        return sc_no_memory(error);
    bool underflows = false;
    if (own->num_bytes == 0 ||
        sc_copy_block(own->memory, block.dtype, data, dtype, block.ndim, count, strides, &underflows)) {
        if (underflows)
            tell_of_underflow(own, dtype, count, strides, data);
        return STREAM_OK;
    }
    own->is_put = false;
    int64_t index[STREAM_MAX_DIMENSIONS];
    char number[SC_NUMBER_BYTES], index_text[SC_EXTENTS_BYTES];
    sc_find_misfit(block.dtype, data, dtype, block.ndim, count, strides, index, number);
    return sc_fail(error, STREAM_ERROR_ARGUMENT,
                   "field '%s' is sent as %s, into which %s at %s does not fit: give the field a wider dtype in "
                   "study.json, or send one dtype throughout",
                   own->field->name, sc_dtype_name(block.dtype), number,
                   sc_extents_text(index_text, block.ndim, index));
}

static int put(sc_own_field *own, stream_dtype dtype, int ndim, const int64_t count[], const int64_t strides[],
               const void *data, sc_error *error) {
    int status = own->has_count ? check_count(own, own->count, ndim, count, error) : STREAM_OK;
    if (status != STREAM_OK)
        return status;
    if (sc_is_empty(own, ndim, count))
        return put_nothing(own, ndim, count, error);
    sc_block block = own->block;
    status = own->is_fixed ? match(own, dtype, ndim, count, error) : plan(own, dtype, ndim, count, &block, error);
    if (status == STREAM_OK && data == NULL && !sc_has_zero(ndim, count))
        status = sc_fail(error, STREAM_ERROR_ARGUMENT, "the data of field '%s' are NULL", own->field->name);
    if (status != STREAM_OK)
        return status;
    own->block = block;
    own->has_block = true;
    return keep(own, dtype, count, strides, data, error);
}

int sc_own_put(sc_own_field *own, const void *data, const int64_t strides[], sc_error *error) {
    if (own->dtype == STREAM_AS_PUT)
        return sc_fail(error, STREAM_ERROR_ARGUMENT, "field '%s' must be declared with its type before it is put",
                       own->field->name);
    if (own->field->ragged)
        return sc_fail(error, STREAM_ERROR_ARGUMENT,
                       "field '%s' differs in size: put it with its size, by stream_put_array",
                       own->field->name);
    const int64_t *count = own->count;
    int64_t offset[STREAM_MAX_DIMENSIONS], even_count[STREAM_MAX_DIMENSIONS];
    if (own->is_fixed && own->has_block) {
        count = own->block.count;
    } else if (!own->has_count) {
        sc_even_share(own->field, own->rank, own->num_ranks, offset, even_count);
        count = even_count;
    }
    return put(own, own->dtype, own->field->ndim, count, strides, data, error);
}

int sc_own_put_array(sc_own_field *own, stream_dtype dtype, int ndim, const int64_t count[], const int64_t strides[],
                     const void *data, sc_error *error) {
    int status = sc_check_extents(own->field->name, ndim, count, error);
    if (status == STREAM_OK)
        status = sc_check_type(own->field->name, dtype, error);
    return status != STREAM_OK ? status : put(own, dtype, ndim, count, strides, data, error);
}
