#include "placement.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "dtype.h"

void sc_even_share(const sc_field *field, int rank, int num_ranks, int64_t offset[], int64_t count[]) {
    sc_copy_extents(field->ndim, count, field->shape);
    memset(offset, 0, (size_t)field->ndim * sizeof *offset);
    if (field->ndim == 0)
        return;
    int64_t each = field->shape[0] / num_ranks, surplus = field->shape[0] % num_ranks;
    offset[0] = rank * each + (rank < surplus ? rank : surplus);
    count[0] = each + (rank < surplus);
}

bool sc_has_zero(int ndim, const int64_t extents[]) {
    for (int d = 0; d < ndim; ++d)
        if (extents[d] == 0)
            return true;
    return false;
}

bool sc_equal_extents(int ndim, const int64_t one[], int other_ndim, const int64_t other[]) {
    if (ndim != other_ndim)
        return false;
    for (int d = 0; d < ndim; ++d)
        if (one[d] != other[d])
            return false;
    return true;
}

void sc_copy_extents(int ndim, int64_t to[], const int64_t from[]) {
    for (int d = 0; d < ndim; ++d)
        to[d] = from[d];
}

const char *sc_extents_text(char to[SC_EXTENTS_BYTES], int ndim, const int64_t extents[]) {
    int num = snprintf(to, SC_EXTENTS_BYTES, "(");
    for (int d = 0; d < ndim; ++d)
        num += snprintf(to + num, SC_EXTENTS_BYTES - (size_t)num, d == 0 ? "%" PRId64 : ", %" PRId64, extents[d]);
    snprintf(to + num, SC_EXTENTS_BYTES - (size_t)num, ndim == 1 ? ",)" : ")");
    return to;
}

int sc_sent_dtype(const sc_field *field, stream_dtype dtype, stream_dtype *sent, sc_error *error) {
    if (field->dtype != STREAM_AS_PUT && !sc_same_kind(dtype, field->dtype))
        return sc_fail(error, STREAM_ERROR_ARGUMENT,
                       "field '%s' is kept as %s, which %s cannot become without loss of its kind", field->name,
                       sc_dtype_name(field->dtype), sc_dtype_name(dtype));
    bool narrows = field->dtype != STREAM_AS_PUT && sc_dtype_bytes(field->dtype) <= sc_dtype_bytes(dtype);
    *sent = narrows ? field->dtype : dtype;
    return STREAM_OK;
}

static bool is_block(const sc_field *field, int num_ranks, int ndim, const int64_t count[]) {
    if (ndim != field->ndim || (num_ranks == 1 && !sc_equal_extents(ndim, count, ndim, field->shape)))
        return false;
    for (int d = 0; d < ndim; ++d)
        if (count[d] < 1)
            return false;
    return true;
}

static bool reaches_out(const sc_block *block) {
    for (int d = 0; d < block->ndim; ++d)
        if (block->offset[d] < 0 || block->count[d] > block->shape[d] ||
            block->offset[d] > block->shape[d] - block->count[d])
            return true;
    return false;
}

static int place_at(const int64_t offset[], sc_block *block, sc_error *error) {
    char count_text[SC_EXTENTS_BYTES], offset_text[SC_EXTENTS_BYTES], shape_text[SC_EXTENTS_BYTES];
    sc_copy_extents(block->ndim, block->offset, offset);
    if (!reaches_out(block))
        return STREAM_OK;
    return sc_fail(error, STREAM_ERROR_ARGUMENT, "the block %s at %s of field '%s' reaches out of its shape %s",
                   sc_extents_text(count_text, block->ndim, block->count),
                   sc_extents_text(offset_text, block->ndim, offset), block->field,
                   sc_extents_text(shape_text, block->ndim, block->shape));
}

static int place_in_order(const sc_field *field, int rank, int num_ranks, sc_block *block, sc_error *error) {
    char count_text[SC_EXTENTS_BYTES], even_text[SC_EXTENTS_BYTES], shape_text[SC_EXTENTS_BYTES];
    int64_t even_count[STREAM_MAX_DIMENSIONS];
    if (sc_equal_extents(field->ndim, block->count, field->ndim, field->shape)) {
        memset(block->offset, 0, sizeof block->offset);
        return STREAM_OK;
    }
    sc_even_share(field, rank, num_ranks, block->offset, even_count);
    if (sc_equal_extents(field->ndim, block->count, field->ndim, even_count))
        return STREAM_OK;
    return sc_fail(error, STREAM_ERROR_ARGUMENT,
                   "rank %d of %d sends %s of field '%s' %s; without an offset it would be %s: declare the field with "
                   "its offset",
                   rank, num_ranks, sc_extents_text(count_text, field->ndim, block->count), field->name,
                   sc_extents_text(shape_text, field->ndim, field->shape),
                   sc_extents_text(even_text, field->ndim, even_count));
}

int sc_place_block(const sc_field *field, int rank, int num_ranks, const int64_t offset[], int ndim,
                   const int64_t count[], sc_block *block, sc_error *error) {
    char shape_text[SC_EXTENTS_BYTES], count_text[SC_EXTENTS_BYTES];
    block->ragged = field->ragged;
    if (!is_block(field, num_ranks, ndim, count))
        return sc_fail(error, STREAM_ERROR_ARGUMENT, "field '%s' must have the shape %s, but has %s", field->name,
                       sc_extents_text(shape_text, field->ndim, field->shape),
                       sc_extents_text(count_text, ndim, count));
    block->field = field->name;
    block->ndim = ndim;
    sc_copy_extents(ndim, block->shape, field->shape);
    sc_copy_extents(ndim, block->count, count);
    return offset != NULL ? place_at(offset, block, error) : place_in_order(field, rank, num_ranks, block, error);
}
